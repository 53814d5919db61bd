"""Seconds of each part of a training step, measured without a wait for the GPU within the step.

On a GPU the host runs ahead: it enqueues the kernels of several micro-batches before the first of them has finished. A
wait at the end of each part would let the GPU run empty there. `Clock` therefore enqueues an event at both ends of each
part, and waits once, when the seconds are read, for the last event.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from squelch.learner.metrics import PARTS


class Clock:
    """Seconds spent in each part of a training step (`PARTS`), which began at `begun` (`time.monotonic`)."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device`: where the work runs; None: on CPU."""
        self.begun = time.monotonic()
        self._on_gpu = device is not None and device.type == "cuda"
        self._spans: list[tuple[str, float, float]] = []
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the time of the context to the part `name`, on a GPU that between the events at its two ends."""
        if self._on_gpu:
            start = _event()
            yield
            self._events.append((name, start, _event()))
        else:
            began = time.perf_counter()
            yield
            self._spans.append((name, began, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        """Seconds of each of `PARTS` so far. Waits for the GPU."""
        found = dict.fromkeys(PARTS, 0.0)
        for name, began, ended in self._spans:
            found[name] += ended - began
        if self._events:
            self._events[-1][2].synchronize()
        for name, start, end in self._events:
            found[name] += start.elapsed_time(end) / 1000
        return found


def _event() -> torch.cuda.Event:
    """An event at the end of the work that is enqueued so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
