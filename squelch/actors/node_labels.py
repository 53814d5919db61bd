"""Label selectors: which nodes of a Ray cluster an actor may run on. Pure.

A node's labels are those of `ray start --labels`, and Ray's own (`ray.io/node-id`, `ray.io/node-group`, ...). A
selector maps a label's key to one of four conditions, in Ray's notation; a node must meet all of them:

    value        the label has this value
    !value       it has another value, or the node has no such label
    in(a, b)     it has one of these values
    !in(a, b)    it has none of them, or the node has no such label
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{{0,251}}[A-Za-z0-9])?/)?{_WORD}")
_CONDITION = re.compile(rf"!?(?:{_WORD}|in\({_WORD}(?:, ?{_WORD})*\))")


def _checked(selector: dict[str, str]) -> dict[str, str]:
    for key, condition in selector.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of a label: letters, digits, . _ and -, at most 63 of them")
        if not _CONDITION.fullmatch(condition):
            raise ValueError(f"{key}: {condition!r} is no condition; give value, !value, in(a, b) or !in(a, b)")
    return selector


LabelSelector = Annotated[dict[str, str], AfterValidator(_checked)]
"""A checked selector; an empty one admits every node."""


def require_gpu_share(block: str, num_gpus: float) -> None:
    """ValueError unless Ray can give this many GPUs to one actor: a fraction of one GPU, or whole GPUs."""
    if num_gpus > 1 and num_gpus != int(num_gpus):
        raise ValueError(f"{block}.num_gpus={num_gpus:g}: Ray shares one GPU in fractions, or gives whole GPUs")


def admits(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels meets the selector."""
    return all(_meets(labels.get(key), condition) for key, condition in selector.items())


def _meets(value: str | None, condition: str) -> bool:
    allowed = condition.removeprefix("!")
    values = allowed[3:-1].split(",") if allowed.startswith("in(") else [allowed]
    return (value in [word.strip() for word in values]) != condition.startswith("!")


def spelled(selector: Mapping[str, str]) -> str:
    """The selector in words for a message: `key=condition, ...`."""
    return ", ".join(f"{key}={condition}" for key, condition in selector.items())
