"""The fixed probe's evaluations: scores the reasonings of its tasks, and remembers the first evaluation.

The coordinator plays the probe's tasks with fixed request seeds (`cluster.loop.watchers.probing`), and
`kit.scoring.probe_drawing` chooses what can be scored. The estimators are
`kit.diagnosis.fixed_probe` for the reasonings and `kit.diagnosis.links` for the answers that follow them, which
are scored in the same pass (`kit.scoring.linking`). Imports neither torch nor Ray.

Invariants:

- Every evaluation has every key; unknown metrics are NaN, and reasonings that cannot be scored are counted.
- A reasoning without a usable answer counts for MI and is left out of the links; it is counted by reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.kit.diagnosis.fixed_probe import ProbeEvaluation, read_probe
from squelch.kit.diagnosis.links import LinksEvaluation
from squelch.kit.diagnosis.metrics import LINK_KEYS, MODALITY_KEYS
from squelch.kit.diagnosis.pair_budget import draw_pairs
from squelch.kit.filter.coverage import SHOWN_KINDS, kind_name
from squelch.kit.records.records import Cluster
from squelch.kit.scoring import hard_scoring
from squelch.kit.scoring.drawing import Groups
from squelch.kit.scoring.linking import Pairs, draw_references, read_scored, score_links
from squelch.kit.scoring.metrics import ANSWER_EXCLUSIONS
from squelch.kit.scoring.modality_scoring import modality_metrics
from squelch.kit.scoring.probe_drawing import AnswerEnd, ProbeDraw, answers_of, draw_probe
from squelch.kit.scoring.settings import ProbeConfig

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer

METRICS = (
    *("mi", "mi_low", "mi_high", "mi_standard_error", "mi_upper", "mi_upper_low", "mi_upper_high"),
    *("mi_upper_standard_error", "mi_p_value", "mi_null_95", "ceiling", "saturated", "conditional_entropy"),
    *("pairs_ratio", "tasks", "samples", "mi_change", "mi_change_low", "mi_change_high", "mi_change_standard_error"),
    *(f"hard/{key}" for key in hard_scoring.METRICS),
    *(f"modality/{key}" for key in MODALITY_KEYS),
    *(f"link/{key}" for key in (*LINK_KEYS, *(f"excluded/{reason}" for reason in ANSWER_EXCLUSIONS))),
)
"""Keys of an evaluation's metrics, each NaN if unknown."""


def dependence_by_kind(
    evaluation: LinksEvaluation | None, tasks: Sequence[str], kinds: Mapping[str, str]
) -> dict[str, float]:
    """D of the tasks of each kind, `dependence/KIND`, for at most `SHOWN_KINDS` kinds; NaN for a kind without a scored
    answer. `kinds`: the kinds of the tasks that have one, by task."""
    own = np.array([kind_name(kinds.get(task)) or "" for task in tasks], dtype=str)
    found = {}
    for kind in sorted(set(own.tolist()) - {""})[:SHOWN_KINDS]:
        means = np.array([]) if evaluation is None else evaluation.dependence.mean[own == kind]
        known = means[~np.isnan(means)]
        found[f"dependence/{kind}"] = float(known.mean()) if len(known) else math.nan
    return found


class FixedProbe:
    """Evaluations of the probe under the engine's current weights; `state` holds the first one, for the change since.

    `answer_end` finds the answers; without it, or with `links` off, only the reasonings are scored.
    """

    def __init__(
        self, engine: CrossScorer, config: ProbeConfig, seed: int, answer_end: AnswerEnd | None = None
    ) -> None:
        self.engine, self.config, self.seed = engine, config, seed
        self._answer_end = answer_end if config.scores_answers else None
        self._first: dict[str, Any] | None = None

    def read(
        self,
        step: int,
        version: int,
        groups: Groups,
        clusters: Mapping[str, Cluster] | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Metrics by the registry's flat keys. `groups`: the tasks' trajectories by task name, all of `version`;
        `clusters`: of hard negatives, by task name; None: there are none. `kinds`: the kinds of the tasks that have
        one, by the same names."""
        return self.evaluate(step, version, draw_probe(groups, version, self.engine.context_length), clusters, kinds)

    def evaluate(
        self,
        step: int,
        version: int,
        draw: ProbeDraw,
        clusters: Mapping[str, Cluster] | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """As `read`, from reasonings that are drawn already."""
        started, cpu = time.perf_counter(), time.thread_time()
        found = dict.fromkeys(METRICS, math.nan) | {"samples": float(len(draw.reasonings)), "tasks": 0.0}
        excluded = draw.excluded.total()
        if len(draw.prompts) > 1 and draw.reasonings:
            matrix, links = self._scored(draw, kinds or {})
            usable = np.where(np.isnan(matrix), True, np.isfinite(matrix)).all(axis=1)
            usable &= np.isfinite(matrix[np.arange(len(matrix)), draw.source])
            excluded += int((~usable).sum())
            if usable.any():
                found |= self._metrics(self._evaluated(draw, matrix, usable))
            found |= links
            seen = modality_metrics(self.engine, draw, matrix, (self.seed, 5))
            found |= {f"modality/{key}": value for key, value in seen.items()}
            if clusters:
                hard = hard_scoring.hard_metrics(self.engine, draw, matrix, clusters)
                found |= {f"hard/{key}": value for key, value in hard.items()}
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

    def _scored(self, draw: ProbeDraw, kinds: Mapping[str, str]) -> tuple[np.ndarray, dict[str, float]]:
        """((n, num_prompts) nats per sequence, NaN for pairs that `max_others` leaves out, the same pairs each time;
        the links' metrics)."""
        num, wanted = len(draw.prompts), self._pairs(draw, self.config.max_others, 1)
        if self._answer_end is None:
            asked = None if wanted.all() else wanted
            found = self.engine.matrix(draw.prompts, draw.reasonings, asked, draw.pictures)
            return np.where(wanted, found, np.nan), {}
        answers, excluded = answers_of(draw, self._answer_end, self.engine.context_length, self.config.answer_tasks)
        pairs = Pairs(draw.reasonings, answers, draw.source, draw.task)
        past = self._pairs(draw, self.config.answer_prompts, 2)
        references = draw_references(
            pairs, num, self.config.answer_references, (self.seed, 3), (draw.slot, len(draw.slots))
        )
        scores = score_links(self.engine, draw.prompts, pairs, wanted, past, references, draw.pictures)
        evaluation, excluded["non_finite"] = read_scored(pairs, scores, draw.weights, len(draw.tasks), (self.seed, 4))
        metrics = evaluation.metrics() if evaluation is not None else {"answers": 0.0}
        metrics |= {f"excluded/{reason}": float(excluded[reason]) for reason in ANSWER_EXCLUSIONS}
        metrics |= dependence_by_kind(evaluation, draw.tasks, kinds)
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
