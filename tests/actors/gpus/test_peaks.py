"""A share of the peak is told of known GPUs only."""

import pytest

from squelch.actors.gpus.peaks import gpu_of, peak_of


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA L40", None),
        ("NVIDIA H100 64GB HBM2", None),
        ("cpu", None),
    ],
)
def test_a_gpu_is_known_by_its_whole_name(name: str, half: float | None) -> None:
    assert peak_of(name) == half and peak_of(name, "float16") == half


def test_float32_has_a_peak_of_its_own() -> None:
    gpu = gpu_of("NVIDIA H200")
    assert gpu is not None and gpu.peak("float32") == 67e12 < gpu.peak("bfloat16")
