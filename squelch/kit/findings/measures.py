"""Flat metrics of a step's groups and texts, with the rows that show them. Pure.

    groups/none_solved, all_solved, equal    shares of groups of equal rewards that none, all or some of their
                                             completions solve
    groups/tokens_without_signal             share of the sampled tokens that are in groups of equal rewards
    groups/cut                               share of completions that the limit of tokens cuts
    groups/cut_variance                      share of the rewards' variance within groups between cut ones and others
    groups/length_correlation                correlation of reward and length within groups, with its 95% interval
    groups/format_variance                   share of the variance within groups, penalties included, that is theirs
    groups/term/TERM                         share of the rewards' variance within groups that one term has
    groups/differing_prompts                 share of agents' groups whose members began with different prompts
    texts/repetition                         share of a text's runs of 4 tokens that occurred in it before
    texts/one_text                           share of the prompts under which the commonest text was sampled
    tasks/again                              tasks that were seen `SEEN` times or more
    tasks/never_solved, always_solved        shares of them

A group of one completion, or of failures, counts in none of the first ones. Where nothing says whether a completion
solves its task, the highest reward of the step does and the lowest does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from squelch.kit.diagnosis.templates import widest
from squelch.kit.diagnosis.uncertainty import fisher_interval
from squelch.kit.findings.view import MOST_EXAMPLES, Example, GroupView, StepView, TextView

ZERO = 1e-10
"""Variance up to which rewards are equal."""
FEWEST_PROMPTS = 8
"""Prompts of a step of which one text may be the commonest."""
SEEN, FEWEST_TASKS, MAX_TASKS = 3, 8, 100_000


@dataclass
class Tasks:
    """How often tasks were seen, and how often solved by all or by none. Holds the first `MAX_TASKS` tasks."""

    counts: dict[str, list[int]] = field(default_factory=dict)
    """[times, times that some completion solved it, times that all did] by task."""

    def see(self, task: str, solved: Sequence[bool]) -> None:
        """Counts a group of a task."""
        if task and (task in self.counts or len(self.counts) < MAX_TASKS):
            one = self.counts.setdefault(task, [0, 0, 0])
            one[0], one[1], one[2] = one[0] + 1, one[1] + any(solved), one[2] + all(solved)

    def metrics(self) -> dict[str, float]:
        """The shares; none below `FEWEST_TASKS` tasks."""
        again = [one for one in self.counts.values() if one[0] >= SEEN]
        if len(again) < FEWEST_TASKS:
            return {}
        never, always = (sum(test(one) for one in again) for test in (lambda n: n[1] == 0, lambda n: n[2] == n[0]))
        return {
            "tasks/again": float(len(again)),
            "tasks/never_solved": never / len(again),
            "tasks/always_solved": always / len(again),
        }


@dataclass(frozen=True)
class Measured:
    """The metrics, and up to `MOST_EXAMPLES` rows by the metric that they show."""

    metrics: dict[str, float]
    examples: dict[str, list[Example]]


def measured(view: StepView, tasks: Tasks) -> Measured:
    """What the view's groups and texts show; `tasks` is brought up to date."""
    found, examples = _groups(view.groups or (), tasks)
    found |= _prompts(view.groups or (), examples)
    texts, shown = _texts(view.texts or ())
    kept = {key: rows[:MOST_EXAMPLES] for key, rows in (examples | shown).items()}
    return Measured(found | texts | tasks.metrics(), kept)


def _groups(groups: Sequence[GroupView], tasks: Tasks) -> tuple[dict[str, float], dict[str, list[Example]]]:
    first: dict[str, str] = {}  # of each cause, the group that failed first
    for group in groups:
        for text in group.failures:
            first.setdefault(text, group.name)
    examples = {"trajectories_failed": [Example(name, text) for text, name in first.items()]} if first else {}
    compared = [group for group in groups if len(group.rewards) > 1]
    if not compared:
        return {}, examples
    solved = _solved(compared)
    for group, one in zip(compared, solved, strict=True):
        if one is not None:
            tasks.see(group.task, one)
    found = _equal(compared, solved, examples)
    lengths = [group.lengths for group in compared]
    if all(length is not None for length in lengths):
        found |= _by_length(compared, examples)
    penalties = [group.penalties for group in compared]
    if any(penalty is not None and np.any(penalty) for penalty in penalties):
        learned = [np.add(group.rewards, _zero(group.penalties)) for group in compared]
        found["groups/format_variance"] = _share([_zero(group.penalties) for group in compared], learned)
    if all(group.cut is not None for group in compared):
        found |= _cut(compared, examples)
    names = sorted({name for group in compared for name in group.terms})
    if len(names) > 1:
        rewards = [np.asarray(group.rewards) for group in compared]
        for name in names:
            terms = [np.asarray(group.terms.get(name, np.zeros(len(group.rewards)))) for group in compared]
            found[f"groups/term/{name}"] = _share(terms, rewards)
    return {key: value for key, value in found.items() if math.isfinite(value)}, examples


def _prompts(groups: Sequence[GroupView], examples: dict[str, list[Example]]) -> dict[str, float]:
    written = [group for group in groups if group.prompts_differ is not None]
    differ = [Example(group.name, group.prompts_differ) for group in written if group.prompts_differ]
    if differ:
        examples["groups/differing_prompts"] = differ
    return {"groups/differing_prompts": len(differ) / len(written)} if written else {}


def _zero(values: Sequence[float] | None) -> np.ndarray:
    return np.zeros(1) if values is None else np.asarray(values)


def _solved(groups: Sequence[GroupView]) -> list[list[bool] | None]:
    """Which completions of each group solve its task; None where that is not known."""
    rewards = np.concatenate([np.asarray(group.rewards, dtype=np.float64) for group in groups])
    low, high = rewards.min(), rewards.max()
    by_reward = high - low > ZERO

    def of(group: GroupView) -> list[bool] | None:
        if group.solved is not None:
            return [bool(one) for one in group.solved]
        return [bool(high - one <= ZERO) for one in group.rewards] if by_reward else None

    return [of(group) for group in groups]


def _equal(
    groups: Sequence[GroupView], solved: Sequence[list[bool] | None], examples: dict[str, list[Example]]
) -> dict[str, float]:
    """The shares of groups of equal rewards, and of their tokens."""
    counts = Counter[str]()
    wasted = total = 0.0
    for group, one in zip(groups, solved, strict=True):
        tokens = float(sum(group.lengths)) if group.lengths is not None else float(len(group.rewards))
        total += tokens
        if float(np.var(group.rewards)) > ZERO:
            continue
        wasted += tokens
        kind = "equal" if one is None or any(one) != all(one) else "all_solved" if all(one) else "none_solved"
        counts[kind] += 1
        text = f"{len(group.rewards)} completions, each with reward {group.rewards[0]:g}"
        examples.setdefault(f"groups/{kind}", []).append(Example(group.name, text))
    shares = {f"groups/{kind}": counts[kind] / len(groups) for kind in ("none_solved", "all_solved", "equal")}
    return shares | {"groups/tokens_without_signal": wasted / total if total else math.nan}


def _within(values: Sequence[float] | np.ndarray) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    return found - found.mean()


def _share(parts: Sequence[np.ndarray], wholes: Sequence[np.ndarray]) -> float:
    """The part's covariance with the whole, within groups, as a share of the whole's variance, in [0, 1]; NaN without
    variance."""
    whole = [_within(values) for values in wholes]
    variance = math.fsum(float(values @ values) for values in whole)
    if variance <= ZERO:
        return math.nan
    shared = math.fsum(float((_within(part) * one).sum()) for part, one in zip(parts, whole, strict=True))
    return min(1.0, max(0.0, shared / variance))


def _by_length(groups: Sequence[GroupView], examples: dict[str, list[Example]]) -> dict[str, float]:
    """The correlation within groups, with Fisher's interval."""
    pairs = [(_within(group.rewards), _within(group.lengths or ())) for group in groups if np.var(group.rewards) > ZERO]
    number = sum(len(rewards) - 1 for rewards, _ in pairs)
    if number < 8:
        return {}
    products = [(float(r @ r), float(n @ n), float(r @ n)) for r, n in pairs]
    rewards, lengths, both = (math.fsum(values) for values in zip(*products, strict=True))
    if lengths <= ZERO:
        return {}
    found = min(1.0, max(-1.0, both / math.sqrt(rewards * lengths)))
    low, high = fisher_interval(found, number)
    longest = sorted(groups, key=lambda group: -max(group.lengths or (0,)))[:MOST_EXAMPLES]
    examples["groups/length_correlation"] = [_longest(group) for group in longest]
    key = "groups/length_correlation"
    return {key: found, f"{key}_low": low, f"{key}_high": high}


def _longest(group: GroupView) -> Example:
    lengths = list(group.lengths or ())
    long, short = lengths.index(max(lengths)), lengths.index(min(lengths))
    return Example(
        group.name,
        f"{lengths[long]} tokens have reward {group.rewards[long]:g}, {lengths[short]} tokens {group.rewards[short]:g}",
    )


def _cut(groups: Sequence[GroupView], examples: dict[str, list[Example]]) -> dict[str, float]:
    cut = [np.asarray(group.cut, dtype=np.float64) for group in groups]
    rewards = [np.asarray(group.rewards, dtype=np.float64) for group in groups]
    rows = [
        Example(group.name, f"{int(one.sum())} of {len(one)} completions are cut")
        for group, one in zip(groups, cut, strict=True)
        if one.any()
    ]
    if rows:
        examples["groups/cut"] = rows
    between = total = 0.0
    for one, own in zip(cut, rewards, strict=True):
        total += float(_within(own) @ _within(own))
        spread = float(_within(one) @ _within(one))
        between += float(_within(one) @ _within(own)) ** 2 / spread if spread else 0.0
    share = between / total if total > ZERO else math.nan
    return {"groups/cut": float(np.concatenate(cut).mean()), "groups/cut_variance": share}


def _texts(texts: Sequence[TextView]) -> tuple[dict[str, float], dict[str, list[Example]]]:
    found: dict[str, float] = {}
    examples: dict[str, list[Example]] = {}
    repeated = [text for text in texts if text.repetition is not None]
    if repeated:
        shares = [text.repetition or 0.0 for text in repeated]
        found["texts/repetition"] = math.fsum(shares) / len(shares)
        worst = sorted(repeated, key=lambda text: -(text.repetition or 0.0))[:MOST_EXAMPLES]
        examples["texts/repetition"] = [
            Example(text.row, text.shown or f"{text.repetition:.0%} of its runs of 4 tokens are repeated")
            for text in worst
        ]
    prompts = {text.prompt for text in texts}
    if len(prompts) >= FEWEST_PROMPTS:
        common, under = widest((text.key, text.prompt) for text in texts)
        found["texts/one_text"] = under / len(prompts)
        rows = [text for text in texts if text.key == common]
        examples["texts/one_text"] = [Example(text.row, text.shown or "the same text") for text in rows]
    return found, examples


def derived(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """The keys above that a run's own metrics give too, where its groups are not at hand."""
    cut = [metrics.get(f"turns_cut/{where}") for where in ("reasoning", "answer")]
    known = [share for share in cut if share is not None and math.isfinite(share)]
    found: dict[str, float | None] = {"groups/cut": sum(known)} if known else {}
    valid = (metrics.get("num_groups") or 0.0) - (metrics.get("refused_groups") or 0.0)
    zero, fail = metrics.get("zero_variance_groups"), metrics.get("tasks_all_fail")
    if zero is None or valid <= 0:
        return found
    if fail is None or (solved := metrics.get("tasks_all_succeed")) is None or not math.isfinite(fail + solved):
        return found | {"groups/equal": zero / valid}
    # a group that all solve may have unequal rewards: a share is at most that of the groups of equal rewards
    none, every = min(fail, zero / valid), min(solved, zero / valid)
    rest = max(0.0, zero / valid - none - every)
    return found | {"groups/none_solved": none, "groups/all_solved": every, "groups/equal": rest}
