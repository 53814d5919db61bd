"""Stop strings are found where a search of the whole text finds them, however tokens and steps cut it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from squelch.actors.rollout.engine import VllmEngine
from squelch.actors.rollout.stop_strings import StopStrings, behind_reasoning

PIECES = [b"a", b"b", b"ab", b"ba", "é".encode()[:1], "é".encode()[1:], b"", b"</s", b"top>"]
MARKED = [*PIECES, b"<think>", b"</think>", b"<th", b"ink>", b"</", b"think", b"\n", b"b</think>a", b"ink>ab</think>"]


@given(
    ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=20),
    stops=st.lists(st.sampled_from(["a", "ab", "aab", "é", "</stop>", "bé"]), max_size=3),
    cuts=st.lists(st.integers(0, 20), max_size=5),
)
def test_a_turn_ends_with_the_id_that_completes_the_first_stop_string(ids, stops, cuts) -> None:
    watch = StopStrings(stops, PIECES.__getitem__)
    for cut in [*sorted(cuts), len(ids)]:
        watch.see(ids[:cut])
    texts = [b"".join(PIECES[index] for index in ids[:number]) for number in range(len(ids) + 1)]
    wanted = next((n for n, text in enumerate(texts) if any(stop.encode() in text for stop in stops)), None)
    assert watch.end == wanted


@given(
    ids=st.lists(st.integers(0, len(MARKED) - 1), max_size=20),
    stops=st.lists(st.sampled_from(["a", "ab", "aab", "<th", "\n", "think>", "</stop>"]), max_size=3),
    cuts=st.lists(st.integers(0, 20), max_size=5),
    inside=st.booleans(),
)
def test_a_stop_string_is_watched_behind_the_reasoning_alone(ids, stops, cuts, inside: bool) -> None:
    watch = StopStrings(stops, MARKED.__getitem__, inside)
    for cut in [*sorted(cuts), len(ids)]:
        watch.see(ids[:cut])
    texts = [b"".join(MARKED[index] for index in ids[:number]) for number in range(len(ids) + 1)]
    whole, never = texts[-1], sum(map(len, texts)) + 1
    if inside or whole.lstrip().startswith(b"<think>"):
        start = whole.find(b"</think>") + len(b"</think>") if b"</think>" in whole else never
    else:
        start = never if b"<think>".startswith(whole.lstrip()) else 0  # it may still open one
    wanted = next((n for n, text in enumerate(texts) if any(stop.encode() in text[start:] for stop in stops)), None)
    assert watch.end == wanted
    if wanted is not None:
        assert any(stop in behind_reasoning(texts[wanted].decode(errors="replace"), inside) for stop in stops)


class Queue:
    """A request's outputs as vLLM gives them: each with all ids so far, and the last one after an abort, too."""

    def __init__(self, *outputs: list[int]) -> None:
        self.outputs = [self.output(ids, number == len(outputs) - 1) for number, ids in enumerate(outputs)]
        self.aborted: list[str] = []

    @staticmethod
    def output(ids: list[int], finished: bool) -> SimpleNamespace:
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)], finished=finished)

    async def get(self) -> SimpleNamespace:
        return self.outputs.pop(0)

    async def abort(self, key: str) -> None:
        self.aborted.append(key)
        self.outputs = [self.output([0, 1, 0], True)]


def test_a_request_is_aborted_where_a_stop_string_is_complete_and_later_tokens_are_no_part_of_it() -> None:
    def watched(*outputs: list[int]):
        queue, watch = Queue(*outputs), StopStrings(["ab"], PIECES.__getitem__)
        last = asyncio.run(VllmEngine._watched(queue, "key", queue, watch))  # pyrefly: ignore[bad-argument-type]
        return last.finished, watch.end, queue.aborted

    assert watched([0], [0, 1], [0, 1, 0]) == (True, 2, ["key"])
    assert watched([0], [0, 1, 0, 0], [0, 1, 0, 0, 0]) == (True, 2, ["key"])
    assert watched([0], [0, 1]) == (True, 2, [])
    assert watched([0], [0, 0]) == (True, None, [])
