"""Which weights sampled the rows, step by step and over all steps; and the entry point of all checks of weights.

| result | says |
|---|---|
| `stale_weights` | whether the rows fit the checkpoint of the trainer's numbering, allowed staleness included |
| `recorded_versions` | the same of the versions that the engine recorded |
| `adapter_not_applied` | whether the rows of a LoRA run fit the base model; only where adapters are compared with it |
| `temperature` … | `temperature.py` |
| `precision`, `logprobs_of_other_ids`, `engine_against_trainer` | `engine_values.py` |

By chance a healthy run is at fault in at most `FALSE_RATE` of all cases for `stale_weights`, in as many for
`recorded_versions`, and in half as many for `adapter_not_applied`: the more comparisons, the more evidence each needs.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from squelch.kit.checks.result import Result, Size, StepFit, examples
from squelch.kit.checks.weights.data import Candidate, Sample, Scores, WeightClaims
from squelch.kit.checks.weights.engine_values import (
    engine_against_trainer,
    logprobs_of_other_ids,
    precision,
    without_weights,
)
from squelch.kit.checks.weights.temperature import recording_mode, temperature, texts_differ
from squelch.kit.checks.weights.weighing import SMALLEST_KL, Comparison, Weighing
from squelch.kit.findings.view import Example

NAMES = (
    "stale_weights",
    "recorded_versions",
    "adapter_not_applied",
    "temperature",
    "recording_mode",
    "precision",
    "logprobs_of_other_ids",
    "engine_against_trainer",
)
"""The results' names. Each is returned at most once: not where a run has nothing that it is about."""
FALSE_RATE = 2e-3
MOST_LAG = 5
"""Saved checkpoints by which all steps may be behind together."""
CLAIMED_BY = (
    ("stale_weights", False, "the run's numbering of checkpoints"),
    ("recorded_versions", True, "the recorded versions"),
)
"""(result, whether the engine recorded the versions of its samples, what says which checkpoint sampled them)."""
CHECKPOINTS = "the trainer's checkpoints (--checkpoints DIR)"


@dataclass(frozen=True)
class StepSet:
    """The weights that may have sampled one step's rows.

    Attributes:
        step: None where the files say none.
        claimed: names of the checkpoints that the run claims; those around them where none of them was saved.
        saved: whether all claimed checkpoints were saved, for every row.
        fits: names of the checkpoints that are not excluded.
        kl: divergence from the claimed weights of the nearest others that are not excluded, or else of those that are
            hardest to exclude, nats a token; None if there are no others.
        tokens: had; `needed`: to decide by ids alone, infinite below `SMALLEST_KL`.
    """

    step: int | None
    claimed: tuple[str, ...]
    saved: bool
    fits: tuple[str, ...]
    kl: float | None
    tokens: int
    needed: float
    comparisons: tuple[Comparison, ...]

    @property
    def is_fault(self) -> bool:
        """Whether the claimed weights are excluded."""
        return any(one.winner == "other" for one in self.comparisons)

    @property
    def is_sound(self) -> bool:
        """Whether all others are excluded."""
        return bool(self.comparisons) and all(one.winner == "claimed" for one in self.comparisons)


def check_weights(
    scores: Scores | None, claims: WeightClaims, why_not: str = "", samples: Sequence[Sample] = ()
) -> list[Result]:
    """The results of `NAMES`.

    Args:
        scores: of `scored.score`; None if nothing could be scored.
        claims: what the run says of its sampling.
        why_not: where nothing was scored: what is missing, for `Result.needs`; empty: the checkpoints.
        samples: with None: those that were drawn, whose recorded values are compared with each other.
    """
    if scores is None or not scores.samples or not scores.candidates:
        needs = why_not or CHECKPOINTS
        names = ("stale_weights", "temperature", "precision")
        says = "No row was scored under a checkpoint"
        return [Result(name, "unknown", says, needs=needs) for name in names] + without_weights(samples)
    weighing = Weighing(scores, claims)
    asked = [
        (name, of, source)
        for name, recorded, source in CLAIMED_BY
        if (of := [s for s, sample in enumerate(weighing.samples) if sample.recorded == recorded])
    ]
    other_ids, results = logprobs_of_other_ids(weighing), list[Result]()
    if any(one.verdict == "fault" for one in other_ids):
        names = (*(name for name, _, _ in asked), "temperature", "precision")
        says, needs = "The rows hold other ids than those that were sampled", "the sampled ids"
        results += [Result(name, "unknown", says, needs=needs) for name in names]
        return results + other_ids + engine_against_trainer(weighing)
    for name, of, source in asked:
        results += _of_claims(weighing, of, name, source)
    at_fault = any(one.verdict == "fault" for one in results)
    results += [temperature(weighing), recording_mode(weighing), precision(weighing, at_fault)]
    return results + other_ids + engine_against_trainer(weighing)


def step_sets(weighing: Weighing, of: Sequence[int]) -> list[StepSet]:
    """The weights that are not excluded, by step, of the samples that claim some."""
    asked = [
        (step, own, [c for c in range(len(weighing.candidates)) if not weighing.are_same(own, [c] * len(own))])
        for step, own in weighing.by_step([s for s in of if weighing.claimed[s]]).items()
    ]
    threshold = math.log(2 * max(1, sum(len(rivals) for _, _, rivals in asked)) / FALSE_RATE)
    return [_step_set(weighing, *one, threshold) for one in asked]


def _step_set(
    weighing: Weighing, step: int | None, own: Sequence[int], rivals: Sequence[int], threshold: float
) -> StepSet:
    found = [weighing.compare(own, [c] * len(own), threshold) for c in rivals]
    claimed = sorted({c for s in own for c in weighing.claimed[s]})
    won = [(c, one) for c, one in zip(rivals, found, strict=True) if one.winner == "other"]
    excluded = {c for c, one in zip(rivals, found, strict=True) if one.winner == "claimed"}
    if won:
        best = min(won, key=lambda one: _misfit(one[1]))[0]
        excluded |= {*claimed, *(c for c in rivals if c != best and weighing.excludes(own, best, c, threshold))}
    same = [c for c in range(len(weighing.candidates)) if c not in rivals]
    fits = sorted({*claimed, *rivals, *same} - excluded)
    open_ones = [one for one in found if not one.winner] or found
    nearest = min(open_ones, key=lambda one: one.kl) if open_ones else None
    names = [one.name for one in weighing.candidates]
    return StepSet(
        step,
        tuple(names[c] for c in claimed),
        all(weighing.own_saved[s] for s in own),
        tuple(names[c] for c in fits),
        nearest.kl if nearest else None,
        sum(weighing.samples[s].num_tokens for s in own),
        nearest.needed if nearest else 0.0,
        tuple(found),
    )


def _of_claims(weighing: Weighing, of: Sequence[int], name: str, source: str) -> list[Result]:
    """The result of this name, and where adapters are compared with their base, that of `adapter_not_applied`."""
    claiming = [s for s in of if weighing.claimed[s]]
    if not claiming:
        needs = "the step of each row, and the trainer that wrote it, which say what checkpoint sampled it"
        return [Result(name, "unknown", "The files do not say which checkpoint sampled their rows", needs=needs)]
    if len(weighing.candidates) < 2:
        says = f"Only {weighing.candidates[0].name} is at hand, and weights are compared with others"
        return [Result(name, "unknown", says, needs="another checkpoint, or the base model (--base DIR)")]
    steps = step_sets(weighing, claiming)
    lags = _lags(weighing, claiming)
    faulty = [one for one in steps if one.is_fault]
    won = [one for one in lags if one.winner == "other"]
    if (faulty or won) and texts_differ(weighing, claiming):
        says = "The rows were encoded from text, and look sampled at a higher temperature under all weights"
        needs = "the ids that were fed and sampled: other weights may fit other ids"
        return [Result(name, "unknown", says, needs=needs)]
    best = min(won, key=_misfit) if won else None
    base = _adapter_result(weighing, claiming, best, faulty)
    if base is not None and base.verdict == "fault":
        needs = "an engine that applies the adapter: the rows fit the base model"
        return [Result(name, "unknown", f"The rows fit {_initial(weighing).name}", needs=needs), base]
    results = [base] if base is not None else []
    if faulty or best is not None:
        found = _fault(weighing, name, source, steps, faulty, best)
    else:
        found = _no_fault(weighing, name, source, steps, lags, claiming)
    return [replace(found, steps=tuple(map(_step_fit, steps))), *results]


def _lags(weighing: Weighing, of: Sequence[int]) -> list[Comparison]:
    """The claimed weights of all steps against those that lie as far before, or after, at every step, and against one
    checkpoint throughout."""
    last = len(weighing.candidates) - 1
    asked = {
        tuple(min(last, max(0, weighing.claimed[s][0] - lag)) for s in of) for lag in range(-1, MOST_LAG + 1) if lag
    }
    asked |= {(c,) * len(of) for c in range(last + 1)}
    differing = [one for one in sorted(asked) if not weighing.are_same(of, one)]
    threshold = math.log(2 * max(1, len(differing)) / FALSE_RATE)
    return [weighing.compare(of, one, threshold) for one in differing]


def _adapter_result(
    weighing: Weighing, of: Sequence[int], best: Comparison | None, faulty: Sequence[StepSet]
) -> Result | None:
    """`adapter_not_applied`, if adapters are claimed of rows and their base is at hand."""
    name, candidates = "adapter_not_applied", weighing.candidates
    adapted = [s for s in of if all(candidates[c].adapter for c in weighing.claimed[s])]
    base = next((c for c, one in enumerate(candidates) if one.initial), None)
    if base is None or not any(one.adapter for one in candidates):
        return None
    if not adapted:
        return Result(name, "unknown", "No drawn row was to be sampled with an adapter", needs="rows of later steps")
    if weighing.are_same(adapted, [base] * len(adapted)):
        says = "The adapters change nothing that the drawn rows show"
        return Result(name, "unknown", says, needs="rows of later steps, whose adapters differ from the base model")
    against = weighing.compare(adapted, [base] * len(adapted), math.log(2 / FALSE_RATE))
    where = f"over {_tokens(against)} ({_divergence(against)})"
    if against.winner == "claimed":
        return Result(name, "sound", f"The rows fit the adapters and not {candidates[base].name}, {where}")
    is_base = best is None or all(
        c == base
        for s, c in zip(of, best.others, strict=True)
        if all(candidates[k].adapter for k in weighing.claimed[s])
    )
    if against.winner == "other" and is_base:
        size = Size(against.kl, "nats a token between base model and adapters")
        says = f"The rows fit {candidates[base].name} and not the adapters that the run says sampled them, {where}"
        count = len({weighing.samples[s].step for s in adapted})
        return Result(
            name, "fault", says, count, count, size, _rows(weighing, adapted), step=_first_step(weighing, adapted)
        )
    if against.winner == "other" or faulty:
        says = f"The rows fit neither the claimed adapters nor {candidates[base].name}; see the check of stale weights"
        return Result(name, "unknown", says, needs="adapters that fit the rows")
    says = f"{candidates[base].name.capitalize()} with and without adapters cannot be told apart {where}"
    return Result(name, "unknown", says, needs=_more(against))


def _fault(
    weighing: Weighing,
    name: str,
    source: str,
    steps: Sequence[StepSet],
    faulty: Sequence[StepSet],
    best: Comparison | None,
) -> Result:
    count, of = len(faulty), len(steps)
    shown = examples((_step(one), _set_in_words(one)) for one in faulty)
    decided = best or min((one for each in faulty for one in each.comparisons if one.winner == "other"), key=_misfit)
    size = Size(decided.kl, "nats a token from the claimed weights")
    if best is None:
        says = f"The rows of {count} of {of} steps do not fit the weights that sampled them by {source}"
    else:
        says = (
            f"The rows fit {_whom(weighing, best)}, and not those that sampled them by {source}: "
            f"{_evidence(best)} over {_tokens(best)} ({_divergence(best)})"
        )
        if len(faulty) < of:
            says += f"; {count} of {of} steps show it alone"
    if name == "stale_weights" and weighing.claims.max_staleness is None:
        says += ". An asynchronous run may allow that: --claim max_staleness=N"
    return Result(name, "fault", says, count or of, of, size, shown, step=_first(faulty or steps))


def _no_fault(
    weighing: Weighing,
    name: str,
    source: str,
    steps: Sequence[StepSet],
    lags: Sequence[Comparison],
    claiming: Sequence[int],
) -> Result:
    shown = examples((_step(one), _set_in_words(one)) for one in steps)
    judged = [one for one in steps if one.comparisons]
    sound, of = sum(one.is_sound for one in judged), len(judged)
    saved = "" if any(one.saved for one in steps) else ", as far as those tell that were saved before and after"
    if not lags:
        says = "All checkpoints at hand say the same of the drawn rows"
        return Result(name, "unknown", says, 0, of, examples=shown, needs="checkpoints that differ")
    if sound == of or all(one.winner == "claimed" for one in lags):
        alone = "" if sound == of else f"; {sound} of {of} steps show it alone"
        says = f"The rows fit the weights that sampled them by {source}, and no others{saved}{alone}"
        return Result(name, "sound", says, 0, of, examples=shown)
    open_ones = [one for one in lags if not one.winner] or [
        one for each in steps for one in each.comparisons if not one.winner
    ]
    nearest = min(open_ones, key=lambda one: one.kl)
    says = (
        f"The rows fit the weights that sampled them by {source}{saved}, but {_whom(weighing, nearest)} too: "
        f"{_divergence(nearest)}, {_tokens(nearest)} had"
        if len(nearest.others) == len(claiming)
        else f"The rows fit the weights that sampled them by {source}{saved}, but in {of - sound} of {of} steps others "
        f"too: {_divergence(nearest)}, {_tokens(nearest)} had"
    )
    return Result(name, "unknown", says, 0, of, examples=shown, needs=_more(nearest))


# -- in words


def _whom(weighing: Weighing, one: Comparison) -> str:
    """The others of a comparison."""
    claiming = [s for s, own in enumerate(weighing.claimed) if own]
    if len(set(one.others)) == 1:
        return weighing.candidates[one.others[0]].name
    numbers = [each.number for each in weighing.candidates]
    pairs = [(numbers[weighing.claimed[s][0]] - numbers[c]) for s, c in zip(claiming, one.others, strict=False) if c]
    if pairs and len(set(pairs)) == 1:
        return f"the weights of {pairs[0]} updates before" if pairs[0] > 0 else "later weights"
    return "earlier checkpoints"


def _step_fit(one: StepSet) -> StepFit:
    needed = one.needed if math.isfinite(one.needed) else None
    fits = (one.step, one.claimed, one.fits, one.kl, one.tokens, needed)
    return StepFit(*fits, differs=one.is_fault, says=_set_in_words(one))


def _set_in_words(one: StepSet) -> str:
    enclosed = "" if one.saved else ", which stand for what was not saved"
    needed = "" if one.kl is None else f"; {_kl(one.kl)}, {one.tokens:,} tokens had, {_count(one.needed)} needed by ids"
    return f"claimed: {', '.join(one.claimed)}{enclosed}; not excluded: {', '.join(one.fits) or 'none'}{needed}"


def _evidence(one: Comparison) -> str:
    if one.by_recorded and one.recorded is not None:
        return (
            f"recorded log-probabilities lie {one.recorded.value:.2f} of the way to them, "
            f"standard error {one.recorded.error:.2g},"
        )
    return f"log-likelihood ratio {one.evidence:.0f} nats"


def _divergence(one: Comparison) -> str:
    return f"{_kl(one.kl)}, {_count(one.needed)} tokens needed by ids alone"


def _kl(value: float) -> str:
    return f"KL {value:.2g} nats a token"


def _count(needed: float) -> str:
    return f"{math.ceil(needed):,}" if math.isfinite(needed) else f"too many (KL below {SMALLEST_KL:g})"


def _tokens(one: Comparison) -> str:
    return f"{one.tokens:,} tokens"


def _more(one: Comparison) -> str:
    values = "exact log-probabilities of the engine"
    if one.recorded is not None:
        values += (
            f" (those recorded err by {one.recorded.noise:.2g}, the weights differ by {one.recorded.difference:.2g})"
        )
    if not math.isfinite(one.needed):
        return values
    return f"{_count(one.needed)} tokens (--tokens), or {values}"


def _misfit(one: Comparison) -> tuple[int, float]:
    """Smaller for others that fit better; those that recorded values show come first."""
    return (0, one.recorded.noise) if one.by_recorded and one.recorded is not None else (1, -one.evidence)


def _rows(weighing: Weighing, of: Iterable[int]) -> tuple[Example, ...]:
    return examples((weighing.samples[s].row, f"{weighing.samples[s].num_tokens:,} sampled tokens") for s in of)


def _initial(weighing: Weighing) -> Candidate:
    return next(one for one in weighing.candidates if one.initial)


def _first_step(weighing: Weighing, of: Iterable[int]) -> int | None:
    return min((step for s in of if (step := weighing.samples[s].step) is not None), default=None)


def _first(steps: Iterable[StepSet]) -> int | None:
    return min((one.step for one in steps if one.step is not None), default=None)


def _step(one: StepSet) -> str:
    return "rows without a step" if one.step is None else f"step {one.step}"
