"""Levels of the updates: entropy, KL, clipping, gradients, critic, and whether learner and engine agree. Pure."""

from __future__ import annotations

import math
import statistics

from squelch.kit.findings.history import History, slope
from squelch.kit.findings.level import Level, Levels, smoothed

SPIKE = 10.0
"""A gradient's norm, as a multiple of the median before it, that is a spike."""
GONE = 0.05
"""Nats per token at which a policy hardly explores."""
TREND = 20


def _entropy_key(history: History) -> str:
    """The learner's entropy where it is measured, else that of sampling."""
    return "learner/entropy" if history.last("learner/entropy", 1) else "rollout_entropy"


def _entropy_falls(history: History) -> Level | None:
    key = _entropy_key(history)
    ratio, now = history.change(key), history.recent(key)
    if ratio is None or now is None:
        return None
    found, error = slope([(step, math.log(max(value, 1e-9))) for step, value in history.points(key, TREND)])
    when = ""
    if found < -2 * error and now > GONE:
        when = f"; at this pace it is at {GONE:g} by step {history.step + math.log(GONE / now) / found:.0f}"
    return Level(1 - ratio, {"before": history.early(key), "now": now, "when": when})


def _entropy_explodes(history: History) -> Level | None:
    key = _entropy_key(history)
    ratio, now = history.change(key), history.recent(key)
    if ratio is None or now is None:
        return None
    return Level(ratio if now > 0.5 else 0.0, {"before": history.early(key), "now": now})


def _clipped(history: History) -> Level | None:
    parts = [history.recent(f"learner/clip_fraction_{side}") for side in ("low", "high")]
    known = [value for value in parts if value is not None]
    return Level(sum(known)) if known else None


def _spikes(history: History) -> Level | None:
    """How many of the last `TREND` norms are spikes."""
    values = history.last("learner/grad_norm", TREND)
    if len(values) < TREND or history.now("learner/grad_norm") is None:
        return None
    usual = statistics.median(values)
    spikes = sum(value > SPIKE * usual for value in values) if usual > 0 else 0
    return Level(float(spikes), {"usual": usual, "largest": max(values)})


def _vanishes(history: History) -> Level | None:
    ratio = history.change("learner/grad_norm", 10)
    if ratio is None:
        return None
    return Level(
        1 - ratio, {"before": history.early("learner/grad_norm"), "now": history.recent("learner/grad_norm", 10)}
    )


def _zero(history: History) -> Level | None:
    """The share of the last 10 steps whose gradient is 0, or that made no update."""
    skipped = history.last("updates_skipped", 10)
    norms = history.last("learner/grad_norm", 10)
    if len(skipped) == 10:
        zero = sum(skipped) + sum(norm == 0 for norm in norms)
        return Level(min(1.0, zero / 10))
    return Level(sum(norm == 0 for norm in norms) / 10) if len(norms) == 10 else None


def _critic(history: History) -> Level | None:
    explained = history.recent("learner/explained_variance", 5)
    return None if explained is None else Level(-explained, {"explained": explained})


def _differs(history: History) -> Level | None:
    """On tokens of the present version where these are told apart: others may differ because they are stale."""
    key = "learner/mismatch_on_policy" if history.last("learner/mismatch_on_policy", 1) else "learner/mismatch_abs"
    value = history.recent(key, 3)
    return None if value is None else Level(value)


def _refused(history: History) -> Level | None:
    """Groups that the learner refused in the last 10 steps; the ledger counts over the run."""
    counts = history.last("ledger/failed/refused_by_learner", 10)
    if not counts or history.now("ledger/failed/refused_by_learner") is None:
        return None
    since = counts[0] if len(counts) == 10 else 0.0
    return Level(counts[-1] - since)


def _stale(history: History) -> Level | None:
    size = history.recent("learner/effective_sample_size", 5)
    if size is None:
        return None
    return Level(1 - size, {"size": size, "staleness": history.now("staleness_mean") or 0.0})


LEVELS: Levels = {
    "entropy_falls": _entropy_falls,
    "entropy_explodes": _entropy_explodes,
    "kl_high": smoothed("learner/kl", 3),
    "updates_clipped": _clipped,
    "gradient_spikes": _spikes,
    "gradient_vanishes": _vanishes,
    "gradient_zero": _zero,
    "critic_explains_nothing": _critic,
    "engine_differs": _differs,
    "updates_refused": _refused,
    "groups_stale": _stale,
}
