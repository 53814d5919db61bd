"""What known GPUs can do by their data sheets, by their name. Pure.

A processor has no row: how much it reaches depends on its clock, its vector units and on who else uses it, and to
measure it would take seconds of the cores that the run trains on. Rates on CPU are therefore reported alone, without a
share of a peak.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet: dense products in bfloat16 and in float32 (without TF32), FLOP/s; memory, bytes per
    second."""

    name: str
    half: float
    single: float
    bandwidth: float

    def peak(self, dtype: str) -> float:
        """Products of numbers of this type, FLOP/s."""
        return self.single if dtype == "float32" else self.half


GPUS = {
    r"H200 NVL": Gpu("H200 NVL", 835e12, 60e12, 4800e9),
    r"H200": Gpu("H200", 989e12, 67e12, 4800e9),
    r"H100 NVL": Gpu("H100 NVL", 835e12, 60e12, 3900e9),
    r"H100 PCIe": Gpu("H100 PCIe", 756e12, 51e12, 2000e9),
    r"H100 80GB HBM3": Gpu("H100 SXM", 989e12, 67e12, 3350e9),
    r"A100": Gpu("A100", 312e12, 19.5e12, 2039e9),
    r"L40S": Gpu("L40S", 362e12, 91.6e12, 864e9),
    r"L4": Gpu("L4", 121e12, 30.3e12, 300e9),
    r"A10": Gpu("A10", 125e12, 31.2e12, 600e9),
}
"""GPUs by a part of the driver's name of them (NVIDIA's data sheets); the first that fits counts."""


def gpu_of(name: str) -> Gpu | None:
    """The GPU that the driver calls `name`; None if it has no row."""
    return next((gpu for part, gpu in GPUS.items() if re.search(rf"\b{part}\b", name)), None)


def peak_of(name: str, dtype: str = "bfloat16") -> float | None:
    """Dense FLOP/s of the GPU that the driver calls `name`; None if it has no row."""
    gpu = gpu_of(name)
    return None if gpu is None else gpu.peak(dtype)
