"""The formats that `model.format` names, and the models whose format is known.

`own` is the chat template continued turn by turn (`actors.play.codec`). The others are families of the package
`renderers` (`packaged`). A model is known by its architecture and the digest of its chat template together, never by
its name or path: a folder can have any name, and fine-tuned models of one name have other templates. Only those are
known whose template `own` refuses, because it removes the reasoning of earlier turns.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

OWN, AUTO = "own", "auto"
ALL, TEMPLATE = "all", "template"


class Family(NamedTuple):
    """A renderer of the package.

    `reasons`: whether it has a place for reasoning; `begins_inside`: whether a turn begins inside of its reasoning,
    opened or not; `json_results`: whether it writes the result of a tool as a JSON string; `dated`: whether its prompts
    hold the day's date, as the template's do.
    """

    renderer: str
    reasons: bool = True
    begins_inside: bool = False
    json_results: bool = False
    dated: bool = False


FAMILIES = {
    "qwen3": Family("qwen3"),
    "qwen3.5": Family("qwen3.5"),
    "qwen3.6": Family("qwen3.6"),
    "qwen3.8": Family("qwen3.8"),
    "llama-3": Family("llama-3", reasons=False, json_results=True, dated=True),
    "glm-4.5": Family("glm-4.5", begins_inside=True),
    "deepseek-r1": Family("deepseek-r1"),
    "nemotron-3": Family("nemotron-3"),
    "nemotron-3-ultra": Family("nemotron-3-ultra"),
    "nemotron-3.5": Family("nemotron-3.5"),
}
"""The families on offer: those that a test compares with the family's own template."""
NAMES = (OWN, *FAMILIES)
KEPT = (ALL, TEMPLATE)
"""What `model.keep_reasoning` can be."""

_QWEN35 = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_NEMOTRON = ("nemotron_h",)
_KNOWN = {
    "a55ee1b1660128b7": ("qwen3", ("qwen3", "qwen3_moe")),
    "a4aee8afcf2e0711": ("qwen3.5", _QWEN35),
    "44f815868bf02fa4": ("glm-4.5", ("glm4_moe",)),
    "56a1447ad31926fd": ("deepseek-r1", ("qwen2", "llama")),
    "43a92aacc2e169bb": ("nemotron-3", _NEMOTRON),
    "82753bef5cedc493": ("nemotron-3-ultra", _NEMOTRON),
    "58933db77d3099b4": ("nemotron-3.5", _NEMOTRON),
}
"""Digest of a chat template: its format, and the architectures (`model_type` of config.json) that have it."""


def known_format(architecture: str, template: str) -> str:
    """The format of a known model; `own` for any other."""
    name, architectures = _KNOWN.get(template_digest(template), (OWN, ()))
    return name if architecture in architectures else OWN


def template_digest(template: str) -> str:
    """The leading 64 bits of the digest of a chat template, without white space at its ends."""
    return sha256(template.strip().encode()).hexdigest()[:16]
