"""Figures of a training step from group summaries: rewards, success, format, staleness; intervals; early stop. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from actors.diagnosis.uncertainty import Z95
from actors.messages import UpdateReport, WeightBundle
from actors.records import GroupSummary


def gain_interval(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95% normal interval of a paired gain in success on the same tasks.

    Args:
        before, after: (num_tasks,) bool, success of the same tasks in the same order.
    """
    gain = after.astype(np.float64) - before.astype(np.float64)
    half = Z95 * float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return float(gain.mean()), float(gain.mean() - half), float(gain.mean() + half)


def union_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (start, end) intervals, seconds."""
    total, reach = 0.0, -math.inf
    for start, end in sorted(intervals):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total


def clip_intervals(intervals: Iterable[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """The parts of the intervals inside [start, end]."""
    clipped = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in clipped if b > a]


def group_figures(summaries: Sequence[GroupSummary], kept: set[str]) -> dict[str, float]:
    """Figures of one step's groups.

    Args:
        summaries: every group of the step, kept or not.
        kept: ids of the groups learned from.
    """
    returns = _join(summaries, "returns")
    kept_returns = _join([s for s in summaries if s.group_id in kept], "returns")
    dropped_returns = _join([s for s in summaries if s.group_id not in kept], "returns")
    variances = [float(np.var(s.returns, ddof=1)) for s in summaries if len(s.returns) > 1]
    num_turns = sum(s.num_turns for s in summaries)
    bands = [_band(s) for s in summaries if len(s.successes)]
    return {
        "success": _mean(_join(summaries, "successes")),
        "reward_mean": _mean(returns),
        "reward_mean_kept": _mean(kept_returns),
        "reward_mean_dropped": _mean(dropped_returns),
        "reward_variance_mean": _mean(np.array(variances)),
        "tasks_all_fail": _share(bands, "all_fail"),
        "tasks_mixed": _share(bands, "mixed"),
        "tasks_all_succeed": _share(bands, "all_succeed"),
        "format_validity": sum(s.format_valid_turns for s in summaries) / num_turns if num_turns else math.nan,
        "format_penalty_mean": _mean(_join(summaries, "format_penalties")),
        "reasoning_length": sum(s.reasoning_tokens for s in summaries) / num_turns if num_turns else math.nan,
        "turns_per_trajectory": num_turns / len(returns) if len(returns) else math.nan,
        "truncated_share": _mean(_join(summaries, "truncations")),
        "rollout_entropy": _weighted(_join(summaries, "surprisals"), _join(summaries, "lengths")),
        "tokens/sampled": float(_join(summaries, "lengths").sum()),
        "tokens/total": float(sum(s.num_tokens for s in summaries)),
        "trajectories": float(len(returns)),
        "trajectories_failed": float(sum(len(s.failures) for s in summaries)),
    }


def reward_spread(summaries: Sequence[GroupSummary], kind: str) -> float:
    """Mean reward variance of the groups (`paper`), or mean std with the format penalties inside (`ragen`)."""
    alive = [s for s in summaries if len(s.returns) > 1]
    if kind == "ragen":
        return _mean(np.array([float(np.std(s.returns + s.format_penalties, ddof=1)) for s in alive]))
    return _mean(np.array([float(np.var(s.returns, ddof=1)) for s in alive]))


def _join(summaries: Sequence[GroupSummary], name: str) -> np.ndarray:
    return np.concatenate([vars(s)[name] for s in summaries]) if summaries else np.zeros(0)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _weighted(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.average(values, weights=weights)) if weights.sum() > 0 else math.nan


def _band(summary: GroupSummary) -> str:
    solved = int(summary.successes.sum())
    return "all_fail" if solved == 0 else "all_succeed" if solved == len(summary.successes) else "mixed"


def _share(bands: list[str], band: str) -> float:
    return bands.count(band) / len(bands) if bands else math.nan


def publication_figures(bundle: WeightBundle) -> dict[str, float]:
    """What publishing a version took on the learner's side."""
    return {
        "weights/bytes": float(bundle.num_bytes),
        "publish/seconds_gathered": bundle.seconds_gathered,
        "publish/seconds_sent": bundle.seconds_sent,
    }


def update_figures(reports: list[UpdateReport]) -> dict[str, float]:
    """What a weight update took and proved, by worker."""
    flat: dict[str, float] = {}
    for report in reports:
        key = f"weights/{report.worker}"
        flat |= {
            f"{key}/seconds_fetched": report.seconds_fetched,
            f"{key}/seconds_paused": report.seconds_paused,
            f"{key}/seconds_loaded": report.seconds_loaded,
            f"{key}/seconds_probe": report.seconds_probe,
            f"{key}/parity": report.parity,
            f"{key}/parity_max": report.parity_max,
            f"{key}/checksum_ok": 1.0,
            f"{key}/version": float(report.version),
        }
    return flat


def step_line(step: int, steps: int, flat: dict[str, float]) -> str:
    """One line a step for the terminal."""
    parts = [
        f"step {step:4d}/{steps}",
        f"success {flat['success']:.3f}",
        f"reward {flat['reward_mean']:+.3f}",
        f"kept {flat.get('kept_groups', 0):.0f}/{flat.get('num_groups', 0):.0f}",
    ]
    if flat.get("kept_mass") is not None:
        parts.append(f"mass {flat['kept_mass']:.2f}")
    if not math.isnan(flat.get("first_turn/retrieval_accuracy", math.nan)):
        accuracy, chance = flat["first_turn/retrieval_accuracy"], flat["first_turn/retrieval_chance"]
        parts.append(f"retrieval {accuracy:.2f} (chance {chance:.2f})")
    if flat.get("alarm/raised") == 1:
        parts.append(f"input dependence falling since step {flat['alarm/since']:.0f}")
    parts.append(f"{flat['seconds/step']:.2f} s")
    return "  ".join(parts)


@dataclass
class EarlyStop:
    """The two rules of appendix B.2.

    (i) mean reward variance below 10% of its mean over the first 10 steps for 5 steps in a row (`ragen`: mean std, 10
    steps); (ii) validation success below `collapse_threshold` at 5 validations in a row. `off` still counts, and never
    stops.
    """

    kind: str
    collapse_threshold: float
    baseline: list[float] = field(default_factory=list)
    low_steps: int = 0
    low_validations: int = 0

    def step(self, spread: float) -> str | None:
        """Takes a step's `reward_spread`; returns why to stop, or None."""
        if math.isnan(spread):
            return None
        if len(self.baseline) < 10:
            self.baseline.append(spread)
            return None
        mean = sum(self.baseline) / len(self.baseline)
        self.low_steps = self.low_steps + 1 if spread < 0.1 * mean else 0
        limit = 10 if self.kind == "ragen" else 5
        if self.kind == "off" or self.low_steps < limit:
            return None
        return f"{self._spread} below 10% of its baseline {mean:.4g} for {self.low_steps} steps"

    def validation(self, success: float) -> str | None:
        """Takes a validation success; returns why to stop, or None."""
        self.low_validations = self.low_validations + 1 if success < self.collapse_threshold else 0
        if self.kind == "off" or self.low_validations < 5:
            return None
        return f"validation success below {self.collapse_threshold:.0%} at {self.low_validations} validations in a row"

    @property
    def _spread(self) -> str:
        """What a step is judged by (`reward_spread`)."""
        return "reward std" if self.kind == "ragen" else "reward variance"

    def state(self) -> dict[str, Any]:
        return {
            "spread": self._spread,
            "baseline": self.baseline,
            "low_steps": self.low_steps,
            "low_validations": self.low_validations,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Counts on; steps judged by another figure than this rule's do not count, and its baseline begins anew."""
        self.low_validations = state["low_validations"]
        if state.get("spread", self._spread) == self._spread:  # a checkpoint of an older version does not say
            self.baseline, self.low_steps = list(state["baseline"]), state["low_steps"]
