"""Whether completions that ended by themselves end as a policy ends them: with an end token. Pure.

Only the last turn of a rollout counts: a template may write the end of an earlier one. That it ended by itself is known
from the file (why each completion ended), or from the claimed limit of new tokens, which it does not reach. What it
ends with is an end token if the tokenizer's folder names it, or if most end so and none goes on after it. A stop string
may end others: what answers to several prompts have in common at their end, and none goes on after. A cut answer that
is said to be cut is data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from squelch.kit.checks.result import Result, Size, examples
from squelch.kit.checks.turn_end import End

if TYPE_CHECKING:
    from squelch.kit.checks.claims import Claims
    from squelch.kit.checks.collected import Collected, Member
    from squelch.kit.checks.encoding import Coder

FEWEST = 8
"""Completions without an end token from which on they are a fault, and with one from which on it is not stripped."""
SHOWN = 3
"""Of them that are shown."""
MOST_COMPARED = 2000
"""Completions whose ends are compared."""
MOST_READ = 2000
"""Ids of a sampled completion in which others' ends are looked for."""


def ends_missing(found: Collected, claims: Claims, coder: Coder | None) -> Result:
    """Completions that ended by themselves without an end token."""
    name, last = "ends_missing", [(one, one.end) for one in found.members if one.failed is None and one.end is not None]
    if not last:
        needs = "--base DIR with the tokenizer of the texts" if found.traits.shows_ends else "completions as ids"
        return Result(name, "unknown", "No completion with its end token can be read", needs=needs)
    limit = claims.max_tokens
    if limit is not None and any(end.tokens is not None and end.tokens > limit for _, end in last):
        limit = None  # it limits something else
    ended = [(one, end) for one, end in last if end.ended or (end.ended is None and end.is_below(limit))]
    if not ended:
        needs = "why each completion ended (`finish_reason`), or --claim max_tokens=N, the limit of new tokens"
        says = f"Nothing says which of {len(last)} completions ended by themselves"
        return Result(name, "unknown", says, of=len(last), needs=needs)
    named = frozenset() if coder is None else coder.ends
    counts = Counter(end.tail[-1] for _, end in ended)
    ends = _ends(counts, named, _inside(found, coder, {(one,) for one in counts}))
    missing = _without_those_at_the_context(last, [one for one in ended if one[1].tail[-1] not in ends])
    if len(ended) - len(missing) < FEWEST or not ends:
        says = f"Hardly any of {len(ended)} completions that ended by themselves has a known end token"
        other = "" if coder else "; or --base DIR, to know it"
        needs = f"ids with the end token, which their trainer may strip{other}"
        return Result(name, "unknown", says, len(missing), len(ended), needs=needs)
    spelled = " or ".join(str(one) if coder is None else coder.text([one], special=True) for one in sorted(ends))
    if not missing:
        says = f"Each of {len(ended)} completions that ended by themselves ends with {spelled}"
        return Result(name, "sound", says, of=len(ended))
    says = f"{len(missing)} of {len(ended)} completions that ended by themselves end without {spelled}"
    shown = examples((one.where, _in_words(end, coder)) for one, end in missing)
    compared = missing[:: 1 + len(missing) // MOST_COMPARED]
    goes_on = _inside(found, coder, set(chain.from_iterable(_parts(end) for _, end in compared)))
    odd = sum(not is_like for is_like in _like_a_stop(compared, goes_on))
    if claims.stop_strings or (claims.stop_strings is None and (odd < FEWEST or 2 * odd < len(compared))):
        needs = "--claim stop_strings=false, if the engine is given none: a stop string may have ended them"
        return Result(name, "unknown", says, len(missing), len(ended), examples=shown, needs=needs)
    most = max(end.tokens or 0 for _, end in last)
    if 2 * (at_most := sum(end.tokens == most for _, end in missing)) > len(missing):
        says += f"; {at_most} of them have {most} tokens, and none has more, as if a limit cut them"
    size = Size.share(len(missing), len(ended), "completions that ended by themselves")
    return Result(name, "fault", says, len(missing), len(ended), size, shown)


Judged = tuple["Member", End]


def _parts(end: End) -> Iterator[tuple[int, ...]]:
    return (end.tail[-size:] for size in range(1, 1 + len(end.tail)))


def _inside(found: Collected, coder: Coder | None, wanted: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Those of the wanted ids that stand within a sampled completion, which goes on after them."""
    inside, sizes = set[tuple[int, ...]](), {len(part) for part in wanted}
    for _, row in found.sample:
        ids = row.get("completion_ids")
        if not isinstance(ids, list) and coder is not None and isinstance(row.get("completion"), str):
            ids = coder.ids(row["completion"])
        ids = (ids or [])[:MOST_READ]
        while len(ids) > 1 and ids[-1] == ids[-2]:  # padding
            ids = ids[:-1]
        parts = (tuple(ids[at : at + size]) for size in sizes for at in range(len(ids) - size))
        inside.update(part for part in parts if part in wanted)
    return inside


def _ends(last: Counter[int], named: frozenset[int], goes_on: set[tuple[int, ...]]) -> frozenset[int]:
    """The end tokens: the named ones, and those with which most completions end and none goes on."""
    often = {one for one, count in last.items() if count >= FEWEST and (one,) not in goes_on}
    if 2 * sum(last[one] for one in often | named) < last.total():
        often = set()
    return frozenset(one for one in often | named if one in last)


def _without_those_at_the_context(last: Sequence[Judged], missing: Sequence[Judged]) -> list[Judged]:
    """Without those that are as long, with their prompts of different lengths, as the longest row, if no more is known
    than a limit of new tokens: the model's context cut them."""
    most = max(end.total for _, end in last)
    full = [one for one in missing if one[1].ended is None and one[1].total == most]
    return [one for one in missing if one not in full] if len({end.before for _, end in full}) > 1 else list(missing)


def _like_a_stop(missing: Sequence[Judged], goes_on: set[tuple[int, ...]]) -> Iterator[bool]:
    """Of each whether it may have been ended by a stop string."""
    prompts: dict[tuple[int, ...], set[bytes | None]] = {}
    for one, end in missing:
        for part in _parts(end):
            prompts.setdefault(part, set()).add(one.prompt)
    for _, end in missing:
        yield any(part not in goes_on and len(prompts[part]) > 1 for part in _parts(end))


def _in_words(end: End, coder: Coder | None) -> str:
    ids = end.tail[-SHOWN:]
    said = f"ids {', '.join(map(str, ids))}" if coder is None else repr(coder.text(ids, special=True))
    return f"ends with {said}" + (f", after {end.tokens} tokens" if end.tokens is not None else "")
