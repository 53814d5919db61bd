import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from squelch.actors.messages import GroupMember
from squelch.actors.model_size import BYTES
from squelch.actors.process.interfaces import listen
from squelch.actors.weight_group import WeightGroup
from squelch.actors.weights import checksum
from squelch.learner import publish as publication
from squelch.learner.publish import PROBE_LENGTH, as_array, gathered, publish, send
from squelch.learner.rank import DTYPES
from squelch.learner.trainer import Trainer
from tests.learner.models import make_config, make_groups, make_model

pytestmark = pytest.mark.usefixtures("alone")


def content(bundle: object) -> dict[str, np.ndarray]:
    return {name: array for chunk in bundle.chunks for name, array in chunk.items()}


@pytest.mark.parametrize("tied", [True, False])
def test_names_and_values_are_those_of_the_saved_model(tmp_path: Path, tied: bool) -> None:
    folder = make_model(tmp_path / "model", tied=tied)
    bundle = Trainer(folder, make_config()).publish(3, lambda chunk: chunk)
    with safe_open(folder / "model.safetensors", "numpy") as saved:
        assert set(content(bundle)) == set(saved.keys())
        assert all((array == saved.get_tensor(name)).all() for name, array in content(bundle).items())
    assert ("lm_head.weight" in content(bundle)) is not tied
    assert bundle.version == 3 and bundle.num_bytes == sum(a.nbytes for a in content(bundle).values())


def test_the_probe_is_computed_where_the_policy_computes_not_where_its_parameters_are(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a reviewer: offloaded parameters are on the CPU, and the probe's positions with them."""
    used: list[torch.device] = []
    monkeypatch.setattr(publication, "log_probs_of", lambda policy, ids, device: used.append(device) or np.zeros(1))
    trainer = Trainer(model_dir, make_config())
    trainer.device = torch.device("meta")
    trainer.publish(1, lambda chunk: chunk)
    assert used == [torch.device("meta")]


@pytest.mark.parametrize("dtype", BYTES)
def test_a_type_is_published_with_the_bytes_that_are_reckoned_for_it(model_dir: Path, dtype: str) -> None:
    """Found by a reviewer: float16 was published as float32, in an object store of half its size."""
    trainer = Trainer(model_dir, make_config())
    bundle = trainer.publish(1, lambda chunk: chunk, DTYPES.get(dtype, torch.float32))
    assert bundle.num_bytes == BYTES[dtype] * sum(array.size for array in content(bundle).values())


def test_the_checksum_is_over_all_chunks_in_order(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    whole = trainer.publish(1, lambda chunk: chunk)
    split = publish(trainer.policy, trainer.device, 1, lambda chunk: chunk, chunk_bytes=4096)
    assert len(whole.chunks) == 1 < len(split.chunks)
    assert checksum(content(split).items()) == whole.checksum == split.checksum


def test_the_probe_is_the_log_probability_under_the_published_weights(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(), temperature=0.5)
    trainer.train_step(1, make_groups())
    bundle = trainer.publish(1, lambda chunk: chunk)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    named = {name: torch.from_numpy(array) for name, array in content(bundle).items()}
    assert model.load_state_dict(named, strict=False).missing_keys == ["lm_head.weight"]
    ids = torch.from_numpy(bundle.probe_ids.astype(np.int64))
    assert len(ids) == PROBE_LENGTH and bundle.probe_ids.dtype == np.int32
    log_p = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    expected = log_p[:-1].gather(1, ids[1:, None]).squeeze(1)
    assert np.allclose(bundle.probe_log_probs, expected.detach().numpy(), atol=1e-5)


def test_of_a_parameter_that_was_cast_or_merged_no_further_copy_is_made(model_dir: Path) -> None:
    policy = Trainer(model_dir, make_config()).policy
    live = publication._live(policy)
    for dtype, shares in ((torch.float32, False), (torch.bfloat16, True)):
        for _, tensor in publication.whole(policy, dtype):
            assert (publication._copied(tensor, live).data_ptr() == tensor.data_ptr()) is shares


def test_published_arrays_do_not_follow_the_parameters(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    bundle = trainer.publish(1, lambda chunk: chunk)
    trainer.train_step(1, make_groups())
    assert checksum(content(bundle).items()) == bundle.checksum
    later = trainer.publish(2, lambda chunk: chunk)
    assert later.checksum != bundle.checksum and (later.probe_ids == bundle.probe_ids).all()


def test_bfloat16_travels_as_its_bits(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    exact, rounded = (content(trainer.publish(1, lambda c: c, dtype)) for dtype in (torch.float32, torch.bfloat16))
    bundle = trainer.publish(1, lambda chunk: chunk, torch.bfloat16)
    assert bundle.bfloat16_names == set(exact)
    for name, bits in rounded.items():
        assert bits.dtype == np.uint16
        back = torch.from_numpy(bits).view(torch.bfloat16)
        assert (back == torch.from_numpy(exact[name]).bfloat16()).all()


def test_integer_buffers_keep_their_type() -> None:
    assert publication.type_of(torch.tensor([1, 2]), torch.bfloat16) == torch.int64


def test_a_version_streams_through_the_learner_and_is_never_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the bytes of whole tensors alive at any time; what was handed over is gone."""
    trainer = Trainer(make_model(tmp_path / "model", width=64, layers=6), make_config())
    live = {"bytes": 0, "peak": 0}

    def freed(num_bytes: int) -> None:
        live["bytes"] -= num_bytes

    def watched(tensor: torch.Tensor, _: object) -> torch.Tensor:
        copy = tensor.clone()
        live["bytes"] += copy.nbytes
        live["peak"] = max(live["peak"], live["bytes"])
        weakref.finalize(copy, freed, copy.nbytes)
        return copy

    monkeypatch.setattr(publication, "_copied", watched)
    sizes = [tensor.nbytes for _, tensor in gathered(trainer.policy)]
    bundle = publish(trainer.policy, trainer.device, 1, lambda chunk: len(chunk), chunk_bytes=40_000)
    assert len(bundle.chunks) > 5 and bundle.num_bytes == sum(sizes)
    assert 0 < live["peak"] <= 40_000 + 2 * max(sizes) < sum(sizes) / 3


def test_the_probe_of_a_rank_that_is_alone_holds_one_layer_gathered(tmp_path: Path) -> None:
    trainer = Trainer(make_model(tmp_path / "model", layers=6), make_config(min_num_params=0))
    layers = [module for module in trainer.policy.model.modules() if isinstance(module, FSDPModule)]
    held: list[int] = []

    def count(*_: object) -> None:
        held.append(sum(not isinstance(next(layer.parameters()), DTensor) for layer in layers))

    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    before = trainer.train_step(0, make_groups(2))
    assert before.updated and max(held) == 6, "in training a rank that is alone gathers each layer once"
    held.clear()
    trainer.publish(1, lambda chunk: None)
    assert held == [1] * 6
    for hook in hooks:
        hook.remove()
    assert trainer.train_step(1, make_groups(2)).updated


def test_gathering_and_sending_are_timed_apart(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, sent = Trainer(model_dir, make_config()), list[object]()
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 1000 * len(sent))  # a chunk takes 1,000 s
    monkeypatch.setattr(publication, "time", clock)
    slow = publish(trainer.policy, trainer.device, 1, sent.append, chunk_bytes=1 << 30)
    assert slow.seconds_sent >= 1000 > slow.seconds_gathered > 0
    assert publish(trainer.policy, trainer.device, 1, lambda chunk: None).seconds_sent < 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adapters", [False, True])
def test_a_broadcast_brings_the_bits_of_the_bundle(model_dir: Path, dtype: torch.dtype, adapters: bool) -> None:
    trainer = Trainer(model_dir, make_config(**({"lora": {"rank": 2}} if adapters else {})))
    bundle = trainer.publish(1, lambda chunk: chunk, dtype)
    listener, received = listen("127.0.0.1"), []
    member = GroupMember(1, "127.0.0.1", listener.getsockname()[1], 0, 2, "gloo", 30.0)

    def receive() -> None:
        group = WeightGroup(replace(member, rank=1), "cpu")
        received.extend((n, as_array(t).copy()) for b in group.receive(bundle.table) for n, t in b)
        group.close()

    receiver = threading.Thread(target=receive)
    receiver.start()
    group = WeightGroup(member, "cpu", listener)
    assert send(trainer.policy, group, dtype) is None
    receiver.join()
    assert checksum(received) == bundle.checksum
    group.close()


def test_a_broadcast_that_fails_says_why_and_every_rank_gathers_to_the_end(model_dir: Path, monkeypatch) -> None:
    trainer, gathered_names = Trainer(model_dir, make_config()), []

    class Broken:
        def send(self, weights: Iterator[tuple[str, torch.Tensor]], table: object) -> None:
            gathered_names.append(next(weights)[0])
            raise RuntimeError("connection reset")

    unsharded = publication._unsharded
    monkeypatch.setattr(
        publication, "_unsharded", lambda policy: ((gathered_names.append(n), (n, t))[1] for n, t in unsharded(policy))
    )
    assert send(trainer.policy, Broken()) == "connection reset"
    assert set(gathered_names) == {entry.name for entry in publication.table(trainer.policy)}
    assert send(trainer.policy, None) is None, "the other ranks only gather"


def test_the_other_ranks_gather_and_neither_copy_nor_hash(model_dir: Path, monkeypatch) -> None:
    """Every rank copied the whole model to the host and hashed it, and threw both away."""
    trainer, names = Trainer(model_dir, make_config(lora={"rank": 2})), []
    unsharded = publication._unsharded
    monkeypatch.setattr(publication.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(
        publication, "_unsharded", lambda policy: ((names.append(n), (n, t))[1] for n, t in unsharded(policy))
    )
    for work in ("_copied", "DeviceDigest", "merged"):
        monkeypatch.setattr(publication, work, lambda *_: pytest.fail("another rank works for rank 0"))
    assert publish(trainer.policy, trainer.device, 1, lambda chunk: pytest.fail("and stores nothing")) is None
    assert set(names) == set(publication.entries(trainer.policy))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_merged_where_the_policy_lies_and_cast_once(model_dir: Path, monkeypatch, dtype) -> None:
    trainer, order = Trainer(model_dir, make_config(lora={"rank": 2})), []
    joined, copied = publication.merged, publication._copied
    monkeypatch.setattr(publication, "merged", lambda named, lora: (order.append("merged"), joined(named, lora))[1])
    monkeypatch.setattr(publication, "_copied", lambda t, live: (order.append(str(t.dtype)), copied(t, live))[1])
    bundle = trainer.publish(1, lambda chunk: chunk, dtype)
    assert order[0] == "merged" and set(order[1:]) == {str(dtype)}
    assert checksum(content(bundle).items()) == bundle.checksum
