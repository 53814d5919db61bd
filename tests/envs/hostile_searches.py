"""Texts that try to break an environment with bracketed actions: odd, huge, malformed or almost correct."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

PIECES = (
    *(
        "[",
        "]",
        "]]",
        "[[",
        "\ud800",
        "\x00",
        "\u202e",
        "é",
        "İ",
        "\n",
        "\t",
        " ",
        "||",
        "{}",
        "%s",
        "\\",
        "../../etc/passwd",
    ),
    *(
        "' OR 1=1 --",
        "<script>",
        "&amp;",
        "NaN",
        "-1",
        "9" * 40,
        "next >",
        "< prev",
        "buy now",
        "back to search",
        "*",
        "\u200b",
    ),
    *("the", "red", "city", "person", "$10", "b000000001", "a" * 300, "日本語", "🙂"),
)


def hostile_searches(rng: random.Random, count: int, verbs: Sequence[str]) -> Iterator[str]:
    """`count` texts: every second text has the right form with a hostile argument, every fiftieth is huge."""
    for index in range(count):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))
        if index % 50 == 0:
            text *= 5_000 if index % 1000 == 0 else 50
        yield f"{rng.choice(list(verbs))}[{text}]" if index % 2 else text
