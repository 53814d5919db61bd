"""Recorded log-probabilities against those of the checkpoint, and the engine's against the trainer's. Pure.

Text that is decoded and encoded again gives other ids than those that were sampled, whose log-probabilities then stand
beside them. Such values agree with the checkpoint up to some place, and differ by nats from there on; values of other
weights, or of another precision, differ a little everywhere.

Precision is judged only where the run says in which the engine computes. A disagreement of engine and trainer is a
fault from `LARGEST_KL` on, well above what bfloat16 against float32 makes of healthy runs; the side that is nearer to
the claimed checkpoint is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from squelch.kit.checks.result import Result, Size, examples
from squelch.kit.checks.weights.data import Sample
from squelch.kit.checks.weights.recorded import FEWEST_TOKENS, rounding, slope
from squelch.kit.checks.weights.temperature import MARGIN
from squelch.kit.checks.weights.weighing import FEWEST_ROLLOUTS, Weighing, joined
from squelch.kit.diagnosis.uncertainty import t_quantile

FLOAT32_ERROR = 2e-3
"""Root mean square, nats a token, that no engine in float32 reaches; bfloat16's is above."""
LARGEST_KL = 0.01
"""Nats a token."""
FALSE_RATE = 1e-4
NEAR, FAR = 0.01, 1.0
"""Nats a token, within which values agree, and above which they are another token's."""
LEAST_NEAR, LEAST_FAR = 0.2, 0.05
"""Shares of a step's tokens that agree, and of all such steps' that differ, from which on the values are those of other
ids."""
CERTAIN = -0.1
"""Nats; tokens above it agree under most weights."""
NO_VALUES = "log-probabilities of the sampled tokens, recorded by the engine"


def precision(weighing: Weighing, at_fault: bool) -> Result:
    """Whether recorded values are as exact as the claimed precision. `at_fault`: whether other weights sampled them."""
    name, temperature = "precision", weighing.recording_temperature
    if temperature is None:
        return Result(name, "unknown", "No log-probabilities of the engine are recorded", needs=NO_VALUES)
    if at_fault:
        says = "Other weights than the claimed ones sampled the rows, which hides the precision"
        return Result(name, "unknown", says, needs="the weights that sampled them")
    use = [s for s, saved in enumerate(weighing.own_saved) if saved]
    recorded = weighing.engine(use)
    finite = np.isfinite(recorded)
    if finite.sum() < FEWEST_TOKENS:
        says = "Too few drawn rows were sampled by a checkpoint at hand and have log-probabilities"
        return Result(name, "unknown", says, needs="the checkpoints that sampled the steps")
    off = (recorded - weighing.values(use, weighing.nearest(use), temperature))[finite]
    error, stored = float(np.sqrt(np.mean(off**2))), rounding(recorded[finite])
    grid = f", of which {stored:.2g} is how they are stored" if stored else ""
    values = (
        f"Recorded log-probabilities differ from those of the checkpoint in float32 by {error:.2g} nats a token{grid}"
    )
    size = Size(error, "nats a token")
    if weighing.claims.dtype is None:
        return Result(name, "unknown", values, size=size, needs="the engine's precision that was set")
    if weighing.claims.dtype != "float32":
        return Result(name, "sound", f"{values}; claimed is {weighing.claims.dtype}", 0, int(finite.sum()), size)
    if stored > FLOAT32_ERROR / 3:
        return Result(name, "unknown", values, size=size, needs="values that are stored in float32")
    if error <= FLOAT32_ERROR:
        return Result(name, "sound", f"{values}, as float32 does", 0, int(finite.sum()), size)
    says = f"{values}: the engine computes in a lower precision than float32, or in another way than the trainer"
    return Result(name, "fault", says, int(finite.sum()), int(finite.sum()), size)


def logprobs_of_other_ids(weighing: Weighing) -> list[Result]:
    """Whether recorded values are those of the rows' ids; none where no values are recorded."""
    if weighing.recording_temperature is None:
        return []
    name, use = "logprobs_of_other_ids", [s for s, saved in enumerate(weighing.own_saved) if saved]
    offs = {s: _off(weighing, s) for s in use}
    steps = weighing.by_step(use).items()
    known = {step for step, own in steps if _are_near(joined([offs[s] for s in own]))}  # others' weights are not saved
    fitting = {s: off for s, off in offs.items() if weighing.samples[s].step in known}
    every = joined(list(fitting.values()))
    if len(every) < FEWEST_TOKENS:
        says = "Too few uncertain tokens have the log-probability of a checkpoint at hand"
        return [Result(name, "unknown", says, needs="the checkpoints that sampled the steps, and exact values")]
    far = int((every > FAR).sum())
    says = (
        f"{far / len(every):.1%} of {len(every):,} uncertain tokens have another log-probability than the checkpoint's"
    )
    if far < LEAST_FAR * len(every):
        return [Result(name, "sound", f"{says}, as healthy runs may", of=len(use))]
    wrong = [(weighing.samples[s].row, count) for s, off in fitting.items() if (count := int((off > FAR).sum()))]
    shown = examples((row, f"{count} tokens with the log-probability of another") for row, count in wrong)
    size = Size.share(far, len(every), "uncertain tokens")
    return [Result(name, "fault", f"{says}, in steps that it sampled", len(wrong), len(use), size, shown)]


def _are_near(off: np.ndarray) -> bool:
    return len(off) > 0 and (off <= NEAR).mean() >= LEAST_NEAR


def _off(weighing: Weighing, sample: int) -> np.ndarray:
    """How far a sample's recorded values are, in nats, from those of the weights and temperature that most of them fit;
    of the tokens that are not certain."""
    recorded = weighing.engine([sample])
    weights = range(len(weighing.candidates))
    all_values = (weighing.values([sample], [c], each) for c in weights for each in weighing.scores.temperatures)
    own = max(all_values, key=lambda values: int((np.abs(recorded - values) <= NEAR).sum()))
    return np.abs(recorded - own)[np.isfinite(recorded) & (np.fmin(recorded, own) < CERTAIN)]


def engine_against_trainer(weighing: Weighing) -> list[Result]:
    """Whether engine and trainer agree, and if not, which side is off; none where only one side is recorded."""
    of = range(len(weighing.samples))
    engine, trainer, clusters = weighing.engine(of), weighing.trainer(of), weighing.rollouts(of)
    if (found := disagreement(engine, trainer, clusters)) is None:
        return []
    temperatures = [weighing.fitted_temperature(values) for values in (engine, trainer)]
    differ = abs(temperatures[0] / temperatures[1] - 1) > 2 * MARGIN
    if found.size is not None and found.size.value > LARGEST_KL and differ and _each_fits(weighing, engine, trainer):
        says = f"{found.says}, because they are at temperatures {temperatures[0]:.3g} and {temperatures[1]:.3g}"
        return [replace(found, verdict="unknown", says=says, needs="values of both at one temperature", count=None)]
    if found.verdict != "fault":
        return [found]
    own = weighing.values(of, weighing.newest(of), temperatures[1])
    between = slope(own, trainer, engine, clusters)  # 0: the checkpoint says what the trainer says
    side = "the engine is off: the trainer agrees with the checkpoint" if between.is_first else ""
    side = "the trainer is off: the engine agrees with the checkpoint" if between.is_second else side
    if side:
        return [replace(found, says=f"{found.says}; {side}", needs="")]
    return [replace(found, says=f"{found.says}, and the checkpoint does not agree with either side")]


def without_weights(samples: Sequence[Sample]) -> list[Result]:
    """As `engine_against_trainer`, where no checkpoint is at hand."""
    both = [(number, one) for number, one in enumerate(samples) if one.engine is not None and one.trainer is not None]
    if not both:
        return []
    engine, trainer = (
        np.concatenate([getattr(one, side)[one.mask] for _, one in both]) for side in ("engine", "trainer")
    )
    clusters = np.repeat([number for number, _ in both], [one.num_tokens for _, one in both])
    found = disagreement(engine, trainer, clusters)
    return [] if found is None else [found]


def disagreement(engine: np.ndarray, trainer: np.ndarray, clusters: np.ndarray) -> Result | None:
    """Whether engine and trainer agree on tokens, by their log-probabilities (n,) alone, NaN where there is none; None
    if too few tokens have both. `clusters`: a number of each token's rollout."""
    name, both = "engine_against_trainer", np.isfinite(engine) & np.isfinite(trainer)
    if (num := int(both.sum())) < FEWEST_TOKENS:
        return None
    low, kl, high = _divergence(engine[both], trainer[both], clusters[both])
    says = f"The engine's and the trainer's log-probabilities differ by KL {kl:.2g} nats a token in {num:,} tokens"
    size = Size(kl, "nats a token", low, high)
    if low <= LARGEST_KL:
        return Result(name, "sound", f"{says}, as healthy runs may", 0, num, size)
    return Result(name, "fault", says, num, num, size, needs="the checkpoint that sampled the rows (--checkpoints DIR)")


def _each_fits(weighing: Weighing, engine: np.ndarray, trainer: np.ndarray) -> bool:
    """Whether both sides are the checkpoint's, each at its own temperature."""
    of = range(len(weighing.samples))
    owns = weighing.nearest(of)
    for values, other in ((engine, trainer), (trainer, engine)):
        fitted, elsewhere = (weighing.values(of, owns, weighing.fitted_temperature(each)) for each in (values, other))
        if not slope(values, elsewhere, fitted, weighing.rollouts(of)).is_second:
            return False
    return True


def _divergence(engine: np.ndarray, trainer: np.ndarray, clusters: np.ndarray) -> tuple[float, float, float | None]:
    """(low, estimate, high) of the KL divergence of engine and trainer, as of `likelihood.divergence`. With too few
    rollouts `low` is 0 and `high` is not known."""
    terms = (trainer - engine) * np.tanh((trainer - engine) / 2)
    _, owner = np.unique(clusters, return_inverse=True)
    mean, num = float(terms.mean()), int(owner.max()) + 1
    if num < FEWEST_ROLLOUTS:
        return 0.0, mean, None
    sums = np.bincount(owner, weights=terms - mean)
    error = float(np.sqrt(num / (num - 1) * (sums @ sums))) / len(terms)
    reach = t_quantile(1 - FALSE_RATE, num - 1) * error
    return max(0.0, mean - reach), mean, mean + reach
