"""Checks of rewards: missing and infinite ones, and failures that count as wrong answers. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from squelch.kit.checks.chance import BY_CHANCE, log_tail
from squelch.kit.checks.claims import Claims
from squelch.kit.checks.collected import Collected, Group, Member
from squelch.kit.checks.result import Result, Size, examples

SHORT = 300
"""Characters of an error's text, at most."""
ERROR = re.compile(
    r"\s*[\[({<*#]*\s*(?:\w+\.)*(?:\w*(?:Error|Exception)\b|error\s*:|traceback \(most|request timed out|"
    r"timed? ?out\b|time-?out\b|internal server error|service unavailable|connection (?:refused|reset|aborted|error)|"
    r"rate limit|too many requests|http(?:/\d\S*)? [45]\d\d\b|"
    r"[45]\d\d (?:bad|unauthor|forbidden|internal|service|gate))",
    re.IGNORECASE,
)
"""The beginning of the text of an error."""
FEWEST_ERRORS, FEWEST_PROMPTS = 3, 3
EMPTY_SHARE = 0.01
"""Share of its rollouts of a prompt in which a policy may end at once; where more are empty, they are failures."""


def rewards_missing(found: Collected, claims: Claims) -> Result:
    """Rollouts whose every reward is missing, and infinite rewards."""
    name, played = "rewards_missing", [one for group in found.groups.values() for one in group.played]
    scored = [one for one in played if one.rewards]
    if not any(value is not None for one in scored for value in one.rewards.values()):
        return Result(name, "unknown", "These files hold no rewards", needs="a reward in each row")
    none = [one for one in scored if all(value is None for value in one.rewards.values())]
    none += [one for one in played if not one.rewards]
    if not found.traits.scores_each:
        none = []
    if found.traits.may_leave_unscored:
        none = [one for one in none if one.advantage != 0.0]
    infinite = [one for one in scored if any(value is not None and math.isinf(value) for value in one.rewards.values())]
    wrong = [*infinite, *none]
    if not wrong:
        with_one = sum(any(value is not None for value in one.rewards.values()) for one in played)
        says = f"Each of {len(played)} rollouts has a finite reward"
        if with_one < len(played):
            says = f"{with_one} of {len(played)} rollouts have a finite reward, and the others need none in these files"
        return Result(name, "sound", says, of=len(played))
    says = f"{len(none)} of {len(played)} rollouts have no reward, and {len(infinite)} an infinite one"
    texts = ["an infinite reward"] * len(infinite) + ["no reward, and no failure is recorded"] * len(none)
    return _fault(name, says, wrong, texts, len(played))


def failures_as_rewards(found: Collected, claims: Claims) -> Result:
    """Rollouts that say nothing, or the text of an error, and have a reward as if the policy had answered."""
    name = "failures_as_rewards"
    said = (one for one in found.members if one.failed is None and one.said is not None)
    played = [one for one in said if any(value is not None for value in one.rewards.values())]
    if not played:
        return Result(name, "unknown", "No completion with a reward can be read", needs="completions and rewards")
    nothing = [one for one in played if not one.tokens and (one.is_ids or found.traits.shows_ends)]
    empty = [] if found.traits.shows_ends else list(filter(_is_empty, played))
    errors = _errors(played)
    certain = nothing + errors
    if empty and (_are_too_many(empty, played) or _fill_a_group(found.groups.values(), empty)):
        certain, empty = certain + empty, []
    if certain:
        says = f"{len(certain)} of {len(played)} rollouts say nothing, or the text of an error, and have a reward"
        return _fault(name, says, certain, [_what(one) for one in certain], len(played))
    if count := sum(not one.is_ids for one in empty):
        says = f"{count} of {len(played)} completions are empty, as of a policy that ends at once"
        return Result(name, "unknown", says, count, len(played), needs="token ids, or why each rollout ended")
    if unread := sum(one.text is None and not one.log_p for one in played):  # an error's text has no log-probabilities
        says = f"No completion is without tokens; whether {unread} are the text of an error is not known"
        needs = "the texts of the completions, or --base DIR with the tokenizer of their ids"
        return Result(name, "unknown", says, of=len(played), needs=needs)
    return Result(name, "sound", f"None of {len(played)} completions is empty or the text of an error", of=len(played))


def _is_empty(one: Member) -> bool:
    """Whether it says nothing, but that it ends: by its text, or by the only id. Where its log-probability is recorded
    and is not that of a token that nobody sampled, 0, it tells a policy that ends at once more often."""
    if one.text is None or one.text.strip():
        return False
    return not one.is_ids or (one.tokens == 1 and not math.log(EMPTY_SHARE) < (one.log_p or 0.0) < 0)


def _errors(played: Sequence[Member]) -> list[Member]:
    """Those that say the text of an error that several prompts were answered with, always for the lowest reward: one
    that is rewarded is an answer."""
    lowest = min(map(_total, played))
    by_text: dict[str, list[Member]] = {}
    for one in played:
        if one.text and len(one.text) <= SHORT and ERROR.match(one.text):
            by_text.setdefault(re.sub(r"[\d.:x-]+", "0", one.text), []).append(one)
    groups = by_text.values()
    return [
        one
        for own in groups
        if len(own) >= FEWEST_ERRORS and len({other.prompt for other in own}) >= FEWEST_PROMPTS
        if all(_total(other) == lowest for other in own)
        for one in own
    ]


def _total(one: Member) -> float:
    return sum(value for value in one.rewards.values() if value is not None)


def _are_too_many(empty: Sequence[Member], played: Sequence[Member]) -> bool:
    return log_tail(len(empty), len(played), EMPTY_SHARE) <= math.log(BY_CHANCE / 2)


def _fill_a_group(groups: Iterable[Group], empty: Sequence[Member]) -> bool:
    """Whether all of a group are empty, and it is so large that chance fills none of its size or more."""
    ids, lists = set(map(id, empty)), [group.played for group in groups]
    largest = max((len(own) for own in lists if own and all(id(one) in ids for one in own)), default=0)
    as_large = (len(own) for own in lists if len(own) >= largest)
    return largest > 0 and sum(EMPTY_SHARE**size for size in as_large) <= BY_CHANCE / 2


def _what(one: Member) -> str:
    rewards = ", ".join(f"{name} {value:g}" for name, value in one.rewards.items() if value is not None)
    return f"{(one.text or '').strip()[:100] or 'nothing'} ({rewards or 'no reward'})"


def _fault(name: str, says: str, wrong: Sequence[Member], texts: Sequence[str], of: int) -> Result:
    shown = examples((one.where, text) for one, text in zip(wrong, texts, strict=True))
    return Result(name, "fault", says, len(wrong), of, Size.share(len(wrong), of, "rollouts"), shown)
