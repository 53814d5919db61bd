"""Levels of rewards, groups and tasks: is there anything to learn, and what is it that pays? Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from squelch.kit.diagnosis.uncertainty import fisher_interval
from squelch.kit.findings.history import WINDOW, History, slope
from squelch.kit.findings.level import Level, Levels, of_key, smoothed
from squelch.kit.findings.measures import ZERO

HALF = WINDOW // 2
FOLLOWS, FEWEST_PAIRS = 0.9, 10
"""A reward that pays for the task follows success more closely, over at least so many steps: 0.98 in healthy runs."""
FORM = ("format", "tag", "xml", "json", "length", "lang", "style", "think")
"""Words in the name of a term that pays for the form and not for the task."""


def _groups(kind: str) -> Callable[[History], Level | None]:
    """The share of groups without variance of one kind, over the last steps, with what they cost."""

    def level(history: History) -> Level | None:
        values = history.last(f"groups/{kind}", 5)
        if history.now(f"groups/{kind}") is None:
            return None
        wasted = history.last("groups/tokens_without_signal", 5)
        tokens = statistics.fmean(wasted) if wasted else None
        cost = "" if tokens is None else f"; {tokens:.0%} of the sampled tokens are in groups of equal rewards"
        return Level(statistics.fmean(values), {"cost": cost})

    return level


def _constant(history: History) -> Level | None:
    variance = history.now("reward_variance_mean")
    reward = history.now("reward_mean")
    return (
        None if variance is None else Level(float(variance <= ZERO), {"reward": math.nan if reward is None else reward})
    )


def _plateau(history: History) -> Level | None:
    """1 if neither a line through the last `WINDOW` rewards rises, nor the later half of them is above the earlier."""
    points = history.points("reward_mean")
    if len(points) < WINDOW or history.now("reward_mean") is None:
        return None
    found, error = slope(points)
    values = [value for _, value in points]
    early, late = statistics.fmean(values[:HALF]), statistics.fmean(values[HALF:])
    noise = 2 * math.sqrt((statistics.variance(values[:HALF]) + statistics.variance(values[HALF:])) / HALF)
    flat = abs(found) <= error and abs(late - early) <= noise
    return Level(float(flat), {"before": early, "now": late})


def _by_length(history: History) -> Level | None:
    """The lower end of the correlation, median over the last steps, and 0.2 more where the texts have grown."""
    low = history.recent("groups/length_correlation_low", 5)
    if low is None:
        return None
    grown = (history.change("reasoning_length") or 0.0) >= 1.4
    said = ", and the texts have grown" if grown else ""
    correlation = history.recent("groups/length_correlation", 5) or low
    return Level(low + 0.2 * grown, {"correlation": correlation, "grown": said})


def _one_term(history: History) -> Level | None:
    shares = history.newest("groups/term/")
    if len(shares) < 2:
        return None
    name = max(shares, key=lambda term: shares[term])
    form = any(word in name.lower() for word in FORM)
    return Level(shares[name] + 0.1 * form, {"term": name, "share": shares[name]})


def _validation(history: History) -> tuple[Level, bool] | None:
    """By how much success is below its best, where the intervals of the two do not overlap, and whether the training
    reward has risen since, or does not follow the success of its own trajectories."""
    success, high = history.now("validation/success"), history.now("validation/success_high")
    if success is None or high is None:
        return None
    seen = list(zip(history.points("validation/success"), history.last("validation/success_low"), strict=False))
    (at, best), low = max(seen, key=lambda one: one[0][1])
    if high >= low:
        return Level(0.0), False
    how = "rises" if _rises(history, at) else _strays(history)
    return Level(best - success, {"best": best, "at": int(at), "now": success, "how": how}), bool(how)


def _rises(history: History, since: float) -> bool:
    rewards = history.points("reward_mean")
    before = [value for step, value in rewards if step <= since][-5:] or [value for _, value in rewards][:5]
    after = [value for _, value in rewards][-5:]
    return bool(before) and statistics.fmean(after) > statistics.fmean(before) + 0.02


def _strays(history: History) -> str:
    """Says that a step's mean reward does not follow its success, if the upper end of their correlation over the last
    steps is below `FOLLOWS`; empty if it does, or that is not known."""
    success = dict(history.points("success"))
    pairs = [(success[step], reward) for step, reward in history.points("reward_mean") if step in success]
    if len(pairs) < FEWEST_PAIRS or any(len(set(one)) == 1 for one in zip(*pairs, strict=True)):
        return ""
    found = statistics.correlation(*zip(*pairs, strict=True))
    strays = fisher_interval(found, len(pairs))[1] < FOLLOWS
    return f"does not follow success (correlation over the steps {found:.2f})" if strays else ""


def _hacked(history: History) -> Level | None:
    found = _validation(history)
    return None if found is None else found[0] if found[1] else Level(0.0)


def _validation_falls(history: History) -> Level | None:
    found = _validation(history)
    return None if found is None else Level(0.0) if found[1] else found[0]


def _collapsed(history: History) -> Level | None:
    """With few validation tasks a zero may be chance."""
    collapsed, found = history.now("collapsed"), _validation(history)
    return None if collapsed is None else Level(collapsed if found is None or found[0].value > 0 else 0.0)


def _gamed(history: History) -> Level | None:
    raised = history.now("gaming/raised")
    rise, gain = history.now("gaming/variance_rise"), history.now("gaming/success_gain")
    return None if raised is None else Level(raised, {"rise": rise or 0.0, "gain": gain or 0.0})


def _format(history: History) -> Level | None:
    share = history.recent("format_validity", 5)
    return None if share is None else Level(1 - share, {"share": share})


def _cut(history: History) -> Level | None:
    share = history.recent("groups/cut", 3)
    if share is None:
        return None
    variance = history.now("groups/cut_variance")
    inside = history.now("turns_cut/reasoning")
    where = ", most of them inside their reasoning" if inside and inside > share / 2 else ""
    carried = "" if variance is None else f"; {variance:.0%} of the rewards' variance is between cut ones and others"
    return Level(share, {"where": where, "carried": carried})


LEVELS: Levels = {
    "none_solved": _groups("none_solved"),
    "all_solved": _groups("all_solved"),
    "equal_rewards": _groups("equal"),
    "tokens_wasted": smoothed("groups/tokens_without_signal", 10),
    "reward_constant": _constant,
    "reward_saturated": smoothed("success", 10),
    "reward_plateau": _plateau,
    "reward_by_length": _by_length,
    "reward_by_format": smoothed("groups/format_variance", 5),
    "reward_by_one_term": _one_term,
    "criterion_gamed": _gamed,
    "reward_hacked": _hacked,
    "validation_falls": _validation_falls,
    "success_collapsed": _collapsed,
    "tasks_never_solved": of_key("tasks/never_solved"),
    "tasks_always_solved": of_key("tasks/always_solved"),
    "format_invalid": _format,
    "turns_cut": _cut,
}
