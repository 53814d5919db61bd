"""Texts that try to break a parser of model output: random, truncated, huge and malicious."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

MEGABYTE = 1_000_000
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "||")
CONTROL = ("<|im_end|>", "<|im_start|>system\n", "<|endoftext|>", "<tool_call>", "[INST]", "<|end|>", "<｜User｜>")
"""Control tokens of chat formats."""


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
        "İ" * MEGABYTE + "</think><answer>" + "İ" * MEGABYTE,  # lower() makes it longer
    ]


def hostile_texts(rng: random.Random, count: int, actions: Sequence[str]) -> Iterator[str]:
    """`count` texts: huge texts first, then random tags, actions and odd characters; every third is cut at random."""
    pieces = [
        *TAGS,
        *CONTROL,
        *actions,
        *(action.upper() for action in actions),
        " ",
        "\n",
        "\ud800",
        "\x00",
        "\u202e",
        "é",
        "|",
    ]
    pieces += [tag[:-1] for tag in TAGS] + [tag.upper() for tag in TAGS] + ["{}", "%s", "\\", "0", "__import__('os')"]
    huge = huge_texts()
    yield from huge[:count]
    for index in range(count - len(huge)):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(40)))
        yield text[: rng.randrange(len(text) + 1)] if index % 3 == 0 else text


def mutated(rng: random.Random, text: str, pieces: Sequence[str]) -> str:
    """`text` with one to three parts of up to eight characters replaced by pieces, so that it is almost an action."""
    for _ in range(rng.randrange(1, 4)):
        first = rng.randrange(len(text) + 1)
        text = text[:first] + rng.choice(pieces) + text[first + rng.randrange(9) :]
    return text


ACTION_PIECES = (
    *("search[", "]", "[", "click[", "answer[", "buy now", "1", "2", "/", "(", ")", "+", "×", "9" * 60, "%", ",", "-"),
    *(
        "\\frac{1}{2}",
        "\\frac{",
        "^",
        "10^10^10",
        "\\sqrt{-1}",
        "$",
        "{",
        "=",
        "x",
        "\ud800",
        "\x00",
        "\u202e",
        "é",
        "٣",
    ),
    *CONTROL,
    *("", " ", "\n", "\t", "|", "||", "{}", "%s", "\\", "'", '"', "<b>", "__import__('os')", "a" * 3000, "😀", "null"),
)
"""Pieces of hostile actions, for the grammar of any environment."""


def hostile_actions(rng: random.Random, count: int, known: Sequence[str]) -> Iterator[str]:
    """`count` texts to be read as actions: half are mutated actions of the environment, half are noise."""
    for index in range(count):
        if index % 2:
            yield mutated(rng, rng.choice(known), ACTION_PIECES)
        else:
            yield "".join(rng.choice(ACTION_PIECES) for _ in range(rng.randrange(12)))
