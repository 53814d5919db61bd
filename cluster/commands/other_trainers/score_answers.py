"""The answers of `squelch score`: do they follow from their reasoning? (docs/guide/reasoning.md)

Each prompt is a task, and its rows are the pairs of a reasoning and an answer (`actors.diagnosis.links`). An answer is
scored under as many reasonings of each other prompt, and under as many other prompts, as the fixed probe's under a
budget, for which `python -m research.known_links` measures the coverage. The regime is that of one scorer step without
a judge (`actors.diagnosis.regime`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.actors.diagnosis.budget import draw_pairs
from squelch.actors.diagnosis.metrics import LINKS
from squelch.actors.diagnosis.regime import RegimeGauge, RegimeInputs
from squelch.actors.scorer.linking import Pairs, draw_references, read_scored, score_links
from squelch.actors.scorer.share import OTHERS, REFERENCES
from squelch.cluster.commands.other_trainers.mi import disagreement
from squelch.cluster.terminal import UNKNOWN, aligned

if TYPE_CHECKING:
    from squelch.actors.diagnosis.links import LinksEvaluation
    from squelch.actors.diagnosis.proxies import Proxies
    from squelch.actors.diagnosis.uncertainty import Uncertainty
    from squelch.actors.scorer.linking import PathEngine
    from squelch.cluster.commands.other_trainers.score_files import Reasonings

NAMES = {
    "dependence": ("D", "nats per answer; 0 if the answer ignores its reasoning"),
    "information": ("I(A;Z|X), lower form", "within a prompt"),
    "information_upper": ("I(A;Z|X), upper form", "the truth lies between the two in expectation"),
    "past_reasoning": ("X to A past Z", "0 if the reasoning holds all that the answer takes from the prompt"),
}
"""By link: its name and its meaning."""


@dataclass(frozen=True)
class Answers:
    """The links of a file's answers, None if they cannot be estimated. `excluded`: number of rows whose reasoning is
    scored and whose answer is not, by reason, one of `actors.scorer.metrics.ANSWER_EXCLUSIONS`."""

    links: LinksEvaluation | None
    excluded: Counter[str]


def read_answers(engine: PathEngine, context_length: int, found: Reasonings, seed: int) -> Answers:
    """Scores the answers of a file and estimates their links."""
    given = np.array([answer is not None for answer in found.answers])
    fits = given & _that_fit(found, given, context_length)
    excluded = Counter(no_answer=int((~given).sum()), too_long=int((given & ~fits).sum()))
    chosen = np.flatnonzero(fits)
    columns, source = np.unique(found.source[chosen], return_inverse=True)
    num = len(columns)
    if num < 2:
        return Answers(None, excluded)
    pairs = Pairs([found.ids[s] for s in chosen], [found.answers[s] for s in chosen], source, source)
    past = draw_pairs(source, num, min(OTHERS, num - 1), (seed, 2))
    references = draw_references(pairs, num, REFERENCES, (seed, 3))
    prompts = [found.prompts[j] for j in columns]
    scores = score_links(engine, prompts, pairs, np.zeros_like(past), past, references)
    links, excluded["non_finite"] = read_scored(pairs, scores, np.ones(num), num, (seed, 4))
    return Answers(links, excluded)


def _that_fit(found: Reasonings, given: np.ndarray, context_length: int) -> np.ndarray:
    """(num_samples,) bool: the `given` samples, less those removed until every answer fits after every reasoning under
    every prompt. Each round removes the longest reasonings or the longest answers, whichever are fewer."""
    room = context_length - max(map(len, found.prompts))
    reasonings = np.array([len(z) for z in found.ids])
    answers = np.array([0 if answer is None else len(answer) for answer in found.answers])
    kept = given.copy()
    while kept.any():
        wordy, long = kept & (reasonings + answers[kept].max() > room), kept & (answers + reasonings[kept].max() > room)
        if not wordy.any():
            break
        kept &= ~(wordy if wordy.sum() <= long.sum() else long)
    return kept


def regime_of(report: Proxies, sure: Uncertainty, reasoned: float, links: LinksEvaluation | None) -> str:
    """The regime of a file. `reasoned`: as of `Reasonings`."""
    follows = math.nan if links is None or links.follows is None else float(links.follows)
    metrics = report.metrics() | sure.metrics() | {"reasoned": reasoned}
    return RegimeGauge().read(RegimeInputs.of(metrics, follows))


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
        value = UNKNOWN if math.isnan(metrics[link]) else f"{metrics[link]:.4f}"
        rows.append((name, value, interval, meaning, against))
        tested.append((p_value, low, high, 0.0))
    return [f"answers: {metrics['answers']:.0f}", *lines, *aligned(rows), *disagreement(tested)]
