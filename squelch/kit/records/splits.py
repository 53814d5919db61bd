"""Split of tasks into training and validation: the split of a task follows from its content.

Invariants: the content's digest alone decides the split, so no content is in both splits, whatever the seeds. A data
set that publishes its own split keeps it.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from squelch.kit.base.settings import Settings

Split = Literal["train", "validation"]
"""Which tasks: those that are trained on, or those of the validation."""
SPLITS: tuple[Split, ...] = ("train", "validation")
VALIDATION_SHARE = 8
"""One of this many task contents belongs to validation."""
MAX_DRAWS = 20_000
"""Draws after which an environment concludes that its options admit no task."""


def check_split(split: str) -> None:
    """ValueError unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")


def task_key_of(name: str, content: str) -> str:
    """Hex digest (128 bits) of a task's content; `name` makes digests of different environments differ."""
    return hashlib.blake2b(f"{name}\n{content}".encode(), digest_size=16).hexdigest()


def split_of(task_key: str) -> Split:
    """The split that owns a task's content: validation for one digest in `VALIDATION_SHARE`."""
    return "validation" if int(task_key[:8], 16) % VALIDATION_SHARE == 0 else "train"


def no_task(name: str, options: Settings, draws: int = MAX_DRAWS) -> ValueError:
    """The error for options that admit no task within `draws` draws."""
    return ValueError(
        f"environment.options: {name} found no task in {draws} draws with {options}; loosen the limits that it sets"
    )
