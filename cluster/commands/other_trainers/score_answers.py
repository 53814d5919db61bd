"""The answers of `squelch score`: do they follow from their reasoning? (docs/reasoning.md)

Each prompt is a task, and its rows are the pairs of a reasoning and an answer (`actors.diagnosis.links`). The regime is
that of one scoring without a judge (`actors.diagnosis.regime`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.diagnosis.budget import draw_pairs
from actors.diagnosis.links import LinksReading, read_links
from actors.diagnosis.metrics import LINKS
from actors.diagnosis.regime import Reading, RegimeGauge
from actors.scorer.linking import Pairs, draw_references, score_links
from cluster.commands.other_trainers.score_files import EMPTY
from cluster.terminal import aligned

if TYPE_CHECKING:
    from actors.diagnosis.proxies import Proxies
    from actors.diagnosis.uncertainty import Uncertainty
    from actors.scorer.linking import PathEngine
    from cluster.commands.other_trainers.score_files import Reasonings

REFERENCES, OTHER_PROMPTS = 2, 8
"""Reasonings of each other prompt, and other prompts, under which an answer is scored: as the fixed probe's settings
`answer_references` and `answer_prompts`."""
NAMES = {
    "dependence": ("D", "nats per answer; 0 if the answer ignores its reasoning"),
    "information": ("I(A;Z|X), lower form", "within a prompt"),
    "information_upper": ("I(A;Z|X), upper form", "the truth lies between the two in expectation"),
    "past_reasoning": ("X to A past Z", "0 if the reasoning holds all that the answer takes from the prompt"),
}
"""By link: its name and its meaning."""


@dataclass(frozen=True)
class Answers:
    """The links of a file's answers; `links` is None, and `why_not` says why, if they cannot be estimated."""

    links: LinksReading | None
    why_not: str = ""


def read_answers(engine: PathEngine, context_length: int, found: Reasonings, seed: int) -> Answers:
    """Scores the answers of a file and estimates their links."""
    longest = max((len(a) for a in found.answers if a is not None), default=0)
    room = context_length - longest - max(map(len, found.prompts))
    kept = np.array([a is not None and len(z) <= room for a, z in zip(found.answers, found.ids, strict=True)])
    columns = np.unique(found.source[kept])
    if len(columns) < 2:
        return Answers(None, f"{len(columns)} prompts have answers that can be scored, and 2 are needed")
    chosen = np.flatnonzero(kept)
    source = np.searchsorted(columns, found.source[kept])
    pairs = Pairs([found.ids[s] for s in chosen], [found.answers[s] for s in chosen], source, source)
    num = len(columns)
    past = draw_pairs(source, num, min(OTHER_PROMPTS, num - 1), (seed, 2))
    references = draw_references(pairs, num, REFERENCES, (seed, 3))
    prompts = [found.prompts[j] for j in columns]
    scores = score_links(engine, prompts, pairs, np.zeros_like(past), past, references)
    if not scores.finite(pairs).all():
        return Answers(None, f"{int((~scores.finite(pairs)).sum())} answers have no finite likelihood under the model")
    rest = scores.prompts, scores.truncated, source, source, np.ones(num), num
    return Answers(read_links(scores.swapped, *rest, (seed, 4)))


def regime_of(report: Proxies, sure: Uncertainty, links: LinksReading | None) -> str:
    """The regime of a file. A row whose reasoning is empty counts as a turn without reasoning."""
    empty = report.excluded.get(EMPTY, 0)
    reasoned = report.num_samples / max(1, report.num_samples + empty)
    follows = math.nan if links is None or links.follows is None else float(links.follows)
    figures = report.metrics() | sure.metrics() | {"reasoned": reasoned}
    return RegimeGauge().read(Reading.of(figures, follows))


def answers_json(answers: Answers | None) -> dict[str, Any] | None:
    """The links for `--json`, null for unknown figures; None without links."""
    if answers is None or answers.links is None:
        return None
    return {key: None if math.isnan(value) else value for key, value in answers.links.metrics().items()}


def answers_text(answers: Answers, regime: str) -> list[str]:
    """The links and the regime as lines of text."""
    if answers.links is None:
        return [f"regime: {regime.replace('_', ' ')}", f"answers are not scored: {answers.why_not}"]
    figures = answers.links.metrics()
    rows = []
    for link in sorted(LINKS, key=list(NAMES).index):
        name, meaning = NAMES[link]
        low, high = figures[f"{link}_low"], figures[f"{link}_high"]
        interval = "" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"
        p_value = figures.get(f"{link}_p_value", math.nan)
        against = "" if math.isnan(p_value) else f"p = {p_value:.3f}"
        value = "-" if math.isnan(figures[link]) else f"{figures[link]:.4f}"
        rows.append((name, value, interval, meaning, against))
    used = f"answers: {figures['answers']:.0f}; regime without a judge: {regime.replace('_', ' ')} (docs/reasoning.md)"
    return [used, *aligned(rows)]
