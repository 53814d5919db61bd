"""How a rollout's last turn ends, as a row of a file tells it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

LONGEST = 8
"""Ids at the end of completions that are compared: so many of a stop string, or all, stand at the end of several."""
CHARACTERS = 100
"""Of a text's end that are encoded."""


class End(NamedTuple):
    """How a turn ends.

    Attributes:
        rank: of a rollout's turns the one with the largest counts: whether `ended` is known, and the turn's number.
        ended: whether it ended by itself; None if the file does not say.
        tail: its last ids.
        tokens: ids of the turn; `before`: of its prompt; `first`: of the rollout's shortest prompt; None if unknown.
    """

    rank: tuple[bool, int]
    ended: bool | None
    tail: tuple[int, ...]
    tokens: int | None
    before: int | None
    first: int | None

    @property
    def total(self) -> int:
        """Ids of the prompt and the turn, as far as they are known."""
        return (self.before or 0) + (self.tokens or 0)

    def after(self, earlier: End | None) -> End:
        """The rollout's end with another turn of it."""
        if earlier is None:
            return self
        known = [one.first for one in (self, earlier) if one.first is not None]
        return max(self, earlier, key=lambda one: one.rank)._replace(first=min(known, default=None))

    def is_below(self, limit: int | None) -> bool:
        """Whether the turn, and all of the rollout that follows its first prompt, has fewer tokens than the limit."""
        if limit is None or self.tokens is None:
            return False
        return self.tokens < limit and self.total != limit and self.total - (self.first or 0) < limit


def end_of(row: Mapping[str, Any], encode: Callable[[str], Sequence[int]] | None) -> End | None:
    """How a row's turn ends; None if it says nothing, or is no ids. `encode`: of a text with its end token."""
    ids, text, prompt = row.get("completion_ids"), row.get("completion"), row.get("prompt_ids")
    before, tokens = row.get("sizes") or (len(prompt) if isinstance(prompt, list) else None, None)
    if isinstance(ids, list):
        tokens = len(ids)
    elif encode is not None and isinstance(text, str):
        ids = encode(text[-CHARACTERS:])
    if not ids:
        return None
    ended = row.get("ended")
    ended = False if ended is None and row.get("truncated") else ended
    return End((ended is not None, row.get("turn") or 0), ended, tuple(ids[-LONGEST:]), tokens, before, before)
