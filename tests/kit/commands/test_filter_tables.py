"""`squelch filter` reads what other trainers write: their rewards, weighted and grouped as the trainers do."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import squelch
from squelch.cluster.cli import main
from tests.kit.readers import trainer_files
from tests.kit.readers.trainer_files import SAMPLES, jsonl


def filtered(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict:
    assert main(["filter", *map(str, argv), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert main(["filter", *map(str, argv)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("write", "flags"),
    [
        (trainer_files.trl, ["--reward", "accuracy_reward"]),
        (trainer_files.verl, []),
        (trainer_files.nemo_rl, []),
        (trainer_files.areal, ["--format", "areal"]),
        (trainer_files.skyrl, ["--format", "skyrl"]),
        (trainer_files.prime_rl, ["--format", "verifiers", "--reward", "correct"]),
    ],
)
def test_each_trainers_rewards_are_grouped_by_its_prompts(tmp_path, capsys, write: Callable, flags) -> None:
    place = write(tmp_path)
    if place.is_dir() and "skyrl" in flags:
        place = place / "gsm8k.jsonl"
    found = filtered(capsys, place, *flags, "--rule", "none")
    assert [row["num_groups"] for row in found["steps"]] == [2]
    own = np.reshape([reward for *_, reward in SAMPLES], (2, 2)) * (2.0 if "correct" in flags else 1.0)
    assert found["statistic"] == pytest.approx(squelch.filter(own).scores.tolist())


def test_several_rewards_are_summed_by_weight_and_a_missing_one_does_not_count(tmp_path, capsys) -> None:
    path = trainer_files.trl(tmp_path)
    message = refused(capsys, path)
    assert "several columns of numbers: `accuracy_reward`, `format_reward`; name the rewards with --reward" in message
    found = filtered(capsys, path, "--reward", "accuracy_reward", "format_reward=0.5", "--rule", "none")
    assert found["statistic"] == pytest.approx(squelch.filter([[1.25, 0.0], [1.25, 0.25]]).scores.tolist())
    assert "Did you mean 'format_reward'?" in refused(capsys, path, "--reward", "formatreward")
    assert "the weight must be a number" in refused(capsys, path, "--reward", "format_reward=much")


def test_rows_that_no_reward_function_scored_leave_their_group_as_in_squelch_filter(tmp_path, capsys) -> None:
    rewards = [1.0, None, 0.0, 1.0, None, None]
    rows = [{"question": f"{i // 3}", "reward": reward} for i, reward in enumerate(rewards)]
    path = jsonl(tmp_path / "table.jsonl", rows)
    assert "no column tells its group" in refused(capsys, path)
    found = filtered(capsys, path, "--group", "question")
    own = squelch.filter(np.reshape([np.nan if one is None else one for one in rewards], (2, 3)))
    assert (found["kept"], len(found["rejected"])) == (np.flatnonzero(own.kept).tolist(), int((~own.kept).sum()))
    assert "has no column `prompt`, which --group names" in refused(capsys, path, "--group", "prompt")


def test_any_table_is_filtered_step_by_step_and_its_rows_may_come_in_any_order(tmp_path, capsys) -> None:
    order = np.random.default_rng(0).permutation(24)
    step, group, reward = order // 12 + 5, order % 12 // 4, (order % 4 < 2).astype(float) * (order % 12 // 4)
    pq.write_table(
        pa.table({"step": step, "prompt": [f"p{one}" for one in group], "reward": reward}), tmp_path / "t.parquet"
    )
    found = filtered(capsys, tmp_path / "t.parquet")
    assert [(row["step"], row["num_groups"], row["num_zero"]) for row in found["steps"]] == [(5, 3, 1), (6, 3, 1)]
    assert "has no column of rewards" in refused(capsys, jsonl(tmp_path / "none.jsonl", [{"prompt": "a", "text": "b"}]))


def test_the_last_turn_of_a_rollout_gives_its_reward(tmp_path, capsys) -> None:
    path = trainer_files.verl(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    early = [row | {"score": 9.0, "input": "other"} for row in rows]
    late = [row | {"uid": row["uid"][:-1] + "1"} for row in rows]
    found = filtered(capsys, jsonl(path, [*early, *late]), "--rule", "none")
    assert (found["num_groups"], found["statistic"]) == (2, pytest.approx([0.5, 0.5]))


def test_a_reward_that_is_no_number_is_refused_with_its_row(tmp_path, capsys) -> None:
    rows = [{"input": "a", "output": "b", "step": 1, "score": score} for score in (1.0, "high")]
    path = jsonl(tmp_path / "1.jsonl", rows)
    assert f"{path}, row 2: `score` is 'high'; a reward must be a number" in refused(capsys, path)


def test_rewards_beyond_any_float_refuse_their_group_alone_and_a_column_of_nothing_is_no_reward(
    tmp_path, capsys
) -> None:
    rewards = [10**400, 0.0, 1.0, 0.0]
    rows = [{"prompt": f"{i // 2}", "reward": one, "observer": math.nan} for i, one in enumerate(rewards)]
    path = jsonl(tmp_path / "t.jsonl", rows)
    assert filtered(capsys, path)["kept"] == [1]


FILTER = """
import sys
import pyarrow  # before the file is read, and with the allocator that the environment names
from squelch.cluster.cli import main
sys.exit(main(["filter", *sys.argv[1:]]))
"""


def conversations(path: Path, count: int, step: int = 1) -> Path:
    """A table as TRL logs it, of `count` completions in groups of eight."""
    rng = np.random.default_rng(step)
    said = [[{"role": "assistant", "content": f"<think>{'because ' * 40}{i}</think> {i}"}] for i in range(count)]
    table = {
        "step": [step] * count,
        "prompt": [[{"role": "user", "content": f"What is {step} and {i // 8}?"}] for i in range(count)],
        "completion": said,
        "accuracy_reward": rng.integers(0, 2, count).astype(float),
        "advantage": [0.0] * count,
    }
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(table), path)
    return path


def test_tables_of_messages_are_read_whatever_arrows_allocator_is(tmp_path) -> None:
    path, said = conversations(tmp_path / "completions_00001.parquet", 8000), set()
    for allocator in ("system", "jemalloc", "mimalloc"):
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": allocator}
        command = [sys.executable, "-c", FILTER, str(path), "--rule", "none"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
        assert found.returncode == 0, found.stderr
        said.add(found.stdout)
    assert len(said) == 1 and "1000/1000" in said.pop()


def test_a_folder_of_a_trainers_files_is_filtered_step_by_step(tmp_path, capsys) -> None:
    folder = tmp_path / "completions"
    for step in (3, 1, 2):
        conversations(folder / f"completions_{step:05d}.parquet", 80, step)
    found = filtered(capsys, folder)
    assert [(row["step"], row["num_groups"]) for row in found["steps"]] == [(1, 10), (2, 10), (3, 10)]
    alone = [filtered(capsys, folder / f"completions_{step:05d}.parquet")["statistic"] for step in (1, 2, 3)]
    assert found["statistic"] == [one for step in alone for one in step]
    (folder / "notes.txt").write_text("no samples")
    assert filtered(capsys, folder) == found
    (tmp_path / "empty").mkdir()
    assert "holds no groups: give a run's folder" in refused(capsys, tmp_path / "empty")
