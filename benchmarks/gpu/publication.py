"""Publication of the weights at the shape of Qwen2.5-0.5B, beside plain copies of as many bytes from the device.

`float32` and `bfloat16` are the types of the published weights. The chunks stay in this process: Ray's object store,
and the load into vLLM, are not included. `stored_s` and `shared_s` are the seconds from the learner's parameters until
an engine's process can load the weights, by the two ways: the rollout worker copies chunks into memory of its own,
which the engine's process checks, or the learner's sealed memory is mapped where it lies. `gpu_s`, on a GPU, is the
same for the block that both share on the GPU, which another process opens, checks and copies (`opened_s`).
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.common import GIB, QWEN, Setting, alone, shape_of, write_model
from benchmarks.gpu.step import QUICK, settings
from squelch.actors import gpu_weights
from squelch.actors.gpus.memory import GpuMemory
from squelch.actors.messages import WeightBundle
from squelch.actors.weights import checksum
from squelch.actors.weights_file import ArraySpec, opened, read_arrays, written_arrays
from squelch.learner.publish import publish
from squelch.learner.published_copy import Copies
from squelch.learner.trainer import Trainer

LONGEST_S = 60.0
"""Seconds that a publication waits for the one before."""


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """Seconds of a publication in each type, after one unmeasured publication."""
    model = write_model(shape_of(QWEN, setting.quick), setting.folder / "model")
    alone(setting.device)
    trainer = Trainer(model, settings(QUICK, setting.device))
    yield {"shape": QWEN}
    trainer.publish(1, lambda chunk: chunk)
    for dtype in (torch.float32, torch.bfloat16):
        start = time.perf_counter()
        bundle = publish(trainer.policy, trainer.device, 2, lambda chunk: chunk, dtype)
        seconds = time.perf_counter() - start
        assert bundle is not None, "rank 0 has the bundle"
        arrays = [(name, array) for chunk in bundle.chunks for name, array in chunk.items()]
        start = time.perf_counter()
        with written_arrays(arrays, bundle.bfloat16_names) as (path, entries):
            checked_s = checked(path, entries, bundle)
        stored = seconds + time.perf_counter() - start
        row = {"gib": bundle.num_bytes / GIB, "seconds": seconds, "gathered_s": bundle.seconds_gathered}
        row |= {"checksum_s": checked_s, "copy_s": copied_s(setting, bundle.num_bytes)}
        row |= {"of_a_copy": seconds / row["copy_s"], "stored_s": stored, "shared_s": shared_s(setting, trainer, dtype)}
        if setting.device == "cuda":
            row |= gpu_s(setting, trainer, dtype)
        yield {str(dtype).removeprefix("torch."): row}


def shared_s(setting: Setting, trainer: Trainer, dtype: torch.dtype) -> float:
    """Seconds in which a version is published in memory, opened by its path, and mapped. What is sealed is not
    checked. The object store's part is not included, which follows in the background."""
    start = time.perf_counter()
    copies = Copies("shared_memory", GpuMemory(torch.device(setting.device)), LONGEST_S, lambda number: None)
    bundle = publish(trainer.policy, trainer.device, 2, lambda chunk: chunk, dtype, copies=copies)
    assert bundle is not None and bundle.shared is not None, "rank 0 has the bundle"
    with opened(bundle.shared) as path:
        read_arrays(path, map(ArraySpec.of, bundle.shared.arrays))
    seconds = time.perf_counter() - start
    copies.free()
    return seconds


def gpu_s(setting: Setting, trainer: Trainer, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of a second version into the block on the GPU, and of another process that opens, checks and copies it;
    `background_s`: of its chunks into pinned pages, which training does not wait for."""
    numbers = list[int]()
    copies = Copies("ipc", GpuMemory(torch.device(setting.device)), LONGEST_S, numbers.append)
    publish(trainer.policy, trainer.device, 2, lambda chunk: chunk, dtype, copies=copies)
    start = time.perf_counter()
    for number in numbers:
        copies.chunk(number)
    fetched = time.perf_counter() - start
    start = time.perf_counter()
    bundle = publish(trainer.policy, trainer.device, 3, lambda chunk: chunk, dtype, copies=copies)
    assert bundle is not None and bundle.shared is not None, "rank 0 has the bundle"
    published = time.perf_counter() - start
    if bundle.why_not_on_gpu:
        raise RuntimeError(bundle.why_not_on_gpu)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        opened_s = other.submit(opening_s, bundle).result()
    return {"background_s": fetched, "opened_s": opened_s, "gpu_s": published + opened_s}


def opening_s(bundle: WeightBundle) -> float:
    """In another process: the second time that it opens the block, compares the digest, and copies the weights."""
    assert bundle.shared is not None and bundle.shared.gpu is not None, "the weights are on the GPU"
    memory = GpuMemory(torch.device("cuda", 0))
    for _ in range(2):
        start = time.perf_counter()
        with (
            opened(bundle.shared),
            gpu_weights.read(memory, bundle.shared.gpu, bundle.table, bundle.checksum) as weights,
        ):
            for _, tensor in weights:
                tensor.clone()
        seconds = time.perf_counter() - start
    return seconds


def checked(path: Path, entries: Iterable[Mapping[str, Any]], bundle: WeightBundle) -> float:
    """Seconds in which the weights are mapped and their digest is compared, as an engine's process does."""
    start = time.perf_counter()
    if checksum(read_arrays(path, map(ArraySpec.of, entries)).items()) != bundle.checksum:
        raise RuntimeError("the published weights do not have the published digest")
    return time.perf_counter() - start


def copied_s(setting: Setting, num_bytes: int) -> float:
    """Median seconds of a copy of this many bytes from the device into new host memory."""
    held = torch.zeros(num_bytes, dtype=torch.uint8, device=setting.device)
    return setting.median_s(lambda: held.to("cpu", copy=True), 3)
