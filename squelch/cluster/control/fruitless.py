"""Says that a run learns nothing, and why, from the metrics of its last steps. Pure.

A run whose turns are all badly formed, whose tasks are never solved, or whose groups all have equal rewards goes on to
its last step and ends as `done`. Each of these is a symptom once every one of `STEPS` steps in a row shows it. The
cause that is named is the first that fits, in the order of `_cause`, because each explains those below it: turns that
are cut have no answer, and tasks without an answer are not solved.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from squelch.cluster.config import RunConfig

STEPS = 10
FEWEST = 5
"""Fewest steps at the end of a run, or since its start, that are told in its summary."""
UNFORMED = 0.05
"""A step with this format validity, or less, has hardly a well-formed turn."""
MOSTLY = 0.5

Metrics = Mapping[str, float]


class Fruitless:
    """Follows the steps of a run with these settings."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._recent: deque[Metrics] = deque(maxlen=STEPS)
        self._said: tuple[str, ...] = ()

    def step(self, metrics: Metrics) -> str:
        """Takes a step's metrics; the text of the warning if a symptom has lasted `STEPS` steps and was not told yet,
        else empty."""
        self._recent.append(metrics)
        found = self._symptoms() if len(self._recent) == STEPS else ()
        new = set(found) - set(self._said)
        self._said = found
        return self._text(found) if new else ""

    def verdict(self) -> str:
        """The text of the last steps, for the run's summary; empty if they had no symptom, or were too few."""
        found = self._symptoms() if len(self._recent) >= FEWEST else ()
        return self._text(found) if found else ""

    def _symptoms(self) -> tuple[str, ...]:
        return tuple(symptom for symptom, shows in _SYMPTOMS.items() if all(map(shows, self._recent)))

    def _text(self, symptoms: Sequence[str]) -> str:
        return f"for {len(self._recent)} steps {' and '.join(symptoms)}: {_cause(self.config, self._recent)}"


_SYMPTOMS = {
    "hardly a turn was well formed": lambda metrics: metrics["format_validity"] <= UNFORMED,
    "no trajectory succeeded": lambda metrics: metrics["success"] == 0,
    "no group had reward variance": lambda metrics: (
        math.isnan(metrics["kept_mass"]) and not math.isnan(metrics["success"])
    ),
}
"""What every step shows, and whether a step shows it; of a step without trajectories nothing is known."""


def _cause(config: RunConfig, steps: Sequence[Metrics]) -> str:
    """The likely cause, and what to do about it."""
    in_reasoning, in_answer = _mean(steps, "turns_cut/reasoning"), _mean(steps, "turns_cut/answer")
    if in_reasoning + in_answer >= MOSTLY:
        limit = f"sampling.max_tokens_per_turn={config.sampling.max_tokens_per_turn}"
        where = ", most of them inside their reasoning" if in_reasoning > in_answer else ""
        return f"{in_reasoning + in_answer:.0%} of the turns reach {limit}{where}; raise it"
    success, is_tiny = _mean(steps, "success"), config.model.path == "tiny"
    tiny = next((entry.key for entry in config.mixture.entries if entry.environment.prompt == "tiny"), None)
    if success < MOSTLY and not is_tiny and tiny is not None:
        return f"{tiny}.prompt=tiny is the style of the tiny policy alone; set {tiny}.prompt=natural"
    if _mean(steps, "format_validity") < MOSTLY:
        remedy = "use a pretrained model (model.path)" if is_tiny else "warm it up first (`squelch warmup`)"
        return f"the model does not write `reasoning </think> <answer> ... </answer>`; {remedy}"
    if success == 0:
        remedy = "" if is_tiny else ", or warm the model up first (`squelch warmup`)"
        return f"the tasks are too hard for the policy; take easier ones (environment.options){remedy}"
    if success == 1:
        return "every task is solved by all of its trajectories; take harder ones (environment.options)"
    return "the trajectories of a task all earn the same; raise sampling.group_size or sampling.temperature"


def _mean(steps: Sequence[Metrics], key: str) -> float:
    """Mean of the known values; NaN if none is."""
    known = [value for metrics in steps if not math.isnan(value := metrics.get(key, math.nan))]
    return math.fsum(known) / len(known) if known else math.nan
