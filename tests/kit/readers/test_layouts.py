"""Layouts that are not one record a line, and errors that name what the file has."""

import json
from pathlib import Path
from typing import Any

import pytest

from squelch.kit.api.inputs import rows_of
from squelch.kit.base.errors import UserError
from squelch.kit.readers.reward_tables import read_rewards
from squelch.kit.readers.score_files import read_samples
from tests.kit.readers.trainer_files import jsonl

ROW = {"prompt": "a", "completion": "<think>b</think> c", "reward": 1.0}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("indent", [1, None])
@pytest.mark.parametrize("value", [ROW, [ROW, ROW]])
def test_json_over_several_lines_is_read(tmp_path, suffix, indent, value) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_text("\n" + json.dumps(value, indent=indent) + "\n")
    count = len(value) if isinstance(value, list) else 1
    assert [row["completion"] for _, row in read_samples(path).rows] == [ROW["completion"]] * count
    assert read_rewards(path, None, (), None).rewards == [1.0] * count


def test_objects_that_go_on_in_the_next_line_are_refused_with_what_would_be_right(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(ROW, indent=1) for _ in range(2)))
    with pytest.raises(UserError, match="row 1: the object goes on in the next line; write each record in one line"):
        read_samples(path)


def swift(step: int, count: int = 4) -> dict[str, Any]:
    """A line of ms-swift's `completions.jsonl`."""
    return {
        "gen_step": [step] * count,
        "prompt": [f"p{k // 2}" for k in range(count)],
        "completion": [f"<think>{k}</think> x" for k in range(count)],
        "accuracy": [float(k % 2) for k in range(count)],
        "advantages": [0.5] * count,
    }


def test_a_line_that_holds_a_batch_is_as_many_records(tmp_path) -> None:
    path = jsonl(tmp_path / "completions.jsonl", [swift(0), swift(8, 2)])
    found = read_samples(path, 0)
    assert [(row["prompt"], row["completion"], row["step"]) for _, row in found.rows] == [
        (f"p{k // 2}", f"<think>{k}</think> x", 0) for k in range(4)
    ]
    table = read_rewards(path, None, (), None)
    assert (table.steps, table.groups) == ([0] * 4 + [8] * 2, [0, 0, 1, 1, 0, 0])
    assert table.rewards == [0, 1, 0, 1, 0, 1], "an advantage is no reward"
    messages = [{"role": "user", "content": "go"}]
    spoken = {**swift(1, 2), "prompt": [messages, messages]}
    assert [row["prompt"] for _, row in read_samples(jsonl(path, [spoken])).rows] == [messages] * 2


def test_messages_of_a_prompt_and_a_completion_are_no_batch(tmp_path) -> None:
    one = [{"role": "user", "content": "a"}]
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": one, "completion": [{"role": "assistant", "content": "b"}]}])
    assert [row["prompt"] for _, row in read_samples(path).rows] == [one]


def test_one_message_stands_for_a_list_of_one(tmp_path) -> None:
    said = {"role": "assistant", "content": "x</think> y"}
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": said}, {"prompt": said, "completion": "b"}])
    first, second = (row for _, row in read_samples(path).rows)
    assert first["completion"] == [said] and second["prompt"] == [said]
    assert rows_of([said], [said]) == [(0, {"prompt": [said], "completion": [said]})]
    with pytest.raises(UserError, match="row 1: `completion` must be text or a list of messages"):
        read_samples(jsonl(path, [{"prompt": "a", "completion": {"text": "x"}}]))


@pytest.mark.parametrize("name", ["dataset_dict.json", "dataset_info.json"])
def test_a_folder_that_save_to_disk_wrote_is_refused_with_its_conversion(tmp_path, name) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / name).write_text('{"splits": ["train"]}')
    (tmp_path / "train" / "data-00000-of-00001.arrow").write_bytes(b"x")
    for read in (read_samples, lambda path: read_rewards(path, None, (), None)):
        with pytest.raises(UserError, match=r"load_from_disk\(FOLDER\)\[SPLIT\].to_parquet"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"output": 3}, "`output` must be text or a list of messages"),
        ({"input": 3}, "`input` must be text or a list of messages"),
        ({"gen_step": "soon"}, "`gen_step` is 'soon'; it must be a whole number"),
        ({"group_id": [1]}, r"`group_id` is \[1\]; it must be one text or number"),
        ({"output": None}, r"holds `input`, `output` \(null\)"),
    ],
)
def test_an_error_names_the_column_that_the_file_has(tmp_path: Path, damage, says) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"input": "a", "output": "b"} | damage])
    with pytest.raises(UserError, match=f"row 1: {says}"):
        read_samples(path)
