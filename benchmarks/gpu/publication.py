"""Publication of the weights at the shape of Qwen2.5-0.5B, beside plain copies of as many bytes from the device.

`float32` and `bfloat16` are the types of the published weights. The chunks stay in this process: Ray's object store,
and the transfer into vLLM, are not included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.common import GIB, QWEN, Setting, alone, shape_of, write_model
from benchmarks.gpu.step import QUICK, settings
from squelch.actors.weights import checksum
from squelch.learner.publish import publish
from squelch.learner.trainer import Trainer


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
        if checksum(arrays) != bundle.checksum:
            raise RuntimeError("the published chunks do not have the published checksum")
        row = {"gib": bundle.num_bytes / GIB, "seconds": seconds, "gathered_s": bundle.seconds_gathered}
        row |= {"checksum_s": time.perf_counter() - start, "copy_s": copied_s(setting, bundle.num_bytes)}
        yield {str(dtype).removeprefix("torch."): row | {"of_a_copy": seconds / row["copy_s"]}}


def copied_s(setting: Setting, num_bytes: int) -> float:
    """Median seconds of a copy of this many bytes from the device into new host memory."""
    held = torch.zeros(num_bytes, dtype=torch.uint8, device=setting.device)
    return setting.median_s(lambda: held.to("cpu", copy=True), 3)
