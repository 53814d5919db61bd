"""Which types of numbers the processor of this host only emulates. Loads torch when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.config import RunConfig


def vectors() -> str:
    """The vector instructions that PyTorch uses here, such as `AVX2` and `AVX512`."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def emulates_16_bits(instructions: str) -> bool:
    """Whether products of 16-bit numbers are slower than those of float32 by a large factor (docs/real-models.md)."""
    return instructions != "AVX512"


def emulated(config: RunConfig) -> str:
    """A sentence on the 16-bit types that a run would compute with on a processor that emulates them; empty if there
    are none. Parties on other hosts are taken to have processors like this one."""
    parties = {"learner": config.learner, "rollout": config.rollout, "scorer": config.scorer}
    slow = [
        f"{name}.dtype={party.dtype}"
        for name, party in parties.items()
        if party.num_gpus == 0 and party.dtype != "float32" and (name != "scorer" or config.scorer.enabled)
    ]
    if not slow or not emulates_16_bits(found := vectors()):
        return ""
    return (
        f"{' and '.join(slow)}: this processor has {found} alone and emulates 16-bit numbers, many times slower than "
        "float32; set float32"
    )
