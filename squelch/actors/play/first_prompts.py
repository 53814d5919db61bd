"""What differs between the first prompts of a group's members, where agents write them. Pure.

A group compares trajectories of one task. An agent that writes its folder, the date or an id into the prompt gives each
member a task of its own, and from there on they share no prefix in the engine's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from squelch.kit.records.shared_prefix import common_length
from squelch.kit.untrusted.files import brief
from squelch.kit.untrusted.secrets import masked

BEFORE, BEHIND, SHOWN = 8, 16, 80
"""Tokens that are shown before the first difference and from it on, and characters of each text."""


def difference(prompts: Sequence[np.ndarray], text: Callable[[Sequence[int]], str]) -> str:
    """The first difference between two of the prompts in words; empty if all are equal. `text`: of ids."""
    first, *others = prompts
    other = next((one for one in others if not np.array_equal(first, one)), None)
    if other is None:
        return ""
    at = common_length([first, other])
    one, two = (brief(masked(text(ids[max(0, at - BEFORE) : at + BEHIND].tolist())), SHOWN) for ids in (first, other))
    return f"from token {at} of {len(first)} on: {one} and {two}"
