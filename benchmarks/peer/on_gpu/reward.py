"""The reward function of both trainers, with TRL's signature: the share of even ids. Both load this file as it is.

Its first call waits for the file that `SQUELCH_PEER_BARRIER` names, so that both sides are loaded and have generated
once before either is timed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

NUM_SPECIAL = 3
"""The smallest ids are those of the control tokens."""


def share(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The share of even ids in each completion, in [0, 1]; 0 for one without ids."""
    _wait(os.environ.get("SQUELCH_PEER_BARRIER"))
    return [_even([token for token in ids if token >= NUM_SPECIAL]) for ids in completion_ids]


def _even(ids: list[int]) -> float:
    return sum(token % 2 == 0 for token in ids) / len(ids) if ids else 0.0


def _wait(barrier: str | None) -> None:
    """Says that this side has come so far, and waits until it may go on."""
    if barrier is None or Path(barrier).exists():
        return
    Path(f"{barrier}.reached").touch()
    while not Path(barrier).exists():
        time.sleep(0.05)
