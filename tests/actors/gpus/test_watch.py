"""The use of a GPU as NVML, which is faked, and torch's counters show it."""

import math
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from squelch.actors.gpus import watch
from squelch.actors.gpus.watch import Counters, GpuWatch, first_visible, load_nvml, watch_gpu

OTHERS = 4_194_304
"""Above the largest process id of Linux, so that no process has it."""


class NvmlError(Exception):
    pass


class Nvml:
    """NVML with two GPUs; `processes`: (pid, bytes) on them; `fails`: functions that raise."""

    NVMLError = NvmlError

    def __init__(self, processes: list[tuple[int, int | None]], fails: tuple[str, ...] = ()) -> None:
        self.processes, self.fails, self.asked = processes, fails, list[object]()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "fails"):
            return _refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self.asked.append(index)
        return f"GPU {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return "GPU 1"

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=31, memory=5)

    def nvmlDeviceGetMemoryInfo(self, gpu: str) -> SimpleNamespace:
        return SimpleNamespace(used=43 << 30, total=141 << 30, free=98 << 30)

    def nvmlDeviceGetUUID(self, gpu: str) -> str:
        return f"GPU-{gpu[-1]}"

    def nvmlDeviceGetName(self, gpu: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.processes]


def _refuse(*_: object) -> None:
    raise NvmlError("Not Supported")


def counters() -> Counters:
    return Counters("NVIDIA H200", used=20.0, total=80.0, own=7.0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SAMPLE_S", 0.001)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def sampled(one: GpuWatch) -> GpuWatch:
    """The watch once it has a sample."""
    end = time.monotonic() + 180
    while not one._busy:
        assert time.monotonic() < end, "no sample"
        time.sleep(0.001)
    return one


def test_nvml_shows_the_gpu_and_what_this_process_holds() -> None:
    nvml = Nvml([(os.getpid(), 9 << 30), (1, 31 << 30)])
    use = sampled(GpuWatch("rollout-0", "bfloat16", nvml=nvml)).take()
    assert use is not None and (use.actor, use.identity, use.name) == ("rollout-0", "GPU-0", "NVIDIA H200")
    assert use.busy == pytest.approx(0.31) and use.peak == 989e12
    assert (use.used, use.total, use.own) == (43 << 30, 141 << 30, 9 << 30)


def test_each_report_is_of_the_time_since_the_last() -> None:
    one = sampled(GpuWatch("rollout-0", "bfloat16", nvml=Nvml([])))
    one._query(lambda: None)
    one.take()
    with one._lock:
        one._busy = [0.5, 0.7]
        own, one._busy = list(one._busy), []
    assert own == [0.5, 0.7]
    sampled(one)
    use = one.take()
    assert use is not None and use.busy == pytest.approx(0.31)


@pytest.mark.parametrize(
    "processes",
    [[(OTHERS, 31 << 30), (os.getpid(), 9 << 30)], [(os.getpid(), None)], []],
    ids=["far", "hidden", "none"],
)
@pytest.mark.parametrize(("counted", "own"), [(counters, 7.0), (None, math.nan)])
def test_a_container_that_nvml_sees_from_outside_is_counted_by_torch(
    processes: list[tuple[int, int | None]], counted: Callable[[], Counters] | None, own: float
) -> None:
    """A process id of the host may be that of another process in the container."""
    use = GpuWatch("learner-0", "bfloat16", counted, Nvml(processes)).take()
    assert use is not None and use.own == pytest.approx(own, nan_ok=True) and use.used == 43 << 30


@pytest.mark.parametrize(
    "nvml", [None, Nvml([], ("nvmlDeviceGetHandleByIndex",)), Nvml([], ("nvmlDeviceGetMemoryInfo",))]
)
def test_without_nvml_torchs_counters_remain(nvml: Nvml | None) -> None:
    use = GpuWatch("learner-0", "float32", counters, nvml).take()
    assert use is not None and math.isnan(use.busy) and use.peak == 67e12
    assert (use.used, use.total, use.own) == (20.0, 80.0, 7.0)
    assert GpuWatch("rollout-0", "float32", None, nvml).take() is None


def test_a_part_of_a_gpu_has_memory_and_no_utilisation(caplog: pytest.LogCaptureFixture) -> None:
    one = GpuWatch("learner-0", "bfloat16", nvml=Nvml([], ("nvmlDeviceGetUtilizationRates",)))
    end = time.monotonic() + 180
    while "learner-0: the use of its GPU" not in caplog.text and time.monotonic() < end:
        time.sleep(0.001)
    use = one.take()
    assert use is not None and math.isnan(use.busy) and use.total == 141 << 30
    assert caplog.text.count("Not Supported") == 1


@pytest.mark.parametrize(("visible", "asked"), [(None, 0), ("3,4", 3), ("GPU-12ab,GPU-34cd", "GPU-12ab"), ("", 0)])
def test_the_gpu_is_the_first_that_the_process_may_use(
    visible: str | None, asked: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = Nvml([])
    GpuWatch("rollout-0", "bfloat16", nvml=nvml)
    assert nvml.asked == [asked] and first_visible(os.environ) == str(asked)


def test_a_missing_package_and_a_missing_driver_are_no_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert load_nvml() is None and "pip install nvidia-ml-py" in caplog.text
    module = ModuleType("pynvml")
    module.__dict__.update(NVMLError=NvmlError, nvmlInit=_refuse)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert load_nvml() is None and "NVML does not start: Not Supported" in caplog.text


def test_an_actor_on_cpus_has_no_gpu() -> None:
    assert watch_gpu("rollout-0", 0.0, "float32").take() is None
    assert watch_gpu("learner-0", 0.0, "float32", None).take() is None
