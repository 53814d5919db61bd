"""The answers of `squelch score` as JSON and as text (`squelch.api.answers` measures them)."""

from __future__ import annotations

import math
from typing import Any

from squelch.actors.diagnosis.metrics import LINKS
from squelch.api.answers import Answers
from squelch.cluster.commands.other_trainers.mi import disagreement
from squelch.cluster.terminal import aligned, known

NAMES = {
    "dependence": ("D", "nats per answer; 0 if the answer ignores its reasoning"),
    "information": ("I(A;Z|X), lower form", "within a prompt"),
    "information_upper": ("I(A;Z|X), upper form", "the truth lies between the two in expectation"),
    "past_reasoning": ("X to A past Z", "0 if the reasoning holds all that the answer takes from the prompt"),
}
"""By link: its name and its meaning."""


def answers_json(answers: Answers | None) -> dict[str, Any] | None:
    """The links for `--json`, null for unknown metrics; None without links."""
    if answers is None or answers.links is None:
        return None
    return {key: None if math.isnan(value) else value for key, value in answers.links.metrics().items()}


def regime_text(regime: str) -> str:
    """The regime as a line of text."""
    return f"regime without a judge: {regime.replace('_', ' ')} (docs/guide/reasoning.md)"


def answers_text(answers: Answers) -> list[str]:
    """The links as lines of text."""
    counts = sorted((+answers.excluded).items())
    left_out = "; ".join(f"{reason.replace('_', ' ')}: {count}" for reason, count in counts)
    lines = [f"answers left out: {left_out}"] if left_out else []
    if answers.links is None:
        return ["answers are not linked: links need scored answers of 2 prompts", *lines]
    metrics = answers.links.metrics()
    rows, tested = [], []
    for link in sorted(LINKS, key=list(NAMES).index):
        name, meaning = NAMES[link]
        low, high = metrics[f"{link}_low"], metrics[f"{link}_high"]
        interval = "" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"
        p_value = metrics.get(f"{link}_p_value", math.nan)
        against = "" if math.isnan(p_value) else f"p = {p_value:.3f}"
        value = known(metrics[link], ".4f")
        rows.append((name, value, interval, meaning, against))
        tested.append((p_value, low, high, 0.0))
    return [f"answers: {metrics['answers']:.0f}", *lines, *aligned(rows), *disagreement(tested)]
