"""Weights on a GPU that two processes share, with the host's memory in the GPU's place: everything but CUDA's own
calls, in which `tests/actors/gpus/test_on_cuda.py` takes their place."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
import torch

from squelch.actors import gpu_weights
from squelch.actors.gpu_weights import GpuWeights
from squelch.actors.gpus.memory import GpuRefused
from squelch.actors.messages import OnGpu, SharedWeights, TensorEntry
from squelch.actors.weights import checksum
from squelch.actors.weights_file import Unreachable, opened
from tests.fakes.gpus import FakeGpu

TABLE = (TensorEntry("a", "float32", (3, 2)), TensorEntry("b", "bfloat16", (5,)), TensorEntry("c", "int64", ()))
READER = """
import json, sys, time
from squelch.actors import gpu_weights
from squelch.actors.messages import OnGpu, SharedWeights, TensorEntry
from squelch.actors.weights_file import opened
from tests.fakes.gpus import FakeGpu
told = json.loads(sys.argv[1])
gpu = OnGpu(told["gpu"], bytes.fromhex(told["handle"]), told["num_bytes"], told["number"])
shared = SharedWeights(told["path"], told["name"], told["ticket_bytes"], (), gpu)
table = [TensorEntry(name, dtype, tuple(shape)) for name, dtype, shape in told["table"]]
with opened(shared), gpu_weights.read(FakeGpu(), gpu, table, told["checksum"]) as weights:
    print(json.dumps({name: tensor.tolist() for name, tensor in weights}), flush=True)
    time.sleep(600)
"""


def version(number: int) -> list[tuple[str, torch.Tensor]]:
    """A version's parameters."""
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64}
    return [(entry.name, torch.full(entry.shape, number, dtype=types[entry.dtype])) for entry in TABLE]


def digest(weights: list[tuple[str, torch.Tensor]]) -> str:
    return checksum((n, t.view(torch.uint16).numpy() if t.dtype == torch.bfloat16 else t.numpy()) for n, t in weights)


def written(writer: GpuWeights, number: int, timeout_s: float = 180.0) -> tuple[SharedWeights, str, bool]:
    ended = writer.begin(timeout_s)
    for name, tensor in version(number):
        writer.add(name, tensor)
    return writer.seal(), digest(version(number)), ended


def in_plain_words(shared: SharedWeights, checksum_: str) -> str:
    """What a reader is told, as text: nothing of it needs a class."""
    gpu = asdict(shared.gpu) | {"handle": shared.gpu.handle.hex()}
    table = [[entry.name, entry.dtype, list(entry.shape)] for entry in TABLE]
    ticket = {"path": shared.path, "name": shared.name, "ticket_bytes": shared.num_bytes}
    return json.dumps(gpu | ticket | {"table": table, "checksum": checksum_})


@pytest.fixture
def writer() -> Iterator[GpuWeights]:
    gpu = FakeGpu()
    yield GpuWeights(gpu, TABLE)
    gpu.close()


@contextmanager
def reading(shared: SharedWeights, digits: str, gpu: FakeGpu | None = None):
    with opened(shared), gpu_weights.read(gpu or FakeGpu(), shared.gpu, TABLE, digits) as weights:
        yield dict(weights)


def test_another_process_reads_a_version_by_plain_bytes_and_numbers_and_gives_it_back_if_it_is_killed(
    writer: GpuWeights,
) -> None:
    written(writer, 1)
    shared, digits, _ = written(writer, 2)
    told = in_plain_words(shared, digits)
    with subprocess.Popen([sys.executable, "-c", READER, told], stdout=subprocess.PIPE, text=True) as reader:
        assert json.loads(reader.stdout.readline()) == {name: tensor.tolist() for name, tensor in version(2)}
        assert not writer._ticket.left(0.0), "it reads still"
        reader.kill()
    assert written(writer, 3)[2], "nobody reads any more"


def test_the_next_version_waits_for_the_readers_of_the_present_one(writer: GpuWeights) -> None:
    shared, digits, _ = written(writer, 1)
    done = threading.Event()
    with reading(shared, digits) as weights:
        thread = threading.Thread(target=lambda: (written(writer, 2), done.set()))
        thread.start()
        assert not done.wait(0.2) and (weights["a"] == 1).all()
    assert done.wait(180.0)
    thread.join()


def test_who_comes_late_is_told_that_the_version_was_replaced(writer: GpuWeights) -> None:
    shared, digits, _ = written(writer, 1)
    newer, newest, _ = written(writer, 2)
    with pytest.raises(Unreachable, match="newer weights replaced it"), reading(shared, digits):
        pass
    with pytest.raises(Unreachable, match="holds another version"), reading(replace(newer, gpu=shared.gpu), digits):
        pass
    with reading(newer, newest) as weights:
        assert (weights["b"] == 2).all()
    writer._ticket.left(0.0)
    with pytest.raises(Unreachable, match="is being replaced by newer weights"), reading(newer, newest):
        pass


def test_a_reader_that_does_not_end_is_not_awaited_for_ever_and_sees_that_its_weights_changed(
    writer: GpuWeights,
) -> None:
    gpu = FakeGpu()
    shared, digits, _ = written(writer, 1)
    with pytest.raises(RuntimeError, match="overwritten while they were read"), reading(shared, digits, gpu):
        assert written(writer, 2, timeout_s=0.0)[2] is False
    assert gpu.open == 0


def test_weights_that_cannot_be_read_are_refused_with_the_reason(writer: GpuWeights) -> None:
    shared, digits, _ = written(writer, 1)
    gpu: OnGpu = shared.gpu
    for reason, other, memory in [
        (r"on GPU-0, and this process is on GPU-1", shared, FakeGpu(gpu="GPU-1")),
        (r"cannot be opened: the driver refuses cuIpcOpen\w+: CUDA_ERROR", shared, FakeGpu(refuses="opened")),
        (r"has 9 bytes, and its table 72", replace(shared, gpu=replace(gpu, num_bytes=9)), FakeGpu()),
    ]:
        with pytest.raises(Unreachable, match=reason), reading(other, digits, memory):
            pass
        assert memory.open == 0
    with pytest.raises(Unreachable, match=rf"have digest {digits}, published was 00"), reading(shared, "00"):
        pass


def test_a_driver_that_cannot_export_and_a_parameter_out_of_order_are_errors(writer: GpuWeights) -> None:
    with pytest.raises(GpuRefused, match=r"cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED \(801\)"):
        GpuWeights(FakeGpu(refuses="allocated"), TABLE)
    writer.begin(0.0)
    with pytest.raises(ValueError, match=r"gathered b .* but the table expects"):
        writer.add(*version(1)[1])
