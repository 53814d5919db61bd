"""Which of the prompts that were to be played were not. Pure.

A prompt is found by its text in what the policy read. What is missing counts only against how the run drew its
prompts, which its groups show: in the order of the file, or each once an epoch. A run that draws with replacement
leaves some out by chance, one whose epoch is not over has not come to them, and one that samples dynamically keeps
none that it dropped.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.base.values import digest, first, known_id
from squelch.kit.checks.chance import BY_CHANCE, log_tail
from squelch.kit.checks.claims import Claims
from squelch.kit.checks.collected import Collected, Decode
from squelch.kit.checks.result import Result, Size, examples
from squelch.kit.findings.view import Example
from squelch.kit.readers.records import records
from squelch.kit.untrusted.decoder_process import bounded_reading

COLUMNS = ("prompt", "input", "messages", "question", "problem", "instruction")
"""Columns of a file of prompts, in this order."""
BEGINNING = 24
"""Characters of a prompt by which it is looked for."""
EVEN = 0.9
"""Share of the prompts that are played equally often in a run whose epochs play each once; of a run that draws with
replacement, about half."""
FEWEST = 20


def prompts_lost(found: Collected, claims: Claims, data: Path | None, decode: Decode | None = None) -> Result:
    """Prompts of the file that were skipped or never played. `decode`: gives the text of ids."""
    name = "prompts_lost"
    if data is None:
        return Result(name, "unknown", "The prompts that were to be played are not given", needs="--data PROMPTS")
    texts = _wanted(data)
    wanted = list(dict.fromkeys(texts))
    steps = _played(found, wanted, decode)
    total = sum(len(own) for own in steps.values())
    if total < len(found.groups) / 2:
        says = f"{total} of {len(found.groups)} groups play a prompt of {data.name}"
        return Result(name, "unknown", says, needs="prompts as text, or --base DIR with the tokenizer of their ids")
    counts = Counter(index for own in steps.values() for index in own)
    never = [index for index in range(len(wanted)) if index not in counts]
    if not never:
        return Result(name, "sound", f"Each of {len(wanted)} prompts was played", of=len(wanted))
    says = f"{len(never)} of {len(wanted)} prompts were not played"
    step, begin, end = _gap(steps) or (0, 0, 0)
    if lost := [index for index in range(begin, end) if index not in counts]:
        shown = _shown(data, texts, [wanted[index] for index in lost])
        says = f"{len(lost)} of {len(wanted)} prompts were skipped before step {step}, in the order of {data.name}"
        size = Size.share(len(lost), len(wanted), "prompts")
        return Result(name, "fault", says, len(lost), len(wanted), size, shown, step=step)
    if _in_order(steps):
        return Result(name, "sound", f"{says}: so far the run plays them in their order", of=len(wanted))
    times, even = evenness(counts, len(wanted))
    if total < len(wanted) or even < EVEN or len(wanted) < FEWEST:
        needs = "a finished epoch in which each prompt is played once, or the order of the prompts"
        return Result(name, "unknown", says, len(never), len(wanted), needs=needs)
    if found.traits.drops_groups and claims.dynamic_sampling is not False:
        needs = "--claim dynamic_sampling=false: what is dropped is not in these files"
        return Result(name, "unknown", says, len(never), len(wanted), needs=needs)
    size = Counter(len(own) for own in steps.values()).most_common(1)[0][0]
    if not exceeds(len(never), len(texts), size, total):
        needs = (
            f"more epochs, or epochs of whole steps: with {size} prompts a step, one may leave out {len(texts) % size}"
        )
        return Result(name, "unknown", says, len(never), len(wanted), needs=needs)
    shown = _shown(data, texts, [wanted[index] for index in never])
    says += f", though {even:.0%} of them were played {times} times"
    return Result(name, "fault", says, len(never), len(wanted), Size.share(len(never), len(wanted), "prompts"), shown)


def evenness(counts: Mapping[int, int], of: int) -> tuple[int, float]:
    """How often most prompts were played, and the share of all that were so often, or once less."""
    usual = Counter(counts.values()).most_common(1)[0][0]
    return usual, sum(count in (usual - 1, usual) for count in counts.values()) / of


def exceeds(never: int, of: int, size: int, played: int) -> bool:
    """Whether more prompts were never played than epochs leave out that end with the last whole step of `size` prompts
    and draw an order of their own, with an error of `BY_CHANCE`."""
    rest = of % size
    chance = (rest / of) ** max(1, played // max(1, of - rest))
    return log_tail(never, of, chance) <= math.log(BY_CHANCE)


def _shown(data: Path, texts: Sequence[str], lost: Sequence[str]) -> tuple[Example, ...]:
    return examples((f"{data.name} row {1 + texts.index(one)}", one[:100]) for one in lost)


def _wanted(data: Path) -> list[str]:
    """The texts of the file's prompts. UserError if it holds none."""
    with bad_files_are_the_users(), bounded_reading(str(data)):
        rows = [record for _, record in records(data, None, [])]
    texts = [_text(first((row.get(name) for name in COLUMNS), known_id)) for row in rows]
    if not texts or not all(texts):
        raise UserError(f"--data {data}: each row needs a prompt, as text or messages, in one of {', '.join(COLUMNS)}")
    return [text for text in texts if text]


def _text(prompt: Any, decode: Decode | None = None) -> str | None:
    """A prompt's text: of messages, the last that is the user's. White space is one space."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        prompt = None if decode is None else decode(prompt)
    elif isinstance(prompt, list):
        said = [one.get("content") for one in prompt if isinstance(one, Mapping) and one.get("role") == "user"]
        prompt = said[-1] if said else None
    return " ".join(prompt.split()) if isinstance(prompt, str) else None


def _played(found: Collected, wanted: Sequence[str], decode: Decode | None) -> dict[int, list[int]]:
    """By step, in order: the index of each group's prompt, without those that are not found."""
    by_beginning: dict[str, dict[int, dict[str, int]]] = {}
    for index, text in enumerate(wanted):
        by_beginning.setdefault(text[:BEGINNING], {}).setdefault(len(text), {}).setdefault(text, index)
    sizes = sorted({len(one) for one in by_beginning}, reverse=True)
    places = {digest(text): index for index, text in reversed(list(enumerate(wanted)))}
    known: dict[bytes, int | None] = {}
    steps: dict[int, list[int]] = {}
    for group in found.groups.values():
        prompt = next((one.prompt for one in group.members.values() if one.prompt is not None), None)
        if prompt is None:
            continue
        if prompt not in known:
            text = _text(found.prompts.get(prompt), decode) or ""
            exact = places.get(digest(text))
            known[prompt] = exact if exact is not None else _within(text, by_beginning, sizes)
        if (index := known[prompt]) is not None:
            steps.setdefault(group.step or 0, []).append(index)
    return dict(sorted(steps.items()))


def _within(text: str, by_beginning: Mapping[str, Mapping[int, Mapping[str, int]]], sizes: Iterable[int]) -> int | None:
    """The longest of the prompts that a rendered text holds. `by_beginning`: their indices by their beginning, their
    length and themselves."""
    found = {
        (length, -index)
        for size in sizes
        for place in range(len(text) - size + 1)
        for length, own in by_beginning.get(text[place : place + size], {}).items()
        if (index := own.get(text[place : place + length])) is not None
    }
    return -max(found)[1] if found else None


def _in_order(steps: Mapping[int, Sequence[int]]) -> bool:
    """Whether each step's prompts stand after those of the step before, but for the begin of an epoch, and hardly by
    chance."""
    ends = [(min(own), max(own)) for own in steps.values()]
    later = [now[0] > before[1] for before, now in pairwise(ends)]
    sizes = [len(set(own)) for own in steps.values()]
    by_chance = sum(math.lgamma(size + 1) for size in sizes) - math.lgamma(sum(sizes) + 1)  # log: one order of all
    return len(later) >= 3 and sum(later) >= 0.9 * len(later) and by_chance <= math.log(BY_CHANCE)


def _gap(steps: Mapping[int, Sequence[int]]) -> tuple[int, int, int] | None:
    """(step, first index, one past the last) of the largest block that is skipped, if it is one: a step's prompts or
    more, while most steps skip none."""
    if not _in_order(steps):
        return None
    numbers, owns = list(steps), list(steps.values())
    gaps = [(min(now) - max(before) - 1, at + 1) for at, (before, now) in enumerate(pairwise(owns))]
    largest, at = max(gaps)
    usual = statistics.median(len(set(own)) for own in owns)
    if statistics.median(gap for gap, _ in gaps) > 0 or largest < usual:
        return None
    return numbers[at], max(owns[at - 1]) + 1, min(owns[at])
