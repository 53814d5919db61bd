"""What the planted faults run in place of a user's own code."""

from __future__ import annotations

from typing import Any

AGENT = 'import json, sys; print(json.load(sys.stdin)["question"])'
"""A program of an agent that asks its task for a column that no task has."""


def exact(completions: list[list[dict[str, str]]], letter: list[str], **_: Any) -> list[float]:
    """A verifier that compares the whole completion with the letter with which it should begin: always 0."""
    return [float(message["content"] == wanted) for (message,), wanted in zip(completions, letter, strict=True)]
