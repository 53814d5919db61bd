"""What a reader does grows with its input, not with the square of it, and a small file asks for little."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from squelch.kit.base.errors import UserError
from squelch.kit.commands.filter import Window, missing_steps
from squelch.kit.readers import rows
from squelch.kit.readers.format_rows import turns_of_ids
from squelch.kit.readers.records import records
from squelch.kit.readers.reward_tables import read_rewards
from squelch.kit.readers.score_files import read_samples
from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.text import MAX_LINE, filled_lines
from tests.kit.readers.trainer_files import jsonl
from tests.work import lines_run

ROW = {"prompt": "g", "reasoning": "go"}


def packed(path: Path, blank: int) -> Path:
    path.write_bytes(gzip.compress(json.dumps(ROW).encode() + b"\n" + b"\n" * blank + json.dumps(ROW).encode()))
    return path


def test_blank_lines_of_a_compressed_file_cost_their_bytes_and_no_call_each(tmp_path) -> None:
    path = packed(tmp_path / "blank.jsonl.gz", 2**20)
    work = lines_run(lambda: list(records(path, None, [])))
    assert work < 2**20 / 100
    assert [number for number, _ in records(path, None, [])] == [1, 2**20 + 2], "each counts as a line"


@pytest.mark.parametrize("piece", [b"\n", b" ", b" \r\n"])
def test_blank_lines_in_a_row_are_bounded_as_a_line_is(piece) -> None:
    class Endless:
        given = 0

        def read(self, most_bytes: int) -> bytes:
            Endless.given += most_bytes
            return (piece * most_bytes)[:most_bytes]

    file: Any = Endless()
    with pytest.raises(Unreadable, match="longer than 16 MiB, or as many blank lines"):
        list(filled_lines(file, "it"))
    assert file.given <= 2 * MAX_LINE


@pytest.mark.parametrize("size", [1, 2, 3, 7, 2**20])
def test_filled_lines_are_those_of_the_file_however_it_is_read(size) -> None:
    data = b"\n \n{1}\n\r\n\t\n\n{2} \r\n{3}\n\n   \n {4}"

    class Piecewise:
        left = data

        def read(self, most_bytes: int) -> bytes:
            found, self.left = self.left[:size], self.left[size:]
            return found

    file: Any = Piecewise()
    expected = [(number, line) for number, line in enumerate(data.splitlines(keepends=True), 1) if line.strip()]
    assert list(filled_lines(file, "it")) == expected


def test_a_row_of_a_new_step_takes_no_memory_that_grows_with_the_steps_before(tmp_path, monkeypatch) -> None:
    grown: list[int] = []

    def many(*_: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for step in range(4000):
            yield step + 1, ROW | {"step": step}
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield 4001, ROW | {"step": 0}
        grown.append(tracemalloc.get_traced_memory()[1] - before)

    path = jsonl(tmp_path / "steps.jsonl", [ROW | {"step": 0}])
    monkeypatch.setattr(rows, "records", many)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"holds the steps 0, 1, 2, 3, 4, 5, … \(4000 in all"):
            read_samples(path)
    finally:
        tracemalloc.stop()
    assert grown[0] < 20_000


def test_a_huge_step_makes_no_list_of_those_before_it() -> None:
    windows = [Window(step, [], []) for step in (1, 3, 10**17)]
    assert missing_steps(windows) == (10**17 - 3, [2, *range(4, 13)])


def chain(tmp_path: Path, count: int) -> Path:
    """A trace of that many messages, one after another, of which every other one was sampled."""
    nodes = [
        {"parent": k - 1 if k else None, "sampled": bool(k % 2), "message": {"role": "user", "content": "x</think>y"}}
        for k in range(count)
    ]
    return jsonl(tmp_path / f"{count}.jsonl", [{"nodes": nodes, "task": 1, "rewards": {"r": {"score": 1.0}}}])


def test_a_long_rollout_costs_as_many_times_more_as_it_is_longer(tmp_path) -> None:
    short, long = chain(tmp_path, 200), chain(tmp_path, 800)
    for read in (
        lambda path: read_samples(path, turns="first"),
        lambda path: read_rewards(path, None, (), None),
    ):
        assert lines_run(read, long) < 5 * lines_run(read, short)
    found = read_samples(long, turns="first").rows
    assert len(found) == 400 and found[0][1]["completion"] and not found[1][1].get("completion")
    whole = read_samples(long).rows
    assert [len(row["prompt"]) for _, row in whole[:3]] == [1, 3, 5]


def test_ids_of_many_turns_are_copied_only_where_they_are_asked_for() -> None:
    ids, mask = list(range(4000)), [k % 2 for k in range(4000)]
    tracemalloc.start()
    try:
        rows = list(turns_of_ids(ids, mask, {}, "row 1"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows) == 2000 and peak < 4_000_000, "their prompts would take 32 MB"
