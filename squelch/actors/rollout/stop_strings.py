"""Texts at whose end a turn ends, found while it is sampled. Pure.

A token stands for the same bytes in every context (only byte-level tokenizers are supported), so a stop string is found
on bytes, in whichever tokens it lies. The id that completes it is the turn's last; it may hold more than its end.

Stop strings are those of what a client reads, so they are watched behind the turn's reasoning, which may mention them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squelch.kit.text.tags import THINK_CLOSE, THINK_OPEN

Spell = Callable[[int], bytes]
"""The bytes of a token; empty for control tokens (`actors.formats.tokens.ModelTokens.token_bytes`)."""
_OPEN, _CLOSE = THINK_OPEN.encode(), THINK_CLOSE.encode()


class StopStrings:
    """Watches the ids of one turn. `inside`: whether it begins inside of its reasoning (`Format.begins_inside`); None
    if it has none."""

    def __init__(self, stops: Sequence[str], spell: Spell, inside: bool | None = None) -> None:
        self._stops = [stop.encode(errors="replace") for stop in stops if stop]
        self._spell = spell
        self._inside, self._watches = inside, inside is None
        self._text, self._ends = b"", list[tuple[int, int]]()
        """The last bytes, and in them (end, number) of the ids that are not judged yet."""
        self._num_seen = 0
        self.end: int | None = None
        """Number of ids up to the one that completes a stop string; None while there is none."""

    def see(self, ids: Sequence[int]) -> bool:
        """Whether a stop string is complete. `ids`: all that were sampled so far; those seen before are not read
        again."""
        while self.end is None and self._num_seen < len(ids):
            self._text += self._spell(int(ids[self._num_seen]))
            self._num_seen += 1
            self._ends.append((len(self._text), self._num_seen))
            self._look()
        return self.end is not None

    def _look(self) -> None:
        if not self._watches and not self._is_behind_reasoning():
            return
        for end, number in self._ends:
            if any(stop in self._text[:end] for stop in self._stops):
                self.end = number
                return
        self._keep(max(map(len, self._stops), default=1) - 1)

    def _is_behind_reasoning(self) -> bool:
        """Whether stop strings are watched from now on; the text and ids before them are forgotten then."""
        begun = self._text.lstrip()
        if not self._inside and not begun.startswith(_OPEN):
            self._watches = not _OPEN.startswith(begun)  # else it may still become the opening
            return self._watches
        self._inside = True
        place = self._text.find(_CLOSE)
        if place < 0:
            self._keep(len(_CLOSE) - 1)
            return False
        start = place + len(_CLOSE)
        self._text = self._text[start:]
        self._ends = [(end - start, number) for end, number in self._ends if end > start]
        self._watches = True
        return True

    def _keep(self, most: int) -> None:
        """Forgets all but the last bytes, and the ids that are judged."""
        self._text, self._ends = self._text[max(0, len(self._text) - most) :], []


def behind_reasoning(text: str, inside: bool | None) -> str:
    """The part of a whole turn's text in which stop strings are watched; `inside` as of `StopStrings`."""
    said = text.encode(errors="replace")
    if inside or (inside is not None and said.lstrip().startswith(_OPEN)):
        return said.partition(_CLOSE)[2].decode(errors="replace")
    return text
