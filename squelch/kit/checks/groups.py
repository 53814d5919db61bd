"""Checks of groups and prompts: sizes, equal completions, prompts of a group, and prompts of two splits. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from squelch.kit.checks.chance import BY_CHANCE
from squelch.kit.checks.claims import Claims
from squelch.kit.checks.collected import Collected, Group, Member
from squelch.kit.checks.result import Result, Size, examples

FEWEST_GROUPS = 4
"""Groups of equal size from which on that size is the usual one."""
USUAL = 0.8
"""Share of the groups that have the usual size."""


def group_sizes(found: Collected, claims: Claims) -> Result:
    """Groups with another number of rollouts than the others of their step."""
    name, groups, traits = "group_sizes", list(found.groups.values()), found.traits
    if not traits.groups:
        needs = "files whose groups are whole by their format"
        return Result(name, "unknown", "These files need not hold whole groups", needs=needs)
    last = max((group.step or 0 for group in groups), default=0)
    ended = [group for group in groups if traits.groups != "streamed" or (group.step or 0) < last]
    usual = claims.group_size or _usual([len(group.members) for group in ended])
    by_step: dict[int | None, list[Group]] = {}
    for group in ended:
        by_step.setdefault(group.step, []).append(group)
    if traits.last_rows and usual is not None:
        rows = Counter(_rows(own) for own in by_step.values()).most_common(1)[0][0]
        by_step = {step: own for step, own in by_step.items() if not _ends_with_an_evaluation(own, rows, usual)}
        ended = [group for own in by_step.values() for group in own]
    if usual is None or not ended:
        needs = f"--claim group_size=N, or {FEWEST_GROUPS} groups of which {USUAL:.0%} are of one size"
        return Result(name, "unknown", f"The usual size of {len(ended)} groups is not known", needs=needs)
    wrong = list[tuple[Group, int]]()
    for own in by_step.values():  # an evaluation, or a schedule, has another size for a whole step
        sizes = [len(one.members) for one in own]
        size = claims.group_size or _usual(sizes) or (sizes[0] if len(set(sizes)) == 1 else usual)
        wrong += [(one, size) for one in own if len(one.members) % size]
    if not wrong:
        return Result(name, "sound", f"All {len(ended)} groups have {usual} rollouts", of=len(ended))
    shown = (
        (group.where, f"{len(group.members)} of {size} rollouts{_other_half(group, wrong)}") for group, size in wrong
    )
    says = f"{len(wrong)} of {len(ended)} groups have not {usual} rollouts, as the others have"
    if traits.groups == "streamed" and not _at_ends(by_step, [group for group, _ in wrong]):
        needs = "rows of rollouts that were cancelled, which these files do not hold"
        return Result(name, "unknown", says, len(wrong), len(ended), needs=needs)
    if traits.drops_fed_ends and found.of_turns:
        needs = "rows of rollouts that end with what was fed, which these files do not hold"
        return Result(name, "unknown", says, len(wrong), len(ended), needs=needs)
    return Result(
        name, "fault", says, len(wrong), len(ended), Size.share(len(wrong), len(ended), "groups"), examples(shown),
        step=min((group.step for group, _ in wrong if group.step is not None), default=None),
    )  # fmt: skip


def _rows(groups: Sequence[Group]) -> int:
    return sum(len(one.members) for one in groups)


def _ends_with_an_evaluation(own: Sequence[Group], rows: int, usual: int) -> bool:
    """Whether a step has as many `rows` as most, which whole groups fill, and its groups change their size once, but
    for the first, which may have lost rows."""
    sizes = [usual if len(one.members) % usual == 0 else len(one.members) for one in own]
    runs = [(size, len(list(same))) for size, same in groupby(sizes[1:])]
    if rows % usual or _rows(own) != rows or set(sizes) == {usual}:
        return False
    return 1 <= len(runs) <= 2 and sizes[0] <= runs[0][0] and runs[-1][1] > 1


def _usual(sizes: Sequence[int]) -> int | None:
    """The size of most groups; None if there is none."""
    if not sizes:
        return None
    size, count = Counter(sizes).most_common(1)[0]
    return size if count >= FEWEST_GROUPS and count >= USUAL * len(sizes) else None


def _at_ends(by_step: dict[int | None, list[Group]], wrong: Sequence[Group]) -> bool:
    """Whether the groups are the last ones of their steps more often than chance would have it."""
    chance = sum(math.log(1 / len(own)) for own in by_step.values() if own[-1] in wrong)
    inner = any(one not in [own[-1] for own in by_step.values()] for one in wrong)
    return not inner and chance <= math.log(BY_CHANCE)


def _other_half(group: Group, wrong: Sequence[tuple[Group, int]]) -> str:
    """Where the rest of a group stands under another id."""
    own = {one.prompt for one in group.members.values()} - {None}
    for other, size in wrong:
        is_rest = other is not group and len(other.members) + len(group.members) == size
        if is_rest and own and own == {one.prompt for one in other.members.values()}:
            return f"; the same prompt has the others under another id ({other.where})"
    return ""


def equal_completions(found: Collected, claims: Claims) -> Result:
    """Completions of one prompt that are the same ids, though that is too improbable. By a union bound the chance that
    one of the pairs below the limit is equal is at most `BY_CHANCE`, whatever the policy."""
    name = "equal_completions"
    lists = [_comparable(group) for group in found.groups.values()]
    compared = [one for one in lists if len(one) > 1]
    members = [one for group in compared for one in group]
    equal = [(one, other) for group in compared for one, other in _equal(group)]
    if not members:
        return Result(name, "unknown", "No prompt has two completions", needs="groups of at least two rollouts")
    if not equal:
        return Result(name, "sound", f"No prompt has equal completions, of {len(members)}", of=len(members))
    says = f"{len(equal)} completions are equal to an earlier one of their prompt"
    if (needs := _not_probabilities(found, claims, members)) is not None:
        return Result(name, "unknown", says, len(equal), len(members), needs=needs)
    limit = _limit([(len(group) - 1, _log_p(one, claims)) for group in compared for one in group])
    wrong = [(one, other) for one, other in equal if (p := _log_p(one, claims)) is not None and p <= limit]
    if not wrong:
        return Result(name, "sound", f"{says}, as often as chance explains", len(equal), len(members))
    least = min(p for one, _ in wrong if (p := _log_p(one, claims)) is not None)
    says = f"{len(wrong)} completions are equal to an earlier one of their prompt, though chance makes none equal"
    shown = ((one.where, f"equal to {other.where}, {one.tokens} tokens") for one, other in wrong)
    size = Size(least, "nats: log-probability of the least probable")
    return Result(name, "fault", says, len(wrong), len(members), size, examples(shown))


def _comparable(group: Group) -> list[Member]:
    """The rollouts of the group's first prompt that say something."""
    played = [one for one in group.played if one.prompt is not None and one.said is not None]
    return [one for one in played if one.prompt == played[0].prompt]


def _equal(members: Sequence[Member]) -> list[tuple[Member, Member]]:
    """Each member that says what an earlier one says, with that one."""
    seen: dict[bytes | None, Member] = {}
    return [(one, seen[one.said]) for one in members if seen.setdefault(one.said, one) is not one]


def _not_probabilities(found: Collected, claims: Claims, members: Sequence[Member]) -> str | None:
    """What is missing to know how probable the completions were; None if nothing is."""
    if sum(one.log_p is not None for one in members) < len(members) / 2:
        return "the log-probability of each token"
    if found.traits.tempered:
        return None
    if claims.temperature != 1.0 or claims.top_p is None:
        sampler = "at other settings the recorded log-probabilities need not be the sampler's"
        return f"--claim temperature=1 --claim top_p=1: {sampler}"
    if (claims.top_k or 0) > 0 or (claims.min_p or 0) > 0:
        return "log-probabilities of the tokens that top_k and min_p leave"
    return None


def _log_p(one: Member, claims: Claims) -> float | None:
    """The log-probability with which it was drawn, at most: a nucleus raises each token's by its lost mass."""
    return None if one.log_p is None else one.log_p - one.tokens * math.log(claims.top_p or 1.0)


def _limit(chances: Sequence[tuple[int, float | None]]) -> float:
    """The largest log-probability up to which the expected number of equal pairs is at most `BY_CHANCE`. Each is given
    as (others of its group, log-probability)."""
    total, limit = 0.0, -math.inf
    for others, log_p in sorted((one for one in chances if one[1] is not None), key=lambda one: one[1] or 0.0):
        total += others * math.exp(min(0.0, log_p or 0.0)) / 2
        if total > BY_CHANCE:
            break
        limit = log_p if log_p is not None else limit
    return limit


def mixed_groups(found: Collected, claims: Claims) -> Result:
    """Groups whose rollouts begin with different prompts."""
    name = "mixed_groups"
    if not found.of_groups or not (found.named_tasks or found.traits.one_prompt):
        needs = "ids of groups, of rollouts that begin with the prompt of their task"
        return Result(name, "unknown", "These files name no group, or an agent may begin differently", needs=needs)
    tasks = [(group, {one.task for one in group.members.values()} - {None}) for group in found.groups.values()]
    known = [group for group, own in tasks if own]
    wrong = [(group, len(own)) for group, own in tasks if len(own) > 1]
    if not known:
        return Result(name, "unknown", "No prompt can be read", needs="prompts")
    if not wrong:
        return Result(name, "sound", f"Each of {len(known)} groups has one prompt", of=len(known))
    shown = examples((group.where, f"{number} prompts") for group, number in wrong)
    says = f"{len(wrong)} of {len(known)} groups mix rollouts of different prompts"
    size = Size.share(len(wrong), len(known), "groups")
    return Result(name, "fault", says, len(wrong), len(known), size, shown)


def validation_leak(found: Collected, claims: Claims) -> Result:
    """Tasks that are trained on and evaluated on."""
    name, what = "validation_leak", "tasks" if found.named_tasks else "prompts"
    if not found.evaluated:
        needs = "rows of evaluations in the folder that is checked"
        return Result(name, "unknown", "There are no rows of evaluations", needs=needs)
    if len(found.tasks) < FEWEST_GROUPS or (not found.named_tasks and _begin_alike(list(found.groups.values()))):
        needs = "a column that tells tasks apart"
        return Result(name, "unknown", "The prompts do not tell the tasks apart", needs=needs)
    both = [task for task in found.evaluated if task in found.tasks]
    count, of = len(both), len(found.evaluated)
    if not both:
        return Result(name, "sound", f"None of {of} {what} of evaluations is trained on", of=of)
    shown = examples((found.evaluated[one], f"also in training: {found.tasks[one]}") for one in both)
    size = Size.share(count, of, f"{what} of evaluations")
    says = f"{count} of {of} {what} of evaluations are trained on, too"
    return Result(name, "fault", says, count, of, size, shown)


def _begin_alike(groups: Sequence[Group]) -> bool:
    """Whether the groups of a step have far fewer prompts than they are; epochs may repeat a prompt."""
    tasks = {(group.step, one.task) for group in groups for one in group.members.values() if one.task is not None}
    return 2 * len(tasks) < len(groups)
