"""A missing id is no id: null, NaN and an empty text tell no prompts, groups, rollouts or steps apart."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import squelch
from squelch.kit.base.errors import UserError
from squelch.kit.readers.formats import FORMATS
from squelch.kit.readers.reward_tables import RewardTable, read_rewards
from squelch.kit.readers.rows import steps_of_records
from squelch.kit.readers.score_files import read_samples
from tests.kit.readers import trainer_files
from tests.kit.readers.trainer_files import jsonl

MISSING = [None, math.nan, "", " "]


def written(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    return jsonl(tmp_path / "rows.jsonl", rows)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("column", ["group_id", "prompt_id", "uid"])
def test_rows_without_an_id_are_told_apart_by_their_prompts(tmp_path, missing, column) -> None:
    rows = [{column: missing, "prompt": f"p{i // 2}", "reward": i % 2} for i in range(6)]
    assert read_rewards(written(tmp_path, rows), None, (), None).groups == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("missing", MISSING)
def test_a_column_of_groups_without_an_id_is_refused_with_its_row(tmp_path, missing) -> None:
    rows = [{"question": one, "prompt": "p", "reward": 1} for one in ("a", missing)]
    with pytest.raises(UserError, match=r"row 2: `question`, which --group names, is .*, which tells no group"):
        read_rewards(written(tmp_path, rows), None, (), "question")


@pytest.mark.parametrize("missing", MISSING)
def test_rows_of_one_missing_prompt_id_need_no_common_prompt(tmp_path, missing) -> None:
    rows = [{"prompt": f"p{i}", "prompt_id": missing, "group_id": f"g{i}", "completion": "x"} for i in range(3)]
    found = read_samples(written(tmp_path, rows)).rows
    assert [row["prompt_id"] for _, row in found] == ["g0", "g1", "g2"]
    bare = read_samples(written(tmp_path, [{**row, "group_id": missing} for row in rows])).rows
    assert [row["prompt_id"] for _, row in bare] == [None] * 3


@pytest.mark.parametrize("missing", MISSING)
def test_a_turn_that_is_missing_is_a_first_turn(tmp_path, missing) -> None:
    rows = [{"prompt": "p", "completion": "x", "turn": missing}]
    assert not read_samples(written(tmp_path, rows)).rows[0][1]["turn"]


def by_trainer(name: str, missing: Any, tmp_path: Path) -> RewardTable:
    """The rewards of a trainer's file whose ids are missing."""
    path = {"slime": trainer_files.slime, "areal": trainer_files.areal, "verifiers": trainer_files.prime_rl}[name](
        tmp_path
    )
    files = [path] if path.is_file() else sorted(path.rglob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for record in records:
        for key in ("group_index", "index", "task_id"):
            record |= {key: missing} if key in record else {}
        for inner, keys in (("group", ["id"]), ("task", ["key", "hash"])):
            record |= {inner: dict.fromkeys(keys, missing)} if inner in record else {}
        for trace in record.get("traces", []):
            trace["id"] = missing
    return read_rewards(
        jsonl(tmp_path / "missing.jsonl", records), name, ["correct"] if name == "verifiers" else (), None
    )


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("name", ["slime", "areal"])
def test_the_ids_of_a_trainer_may_be_missing(tmp_path, name, missing) -> None:
    found = by_trainer(name, missing, tmp_path)
    wanted = {"slime": [0, 0, 1], "areal": [0, 0, 1, 1]}
    assert found.groups == wanted[name], "its prompts tell groups apart, and no two rollouts are one"


@pytest.mark.parametrize("missing", MISSING)
def test_traces_without_an_id_are_not_turns_of_one_rollout(tmp_path, missing) -> None:
    found = by_trainer("verifiers", missing, tmp_path)
    assert len(found.rewards) == 4 and found.groups == [0, 0, 1, 1], "a rollout of two turns counts once"


@pytest.mark.parametrize("missing", MISSING)
def test_a_missing_step_is_no_step_and_gen_step_is_one(tmp_path, missing) -> None:
    rows = [
        {"step": missing, "gen_step": 7, "prompt": f"p{i // 2}", "completion": "x", "reward": i % 2} for i in range(4)
    ]
    path = written(tmp_path, rows)
    assert read_samples(path).step == 7
    found = read_rewards(path, None, (), None)
    assert found.steps == [7] * 4 and found.rewards == [0, 1, 0, 1], "a step is no reward"
    assert steps_of_records(path, FORMATS["columns"]) == [7]
    bare = written(tmp_path, [{**row, "gen_step": missing} for row in rows])
    assert read_samples(bare).step is None and read_rewards(bare, None, (), None).steps == [None] * 4


def test_a_step_that_a_table_holds_as_a_float_or_text_is_a_step(tmp_path) -> None:
    rows = [{"step": step, "prompt": "p", "completion": "x"} for step in (3.0, "4", 5)]
    assert steps_of_records(written(tmp_path, rows), FORMATS["columns"]) == [3, 4, 5]


@pytest.mark.parametrize("missing", [*MISSING, [], [None], [None, ""]])
def test_a_column_of_pictures_without_a_picture_holds_none(tmp_path, missing) -> None:
    row = {"prompt": [{"role": "user", "content": "p"}], "completion": "x", "images": missing}
    assert "pictures" not in read_samples(written(tmp_path, [row])).rows[0][1]


@pytest.mark.parametrize("missing", [None, math.nan, ""])
def test_labels_of_the_api_that_are_missing_are_refused_with_their_row(missing) -> None:
    others = [1.0] if isinstance(missing, float) else ["a"]
    with pytest.raises(ValueError, match="`group_ids` has no label in row 2"):
        squelch.filter([0, 1, 0, 1], [*others, *others, missing, missing])
    with pytest.raises(ValueError, match="`prompt_id` has no label in row 1"):
        squelch.mi([[[-1.0, -2.0]], [[-2.0, -1.0]]], [[3], [3]], [*others, missing])
