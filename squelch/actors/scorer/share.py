"""Chooses how often the scorer scores, and how many pairs, for a stated share of a run's work. Pure.

Work is counted in passes of one token forward through the model, which multiply by the same weights wherever they
happen; attention's part, which grows with the context, is left out on both sides:

    step      (1 + passes) N (opening + G sampled)      each token is generated once and trained on in `passes` passes
    scoring   pairs * turn + prefixes                   for each scope; a prefix is computed once for all its pairs
    probe     pairs * turn + prefixes + answers         a probe evaluation, and the links from its answers

Where pictures are shown, the trajectory scope and the probe also score each reasoning under prompts with the pictures,
or the text, of others (`kit.scoring.modality_scoring`), whose prefixes serve few reasonings each; all of them are
counted, although some are scored anyway.

with N groups of G trajectories a step. A pass in 16 bits counts half of one in 32 (`COST`), so that a scorer in float32
beside a learner in bfloat16 scores half as much. The probe may take up to two thirds of the share, and the scorer steps
get what it leaves. A trajectory is taken to last half of its most turns, each turn to reach its limit, and every group
to be trained on. So the scorer's share of a run's time is another: smaller where rollout workers decode at less than a
processor's full speed, larger where a filter drops most groups. `python -m benchmarks.loop` prints it for the demo;
docs/research/results.md has a language model's."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from squelch.actors.config import ScorerConfig
from squelch.kit.diagnosis.metrics import SHARES
from squelch.kit.diagnosis.pair_budget import others_within
from squelch.kit.scoring.settings import (
    OTHERS,
    PROBE_OTHERS,
    PROBE_TASKS,
    PROBE_TWINS,
    REFERENCES,
    TRAJECTORY_OTHERS,
    ProbeConfig,
)

OFTEN, SELDOM = 5, 10
"""Bounds of `scorer.every`: it is at least OFTEN, and pairs are dropped before it exceeds SELDOM."""
CHOSEN = ("every", "max_pairs")
PROBE_CHOSEN = ("max_others", "answer_tasks", "answer_references", "answer_prompts", "links", "hard")
"""The settings of `ScorerConfig` and of its `probe` that are chosen here (`samples` too, if unset); all others are the
user's."""
FEWEST_SAMPLES = 2
"""Trajectories of each task of the probe under a budget, the fewest for which its intervals were tested."""
FEWEST_PAIRS = 64
"""Lower bound of `scorer.max_pairs`."""
PART = 2 / 3
"""Largest part of the share for the probe; the scorer steps get the rest, and what the probe does not use."""
FEW_TASKS = 8
"""Tasks whose answers are scored under a budget: the fewest for which the intervals were tested."""
ANSWER = 0.25
"""Tokens of an answer, as a share of its turn's tokens."""
COST = {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5}
"""Cost of a pass by weight type: bytes moved, and operations if the processor has instructions for the type."""


@dataclass(frozen=True)
class StepWork:
    """Size of a training step. `opening`: tokens of a first prompt; `turn`: most sampled tokens of a turn; `turns`:
    most turns of a trajectory; `passes`: forward passes' worth of training on a token; `tasks`: of the fixed probe.
    `twins`: whether the probe's environment has near variations of a task (`envs.contract.Twinned`); `pictures`:
    whether the scored environment shows any; `texts_differ`: whether the texts beside them do, at the first turn;
    `generation`, `training`, `scoring`: type of the weights that do this work."""

    prompts: int
    group_size: int
    opening: int
    turn: int
    turns: int
    passes: int
    tasks: int = PROBE_TASKS
    twins: bool = False
    pictures: bool = False
    texts_differ: bool = False
    generation: str = "float32"
    training: str = "float32"
    scoring: str = "float32"

    @property
    def sampled(self) -> float:
        """Sampled tokens of a trajectory."""
        return self.turn * (self.turns + 1) / 2

    @property
    def token_passes(self) -> float:
        """Forward passes of one token in a step, in passes in float32."""
        each = COST[self.generation] + self.passes * COST[self.training]
        return each * self.prompts * (self.opening + self.group_size * self.sampled)


def scoring_passes(work: StepWork, scorer: ScorerConfig, max_pairs: int | None) -> float:
    """Forward passes of one token in a scorer step of both scopes, in passes in float32."""
    prompts, columns = _columns(work, scorer)
    context = work.opening + (work.sampled - work.turn) / 2
    prefixes = prompts * work.opening + (columns + _swapped(work, scorer) / 2) * context
    return COST[work.scoring] * (sum(scope_pairs(work, scorer, max_pairs)) * work.turn + prefixes)


def scope_pairs(work: StepWork, scorer: ScorerConfig, max_pairs: int | None) -> tuple[int, int]:
    """Pairs of the first-turn and of the trajectory scope; more than `max_pairs` where that would leave a reasoning
    fewer than `kit.diagnosis.pair_budget.MIN_OTHERS` other prompts."""
    prompts, columns = _columns(work, scorer)
    swapped = _swapped(work, scorer)

    def pairs(samples: int, prompts: int, swapped: int) -> int:
        limit = samples * prompts if max_pairs is None else max_pairs - swapped
        return samples * (1 + others_within(limit, samples, prompts)) + swapped

    return (
        pairs(prompts * min(scorer.samples_per_prompt, work.group_size), prompts, 0),
        pairs(scorer.trajectory_draws, columns, swapped),
    )


def _swapped(work: StepWork, scorer: ScorerConfig) -> int:
    """Pairs of MI by modality in the trajectory scope; two of them share a prompt. None where first texts are all there
    are, and are equal: the matrix has them."""
    scored = work.pictures and (work.texts_differ or work.turns > 1)
    return scorer.trajectory_draws * 2 * TRAJECTORY_OTHERS if scored else 0


def _columns(work: StepWork, scorer: ScorerConfig) -> tuple[int, int]:
    """Prompts of the first-turn and of the trajectory scope."""
    draws = scorer.trajectory_draws
    return min(scorer.max_prompts, work.prompts), draws if work.turns > 1 else min(work.prompts, draws)


def probe_passes(work: StepWork, probe: ProbeConfig) -> float:
    """Forward passes of one token in a probe evaluation, in passes in float32; 0 without a second task."""
    tasks = work.tasks
    if tasks < 2:
        return 0.0
    each = probe.num_samples
    samples, answer = tasks * each, work.turn * ANSWER
    others = min(tasks - 1, probe.max_others or tasks - 1)
    rows: float = samples * others
    answers = 0.0
    if probe.scores_answers:
        answered = min(tasks, probe.answer_tasks or tasks)
        references = answered * (answered - 1) * min(each, probe.answer_references or each)
        prompts = min(tasks - 1, probe.answer_prompts or tasks - 1)
        rows += references * (1 - others / (tasks - 1))  # reasonings that are not scored under the prompt anyway
        answers = references * each + answered * each * (each + 1 + prompts + len(SHARES))
    columns = tasks
    if probe.scores_twins(work.twins):
        rows += samples * PROBE_TWINS
        columns += tasks * PROBE_TWINS
    if work.pictures:  # blank ones, and the parts of other tasks
        swapped = min(tasks - 1, PROBE_OTHERS) * work.texts_differ
        rows += samples * (1 + 2 * swapped)
        columns += tasks * (1 + swapped)
    return COST[work.scoring] * ((samples + rows) * work.turn + answers * answer + columns * work.opening)


def chosen(work: StepWork, scorer: ScorerConfig) -> ScorerConfig:
    """The settings with which scorer steps and the fixed probe together take at most the share `scorer.share` of a
    run's passes. If `scorer.every` is set, everything stays as the user has set it."""
    return scorer if scorer.every is not None else _scored(work, _probed(work, scorer))


def as_chosen(given: ScorerConfig, before: ScorerConfig) -> ScorerConfig:
    """The settings `given` to a run that is continued, with what was chosen at its start, `before`. The authors'
    mixture needs all pairs, whatever was chosen."""
    chosen_before = {name: vars(before.probe)[name] for name in PROBE_CHOSEN}
    probe = given.probe.model_copy(update={**chosen_before, "samples": given.probe.samples or before.probe.samples})
    kept = {name: vars(before)[name] for name in CHOSEN if name != "max_pairs" or given.compat == "paper"}
    return given.model_copy(update={**kept, "probe": probe})


def _probed(work: StepWork, scorer: ScorerConfig) -> ScorerConfig:
    """Reduces the probe until one evaluation costs at most its part of the share: first fewer other prompts for each
    reasoning, then answers of fewer tasks, then fewer trajectories for each task (unless set by the user), at last no
    links (unless asked for). Each of these comes with hard negatives if there is room for them too, and without them
    before the next (unless asked for). If even the last costs too much, `in_words` says so, because `probe.every` is
    the user's."""
    allowed, probe = PART * scorer.share * work.token_passes * scorer.probe.every, scorer.probe
    fewer = {"max_others": probe.max_others or OTHERS}
    linked = {
        "answer_references": probe.answer_references or REFERENCES,
        "answer_prompts": probe.answer_prompts or OTHERS,
    }
    few = {"answer_tasks": probe.answer_tasks or FEW_TASKS}
    several: list[dict[str, Any]] = [{}, *([] if probe.samples else [{"samples": FEWEST_SAMPLES}])]
    parts = ({}, fewer | linked, fewer | linked | few)
    answered = [{"links": True, **samples, **part} for samples in several for part in parts]
    unanswered = [{"links": False, **samples, **part} for samples in several for part in ({}, fewer)]
    twins: list[dict[str, Any]] = [{"hard": True}, {"hard": False}] if work.twins and probe.hard is None else [{}]
    updates = [*(answered if probe.scores_answers else ()), *(() if probe.links else unanswered)]
    for update in (update | hard for update in updates for hard in twins):
        tried = probe.model_copy(update=update)
        if probe.every == 0 or probe_passes(work, tried) <= allowed:
            break
    return scorer.model_copy(update={"probe": tried})


def _scored(work: StepWork, scorer: ScorerConfig) -> ScorerConfig:
    """Chooses `every`, and if needed `max_pairs`, from what the probe leaves. At the fewest pairs only `every`
    grows."""
    probe = scorer.probe
    taken = probe_passes(work, probe) / probe.every if probe.every else 0.0
    allowed = max(scorer.share * work.token_passes - taken, (1 - PART) * scorer.share * work.token_passes)
    pairs = scorer.max_pairs
    if pairs is None and scorer.compat == "paper" and scoring_passes(work, scorer, None) > SELDOM * allowed:
        most = max(scorer.max_prompts * scorer.max_prompts * scorer.samples_per_prompt, scorer.trajectory_draws**2)
        sizes = range(FEWEST_PAIRS, max(FEWEST_PAIRS, most) + 1)
        fitting = bisect_right(sizes, SELDOM * allowed, key=lambda size: scoring_passes(work, scorer, size))
        pairs = sizes[max(0, fitting - 1)]
    every = max(OFTEN, math.ceil(scoring_passes(work, scorer, pairs) / allowed))
    return scorer.model_copy(update={"every": every, "max_pairs": pairs})


def in_words(work: StepWork, scorer: ScorerConfig) -> str:
    """The chosen settings and their counted share, for the user."""
    share = scoring_passes(work, scorer, scorer.max_pairs) / (scorer.interval * work.token_passes)
    most = max(scope_pairs(work, scorer, scorer.max_pairs))
    pairs = "all pairs" if scorer.max_pairs is None else f"at most {most} pairs"
    text = f"scoring every {scorer.interval} steps, {pairs}"
    probe = scorer.probe
    passes = probe_passes(work, probe)
    if probe.every and passes:
        share += passes / (probe.every * work.token_passes)
        others = "all other" if probe.max_others is None else f"{probe.max_others} other"
        of_tasks = "" if probe.answer_tasks is None else f" of {probe.answer_tasks} tasks"
        which = "mute, template and blind" if work.pictures else "mute and template"
        without = f"without links to answers, so that only the regimes {which} are recognized"
        links = f"with links to answers{of_tasks}" if probe.scores_answers else without
        text += f", the probe every {probe.every} with {probe.num_samples} trajectories a task under {others} prompts"
        text += f", {links}" + (", with hard negatives" if probe.scores_twins(work.twins) else "")
    text = f"{text}: {share:.0%} of the model's passes, by count, with every group trained on (scorer.share)"
    above = share > 1.005 * scorer.share
    return f"{text}; that is more than scorer.share={scorer.share:g}: set scorer.probe.every higher" if above else text
