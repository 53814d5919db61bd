"""Texts that try to break a parser of model output: random, truncated, huge and malicious."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

MEGABYTE = 1_000_000
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "||")


def huge_texts() -> list[str]:
    """Texts of a megabyte that make a backtracking or quadratic parser hang."""
    return [
        "<answer>" * (MEGABYTE // 8),
        "</think>" * (MEGABYTE // 8),
        "</think><answer>" * (MEGABYTE // 16) + "</answer>",
        "</think><answer>" + "Up||" * (MEGABYTE // 4) + "</answer>",
        "</think><answer>" + "|" * MEGABYTE + "</answer>",
        "</think>" + " " * MEGABYTE + "<answer>Up</answer>",
        "</think><answer>Up</answer>" + "\n" * MEGABYTE,
        "<" * MEGABYTE,
        "\x00" * MEGABYTE,
        "İ" * MEGABYTE + "</think><answer>" + "İ" * MEGABYTE,  # grows when lowered
    ]


def hostile_texts(rng: random.Random, count: int, actions: Sequence[str]) -> Iterator[str]:
    """`count` texts: tags, actions and odd characters at random, every third one cut anywhere; huge ones first."""
    pieces = [*TAGS, *actions, *(action.upper() for action in actions), " ", "\n", "\ud800", "\x00", "\u202e", "é", "|"]
    pieces += [tag[:-1] for tag in TAGS] + [tag.upper() for tag in TAGS] + ["{}", "%s", "\\", "0", "__import__('os')"]
    huge = huge_texts()
    yield from huge[:count]
    for index in range(count - len(huge)):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(40)))
        yield text[: rng.randrange(len(text) + 1)] if index % 3 == 0 else text
