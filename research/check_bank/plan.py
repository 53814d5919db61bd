"""The bank's cells: which run, with which fault, and what `squelch check` must say of it. Pure.

Expectations follow the catalogue of checks: a fault is to be found in each form whose files have what its check needs
(`forms.py`), by the name of that check, and in the others nothing may be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STEPS, PROMPTS, GROUP = 10, 8, 4
NEW = 40
"""Tokens of a completion, at most."""
LATER = 10
"""Prompts at the data's end that no step plays."""
FAILED = 7
"""Of so many rows one fails."""
ENDLESS, KEPT = 3, 6
"""Of so many rows one loses its end token, or all but this many of its tokens."""
RATE, SMALL_RATE, LORA_RATE = 1e-3, 1e-6, 5e-3
ALL = ("columns", "nemo_rl", "slime", "verifiers", "squelch")
"""Forms that can be scored under the checkpoints."""
SOME = ("columns", "nemo_rl")


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        fault: what is planted in it (`trainer_worker.PLANTED`); empty for none.
        expects: the faults that `squelch check` names, in the forms that have what it needs.
        also: faults that the planted one brings with it, where a form shows them.
        old: whether TRL 0.29.0 runs it (`complaint_worker.py`).
        weights: the forms that are scored under the checkpoints; each costs ten seconds.
    """

    name: str
    fault: str = ""
    expects: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    tools: bool = False
    lora: bool = False
    resumed: bool = False
    evaluated: bool = False
    rate: float = RATE
    weights: tuple[str, ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    old: bool = False

    @property
    def prompts(self) -> str:
        """Name of the file of prompts."""
        return "double" if self.tools else "guess"


def _cells() -> list[Cell]:
    stale, lora = ("stale_weights", "recorded_versions"), {"lora": True, "rate": LORA_RATE}
    sides, unsampled, other_ids = ("engine_against_trainer",), ("fed_tokens_learned",), ("logprobs_of_other_ids",)
    ends = ("ends_missing",)
    failed = ("failures_as_rewards",)  # without its generation prompt, the policy says nothing now and then
    return [
        Cell("clean", weights=SOME),
        Cell("clean-tools", tools=True, weights=(*SOME, "turns", "verl")),
        Cell("clean-lora", weights=SOME, **lora),
        Cell("clean-resumed", resumed=True),
        Cell("clean-evaluated", evaluated=True),
        Cell("stale-1", "stale-1", stale, sides, weights=ALL),
        Cell("stale-5", "stale-5", stale, sides, weights=SOME),
        Cell("stale-1-tools", "stale-1", stale, sides, tools=True, weights=SOME),
        Cell("stale-1-slow", "stale-1", stale, sides, rate=SMALL_RATE, weights=SOME),
        Cell("adapter", "adapter", ("adapter_not_applied",), sides, weights=ALL, **lora),
        Cell("temperature", "temperature", ("temperature",), sides, weights=ALL),
        Cell("precision", "precision", ("precision",), sides, weights=SOME, claims={"dtype": "float32"}),
        Cell("encoded-again", "encoded-again", (*other_ids, *sides), weights=ALL),
        Cell("drift", "drift", ("turns_encoded_anew", *sides, *other_ids), tools=True, weights=ALL[1:]),
        Cell("complaint", "drift", ("turns_encoded_anew",), tools=True, old=True),
        Cell("begin", "begin", ("prompt_start",), weights=("columns", "verifiers")),
        Cell("template", "template", ("template_differs",), weights=("columns", "verifiers")),
        Cell("no-reply", "no-reply", ("template_differs",), failed, weights=("columns", "verifiers")),
        Cell("tool-learned", "tool-learned", ("fed_tokens_learned",), tools=True),
        Cell("cut", "cut", ("group_sizes", "advantages")),
        Cell("errors", "errors", failed, unsampled),
        Cell("silence", "silence", failed, unsampled),
        Cell("ends", "ends", ends, tools=True),
        Cell("shortened", "shortened", ends),
        Cell("one-seed", "one-seed", ("equal_completions",)),
        Cell("rule", "rule", ("advantages",), claims={"advantage": "grpo"}),
        Cell("rule-changes", "rule-changes", ("advantages",)),
        Cell("lost", "lost", ("prompts_lost",), resumed=True),
        Cell("leak", "leak", ("validation_leak",), evaluated=True),
    ]


CELLS: Mapping[str, Cell] = {one.name: one for one in _cells()}
