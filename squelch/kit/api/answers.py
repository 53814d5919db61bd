"""Whether the answers of one step's samples follow from their reasonings (docs/guide/probe.md).

Each prompt is a task, and its rows are the pairs of a reasoning and an answer (`kit.diagnosis.links`). An answer is
scored under as many reasonings of each other prompt, and under as many other prompts, as the fixed probe's under a
budget, for which `python -m research.known_links` measures the coverage. The regime is that of one scorer step without
a judge (`kit.diagnosis.regime`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from squelch.kit.api.samples import Reasonings
from squelch.kit.diagnosis.links import LinksEvaluation
from squelch.kit.diagnosis.pair_budget import draw_pairs
from squelch.kit.diagnosis.regime import RegimeGauge, RegimeInputs
from squelch.kit.scoring.linking import Pairs, draw_references, read_scored, score_links
from squelch.kit.scoring.settings import OTHERS, REFERENCES

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer


@dataclass(frozen=True)
class Answers:
    """The links of a file's answers, None if they cannot be estimated. `excluded`: number of rows whose reasoning is
    scored and whose answer is not, by reason, one of `kit.scoring.metrics.ANSWER_EXCLUSIONS`."""

    links: LinksEvaluation | None
    excluded: Counter[str]


def read_answers(
    engine: CrossScorer, context_length: int, found: Reasonings, seed: int
) -> tuple[Answers, np.ndarray | None]:
    """Scores the answers of a file and estimates their links. If every reasoning has its answer, the reasonings' own
    likelihoods under all prompts, (num_samples, num_prompts), come with them: an answer's row holds its reasoning, and
    to score the two apart would feed most reasonings twice. Otherwise None."""
    given = np.array([answer is not None for answer in found.answers])
    fits = given & _that_fit(found, given, context_length)
    excluded = Counter(no_answer=int((~given).sum()), too_long=int((given & ~fits).sum()))
    chosen = np.flatnonzero(fits)
    columns, source = np.unique(found.source[chosen], return_inverse=True)
    num = len(columns)
    if num < 2:
        return Answers(None, excluded), None
    pairs = Pairs([found.ids[s] for s in chosen], [found.answers[s] for s in chosen], source, source)
    past = draw_pairs(source, num, min(OTHERS, num - 1), (seed, 2))
    references = draw_references(pairs, num, REFERENCES, (seed, 3))
    prompts = [found.prompts[j] for j in columns]
    shown = [found.pictures[j] for j in columns] if found.pictures else None
    whole = bool(fits.all()) and num == len(found.prompts)
    scores = score_links(engine, prompts, pairs, np.full_like(past, whole), past, references, shown)
    links, excluded["non_finite"] = read_scored(pairs, scores, np.ones(num), num, (seed, 4))
    return Answers(links, excluded), scores.reasonings if whole else None


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


def regime_of(
    metrics: Mapping[str, float], found: Reasonings, links: LinksEvaluation | None, text_alone: float = math.nan
) -> str:
    """The regime of one step's samples. `metrics`: as of `MIResult.metrics`; `text_alone`: as of `RegimeInputs`."""
    follows = math.nan if links is None or links.follows is None else float(links.follows)
    known = {**metrics, "reasoned": found.reasoned, "repeated": found.repeated}
    return RegimeGauge().read(RegimeInputs.of(known, follows, text_alone=text_alone, marked=found.marked))
