"""A file of prompts: what a row may hold, how it is split, and what is refused with file and row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.envs.contract import Opening
from squelch.envs.prompt_file import rows as rows_of_a_file
from squelch.envs.prompt_file.rows import open_prompts


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chat(text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text, **more}]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_text_and_messages_begin_a_conversation_and_other_columns_are_kept(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": f"q{i}", "answer": str(i), "extra": {"kind": "sum"}} for i in range(16)]
    found = open_prompts(write(tmp_path / f"a.{suffix}", rows), "prompt", "train").of(0)
    assert found.messages == [{"role": "user", "content": found.given}]
    assert found.columns == {"answer": str(found.given)[1:], "extra": {"kind": "sum"}}
    rows = [{"question": chat(f"q{i}"), "answer": i} for i in range(16)]
    found = open_prompts(write(tmp_path / f"b.{suffix}", rows), "question", "train").of(0)
    assert found.given == found.messages == chat(f"q{found.columns['answer']}")


def test_the_nulls_that_arrow_adds_to_messages_are_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"q{i}", "name": None}]} for i in range(8)]
    assert open_prompts(write(tmp_path / "a.jsonl", rows), "prompt", "train").of(0).messages[0].keys() == {
        "role",
        "content",
    }


@given(st.sets(st.integers(0, 10**6), min_size=2, max_size=30), st.integers(1, 3))
def test_no_prompt_is_in_both_splits_and_neither_is_empty(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int], times: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    write(path, [{"prompt": f"q{i}", "copy": k} for i in sorted(numbers) for k in range(times)])
    splits = {}
    for split in ("train", "validation"):
        prompts = open_prompts(str(path), "prompt", split)
        tasks = [prompts.of(seed) for seed in range(len(numbers) * times)]
        splits[split] = {one.given for one in tasks}
        assert len({one.key for one in tasks}) == len(splits[split]), "the task's key is the prompt's"
    assert not splits["train"] & splits["validation"]
    assert splits["train"] | splits["validation"] == {f"q{i}" for i in numbers}


TOOL = {"type": "function", "function": {"name": "adds", "parameters": {}}}


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_the_longest_prompts_with_and_without_tools_are_known_whichever_split_they_are_in(
    tmp_path: Path, suffix: str
) -> None:
    rows = [{"prompt": "x" * (i % 17)} for i in range(1, 40)]
    path = write(tmp_path / f"a.{suffix}", rows)
    longest = Opening([{"role": "user", "content": "x" * 16}])
    for split in ("train", "validation"):
        assert open_prompts(path, "prompt", split).longest == [longest]
    shown = [None, json.dumps([TOOL]), json.dumps([TOOL, TOOL])]
    path = write(tmp_path / f"b.{suffix}", [row | {"tools": shown[i % 3]} for i, row in enumerate(rows)])
    with_tools = Opening([{"role": "user", "content": "x" * 16}], [TOOL, TOOL])
    for split in ("train", "validation"):
        found = open_prompts(path, "prompt", split).longest
        assert sorted(found, key=str) == sorted([longest, with_tools], key=str)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_the_tools_of_every_row_are_checked_when_the_file_is_opened(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": f"q{i}", "tools": json.dumps([TOOL]) if i < 30 else "search"} for i in range(32)]
    path = write(tmp_path / f"a.{suffix}", rows)
    with pytest.raises(ValueError, match=r"(row|line) 31, column tools: name another .*tools_column.*JSON schemas"):
        open_prompts(path, "prompt", "train")


@pytest.mark.parametrize("published", [False, True])
def test_every_row_is_read_once_for_both_splits(
    tmp_path: Path, published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file would otherwise be read again by the first ticket of a validation, for longer than a call may
    take."""
    read: list[Any] = []
    text_of = rows_of_a_file._text_of
    monkeypatch.setattr(rows_of_a_file, "_text_of", lambda value: read.append(value) or text_of(value))
    write(tmp_path / "train.jsonl", [{"prompt": f"q{i}"} for i in range(40)])
    if published:
        write(tmp_path / "validation.jsonl", [{"prompt": f"v{i}"} for i in range(3)])
    found = {split: open_prompts(str(tmp_path), "prompt", split) for split in ("train", "validation", "train")}
    assert len(read) == (43 if published else 40)
    assert (found["validation"].of(0).given[0] == "v") == published


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_column_of_tools_that_is_named_must_be_there(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.{suffix}", [{"prompt": "a"}, {"prompt": "b"}])
    with pytest.raises(ValueError, match="no column 'functions'; it has prompt"):
        open_prompts(path, "prompt", "train", "functions")


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"prompt": "a"}, {"prompt": "a"}], "all rows are the same; at least two must differ"),
        ([{"prompt": "a", "answer": 1}, {"prompt": "b"}], "line 2: no column 'answer'; it has prompt"),
        (
            [{"prompt": "a"}, {"prompt": "b", "answer": 1}],
            "line 1: no column 'answer', which line 2 has; every row needs",
        ),
        ([{"prompt": "a"}, {"text": "b"}], "line 2: no column 'prompt'; it has text"),
        (
            [{"prompt": "a"}, {"prompt": None}],
            r"line 2, column prompt: text, or a list of messages, is needed \(got None",
        ),
        ([{"prompt": "a"}, {"prompt": []}], "line 2, column prompt: text, or a list of messages"),
        (
            [{"prompt": "a"}, {"prompt": [{"role": "user", "content": [{"type": "image"}]}]}],
            "line 2, column prompt: a message needs a role of system, user, assistant, and text as its content",
        ),
        ([{"prompt": "a"}, {"prompt": chat("b", tool_calls=[1])}], "line 2, column prompt: a message has tool_calls"),
        (
            [{"prompt": "a"}, {"prompt": [{"role": "assistant", "content": "b"}]}],
            "line 2, column prompt: the last message must be the user's",
        ),
    ],
)
def test_a_row_that_begins_no_conversation_is_refused_by_file_row_and_column(
    tmp_path: Path, rows: list[dict[str, Any]], complaint: str
) -> None:
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match=f"environment.options.data: .*a.jsonl, .*{complaint}"):
        open_prompts(path, "prompt", "train")


def test_a_file_of_a_package_is_found_by_its_name() -> None:
    assert open_prompts("squelch.envs.prompt_file:example.jsonl", "prompt", "train").of(0).columns.keys() == {"letter"}
    with pytest.raises(ValueError, match=r"data: nowhere:a\.jsonl: there is no package 'nowhere'"):
        open_prompts("nowhere:a.jsonl", "prompt", "train")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("lacking", ["train-1", "train-2", "validation"])
def test_a_file_that_lacks_a_column_of_another_is_refused_with_a_row(tmp_path: Path, lacking: str, suffix: str) -> None:
    for name in ("train-1", "train-2", "validation"):
        rows = [{"prompt": f"{name} {i}", **({} if name == lacking else {"answer": i})} for i in range(3)]
        write(tmp_path / f"{name}.{suffix}", rows)
    complaint = rf"data: .*{lacking}.{suffix}, (line|row) 1: no column 'answer', which .* has; every row needs the same"
    with pytest.raises(ValueError, match=complaint):
        open_prompts(str(tmp_path), "prompt", "validation")


def file(path: Path, *prompts: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
    return str(path)


def texts(data: str, split: str, validation: str | tuple[str, ...]) -> set[str]:
    prompts = open_prompts(data, "prompt", split, "tools", validation)
    return {prompts.of(seed).given for seed in range(8)}


def test_validation_has_the_files_that_are_given_whatever_their_names_and_they_are_not_trained_on(
    tmp_path: Path,
) -> None:
    train = file(tmp_path / "train.jsonl", "a", "b", "c", "shared")
    test, other = file(tmp_path / "test.jsonl", "shared", "x"), file(tmp_path / "aime-2024.jsonl", "y")
    assert texts(train, "validation", (test, other)) == {"shared", "x", "y"}
    assert texts(train, "train", (test, other)) == {"a", "b", "c"}


def test_of_a_folder_validation_has_the_split_for_it_or_else_that_for_tests(tmp_path: Path) -> None:
    train = file(tmp_path / "train.jsonl", "a", "b")
    file(tmp_path / "own" / "train.jsonl", "t")
    file(tmp_path / "own" / "test.jsonl", "x")
    assert texts(train, "validation", str(tmp_path / "own")) == {"x"}
    file(tmp_path / "both" / "test.jsonl", "x")
    file(tmp_path / "both" / "validation.jsonl", "v")
    assert texts(train, "validation", str(tmp_path / "both")) == {"v"}


def test_a_file_of_validation_that_is_not_there_is_named_by_its_option(tmp_path: Path) -> None:
    train = file(tmp_path / "train.jsonl", "a", "b")
    with pytest.raises(ValueError, match=r"environment\.options\.validation_data: .*gone\.jsonl: no such file"):
        open_prompts(train, "prompt", "train", "tools", str(tmp_path / "gone.jsonl"))
