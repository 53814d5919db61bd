"""The reward function of the example `example.jsonl`, which the recipe `prompts` trains on until it gets a file."""

from __future__ import annotations

from typing import Any


def reward(completions: list[list[dict[str, str]]], letter: list[str], **_: Any) -> list[float]:
    """1 for one word that begins with the letter, 0.5 for more words of which the first does, else 0."""
    found = []
    for (message,), wanted in zip(completions, letter, strict=True):
        words = message["content"].split()
        right = bool(words) and words[0].strip(" *\"'.").upper().startswith(wanted)
        found.append((1.0 if len(words) == 1 else 0.5) if right else 0.0)
    return found
