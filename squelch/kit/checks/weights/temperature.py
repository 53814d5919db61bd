"""At which temperature the rows were sampled, from their ids and from recorded log-probabilities. Pure.

From ids it is the temperature of the largest likelihood, with the interval in which the likelihood ratio is not
significant at `FALSE_RATE`, under every checkpoint that may have sampled the rows. A cut of the tail (top_p, top_k,
min_p) looks like a lower temperature; where the tail is cut, or may be, only the head of the distributions counts.

Recorded values are either processed (of the distribution that was sampled, at its temperature) or raw (at temperature
1), which is reported apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squelch.kit.checks.result import Result, Size
from squelch.kit.checks.weights.likelihood import HIGHEST, LOWEST, Peak, interval, peak
from squelch.kit.checks.weights.recorded import Slope, slope
from squelch.kit.checks.weights.weighing import Weighing

FALSE_RATE = 5e-4
DROP = 6.06
"""Nats by which the log-likelihood falls to the ends of the interval: half of chi-square's quantile at `FALSE_RATE`,
one degree of freedom."""
MARGIN = 0.005
"""Relative difference that no run needs to explain: the engine's rounding may cause it."""
TELLS = 0.1
"""Relative half-width of the interval from which on it says something."""
SET_TEMPERATURE = "the sampling temperature that was set (--temperature)"


def temperature(weighing: Weighing) -> Result:
    """Whether the rows were sampled at the claimed temperature."""
    claimed, name = weighing.claims.temperature, "temperature"
    if (off := _recorded_elsewhere(weighing)) is not None:
        found, of = off
        others = "not at 1" if claimed == 1 else f"neither at 1 nor at {claimed:g}"
        says = f"The engine recorded log-probabilities at temperature {found:.3g}, and {others}"
        return Result(name, "fault", says, size=Size(found, "temperature of the recorded values"), count=of, of=of)
    exact = [s for s, one in enumerate(weighing.samples) if one.exact]
    if not exact:
        says = "The ids were encoded from text, which changes how likely they are"
        return Result(name, "unknown", says, needs="the sampled token ids")
    if not any(weighing.own_saved[s] for s in exact):
        says = "No drawn row was sampled by a checkpoint at hand; a training step looks like another temperature"
        return Result(name, "unknown", says, needs="the checkpoint that sampled one of the steps")
    use = [s for s in exact if weighing.own_saved[s]]
    low, high, best = _interval(weighing, use)
    num = sum(weighing.samples[s].num_tokens for s in use)
    size = Size(best.temperature, "as temperature", low, high)
    found_in_words = f"{best.temperature:.3g} [{low:.3g}, {high:.3g}] from {num:,} tokens"
    if claimed is None:
        return Result(name, "unknown", f"The rows were sampled at {found_in_words}", size=size, needs=SET_TEMPERATURE)
    if low > claimed * (1 + MARGIN) and not all(weighing.samples[s].fed for s in use):
        says = f"The rows look sampled at {found_in_words}, but their prompts were encoded from text"
        return Result(name, "unknown", says, size=size, needs="the prompts' ids: other prompts look hotter")
    if high < claimed * (1 - MARGIN) or low > claimed * (1 + MARGIN):
        if _processed_at_claimed(weighing):
            says = (
                f"The rows look sampled at {found_in_words}, but the engine recorded log-probabilities at "
                f"temperature {claimed:g}: other weights or a changed distribution, and no other temperature"
            )
            return Result(name, "unknown", says, size=size, needs="the settings that change distributions")
        says = f"The rows were sampled at {found_in_words}, and not at {claimed:g}"
        return Result(name, "fault", says, num, num, size)
    if _processed_at_claimed(weighing):
        says = f"The engine recorded log-probabilities at temperature {claimed:g}; the ids say {found_in_words}"
        return Result(name, "sound", says, 0, num, size)
    if (width := max(high / claimed - 1, 1 - low / claimed)) > TELLS:
        more = num * (width / TELLS) ** 2
        tail = "" if weighing.tail_is_whole else ", or that top_p, top_k and min_p are off, if they are"
        says = f"The rows were sampled at {found_in_words}, which tells little about {claimed:g}"
        return Result(name, "unknown", says, size=size, needs=f"about {more:,.0f} tokens (--tokens){tail}")
    return Result(name, "sound", f"The rows were sampled at {found_in_words}, claimed are {claimed:g}", 0, num, size)


def texts_differ(weighing: Weighing, of: Sequence[int]) -> bool:
    """Whether samples that were encoded from text look much hotter than claimed under the checkpoint that fits each
    step best: other prompts than those that were fed, and text of tools, make them look so, and weights that were not
    saved hardly."""
    claimed = weighing.claims.temperature
    steps = weighing.by_step([s for s in of if not (weighing.samples[s].exact and weighing.samples[s].fed)])
    if claimed is None or not steps:
        return False
    by_step = (weighing.curves[:, own].sum(axis=1) for own in steps.values())
    best = [max(curves, key=lambda curve: peak(curve).value) for curves in by_step]
    return interval(np.sum(best, axis=0), DROP)[0] > claimed * (1 + TELLS)


def recording_mode(weighing: Weighing) -> Result:
    """Whether recorded log-probabilities are raw (at temperature 1) or processed (at that of the sampling)."""
    name, claimed = "recording_mode", weighing.claims.temperature
    if weighing.recording_temperature is None:
        says = "No log-probabilities of the engine are recorded"
        return Result(name, "unknown", says, needs="log-probabilities of the sampled tokens")
    if claimed is None:
        says = f"The engine recorded log-probabilities at temperature {weighing.recording_temperature:.3g}"
        return Result(name, "unknown", says, needs=SET_TEMPERATURE)
    if claimed == 1:
        return Result(name, "sound", "At temperature 1, raw and processed log-probabilities are the same")
    found = _between(weighing, 1.0, claimed)
    if found.is_first:
        return Result(name, "sound", f"Recorded log-probabilities are raw: at temperature 1, and not at {claimed:g}")
    if found.is_second:
        return Result(name, "sound", f"Recorded log-probabilities are processed: at temperature {claimed:g}")
    says = (
        f"Recorded log-probabilities lie at temperature {weighing.recording_temperature:.3g}; they err by "
        f"{found.noise:.2g} nats a token, and raw and processed ones differ by {found.difference:.2g}"
    )
    return Result(name, "unknown", says, needs="the weights that sampled the rows, or more exact values")


def _interval(weighing: Weighing, use: list[int]) -> tuple[float, float, Peak]:
    """The interval that holds those of all checkpoints that may have sampled the rows, and the best one's peak."""
    curves = weighing.curves[:, use].sum(axis=1)
    peaks = [peak(curve) for curve in curves]
    own = weighing.curves[weighing.newest(use), use].sum(axis=0)
    best = max(one.value for one in [*peaks, peak(own)])
    ends = [interval(curve, DROP) for curve in (*curves, own) if peak(curve).value >= best - DROP]
    top = max([*peaks, peak(own)], key=lambda one: one.value)
    return min(low for low, _ in ends), max(high for _, high in ends), top


def _between(weighing: Weighing, first: float, second: float) -> Slope:
    """From one temperature to another, of the recorded values under the candidates that are nearest to them."""
    of = range(len(weighing.samples))
    owns = weighing.nearest(of)
    a, b = (weighing.values(of, owns, each) for each in (first, second))
    return slope(weighing.engine(of), a, b, weighing.rollouts(of))


def _processed_at_claimed(weighing: Weighing) -> bool:
    """Whether the engine's own values show that the claimed temperature was in effect."""
    claimed = weighing.claims.temperature
    if weighing.recording_temperature is None or claimed is None or not LOWEST <= claimed <= HIGHEST:
        return False
    return claimed != 1 and _between(weighing, 1.0, claimed).is_second


def _recorded_elsewhere(weighing: Weighing) -> tuple[float, int] | None:
    """The temperature of recorded values, and their number, if it is neither 1 nor the claimed one."""
    found, claimed = weighing.recording_temperature, weighing.claims.temperature
    if found is None or claimed is None or not LOWEST * 1.01 < found < HIGHEST / 1.01:
        return None
    if any(abs(found / other - 1) <= 2 * MARGIN for other in (1.0, claimed)):
        return None
    slopes = [_between(weighing, other, found) for other in {1.0, claimed}]
    return (found, slopes[0].num_tokens) if all(one.is_second for one in slopes) else None
