import time
from typing import Any

import pytest
import torch

from squelch.learner.clock import Clock
from squelch.learner.metrics import PARTS


class Gpu:
    """A GPU that works 10 ms between any two events, and counts who waits for it."""

    waits = 0
    events = 0

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0

    def record(self) -> None:
        self.gpu.events += 1
        self.at = self.gpu.events

    def synchronize(self) -> None:
        assert self.at == self.gpu.events, "the last event, behind which nothing is left"
        self.gpu.waits += 1

    def elapsed_time(self, end: "Event") -> float:
        return 10.0 * (end.at - self.at)


def test_a_step_on_a_gpu_waits_for_it_once_however_many_parts_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("a wait for the whole GPU"))
    clock = Clock(torch.device("cuda"))
    for _ in range(7):
        with clock.part("forward_backward"):
            pass
        with clock.part("optimizer"):
            assert gpu.waits == 0
    assert clock.seconds() == pytest.approx(dict.fromkeys(PARTS, 0.0) | {"forward_backward": 0.07, "optimizer": 0.07})
    assert gpu.waits == 1


def test_parts_on_a_cpu_are_wall_seconds_and_add_up() -> None:
    clock = Clock(torch.device("cpu"))
    for _ in range(2):
        with clock.part("prepare"):
            time.sleep(0.01)
    seconds = clock.seconds()
    assert seconds["prepare"] >= 0.02
    assert {name for name, value in seconds.items() if value} == {"prepare"}
