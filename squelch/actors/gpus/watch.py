"""The use of an actor's GPU: NVML in a thread of the actor's process, torch's counters for what NVML does not show.

The package `nvidia-ml-py` and a driver are optional: without them a GPU has no utilisation, and that is no error.
NVML numbers processes as the host does. Their memory is taken from it only if every process that it lists is one of
this process's namespace; in a container, torch's counters take its place.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from squelch.actors.gpus.peaks import peak_of
from squelch.actors.gpus.records import GpuUse

SAMPLE_S = 0.25
"""NVML itself averages over a sixth of a second to a second."""
log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Counters:
    """What torch knows of this process's GPU, in bytes."""

    name: str
    used: float
    total: float
    own: float


def first_visible(environment: Mapping[str, str]) -> str:
    """The first GPU that CUDA_VISIBLE_DEVICES leaves to the process: an index, or a UUID. Ray sets the variable."""
    return (environment.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0].strip()


def load_nvml() -> Any:
    """The initialised module of `nvidia-ml-py`; None, with the reason in the log, if it or a driver is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        log.warning("the utilisation of GPUs is not measured: pip install nvidia-ml-py")
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.warning("the utilisation of GPUs is not measured: NVML does not start: %s", error)
        return None
    return nvml


class GpuWatch:
    """Samples an actor's GPU from its creation to the end of the process. `counters`: torch's, where this process
    itself uses the GPU; `nvml`: the module, as of `load_nvml`; without both nothing is known."""

    def __init__(
        self, actor: str, dtype: str, counters: Callable[[], Counters] | None = None, nvml: Any = None
    ) -> None:
        self.actor, self.dtype, self._counters, self._nvml = actor, dtype, counters, nvml
        self._lock = threading.Lock()
        self._busy: list[float] = []
        self._gpu = None if nvml is None else self._query(self._find)
        if self._gpu is not None:
            threading.Thread(target=self._sample, name="gpu", daemon=True).start()

    def take(self) -> GpuUse | None:
        """The use since the last call; None if neither NVML nor torch shows the GPU."""
        counters = None if self._counters is None else self._counters()
        if self._gpu is not None and (seen := self._query(self._seen)) is not None:
            return replace(seen, own=counters.own) if math.isnan(seen.own) and counters is not None else seen
        if counters is None:
            return None
        identity = f"{counters.name} {first_visible(os.environ)}"
        return self._use(identity, counters.name, math.nan, counters.used, counters.total, counters.own)

    def _use(self, identity: str, name: str, busy: float, used: float, total: float, own: float) -> GpuUse:
        peak = peak_of(name, self.dtype)
        return GpuUse(self.actor, identity, name, math.nan if peak is None else peak, busy, used, total, own)

    def _query(self, question: Callable[[], Answer]) -> Answer | None:
        """NVML's answer; None, with the reason in the log, if it has none."""
        try:
            return question()
        except self._nvml.NVMLError as error:
            log.warning("%s: the use of its GPU is not measured by NVML: %s", self.actor, error)
            return None

    def _find(self) -> Any:
        visible = first_visible(os.environ)
        if visible.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(visible))
        return self._nvml.nvmlDeviceGetHandleByUUID(visible)

    def _sample(self) -> None:
        pause = threading.Event()
        while not pause.wait(SAMPLE_S):
            rates = self._query(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._gpu))
            if rates is None:  # e.g. a part of a GPU (MIG), which has no utilisation of its own
                return
            with self._lock:
                self._busy.append(rates.gpu / 100)

    def _seen(self) -> GpuUse:
        with self._lock:
            samples, self._busy = self._busy, []
        busy = sum(samples) / len(samples) if samples else math.nan
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._gpu)
        identity, name = self._text("nvmlDeviceGetUUID"), self._text("nvmlDeviceGetName")
        return self._use(identity, name, busy, float(memory.used), float(memory.total), self._own_bytes())

    def _text(self, function: str) -> str:
        found = getattr(self._nvml, function)(self._gpu)
        return found.decode() if isinstance(found, bytes) else found

    def _own_bytes(self) -> float:
        """Bytes of this process and its children; NaN if NVML's processes are those of another namespace."""
        listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._gpu)
        if not all(Path(f"/proc/{process.pid}").exists() for process in listed):
            return math.nan
        own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        held = [process.usedGpuMemory for process in listed if process.pid in own]
        return float(sum(held)) if held and None not in held else math.nan


def watch_gpu(actor: str, num_gpus: float, dtype: str, counters: Callable[[], Counters] | None = None) -> GpuWatch:
    """A watch of the actor's GPU, if it has one."""
    return GpuWatch(actor, dtype, counters, load_nvml()) if num_gpus > 0 else GpuWatch(actor, dtype)
