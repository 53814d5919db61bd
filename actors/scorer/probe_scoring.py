"""The fixed probe's evaluations: draws the reasonings of its tasks, scores them, and remembers the first evaluation.

The coordinator plays the probe's tasks with fixed request seeds (`cluster.loop.watchers.probing`). The estimators are
`actors.diagnosis.fixed_probe` for the reasonings and `actors.diagnosis.links` for the answers that follow them, which
are scored in the same pass (`actors.scorer.linking`). Imports neither torch nor Ray.

Invariants:

- Every evaluation has every key; unknown metrics are NaN, and reasonings that cannot be scored are counted.
- All tokens of an evaluation were sampled by the version whose weights score them; others are excluded as stale.
- The prompt of a task without a usable reasoning stays a column, so that the mixture is the same at every evaluation.
- A reasoning is scored under its own prompt: one that was sampled under another prompt than most of its task's is
  excluded, as an agent's may be whose prompts depend on more than the task.
- A reasoning without a usable answer counts for MI and is left out of the links; it is counted by reason.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.actors.config import ProbeConfig
from squelch.actors.content import content_key
from squelch.actors.diagnosis.budget import draw_pairs
from squelch.actors.diagnosis.fixed_probe import ProbeEvaluation, read_probe
from squelch.actors.diagnosis.metrics import LINK_KEYS
from squelch.actors.records import Trajectory
from squelch.actors.scorer.drawing import Groups, refuse_pictures, unusable_turn
from squelch.actors.scorer.linking import Pairs, draw_references, read_scored, score_links
from squelch.actors.scorer.metrics import ANSWER_EXCLUSIONS

if TYPE_CHECKING:
    from squelch.actors.scorer.scorer import Engine

METRICS = (
    *("mi", "mi_low", "mi_high", "mi_standard_error", "mi_upper", "mi_upper_low", "mi_upper_high"),
    *("mi_upper_standard_error", "mi_p_value", "mi_null_95", "ceiling", "saturated", "conditional_entropy"),
    *("pairs_ratio", "tasks", "samples", "mi_change", "mi_change_low", "mi_change_high", "mi_change_standard_error"),
    *(f"link/{key}" for key in (*LINK_KEYS, *(f"excluded/{reason}" for reason in ANSWER_EXCLUSIONS))),
)
"""Keys of an evaluation's metrics, each NaN if unknown."""
AnswerEnd = Callable[[np.ndarray], int | None]
"""Number of ids of the answer among the ids sampled from the reasoning's end on (`ChatCodec.answer_end`)."""


@dataclass(frozen=True)
class ProbeDraw:
    """The reasonings to score. `tasks`: names of the tasks; `prompts`: ids of the distinct first prompts; `weights`:
    (num_prompts,) number of tasks with each prompt; `reasonings`: usable first-turn reasonings, n of them; `after`: the
    ids sampled from each one's end on; `task`, `source`: (n,) index of each one's task and prompt; `slot`: (n,) index
    among all trajectories of the tasks, usable or not; `slots`: the prompt of each of those; `excluded`: number of
    unusable trajectories by reason."""

    tasks: tuple[str, ...]
    prompts: list[np.ndarray]
    weights: np.ndarray
    reasonings: list[np.ndarray]
    after: list[np.ndarray]
    task: np.ndarray
    source: np.ndarray
    slot: np.ndarray
    slots: np.ndarray
    excluded: Counter[str]


def draw_probe(groups: Groups, version: int, context_length: int) -> ProbeDraw:
    """The first turns of all tasks that showed a prompt, also of trajectories that failed later; `version`: the version
    that must have sampled every token."""
    ordered = {name: sorted(groups[name], key=lambda t: t.index) for name in sorted(groups)}
    prompts = _prompts(ordered)
    column: dict[str, int] = {}
    index_of = {name: column.setdefault(content_key(prompt), len(column)) for name, prompt in prompts.items()}
    distinct = {index_of[name]: prompt for name, prompt in prompts.items()}
    room = context_length - max((len(prompt) for prompt in distinct.values()), default=0)
    excluded: Counter[str] = Counter({"no_turn": sum(len(groups[name]) for name in groups if name not in prompts)})
    size = 1 + max((trajectory.index for name in prompts for trajectory in groups[name]), default=0)
    reasonings, after, task, source, slot = [], [], [], [], []
    for index, name in enumerate(prompts):
        for trajectory in ordered[name]:
            found = _reasoning(trajectory, prompts[name], version, room)
            if isinstance(found, str):
                excluded[found] += 1
                continue
            reasonings.append(found)
            turn = trajectory.turns[0]
            after.append(np.asarray(trajectory.token_ids[turn.reasoning_end : turn.sample_end], dtype=np.int64))
            task.append(index)
            source.append(index_of[name])
            slot.append(index * size + trajectory.index)
    weights = np.bincount(list(index_of.values()), minlength=len(column)).astype(np.float64)
    shown = [distinct[i] for i in range(len(column))]
    whose, under, at = (np.array(each, dtype=np.int64) for each in (task, source, slot))
    slots = np.repeat(np.array(list(index_of.values()), dtype=np.int64), size)
    return ProbeDraw(tuple(prompts), shown, weights, reasonings, after, whose, under, at, slots, excluded)


def answers_of(
    draw: ProbeDraw, answer_end: AnswerEnd, context_length: int, tasks: int | None = None
) -> tuple[list[np.ndarray | None], Counter[str]]:
    """The answer of each reasoning of the first `tasks` tasks (None: of all), None if it cannot be scored; and the
    number of those by reason. A reasoning must fit with every answer under every prompt."""
    asked = draw.task < (len(draw.tasks) if tasks is None else tasks)
    ends = [answer_end(ids) if wanted else None for ids, wanted in zip(draw.after, asked, strict=True)]
    answers = [None if end is None else ids[:end] for ids, end in zip(draw.after, ends, strict=True)]
    excluded = Counter({"no_answer": ends.count(None) - int((~asked).sum())})
    room = context_length - max(map(len, draw.prompts)) - max((len(a) for a in answers if a is not None), default=0)
    for s, z in enumerate(draw.reasonings):
        if answers[s] is not None and len(z) > room:
            answers[s] = None
            excluded["too_long"] += 1
    return answers, excluded


def _prompts(groups: Groups) -> dict[str, np.ndarray]:
    """The ids that each task's first reasonings are scored under, of the tasks with a turn: what most of its
    trajectories were fed, and the opening that most reasonings of all tasks were given by the policy itself. An agent's
    first prompts may differ between its trajectories, and a policy may open its reasoning in several ways."""
    fed: dict[str, list[np.ndarray]] = {}
    openings = []
    for name, found in groups.items():
        for ids, turn in ((t.token_ids, t.turns[0]) for t in found if t.turns):
            fed.setdefault(name, []).append(ids[: turn.sample_start])
            if turn.reasoning_start < turn.reasoning_end:
                openings.append(ids[turn.sample_start : turn.reasoning_start])
    opening = _most_common(openings) if openings else np.zeros(0, np.int64)
    return {name: np.concatenate([_most_common(rows), opening]).astype(np.int64) for name, rows in fed.items()}


def _most_common(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The row that most of the rows equal; the first such."""
    counts = Counter(row.tobytes() for row in rows)
    most = max(counts.values())
    return next(row for row in rows if counts[row.tobytes()] == most)


def _reasoning(trajectory: Trajectory, prompt: np.ndarray, version: int, room: int) -> np.ndarray | str:
    """The ids of the first turn's reasoning, or the reason why it cannot be scored under the task's `prompt`."""
    reason = unusable_turn(trajectory, 0, version)
    if reason is not None:
        return reason
    if not np.array_equal(trajectory.prompt_ids(0), prompt):
        return "other_prompt"
    found = np.asarray(trajectory.reasoning_ids(0), dtype=np.int64)
    return "too_long" if len(found) > room else found


class FixedProbe:
    """Evaluations of the probe under the engine's current weights; `state` holds the first one, for the change since.

    `answer_end` finds the answers; without it, or with `links` off, only the reasonings are scored.
    """

    def __init__(self, engine: Engine, config: ProbeConfig, seed: int, answer_end: AnswerEnd | None = None) -> None:
        self.engine, self.config, self.seed = engine, config, seed
        self._answer_end = answer_end if config.scores_answers else None
        self._first: dict[str, Any] | None = None

    def read(self, step: int, version: int, groups: Groups) -> dict[str, float]:
        """Metrics by the registry's flat keys. `groups`: the tasks' trajectories by task name, all of `version`."""
        refuse_pictures(step, groups)
        return self.evaluate(step, version, draw_probe(groups, version, self.engine.context_length))

    def evaluate(self, step: int, version: int, draw: ProbeDraw) -> dict[str, float]:
        """As `read`, from reasonings that are drawn already."""
        started, cpu = time.perf_counter(), time.thread_time()
        found = dict.fromkeys(METRICS, math.nan) | {"samples": float(len(draw.reasonings)), "tasks": 0.0}
        excluded = draw.excluded.total()
        if len(draw.prompts) > 1 and draw.reasonings:
            matrix, links = self._scored(draw)
            usable = np.where(np.isnan(matrix), True, np.isfinite(matrix)).all(axis=1)
            usable &= np.isfinite(matrix[np.arange(len(matrix)), draw.source])
            excluded += int((~usable).sum())
            if usable.any():
                found |= self._metrics(self._evaluated(draw, matrix, usable))
            found |= links
        metrics = {f"probe/{key}": value for key, value in found.items()}
        metrics |= {"probe/step": float(step), "probe/version": float(version), "probe/num_excluded": float(excluded)}
        spent = {"seconds/probe_score": time.perf_counter() - started, "probe/cpu_seconds": time.thread_time() - cpu}
        return metrics | spent

    def _evaluated(self, draw: ProbeDraw, matrix: np.ndarray, usable: np.ndarray) -> ProbeEvaluation:
        lengths = np.array([len(z) for z in draw.reasonings])[usable]
        where = draw.source[usable], draw.task[usable]
        return read_probe(matrix[usable], lengths, *where, draw.tasks, draw.weights, (self.seed, 0))

    def _metrics(self, evaluation: ProbeEvaluation) -> dict[str, float]:
        self._first = self._first or evaluation.state()
        return evaluation.metrics() | evaluation.change_since(self._first)

    def _scored(self, draw: ProbeDraw) -> tuple[np.ndarray, dict[str, float]]:
        """((n, num_prompts) nats per sequence, NaN for pairs that `max_others` leaves out, the same pairs each time;
        the links' metrics)."""
        num, wanted = len(draw.prompts), self._pairs(draw, self.config.max_others, 1)
        if self._answer_end is None:
            found = self.engine.matrix(draw.prompts, draw.reasonings, None if wanted.all() else wanted)
            return np.where(wanted, found, np.nan), {}
        answers, excluded = answers_of(draw, self._answer_end, self.engine.context_length, self.config.answer_tasks)
        pairs = Pairs(draw.reasonings, answers, draw.source, draw.task)
        past = self._pairs(draw, self.config.answer_prompts, 2)
        references = draw_references(
            pairs, num, self.config.answer_references, (self.seed, 3), (draw.slot, len(draw.slots))
        )
        scores = score_links(self.engine, draw.prompts, pairs, wanted, past, references)
        evaluation, excluded["non_finite"] = read_scored(pairs, scores, draw.weights, len(draw.tasks), (self.seed, 4))
        metrics = evaluation.metrics() if evaluation is not None else {"answers": 0.0}
        metrics |= {f"excluded/{reason}": float(excluded[reason]) for reason in ANSWER_EXCLUSIONS}
        return scores.reasonings, {f"link/{key}": value for key, value in metrics.items()}

    def _pairs(self, draw: ProbeDraw, others: int | None, stream: int) -> np.ndarray:
        """(n, num_prompts) bool: each reasoning's own prompt and `others` random ones; None: all. Drawn for every slot,
        so that a reasoning which cannot be used changes nothing for the others."""
        most = len(draw.prompts) - 1
        if others is None or others >= most:
            return np.ones((len(draw.source), most + 1), dtype=bool)
        return draw_pairs(draw.slots, most + 1, others, (self.seed, stream))[draw.slot]

    def state(self) -> dict[str, Any] | None:
        """The first evaluation, for the checkpoint; plain JSON, None before it."""
        return self._first

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restores the first evaluation from a checkpoint."""
        self._first = dict(state) if state is not None else None
