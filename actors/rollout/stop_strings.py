"""Texts at whose end a turn ends, found while it is sampled. Pure.

A token stands for the same bytes in every context (only byte-level tokenizers are supported), so a stop string is found
on bytes, in whichever tokens it lies. The id that completes it is the turn's last; it may hold more than its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Spell = Callable[[int], bytes]
"""The bytes of a token; empty for control tokens (`actors.formats.tokens.ModelTokens.token_bytes`)."""


class StopStrings:
    """Watches the ids of one turn."""

    def __init__(self, stops: Sequence[str], spell: Spell) -> None:
        self._stops = [stop.encode(errors="replace") for stop in stops if stop]
        self._kept = max(map(len, self._stops), default=1) - 1
        self._spell = spell
        self._tail = b""
        self._num_seen = 0
        self.end: int | None = None
        """Number of ids up to the one that completes a stop string; None while there is none."""

    def see(self, ids: Sequence[int]) -> bool:
        """Whether a stop string is complete. `ids`: all that were sampled so far; those seen before are not read
        again."""
        while self.end is None and self._num_seen < len(ids):
            text = self._tail + self._spell(int(ids[self._num_seen]))
            self._num_seen += 1
            if any(stop in text for stop in self._stops):
                self.end = self._num_seen
            self._tail = text[len(text) - self._kept :] if len(text) > self._kept else text
        return self.end is not None
