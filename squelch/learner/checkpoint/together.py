"""If one rank fails, all ranks fail: the ranks exchange their errors, and all of them raise.

All functions are collectives, and each waits for the others at most the process group's time-out. Ranks exchange text
in tensors of bytes; none of it is pickled.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError

WRITE_ERRORS = (OSError, SafetensorError)
REASON_BYTES = 2048
"""Most bytes of UTF-8 of the reason that a rank sends to the others."""
Prepared = TypeVar("Prepared")


def on_rank_zero(action: Callable[[], None]) -> None:
    """Run `action` on rank 0 while the others wait; if it fails to write, all ranks raise OSError."""
    on_every_rank(action if dist.get_rank() == 0 else _nothing)


def _nothing() -> None:
    """The part of a rank that only waits for the others."""


def on_every_rank(action: Callable[[], None]) -> None:
    """Run `action`; if it fails to write on any rank, all ranks raise OSError, which names the ranks."""
    own = ""
    try:
        action()
    except WRITE_ERRORS as error:
        own = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if failures := _reasons(own):
        raise OSError("; ".join(f"rank {rank}: {text}" for rank, text in failures.items()))


def if_every_rank_can(prepare: Callable[[], Prepared]) -> Prepared:
    """The result of `prepare`; if it fails on any rank, all ranks raise the ValueError of the first of them."""
    prepared, own = None, ""
    try:
        prepared = prepare()
    except (ValueError, OSError) as error:
        own = str(error) or type(error).__name__
    if failures := _reasons(own):
        raise ValueError(next(iter(failures.values())))
    assert prepared is not None, "a rank that cannot prepare has a reason"
    return prepared


def _reasons(own: str) -> dict[int, str]:
    """The reason of each rank that cannot continue, by rank. A collective."""
    texts = [own]
    if dist.get_world_size() > 1:
        data = own.encode(errors="replace")[:REASON_BYTES].ljust(REASON_BYTES, b"\0")
        mine = torch.tensor(list(data), dtype=torch.uint8)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_of_them, mine)
        texts = [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in all_of_them]
    return {rank: text for rank, text in enumerate(texts) if text}
