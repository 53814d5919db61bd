"""Which types of numbers the processor of this host only emulates. Loads torch when it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig


PRODUCTS = frozenset({"avx512_bf16", "amx_bf16"})
"""Instructions that multiply 16-bit numbers, as the kernel names them."""


def vectors() -> str:
    """The vector instructions that PyTorch uses here, such as `AVX2` and `AVX512`."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def emulates_16_bits(instructions: str) -> bool:
    """Whether products of 16-bit numbers are slower than those of float32 by a large factor
    (docs/guide/real-models.md). AVX-512 alone has none; if the kernel does not list the processor's instructions, it is
    assumed to have them."""
    if instructions != "AVX512":
        return True
    has = flags()
    return bool(has) and not has & PRODUCTS


def flags() -> frozenset[str]:
    """The processor's instructions, by the kernel's names; empty if it does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def emulated(config: RunConfig) -> str:
    """A sentence on the 16-bit types that a run would compute with on a processor that emulates them; empty if there
    are none. Actors on other hosts are taken to have processors like this one."""
    actors = {"learner": config.learner, "rollout": config.rollout, "scorer": config.scorer}
    slow = [
        f"{name}.dtype={actor.dtype}"
        for name, actor in actors.items()
        if actor.num_gpus == 0 and actor.dtype != "float32" and (name != "scorer" or config.scorer.enabled)
    ]
    if not slow or not emulates_16_bits(found := vectors()):
        return ""
    return (
        f"{' and '.join(slow)}: this processor has {found} without products of 16 bits and emulates them, slower than "
        "float32; set float32"
    )
