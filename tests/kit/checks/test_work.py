"""How much work files of anybody can make: calls are counted, and no time is measured."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from squelch.kit.base.values import digest
from squelch.kit.checks.claims import Claims
from squelch.kit.checks.collected import Collected, Group, Member
from squelch.kit.checks.fed_tokens import Fed
from squelch.kit.checks.groups import group_sizes
from squelch.kit.checks.prompts import prompts_lost
from squelch.kit.readers.formats import FORMATS
from tests.kit.readers.trainer_files import jsonl


def calls(function: Callable[[], object]) -> int:
    """Calls of functions, Python's own too, that a call makes."""
    events: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: events.update([event]))
    try:
        function()
    finally:
        sys.setprofile(before)
    return events["call"] + events["c_call"]


def collected(name: str, sizes: list[int]) -> Collected:
    """A step of groups of these sizes, each of its prompt."""
    found = Collected(Path("x"), FORMATS[name], of_groups=True)
    for number, size in enumerate(sizes):
        prompt = digest(number)
        one = Member("row", prompt, prompt, b"", None, 1, "x", False, None, {"right": 1.0}, None)
        found.groups[prompt] = Group(1, f"group {number}", {str(n).encode(): one for n in range(size)})
    return found


def test_only_shown_groups_of_a_wrong_size_are_searched_for_their_other_halves() -> None:
    found = collected("trl", [3] * 300)
    made = calls(lambda: group_sizes(found, Claims(group_size=4)))
    assert made < 30_000, "not every group with each other one"


def said(count: int) -> dict[str, Any]:
    """A rollout that says nothing but its end token, which is certain."""
    return {"ids": [7] * count, "mask": [1] * count, "sampled": None, "logprobs": [0.0] * count, "trained": None}


def test_a_rollout_of_end_tokens_is_counted_once() -> None:
    fed = Fed()
    assert calls(lambda: fed.take(said(2000), "row 1", is_whole=True)) < 1000
    assert (fed.after_end[7], fed.zero_after_end[7], fed.zeros_after_end[7]) == (1999, 1999, 1999 * 2000 // 2)
    assert (fed.others, fed.zero) == (1, 1), "the first"
    assert fed.examples["after_end"][0].text == "1999 tokens after the end token 7, at 1"


def test_prompts_that_begin_alike_are_not_each_compared(tmp_path) -> None:
    texts = [f"Solve the following problem step by step: {n:03d}" for n in range(300)]
    data = jsonl(tmp_path / "prompts.jsonl", [{"prompt": text} for text in texts])
    found = collected("trl", [1] * len(texts))
    found.prompts = {digest(number): f"System. {text} Think." for number, text in enumerate(texts)}
    made = calls(lambda: prompts_lost(found, Claims(), data))
    assert made < len(texts) ** 2
    assert prompts_lost(found, Claims(), data).says == "Each of 300 prompts was played"
