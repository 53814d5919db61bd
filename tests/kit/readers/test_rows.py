"""One reader gives every command the same rows, with all that a format says of them; what failed is no sample and no
reward."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import squelch
from squelch.cluster.cli import main
from squelch.kit.archive.schema import ARCHIVE_SCHEMA
from squelch.kit.base.errors import UserError
from squelch.kit.readers import format_rows, score_files
from squelch.kit.readers.records import columns_of
from squelch.kit.readers.reward_tables import read_rewards
from squelch.kit.readers.rows import MOST_REASONS, Rows
from squelch.kit.readers.score_files import SampleFile, read_samples
from tests.kit.readers import trainer_files
from tests.kit.readers.trainer_files import SAMPLES, jsonl
from tests.work import lines_run

WRITTEN = Path(__file__).with_name("written")


def rows(path: Path) -> list[dict[str, Any]]:
    return [format_rows.whole(read.row) for read in Rows(path)]


def changed(path: Path, number: int, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file of records with one of them changed, from 0."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records[number])
    return jsonl(path, records)


def said(found: SampleFile) -> list[Any]:
    return [row.get("completion_ids", row.get("completion")) for _, row in found.rows]


# -- what a row keeps --------------------------------------------------------------------------------------------------


def test_rows_keep_log_probabilities_and_advantages_of_exactly_their_tokens(tmp_path) -> None:
    def numbered(record: dict[str, Any]) -> None:
        record["generation_logprobs"], record["advantages"] = [[-0.0, 1, 2, 3, 4, 5]], [[0, 10, 20, 30, 40, 50]]

    nemo = rows(changed(trainer_files.nemo_rl(tmp_path), 0, numbered))
    assert [(row["completion_ids"], row["logprobs"], row["advantage"]) for row in nemo[:2]] == [
        ([20, 21], [2, 3], [20, 30]),
        ([31], [5], [50]),
    ]
    slime = rows(trainer_files.slime(tmp_path))
    assert [(row["completion_ids"], row["logprobs"]) for row in slime[:3]] == [([20, 21], [-0.1, -0.2])] * 3
    trl = rows(trainer_files.trl(tmp_path))
    assert [row["advantage"] for row in trl] == [1.0, -1.0, 1.0, -1.0]


def test_values_of_a_nodes_sampled_tokens_stand_at_these_tokens(tmp_path) -> None:
    record = trainer_files.episode(*SAMPLES[0])
    record["traces"][0]["nodes"][1] |= {
        "token_ids": [5, 20, 6, 21],
        "mask": [False, True, False, True],
        "advantages": [3.0, 4.0],
    }
    first, second = rows(jsonl(tmp_path / "traces.jsonl", [record]))
    assert (first["completion_ids"], first["logprobs"]) == ([20, 6, 21], [-0.1, None, -0.2])
    assert first["advantage"] == [3.0, None, 4.0]
    assert (second["logprobs"], second["advantage"]) == ([-0.1], None)


def test_values_that_are_not_one_for_each_token_are_not_known(tmp_path) -> None:
    path = trainer_files.slime(tmp_path)
    assert "logprobs" not in rows(changed(path, 0, lambda record: record.update(rollout_log_probs=[-0.1])))[0]
    record = trainer_files.episode(*SAMPLES[0])
    record["traces"][0]["nodes"][1]["logprobs"] = [-0.1]
    assert rows(jsonl(tmp_path / "traces.jsonl", [record]))[0]["logprobs"] is None


def test_versions_limits_and_failures_are_those_of_the_trainers(tmp_path) -> None:
    path = trainer_files.slime(tmp_path)
    changed(path, 0, lambda record: record.update(weight_versions=["100", "101"], status="truncated"))
    changed(path, 1, lambda record: record.update(status="failed", weight_versions=[]))
    keys = ("versions", "truncated", "failed")
    assert [tuple(row.get(key) for key in keys) for row in rows(path)] == [
        ([100, 101], True, None),
        (None, False, "failed by slime"),
        ([101, 101], False, None),
        ([101, 101], False, "aborted by slime"),
    ]
    skyrl = trainer_files.skyrl(tmp_path) / "gsm8k.jsonl"
    changed(skyrl, 0, lambda record: record.update(stop_reason="length"))
    assert [row["truncated"] for row in rows(skyrl)] == [True, False, False, False]
    assert [row["versions"] for row in rows(trainer_files.areal(tmp_path))] == [[100, 100], [99, 100]] * 2
    (one, _), other = rows(jsonl(tmp_path / "e.jsonl", [trainer_files.episode(*SAMPLES[0])])), trainer_files
    assert (one["versions"], one["truncated"]) == (None, None)
    stopped = other.episode(*SAMPLES[0], work={"policy": {"start": 7, "end": 9}})
    stopped["traces"][0] |= {"stop_condition": "agent_completed", "calls": [{"finish_reason": "length"}, {"error": {}}]}
    one, _ = rows(jsonl(tmp_path / "e.jsonl", [stopped]))
    assert (one["versions"], one["truncated"]) == ([7, 9], True)


def test_prompts_that_count_as_version_minus_one_are_no_change_of_the_weights(tmp_path) -> None:
    """AReaL writes the lowest version of all tokens, and those of a prompt have -1."""
    folder = trainer_files.areal(tmp_path)
    for file in folder.glob("*.jsonl"):
        for number in (0, 1):
            changed(file, number, lambda record: record.update(head_version=-1))
    assert not any("while the weights changed" in note for note in read_samples(folder).notes)
    assert [row["versions"] for row in rows(folder)] == [[None, 100]] * 4


def test_files_of_trls_and_verifiers_own_writers_are_read_whole() -> None:
    trl = rows(WRITTEN / "completions" / "completions_00100.parquet")
    assert [(row["prompt"][0]["content"], row["completion"][0]["content"]) for row in trl] == [
        (prompt, text) for prompt, text, _ in SAMPLES
    ]
    assert [(row["rewards"]["right"], row["advantage"], row["step"]) for row in trl] == [
        (1.0, 0.7, 100),
        (0.0, -0.7, 100),
    ] * 2
    traces = WRITTEN / "traces.jsonl"
    keys = ("group", "rewards", "versions", "truncated", "logprobs", "advantage", "failed")
    assert [tuple(row.get(key) for key in keys) for row in rows(traces)] == [
        ("g0", {"right": 1.0}, [100, 100], False, [-0.125, 0.0], [1.0, 1.0], None),
        ("g0", {"right": 0.0}, [100, 101], True, [-0.125, -0.25], [0.0, 0.0], None),
        ("g1", {"right": 1.0}, [100, 100], False, [-0.125, -0.5], [-1.0, -1.0], None),
        ("g1", None, [100, 101], False, None, None, "failed with SandboxError"),
    ]
    assert said(read_samples(traces)) == [[20, 21]] * 3


def archived(path: Path) -> Path:
    """Squelch's own archive: a trajectory of two segments, one that failed, and one of the validation."""
    turn = {name: None for name in ARCHIVE_SCHEMA.field("turns").type.value_type.names}  # type: ignore[attr-defined]
    turns = [
        turn | {"sample_start": 2, "sample_end": 4, "version_min": 6, "version_max": 7},
        turn | {"sample_start": 6, "sample_end": 7, "version_min": 7, "version_max": 7},
    ]
    empty = dict.fromkeys(ARCHIVE_SCHEMA.names)
    row = empty | {
        "group_id": "t1",
        "trajectory": 0,
        "step": 3,
        "split": "train",
        "token_ids": [1, 2, 3, 4, 5, 6, 7],
        "loss_mask": [False, False, True, True, False, False, True],
        "log_probs": [0.0, 0.0, -0.5, -1.5, 0.0, 0.0, -2.5],
        "turns": turns,
        "segments": [{"start": 4, "cause": "history rewritten"}],
        "episode_return": 1.0,
        "truncated": True,
    }
    failed = row | {"trajectory": 1, "failure_cause": "step_timeout"}
    table = [row, failed, row | {"split": "validation"}]
    pq.write_table(pa.Table.from_pylist(table, schema=ARCHIVE_SCHEMA), path)
    return path


def test_the_archive_of_a_run_is_read_turn_by_turn_with_its_log_probabilities(tmp_path, capsys) -> None:
    path = archived(tmp_path / "step-000003.parquet")
    first, second, failed = rows(path)
    assert (first["prompt_ids"], first["completion_ids"], first["logprobs"]) == ([1, 2], [3, 4], [-0.5, -1.5])
    assert (second["prompt_ids"], second["completion_ids"], second["logprobs"]) == ([5, 6], [7], [-2.5])
    assert (first["turn"], second["turn"], first["versions"], first["truncated"]) == (0, 1, [6, 7], True)
    assert (failed["failed"], failed["group"], failed["step"]) == ("step timeout", "t1", 3)
    found = read_samples(path)
    assert said(found) == [[3, 4], [7]] and found.step == 3
    assert found.notes[:2] == ["left out, of an evaluation: 1", "left out, step timeout: 1"]
    assert main(["filter", str(path), "--reward", "episode_return", "--rule", "none", "--json"]) == 0
    assert [one["index"] for one in json.loads(capsys.readouterr().out)["rejected"]] == [0], "one of two is left"


# -- what failed -------------------------------------------------------------------------------------------------------


def failing(record: dict[str, Any]) -> None:
    error = {"type": "SandboxError", "message": "gone " * 99}
    record["traces"][0] |= {"ok": False, "errors": [error], "rewards": {"correct": {"score": 0.0, "weight": 1.0}}}


def test_a_failed_rollout_is_no_sample_and_no_reward_of_0_and_is_counted(tmp_path, capsys) -> None:
    path = changed(trainer_files.verifiers(tmp_path), 3, failing)
    found = read_samples(path)
    assert len(found.rows) == 6 and "left out, failed with SandboxError: 1" in found.notes
    assert main(["filter", str(path), "--reward", "correct", "--rule", "none", "--json"]) == 0
    printed = capsys.readouterr()
    assert "left out, failed with SandboxError: 1" in printed.err
    own = squelch.filter([[2.0, 0.0], [2.0, np.nan]])
    decided = json.loads(printed.out)
    assert decided["num_groups"] == 2 and decided["rejected"][0]["index"] == 1 and not own.kept[1]


def test_an_episode_that_failed_after_its_traces_fails_them_all(tmp_path) -> None:
    path = trainer_files.verifiers(tmp_path)
    changed(path, 0, lambda record: record.update(ok=False, errors=[{"type": "KeyError", "message": "x"}]))
    assert [row.get("failed") for row in rows(path)][:2] == ["failed with KeyError", None]
    changed(path, 0, failing)
    changed(path, 0, lambda record: record["traces"].append(trainer_files.episode(*SAMPLES[1])["traces"][0]))
    assert [row.get("failed") for row in rows(path)][:3] == ["failed with SandboxError", None, None], "each for itself"


def test_a_file_in_which_everything_failed_says_so(tmp_path) -> None:
    path = trainer_files.slime(tmp_path)
    for number in range(4):
        changed(path, number, lambda record: record.update(status="aborted"))
    with pytest.raises(UserError, match=r"holds no rows that count \(left out, aborted by slime: 4\)"):
        read_samples(path)
    with pytest.raises(UserError, match="has no column of rewards"):
        read_rewards(path, None, (), None)


def test_reasons_that_a_file_makes_up_are_bounded(tmp_path) -> None:
    def of(number: int) -> dict[str, Any]:
        record = trainer_files.episode(*SAMPLES[0])
        record["traces"][0] |= {"ok": False, "errors": [{"type": f"Error{number}" * 50}]}
        return record

    reader = Rows(jsonl(tmp_path / "traces.jsonl", [of(number) for number in range(3 * MOST_REASONS)]))
    assert len(list(reader)) == 3 * MOST_REASONS == sum(reader.left_out.values())
    assert len(reader.left_out) == MOST_REASONS + 1 and max(map(len, reader.left_out)) < 100


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_file_of_another_format_in_the_folder_is_left_out_by_every_command(tmp_path, capsys) -> None:
    folder = trainer_files.skyrl(tmp_path)
    jsonl(folder / "own.jsonl", [{"prompt": "a", "completion": "b", "reward": 9.0}])
    found = read_samples(folder)
    assert len(found.rows) == len(SAMPLES)
    assert any("own.jsonl is left out: its format is columns" in note for note in found.notes)
    assert main(["filter", str(folder), "--rule", "none", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["num_groups"] == 2
    assert all(f"{name}.jsonl is left out" in printed.err for name in ("aggregated_results", "own"))


def test_an_empty_file_says_nothing_of_its_folders_format(tmp_path) -> None:
    path = trainer_files.verl(tmp_path)
    for name in ("1.jsonl", "999.jsonl"):
        (tmp_path / name).write_text("")
    found = read_samples(tmp_path)
    assert (found.format.name, len(found.rows), found.notes) == ("verl", len(SAMPLES), read_samples(path).notes)


def test_files_of_other_steps_are_not_opened(tmp_path, monkeypatch) -> None:
    for step in (7, 8, 9):
        trainer_files.trl(tmp_path, step)
    opened, folder = Counter[str](), tmp_path / "completions"

    def of(path: Path) -> tuple[str, ...]:
        opened[path.name] += 1
        return columns_of(path)

    monkeypatch.setattr("squelch.kit.readers.rows.columns_of", of)
    assert len(read_samples(folder, 9).rows) == len(SAMPLES)
    assert set(opened) == {"completions_00007.parquet", "completions_00009.parquet"}, "the first shows the format"
    with pytest.raises(UserError, match="holds no rows of step 6; it has 7, 8, 9"):
        read_samples(folder, 6)


# -- costs -------------------------------------------------------------------------------------------------------------


def test_only_what_is_scored_of_a_row_is_kept(tmp_path) -> None:
    for path in (trainer_files.slime(tmp_path), trainer_files.nemo_rl(tmp_path), trainer_files.verifiers(tmp_path)):
        for _, row in read_samples(path).rows:
            assert row["completion_ids"] and not {"logprobs", "advantage", "content"} & set(row)


def wide(path: Path, count: int, ids: bool) -> Path:
    """A trace of that many messages in a row, of which every other one was sampled."""
    nodes = [
        {"parent": k - 1 if k else None, "sampled": bool(k % 2), "message": {"role": "user", "content": "x</think>y"}}
        | ({"token_ids": [7] * 80, "mask": [bool(k % 2)] * 80} if ids else {})
        for k in range(count)
    ]
    return jsonl(path, [{"nodes": nodes, "task": 1, "rewards": {}}])


@pytest.mark.parametrize("ids", [True, False])
def test_all_turns_of_a_long_chain_cost_no_square_of_it(tmp_path, monkeypatch, ids) -> None:
    monkeypatch.setattr(score_files, "MOST_SHOWN", 2**18)
    short, long = (wide(tmp_path / f"{count}.jsonl", count, ids) for count in (500, 2000))
    assert lines_run(read_samples, long) < 5 * lines_run(read_samples, short)
    found = read_samples(long)
    note = next(
        note for note in found.notes if "left out, in a record whose prompts have more than 262,144 ids" in note
    )
    assert len(found.rows) + int(note.rpartition(": ")[2]) == 1000 and len(found.rows) > 50
    assert len(read_samples(long, turns="first").rows) == 1000


def test_rows_of_evaluations_are_left_out_unless_they_are_wanted(tmp_path) -> None:
    place = trainer_files.prime_rl(tmp_path)
    left, wanted = Rows(place), Rows(place, evaluations=True)
    assert [row.row.get("evaluation") for row in left if row.row.get("evaluation")] == []
    found = [read.row for read in wanted if read.row.get("evaluation")]
    assert left.left_out == {"an evaluation within a training run": 1} and not wanted.left_out
    assert [(row["group"], row["task"]) for row in found] == [("g1", "task-1")] and 100 in wanted.steps


@pytest.mark.parametrize("name", ["nemo_rl", "slime", "prime_rl"])
def test_what_is_said_of_a_rollouts_tokens_stands_in_its_first_row_alone(tmp_path, name) -> None:
    rows = [read.row for read in Rows(getattr(trainer_files, name)(tmp_path))]
    played = [row for row in rows if row.get("failed") is None]
    assert [row.get("learned") is not None for row in played] == [not row["turn"] for row in played]
    said = played[0]["learned"]()
    assert len(said["ids"]) == len(said["mask"]) == len(said["logprobs"])
    assert (said["sampled"] is None) == (name != "prime_rl") and any(said["mask"])
