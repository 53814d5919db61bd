"""The digest that identifies a version of the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors import device_sums
from squelch.actors.device_sums import DeviceDigest, folded, torch_sums
from squelch.actors.weights import BLOCK_BYTES, BLOCK_WORDS, block_sums, checksum, keys

BYTES = st.integers(0, 2**32 - 1).map(np.random.default_rng)
SIZES = st.one_of(
    st.integers(0, 50), st.sampled_from([n * BLOCK_BYTES + rest for n in (1, 2) for rest in (-3, 0, 1, 6)])
)


@settings(max_examples=60, deadline=None)
@given(BYTES, SIZES)
def test_a_device_gets_the_bits_of_the_host(rng, size):
    data = rng.integers(0, 256, size, dtype=np.uint8)
    assert np.array_equal(torch_sums(torch.from_numpy(data)).numpy(), block_sums(data))


@pytest.mark.parametrize("rows", [1, 3])
def test_the_sums_do_not_depend_on_how_much_a_device_widens_at_once(monkeypatch, rows):
    data = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 5 * BLOCK_BYTES + 7, dtype=np.uint8))
    monkeypatch.setattr(device_sums, "DEVICE_WORDS", rows * BLOCK_WORDS)
    assert np.array_equal(torch_sums(data).numpy(), block_sums(data.numpy()))


def test_a_tensor_that_starts_between_two_words_has_the_sums_of_its_bytes():
    whole = torch.arange(41, dtype=torch.bfloat16)
    assert torch.equal(torch_sums(whole[1:]), torch_sums(whole[1:].clone()))


@settings(max_examples=100, deadline=None)
@given(BYTES, st.data())
def test_one_changed_bit_changes_the_sum(rng, data):
    words = rng.integers(0, 256, data.draw(SIZES.filter(bool)), dtype=np.uint8)
    changed = words.copy()
    changed[data.draw(st.integers(0, words.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not np.array_equal(block_sums(words), block_sums(changed))


@settings(max_examples=100, deadline=None)
@given(BYTES, st.data(), st.sampled_from([0x80000000, 0x00010000, 0x00000001]))
def test_two_words_that_swap_places_change_the_sum(rng, data, difference):
    """Also words that differ in their sign alone, which a plain sum, or even keys, would miss."""
    words = rng.integers(0, 2**32, 2 * BLOCK_WORDS, dtype=np.uint32)
    first, second = data.draw(st.lists(st.integers(0, words.size - 1), min_size=2, max_size=2, unique=True))
    words[second] = words[first] ^ np.uint32(difference)
    swapped = words.copy()
    swapped[[first, second]] = words[[second, first]]
    assert not np.array_equal(block_sums(words), block_sums(swapped))
    assert folded(torch.from_numpy(words.view(np.int32))) != folded(torch.from_numpy(swapped.view(np.int32)))


def test_tensors_that_swap_places_change_the_digest():
    a, b = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32) + 1
    assert checksum([("a", a), ("b", b)]) != checksum([("a", b), ("b", a)])


def test_keys_are_odd_and_differ_in_their_low_33_bits():
    low = keys().astype(np.uint64) & np.uint64(2**33 - 1)
    assert len(np.unique(low)) == BLOCK_WORDS and (low & np.uint64(1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_a_tensor_and_its_array_have_one_digest(dtype):
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    array = tensor.view(torch.uint16).numpy() if dtype == torch.bfloat16 else tensor.numpy()
    digest = DeviceDigest()
    for name in ("w", "v"):
        digest.add(name, tensor)
    assert digest.hexdigest() == checksum([("w", array), ("v", array)])
