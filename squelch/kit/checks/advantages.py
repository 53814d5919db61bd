"""Which rule over their groups gives the advantages that a file records, and which groups no rule explains. Pure.

Within a group, every rule of `RULES` is the rewards' weighted sum, less a baseline of the group, times a scale of the
group. So a group's advantages lie on a line over its sums, whatever the rule; the rule is in baseline and scale. The
weights of several rewards are found from that alone: they are the direction that leaves least of each group's
advantages unexplained. What a number's rounding allows is measured on the file: numbers that fit in 8, 11 or 24 bits,
or in a few decimals, are known no better than that.

Advantages that differ from token to token (a critic's) have no such rule, and a group whose advantages are all 0 was
left out by a filter: neither is a fault.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from squelch.kit.checks.claims import Claims
from squelch.kit.checks.collected import Collected, Group, Member
from squelch.kit.checks.result import Result, Size, examples

FEWEST = 3
"""Groups of unequal rewards from which on a rule is looked for."""
MOST = 0.8
"""Share of the groups that a rule explains which is the file's."""
EPSILONS = (0.0, 1e-8, 1e-6, 1e-5, 1e-4)
"""What trainers add to a standard deviation."""
ROUNDINGS = (("bfloat16", 8), ("float16", 11), ("float32", 24))
"""Kinds of numbers, and the bits of their fractions."""


@dataclass(frozen=True)
class _Known:
    """A group's rewards (n, k), 0 where none is `given` (n, k), and advantages (n,)."""

    group: Group
    rewards: np.ndarray
    given: np.ndarray
    advantages: np.ndarray


def _scaled(ddof: int) -> Callable[[np.ndarray, float], list[np.ndarray]]:
    """(r - mean) / (std + epsilon), for each epsilon."""

    def of(sums: np.ndarray, batch: float) -> list[np.ndarray]:
        spread = sums.std(ddof=ddof)
        return [(sums - sums.mean()) / (spread + one) for one in EPSILONS if spread + one > 0]

    return of


def _others(sums: np.ndarray) -> np.ndarray:
    """(n,) of each, the mean of the others."""
    return (sums.sum() - sums) / max(1, len(sums) - 1)


Rule = Callable[[np.ndarray, float], list[np.ndarray]]
RULES: Mapping[str, Rule] = {
    "grpo": _scaled(1),
    "grpo_population": _scaled(0),
    "dr_grpo": lambda sums, batch: [sums - sums.mean()],
    "rloo": lambda sums, batch: [sums - _others(sums)],
    "grpo_batch": lambda sums, batch: [(sums - sums.mean()) / (batch + one) for one in EPSILONS if batch + one > 0],
    "maxrl": lambda sums, batch: [(sums - sums.mean()) / (sums.mean() + one) for one in EPSILONS if sums.mean() > 0],
    "reward": lambda sums, batch: [sums],
}
"""By name, for docs: of a group's sums, and the standard deviation of its step's sums, each way to write the rule."""
GDPO, GDPO_EPSILON = "gdpo", 1e-4
"""TRL's `normalize_then_sum`: each reward by itself within its group, and their sum within the step."""
BY_STEP = ("grpo_batch", GDPO)
"""Rules that need all groups of a step."""


def advantages(found: Collected, claims: Claims) -> Result:
    """Groups whose advantages are not those that the file's rule gives."""
    name, rewards = "advantages", list(dict.fromkeys(name for one in found.members for name in one.rewards))
    known, partly, by_token = _known(found, rewards)
    if by_token:
        says = f"{by_token} rollouts have an advantage for each token, as a critic gives them"
        return Result(name, "unknown", says, needs="advantages that are equal for all tokens of a rollout")
    told = [one for one in known if np.ptp(one.advantages) > 0]
    if len(told) < FEWEST:
        says = (
            f"{len(told)} groups have advantages that differ"
            if known
            else "No whole group has rewards and advantages recorded"
        )
        return Result(name, "unknown", says, needs=f"advantages of {FEWEST} groups of unequal rewards")
    if claims.reward_weights is not None and len(claims.reward_weights) != len(rewards):
        says = f"{len(claims.reward_weights)} weights are claimed, and the rewards are {', '.join(rewards)}"
        return Result(name, "unknown", says, needs="--claim reward_weights=W,W,... of these rewards in this order")
    rounding = _rounding(told)
    weights = _weights(told, [one for one in known if one.group.step not in partly], claims, rounding)
    if weights is None:
        says = f"No weights of the rewards {', '.join(rewards)} give the advantages of most of {len(told)} groups"
        needs = "--claim reward_weights=W,W,... in the order of these rewards"
        return Result(name, "unknown", says, of=len(told), needs=needs)
    ways = _ways(known, partly, weights)
    fitting = [_rules(one, ways[id(one)], rounding) for one in told]
    counts = Counter(rule for rules in fitting for rule in rules)
    rule = claims.advantage or (counts.most_common(1)[0][0] if counts else "")
    if rule in BY_STEP:
        pairs = [(one, rules) for one, rules in zip(told, fitting, strict=True) if one.group.step not in partly]
        told, fitting = [one for one, _ in pairs], [rules for _, rules in pairs]
    if len(told) < FEWEST:
        says = f"The rule {rule} needs steps whose groups are all known, and {len(told)} groups are in such ones"
        return Result(name, "unknown", says, needs=f"{FEWEST} groups of unequal rewards in such steps")
    share = counts[rule] / len(told) if rule else 0.0
    wrong = [one for one, rules in zip(told, fitting, strict=True) if rule not in rules]
    if not wrong:
        return Result(name, "sound", f"The rule {rule} gives the advantages of all {len(told)} groups", of=len(told))
    says = f"The rule {rule or 'of no trainer'} gives the advantages of {share:.0%} of {len(told)} groups"
    weights_are_known = claims.reward_weights is not None or len(rewards) == 1
    is_open = not found.traits.rules_are_known or bool(partly) or not weights_are_known
    since = _change(told, fitting, rule)
    if share < MOST and not claims.advantage and is_open and since is None:
        needs = "--claim advantage=RULE, of a rule that this check knows, and --claim reward_weights=W,W,..."
        return Result(name, "unknown", says, len(wrong), len(told), needs=needs)
    steps = [one.group.step for one in wrong if one.group.step is not None]
    if since is not None:
        where = f"from step {since} on, and of none before" if min(steps) < since else f"before step {since} alone"
        says = f"The rule {rule} gives the advantages of all groups {where}"
    elif not rule or (share < MOST and not claims.advantage):
        says = f"No rule of {found.name} gives the advantages of {len(wrong)} of {len(told)} groups"
    shown = examples((one.group.where, _differs(one, weights, rule, ways[id(one)])) for one in wrong)
    size = Size.share(len(wrong), len(told), "groups")
    return Result(name, "fault", says, len(wrong), len(told), size, shown, step=min(steps, default=None))


def _change(told: Sequence[_Known], fitting: Sequence[Set[str]], rule: str) -> int | None:
    """The first step of those that the rule explains wholly, or not at all, after steps of the other kind; None if
    there is another order, or a kind has one step, in which a running baseline has not begun, or too few groups."""
    by_step: dict[int, set[bool]] = {}
    for one, rules in zip(told, fitting, strict=True):
        if one.group.step is not None:
            by_step.setdefault(one.group.step, set()).add(rule in rules)
    kinds = [(step, fits) for step, own in sorted(by_step.items()) for fits in sorted(own)]
    changes = [step for (_, before), (step, fits) in pairwise(kinds) if fits != before]
    fits = sum(rule in rules for rules in fitting)
    if len(changes) != 1 or len(kinds) > len(by_step) or min(fits, len(told) - fits) < FEWEST:
        return None
    return changes[0] if min(Counter(fits for _, fits in kinds).values()) > 1 else None


def _known(found: Collected, names: Sequence[str]) -> tuple[list[_Known], set[int | None], int]:
    """The groups whose rewards and advantages are known, the steps that have others too, and rollouts with one for each
    token. A group that is not whole is left out: what counted as the reward of its failed or missing rollouts is not
    known."""
    size = max(Counter(len(group.members) for group in found.groups.values()).items(), key=lambda one: one[1])[0]
    known, partly, by_token = list[_Known](), set[int | None](), 0
    for group in found.groups.values():
        by_token += sum(isinstance(one.advantage, list) for one in group.played)
        for members in [group.played] if found.traits.names_groups else _chunks(group.played, size):
            scored = all(any(value is not None for value in one.rewards.values()) for one in members)
            if len(members) == size > 1 and scored and (one := _group(group, members, names)) is not None:
                known.append(one)
            else:
                partly.add(group.step)
    return known, partly, by_token


def _group(group: Group, members: Sequence[Member], names: Sequence[str]) -> _Known | None:
    """The members' values; None if some are not known."""
    if not names or not all(isinstance(one.advantage, float) for one in members):
        return None
    rewards = np.array([[one.rewards.get(name) or 0.0 for name in names] for one in members], float)
    given = np.array([[one.rewards.get(name) is not None for name in names] for one in members])
    advantages = np.array([one.advantage for one in members], float)
    is_known = np.isfinite(rewards).all() and np.isfinite(advantages).all()
    return _Known(group, rewards, given, advantages) if is_known else None


def _chunks(members: Sequence[Member], size: int) -> list[Sequence[Member]]:
    """The members, or each `size` of them in their order, where a step plays one prompt in several groups."""
    return [members[at : at + size] for at in range(0, len(members), size)]


def _weights(
    known: Sequence[_Known], in_whole_steps: Sequence[_Known], claims: Claims, rounding: float
) -> np.ndarray | None:
    """(k,) the weights of the rewards: the claimed ones, ones if they explain the advantages, or those that explain
    most groups; None if none do."""
    count = known[0].rewards.shape[1]
    if claims.reward_weights is not None:
        return np.array(claims.reward_weights)
    ones, most = np.ones(count), max(1e-4, 4 * rounding)
    if count == 1 or all(_unexplained(one, ones) <= most for one in known):
        return ones
    found, kept = _line(known), known
    for _ in range(2):  # without the groups that it explains least
        kept = sorted(known, key=lambda one: _unexplained(one, found))[: math.ceil(MOST * len(known))]
        found = _line(kept)
    if all(_unexplained(one, found) <= most for one in kept):
        return found / np.abs(found).max()
    step = in_whole_steps[0].group.step if in_whole_steps else None
    return ones if _is_gdpo([one for one in in_whole_steps if one.group.step == step]) else None


def _is_gdpo(own: Sequence[_Known]) -> bool:
    """Whether most groups of a step have the advantages of `GDPO` with equal weights."""
    if not own:
        return False
    ways, rounding = _ways(own, set(), np.ones(own[0].rewards.shape[1])), _rounding(own)
    return sum(GDPO in _rules(one, ways[id(one)], rounding) for one in own) >= MOST * len(own)


def _line(known: Sequence[_Known]) -> np.ndarray:
    """(k,) the weights that leave least of the groups' advantages unexplained."""
    count = known[0].rewards.shape[1]
    moments = np.zeros((count, count))
    for one in known:
        centred, own = one.rewards - one.rewards.mean(axis=0), one.advantages - one.advantages.mean()
        beside = centred - np.outer(own, own @ centred) / (own @ own)
        moments += beside.T @ beside
    found = np.linalg.eigh(moments)[1][:, 0]
    return found if sum(_slope(one, found) for one in known) >= 0 else -found


def _slope(one: _Known, weights: np.ndarray) -> float:
    sums = one.rewards @ weights
    return float((sums - sums.mean()) @ one.advantages)


def _unexplained(one: _Known, weights: np.ndarray) -> float:
    """Share of the advantages' spread that is on no line over the weighted sums."""
    sums, own = one.rewards @ weights, one.advantages - one.advantages.mean()
    sums = sums - sums.mean()
    if not sums @ sums:
        return 1.0
    rest = own - sums * (sums @ own) / (sums @ sums)
    return math.sqrt(float(rest @ rest) / float(own @ own))


def _rounding(known: Sequence[_Known]) -> float:
    """The relative error of the file's numbers, at least that of a few operations in float32."""
    values = np.concatenate([one.advantages for one in known])
    values = values[values != 0]
    decimals = next((places for places in range(2, 8) if np.allclose(values, values.round(places), 0, 1e-12)), None)
    if decimals is not None:
        return 0.51 * 10.0**-decimals
    for _, bits in ROUNDINGS:
        fractions, _ = np.frexp(values)
        scaled = fractions * 2.0**bits
        if np.array_equal(scaled, np.rint(scaled)):
            return max(4 * 2.0**-bits, 1e-5)
    return 1e-5


def _ways(
    known: Sequence[_Known], partly: Set[int | None], weights: np.ndarray
) -> dict[int, dict[str, list[np.ndarray]]]:
    """Of each group, by its id: each rule's advantages, in each way to write it; without the rules of a step where
    it is `partly` known."""
    steps: dict[int | None, list[_Known]] = {}
    for one in known:
        steps.setdefault(one.group.step, []).append(one)
    found: dict[int, dict[str, list[np.ndarray]]] = {}
    for own in steps.values():
        sums, scaled = [one.rewards @ weights for one in own], [_normal(one) @ weights for one in own]
        batch, whole = float(np.concatenate(sums).std(ddof=1)), np.concatenate(scaled)
        for one, total, each in zip(own, sums, scaled, strict=True):
            found[id(one)] = {name: rule(total, batch) for name, rule in RULES.items()}
            found[id(one)][GDPO] = [(each - whole.mean()) / (whole.std(ddof=1) + GDPO_EPSILON)]
            if one.group.step in partly:
                found[id(one)] = {name: ways for name, ways in found[id(one)].items() if name not in BY_STEP}
    return found


def _normal(one: _Known) -> np.ndarray:
    """(n, k) each given reward less the mean of these, by their standard deviation; else 0."""
    counts = one.given.sum(axis=0)
    centred = (one.rewards - one.rewards.sum(axis=0) / np.maximum(counts, 1)) * one.given
    spread = np.sqrt((centred**2).sum(axis=0) / np.maximum(counts - 1, 1))
    return centred / (spread + GDPO_EPSILON)


def _rules(one: _Known, ways: Mapping[str, list[np.ndarray]], rounding: float) -> set[str]:
    """The rules that give the group's advantages."""
    most = rounding * (1 + np.abs(one.advantages).max())
    return {rule for rule, given in ways.items() if any(np.abs(own - one.advantages).max() <= most for own in given)}


def _differs(one: _Known, weights: np.ndarray, rule: str, ways: Mapping[str, list[np.ndarray]]) -> str:
    """What the group has and what the rule gives."""
    sums, given = one.rewards @ weights, ways.get(rule, [])
    at = int(np.abs(given[0] - one.advantages).argmax()) if given else 0
    told = f", {rule} gives {given[0][at]:.4g}" if given else ""
    return f"reward {sums[at]:.4g} has the advantage {one.advantages[at]:.4g}{told}"
