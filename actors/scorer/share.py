"""Chooses how often the scorer scores, and how many pairs, for a stated share of a run's work. Pure.

Work is counted in passes of one token forward through the model, which multiply by the same weights wherever they
happen; attention's part, which grows with the context, is left out on both sides:

    step      (1 + passes) N (opening + G sampled)      each token is generated once and trained on in `passes` passes
    scoring   pairs * turn + prefixes                   for each scope; a prefix is computed once for all its pairs

with N groups of G trajectories a step. A trajectory is taken to last half of its most turns, and each turn to reach its
limit. Rollout workers decode with less than a processor's full speed, so the scorer's share of the run's time is
smaller than its share of the passes; `python -m benchmarks.scorer_share` measures it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from actors.config import ScorerConfig
from actors.diagnosis.budget import MIN_OTHERS

OFTEN, SELDOM = 5, 10
"""Steps between two scorings: never fewer than OFTEN; pairs are dropped before they are more than SELDOM."""
FEWEST_PAIRS = 64
"""As the lower bound of `scorer.max_pairs`."""


@dataclass(frozen=True)
class StepWork:
    """What a step does. `opening`: tokens of a first prompt; `turn`: most sampled tokens of a turn; `turns`: most turns
    of a trajectory; `passes`: forward passes' worth of training on a token."""

    prompts: int
    group_size: int
    opening: int
    turn: int
    turns: int
    passes: int

    @property
    def sampled(self) -> float:
        """Sampled tokens of a trajectory."""
        return self.turn * (self.turns + 1) / 2

    @property
    def token_passes(self) -> float:
        """Forward passes of one token in a step."""
        return (1 + self.passes) * self.prompts * (self.opening + self.group_size * self.sampled)


def token_passes(work: StepWork, scorer: ScorerConfig, max_pairs: int | None) -> float:
    """Forward passes of one token in a scoring of both scopes."""
    prompts = min(scorer.max_prompts, work.prompts)
    samples = prompts * min(scorer.samples_per_prompt, work.group_size)
    draws = scorer.trajectory_draws
    columns = draws if work.turns > 1 else min(work.prompts, draws)
    limit = math.inf if max_pairs is None else max_pairs
    pairs = min(samples * prompts, max(limit, samples * (1 + MIN_OTHERS)))
    pairs += min(draws * columns, max(limit, draws * (1 + MIN_OTHERS)))
    prefixes = prompts * work.opening + columns * (work.opening + (work.sampled - work.turn) / 2)
    return pairs * work.turn + prefixes


def chosen(work: StepWork, scorer: ScorerConfig) -> ScorerConfig:
    """The settings with `every`, and if need be `max_pairs`, such that a scoring takes at most the share `scorer.share`
    of the passes between two scorings. What the user has set stays; below the fewest pairs only `every` grows."""
    if scorer.every is not None:
        return scorer
    allowed = scorer.share * work.token_passes
    pairs = scorer.max_pairs
    if pairs is None and scorer.compat == "paper" and token_passes(work, scorer, None) > SELDOM * allowed:
        most = max(scorer.max_prompts * scorer.max_prompts * scorer.samples_per_prompt, scorer.trajectory_draws**2)
        sizes = range(FEWEST_PAIRS, most + 1)
        fitting = bisect_right(sizes, SELDOM * allowed, key=lambda size: token_passes(work, scorer, size))
        pairs = sizes[max(0, fitting - 1)]
    every = max(OFTEN, math.ceil(token_passes(work, scorer, pairs) / allowed))
    return scorer.model_copy(update={"every": every, "max_pairs": pairs})


def in_words(work: StepWork, scorer: ScorerConfig) -> str:
    """The chosen settings and their counted share, for the user."""
    assert scorer.every is not None, "chosen before"
    share = token_passes(work, scorer, scorer.max_pairs) / (scorer.every * work.token_passes)
    pairs = "all pairs" if scorer.max_pairs is None else f"at most {scorer.max_pairs} pairs"
    return f"scoring every {scorer.every} steps, {pairs}: {share:.0%} of the model's passes, by count (scorer.share)"
