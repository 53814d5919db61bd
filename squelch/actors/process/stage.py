"""How a long start-up says what it is doing."""

from __future__ import annotations

from collections.abc import Callable

OnStage = Callable[[str, float | None], None]
"""Called with what happens at this moment, in a few words, and the share that is done, in [0, 1] or None."""


def ignore_stage(what: str, share: float | None) -> None:
    """Does nothing: the stages of this start-up are shown nowhere."""
