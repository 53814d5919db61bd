"""Which weights and which groups `squelch gradients` takes, on archives made by hand; no model is loaded."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from squelch.cluster.cli import main
from squelch.cluster.commands.existing_runs.gradients import (
    archived_groups,
    choose_checkpoint,
    choose_groups,
    learner_config,
    show,
)
from squelch.cluster.config import dump, load
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoint_dir
from squelch.cluster.loop.persistence.state import LoopState
from squelch.kit.archive.rows import to_table
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn
from squelch.learner.decomposition.statistics import Decomposition, GroupMetrics, summarise_bucket
from tests.learner.checkpoint.hostile import write_older


@dataclass(frozen=True)
class Kept:
    score: float = 1.0
    decision: str = "kept"
    reason: str = ""


def trajectory(index: int, oldest: int, newest: int, failure: Failure | None = None) -> Trajectory:
    turn = Turn(1, 3, 1, 1, float(index % 2), 0.0, True, False, 1, oldest, newest)
    mask = np.array([False, True, True])
    return Trajectory(index, np.arange(3, dtype=np.int32), mask, np.zeros(3, np.float32), [turn], False, False, failure)


def write_step(run_dir: Path, step: int, versions: list[tuple[int, int]], failed: int = 0) -> None:
    """A group a (oldest, newest) version; the last `failed` trajectories of each group failed."""
    tables, decisions = [], {}
    for i, (oldest, newest) in enumerate(versions):
        ticket = Ticket(f"{step:06d}-{i:03d}", step, Task("X", i), 4, 0)
        reasons = [None] * (4 - failed) + [Failure(FailureCause.STEP_TIMEOUT)] * failed
        members = [trajectory(k, oldest, newest, reason) for k, reason in enumerate(reasons)]
        tables.append(to_table(Group(ticket, "key", members)))
        decisions[ticket.ticket_id] = Kept()
    archive = Archive(run_dir)
    archive.write_groups(step, tables, decisions)
    archive.close()


def write_checkpoint(run_dir: Path, step: int, version: int) -> None:
    folder = checkpoint_dir(run_dir, step)
    folder.mkdir(parents=True)
    (folder / "loop.json").write_text(json.dumps(vars(LoopState(clock=step, version=version))))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Six steps of three groups; step 3 selected nothing, so that steps 3 and 4 were played by one version."""
    for step, version in enumerate((0, 1, 2, 2, 3, 4), start=1):
        write_step(tmp_path, step, [(version, version)] * 3)
    for step, version in ((2, 2), (4, 3), (6, 5)):
        write_checkpoint(tmp_path, step, version)
    return tmp_path


def steps(groups: list) -> list[int]:
    return [group.step for group in groups]


def test_the_newest_weights_that_played_a_step_are_the_default(run_dir: Path) -> None:
    step, version, folder = choose_checkpoint(run_dir, None)
    assert (step, version, folder) == (4, 3, checkpoint_dir(run_dir, 4))
    assert choose_checkpoint(run_dir, 6)[:2] == (6, 5)
    assert choose_checkpoint(run_dir, 0) == (0, 0, None)
    with pytest.raises(UserError, match=r"--step 3: .* step 0 \(the initial policy\) and of \[2, 4, 6\]"):
        choose_checkpoint(run_dir, 3)


def test_all_groups_of_that_very_version_are_taken_and_no_other(run_dir: Path) -> None:
    assert steps(choose_groups(run_dir, 4, 3, "refuse", 3)) == [5] * 3
    assert steps(choose_groups(run_dir, 2, 2, "refuse", 3)) == [3] * 3 + [4] * 3
    with pytest.raises(
        UserError, match=r"give --groups 6, or --older weight, .*: 6 groups were sampled by version 2 .*--groups is 48"
    ):
        choose_groups(run_dir, 2, 2, "refuse", 48)


def test_a_step_without_update_counts_for_the_weights_after_it_too(run_dir: Path) -> None:
    write_checkpoint(run_dir, 3, 2)
    assert steps(choose_groups(run_dir, 3, 2, "refuse", 3)) == [4] * 3 + [3] * 3


def test_groups_that_two_versions_sampled_are_of_neither(tmp_path: Path) -> None:
    write_step(tmp_path, 1, [(0, 0), (0, 1)])
    write_step(tmp_path, 2, [(0, 1), (1, 1), (1, 1), (0, 0)])
    write_step(tmp_path, 3, [(1, 2), (1, 1), (2, 2)])
    found = choose_groups(tmp_path, 1, 1, "refuse", 2)
    assert [group.group_id for group in found] == ["000002-001", "000002-002", "000003-001"]


def test_the_nearest_other_versions_fill_up_when_asked(run_dir: Path) -> None:
    assert steps(choose_groups(run_dir, 4, 3, "weight", 8)) == [5] * 3 + [4] * 3 + [6] * 3
    with pytest.raises(UserError, match="holds 18 groups in all, and --groups is 48"):
        choose_groups(run_dir, 4, 3, "weight", 48)


def test_what_failed_is_left_out(tmp_path: Path) -> None:
    write_step(tmp_path, 1, [(0, 0)], failed=2)
    assert [t.index for t in archived_groups(tmp_path, 1)[0].trajectories] == [0, 1]
    write_step(tmp_path, 1, [(0, 0)], failed=3)
    assert archived_groups(tmp_path, 1) == []


def test_coefficients_replace_the_runs_on_one_rank() -> None:
    own = load("frozenlake").learner
    found = learner_config(own, 0.1, 0.0)
    assert found.ranks == 1 and found.objective.kl.coefficient == 0.1 and found.objective.entropy_coefficient == 0.0
    assert learner_config(own, None, None).objective == own.objective
    with pytest.raises(UserError, match="--kl -1"):
        learner_config(own, -1.0, None)
    rewarded = load("frozenlake", ["learner.objective.kl.place=reward"]).learner
    with pytest.raises(UserError, match=r"place=reward .* remove --kl"):
        learner_config(rewarded, 0.1, None)
    with pytest.raises(UserError, match="estimator=k1"):
        learner_config(load("frozenlake", ["learner.objective.kl.estimator=k1"]).learner, 0.1, None)


def test_bad_input_is_one_paragraph_and_code_2(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gradients", str(run_dir)]) == 2 and "no config.yaml" in capsys.readouterr().err
    (run_dir / "config.yaml").write_text(dump(load("frozenlake")))
    assert main(["gradients", str(run_dir), "--groups", "1"]) == 2 and "at least 2 groups" in capsys.readouterr().err
    assert main(["gradients", str(run_dir)]) == 2 and "gradients.every" in capsys.readouterr().err
    empty = run_dir / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text(dump(load("frozenlake")))
    assert main(["gradients", str(empty)]) == 2 and "no step of this run is archived yet" in capsys.readouterr().err


def test_the_tables_show_every_bucket_in_eighty_columns() -> None:
    values = dict.fromkeys(GroupMetrics.__dataclass_fields__, 0.123456) | {"num_trajectories": 8}
    groups = [GroupMetrics(**(values | {"group_id": name, "signal_square": math.nan})) for name in "ab"]
    norms = dict.fromkeys(("task", "task_std", "kl", "entropy", "regulariser"), 1234.5)
    found = Decomposition(tuple(groups), tuple(summarise_bucket(b, groups, norms) for b in (1, 2)))
    console = Console(width=80, record=True)
    show({"run": "r", "step": 4, "version": 3, "versions": {"3": 2}}, found, console)
    text = console.export_text()
    assert "…" not in text and text.count("Q1") == text.count("Q2") == 3 and "1.23e+03" in text


def test_a_checkpoint_that_would_run_code_is_refused_by_name(run_dir: Path, tmp_path: Path, capsys) -> None:
    (run_dir / "config.yaml").write_text(dump(load("frozenlake", [f"model.path={tmp_path / 'none'}"])))
    shutil.rmtree(checkpoint_dir(run_dir, 4))
    write_older(checkpoint_dir(run_dir, 4), tmp_path / "ran", {})
    (checkpoint_dir(run_dir, 4) / "loop.json").write_text(json.dumps(vars(LoopState(clock=4, version=3))))
    assert main(["gradients", str(run_dir), "--groups", "2"]) == 2
    assert "step-4 was written by an older Squelch" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
