"""What an actor reports of its work and of its GPU. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operations:
    """Of a training step over all ranks: products and attention's products, in FLOP; `per_token`: products of one
    sampled token's forward pass."""

    products: float = 0.0
    attention: float = 0.0
    per_token: float = 0.0

    def __add__(self, other: Operations) -> Operations:
        """Of both ranks, whose model is the same."""
        return Operations(self.products + other.products, self.attention + other.attention, self.per_token)


@dataclass(frozen=True)
class GpuUse:
    """The use of the (first) GPU of an actor since the last report. NaN: not known."""

    actor: str
    identity: str
    """Equal for actors that share the GPU."""
    name: str
    peak: float
    """Dense products in the type in which the actor computes, FLOP/s."""
    busy: float
    """Share of the time in which any process had a kernel on the GPU."""
    used: float
    """Bytes of the GPU in use by all processes."""
    total: float
    own: float
    """Bytes that the actor's processes hold: of NVML, or torch's largest reservation."""
