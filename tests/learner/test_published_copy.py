"""The frozen copy of a published version, in sealed memory or on a GPU, and the object store filled from it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.actors import gpu_weights
from squelch.actors.messages import WeightBundle
from squelch.actors.weights import checksum
from squelch.actors.weights_file import ArraySpec, Unreachable, opened, read_arrays
from squelch.learner import published_copy
from squelch.learner.published_copy import Copies
from squelch.learner.trainer import Trainer
from tests.fakes.gpus import FakeGpu
from tests.learner.models import make_config, make_groups

pytestmark = pytest.mark.usefixtures("alone")
WAYS = ("shared_memory", "ipc")


class Later:
    """Stores chunks when it is told to, as another thread of the rank does."""

    def __init__(self, transfer: str, timeout_s: float = 180.0, refuses: str = "") -> None:
        self.numbers: list[int] = []
        self.copies = Copies(transfer, FakeGpu(refuses=refuses), timeout_s, self.begun)

    def begun(self, number: int) -> int:
        self.numbers.append(number)
        return number

    def stored(self) -> dict[str, np.ndarray]:
        numbers, self.numbers = self.numbers, []
        chunks = (self.copies.chunk(number) for number in numbers)  # each until the next
        return {name: array.copy() for chunk in chunks for name, array in chunk.items()}


def read(bundle: WeightBundle) -> str:
    """The digest of the weights that a process of the host reads."""
    with opened(bundle.shared) as path:
        if bundle.shared.gpu is not None:
            with gpu_weights.read(FakeGpu(), bundle.shared.gpu, bundle.table, bundle.checksum):
                return bundle.checksum
        return checksum(read_arrays(path, map(ArraySpec.of, bundle.shared.arrays)).items())


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of about a parameter each."""
    monkeypatch.setattr(published_copy, "CHUNK_BYTES", 4096)


@pytest.mark.parametrize("transfer", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_object_store_is_filled_from_the_frozen_version_while_the_learner_trains_on(
    model_dir: Path, in_chunks, transfer: str, dtype: torch.dtype
) -> None:
    trainer, later = Trainer(model_dir, make_config()), Later(transfer)
    streamed = trainer.publish(1, lambda chunk: chunk, dtype)
    bundle = trainer.publish(1, lambda chunk: pytest.fail("it is stored in the background"), dtype, later.copies)
    assert bundle.checksum == streamed.checksum == read(bundle)
    assert (bundle.num_bytes, bundle.bfloat16_names) == (streamed.num_bytes, streamed.bfloat16_names)
    assert bundle.chunks == tuple(range(len(bundle.chunks))) and len(bundle.chunks) > 3
    later.copies.free()
    assert trainer.train_step(1, make_groups()).updated
    assert checksum(later.stored().items()) == bundle.checksum
    second = trainer.publish(2, lambda chunk: chunk, dtype, later.copies)
    assert second.checksum != bundle.checksum and read(second) == second.checksum
    assert checksum(later.stored().items()) == second.checksum


@pytest.mark.parametrize("transfer", WAYS)
def test_a_new_publication_waits_until_the_version_before_is_stored(model_dir: Path, transfer: str) -> None:
    trainer, later = Trainer(model_dir, make_config()), Later(transfer)
    first = trainer.publish(1, lambda chunk: chunk, copies=later.copies)
    done, made = threading.Event(), list[WeightBundle]()

    def publish() -> None:
        made.append(trainer.publish(2, lambda chunk: chunk, copies=later.copies))
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    assert not done.wait(0.2)
    assert checksum(later.stored().items()) == first.checksum
    assert done.wait(180.0) and made[0].checksum == first.checksum
    thread.join()


def test_a_store_that_takes_nothing_is_not_awaited_for_ever(model_dir: Path) -> None:
    trainer, later = Trainer(model_dir, make_config()), Later("shared_memory", timeout_s=0.01)
    trainer.publish(1, lambda chunk: chunk, copies=later.copies)
    with pytest.raises(RuntimeError, match=r"1 of 1 chunks of the published weights were not put .* within 0\.01 s"):
        trainer.publish(2, lambda chunk: chunk, copies=later.copies)


def test_the_block_on_the_gpu_and_the_pages_are_made_once(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, later, made = Trainer(model_dir, make_config()), Later("ipc"), list[str]()
    for name in ("allocated", "pages"):
        call = getattr(FakeGpu, name)
        monkeypatch.setattr(
            FakeGpu, name, lambda self, size, name=name, call=call: (made.append(name), call(self, size))[1]
        )
    for version in (1, 2, 3):
        trainer.publish(version, lambda chunk: chunk, copies=later.copies)
        later.stored()
    assert sorted(made) == ["allocated", "pages"]


def test_what_lies_on_the_gpu_stays_there_in_a_training_step_and_sealed_memory_is_freed(model_dir: Path) -> None:
    for transfer in WAYS:
        trainer, later = Trainer(model_dir, make_config()), Later(transfer)
        bundle = trainer.publish(1, lambda chunk: chunk, copies=later.copies)
        later.copies.free()
        assert (later.copies.gpu_bytes >= bundle.num_bytes) == (transfer == "ipc")
        if transfer == "ipc":
            assert read(bundle) == bundle.checksum, "a worker that joins late reads it as well"
        else:
            with pytest.raises(Unreachable, match="newer weights replaced it"):
                read(bundle)


def test_a_driver_that_cannot_export_leaves_the_host_s_memory_and_the_reason(model_dir: Path) -> None:
    trainer, later = Trainer(model_dir, make_config()), Later("ipc", refuses="allocated")
    bundle = trainer.publish(1, lambda chunk: chunk, copies=later.copies)
    assert bundle.shared.gpu is None and read(bundle) == bundle.checksum
    assert "CUDA_ERROR_NOT_SUPPORTED" in bundle.why_not_on_gpu
    later.stored()
    assert trainer.publish(2, lambda chunk: chunk, copies=later.copies).why_not_on_gpu == bundle.why_not_on_gpu
