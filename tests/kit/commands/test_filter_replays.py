"""`squelch filter --statistic policy_variance` on files with replays, of Squelch's runs and of other trainers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.kit.archive.schema import ARCHIVE_SCHEMA
from squelch.kit.filter.policy_variance import significant_policy_variance
from tests.kit.commands.test_filter import archive_rows, output, refusal, save

RNG = np.random.default_rng(0)
CHANCES = np.array([[0.05] * 4 + [0.95] * 4, [0.5] * 8, [0.05] * 4 + [0.95] * 4])
REPLAYS = (RNG.random((3, 8, 6)) < CHANCES[:, :, None]).astype(float)
REWARDS = (RNG.random((3, 8)) < CHANCES).astype(float)
REPLAYS[2, 0] = math.nan
FLAGS = ("--statistic", "policy_variance")


def archived(tmp_path: Path, replays: list[list[Any]]) -> str:
    rows = [row for group, rewards in enumerate(REWARDS) for row in archive_rows(1, group, list(rewards))]
    for row, returns in zip(rows, [one for group in replays for one in group], strict=True):
        row["replay_returns"] = returns
    pq.write_table(pa.Table.from_pylist(rows, schema=ARCHIVE_SCHEMA), tmp_path / "step-000001.parquet")
    return str(tmp_path / "step-000001.parquet")


def as_lists(replays: np.ndarray) -> list[list[Any]]:
    """A trajectory whose replays failed has null."""
    return [[None if np.isnan(row).any() else row.tolist() for row in group] for group in replays]


def test_arrays_and_archived_groups_get_the_scores_of_the_library(tmp_path, capsys) -> None:
    expected = [*significant_policy_variance(REPLAYS[:2]).tolist(), significant_policy_variance(REPLAYS[2:, 1:]).item()]
    file = save(tmp_path / "r.npz", rewards=REWARDS, replay_returns=REPLAYS)
    for found in (
        output(capsys, "filter", file, *FLAGS),
        output(capsys, "filter", archived(tmp_path, as_lists(REPLAYS)), *FLAGS),
    ):
        assert found["statistic"] == pytest.approx(expected)
        assert found["kept"] == [0, 2] and expected[1] == 0


def test_groups_without_declared_noise_get_their_reward_variance(tmp_path, capsys) -> None:
    file = archived(tmp_path, [[[]] * 8] * 3)
    plain, corrected = output(capsys, "filter", file), output(capsys, "filter", file, *FLAGS)
    assert corrected["statistic"] == plain["statistic"] and corrected["kept"] == plain["kept"]


def test_a_group_that_lost_all_its_replays_is_refused_and_no_other(tmp_path, capsys) -> None:
    replays = as_lists(REPLAYS)
    replays[0] = [None] * 8
    found = output(capsys, "filter", archived(tmp_path, replays), *FLAGS)
    (reason,) = [row["reason"] for row in found["rejected"] if row["decision"] == "refused"]
    assert reason == "replays of 0 trajectories of 8, needs 3" and found["kept"] == [2]


@pytest.mark.parametrize(
    ("replays", "says"),
    [
        (None, "policy_variance needs `replay_returns` of shape (num_groups, group_size, replays)"),
        (
            REPLAYS[:, :, 0],
            "shape (3, 8); it must be that of `rewards`, (3, 8) and a last axis of 2",
        ),
        (REPLAYS[:, :, :1], "`replay_returns` has shape (3, 8, 1)"),
        (REPLAYS[:2], "`replay_returns` has shape (2, 8, 6)"),
    ],
)
def test_arrays_without_usable_replays_are_refused_by_name(tmp_path, capsys, replays, says: str) -> None:
    arrays = {} if replays is None else {"replay_returns": replays}
    message = refusal(capsys, "filter", save(tmp_path / "bad.npz", rewards=REWARDS, **arrays), *FLAGS)
    assert says in message and "bad.npz" in message


def test_groups_may_differ_in_their_number_of_replays(tmp_path, capsys) -> None:
    """Found by a reviewer: a run that was resumed with other `filter.replays` could not be read at all."""
    replays = as_lists(REPLAYS)
    replays[1] = [[]] * 8
    replays[0] = [row[:4] for row in replays[0]]
    file = archived(tmp_path, replays)
    found = output(capsys, "filter", file, *FLAGS)["statistic"]
    assert found[0] == pytest.approx(significant_policy_variance(REPLAYS[:1, :, :4]).item())
    assert found[1] == pytest.approx(REWARDS[1].var(ddof=1)) and len(output(capsys, "filter", file)["statistic"]) == 3


@pytest.mark.parametrize("row", [[1.0], [1.0] * 5])
def test_archived_replays_that_differ_in_number_are_refused_with_their_group(tmp_path, capsys, row) -> None:
    replays = as_lists(REPLAYS)
    replays[1][3] = row
    message = refusal(capsys, "filter", archived(tmp_path, replays), *FLAGS)
    assert f"group 000001-001 has trajectories with [{len(row)}, 6] replays" in message


@pytest.mark.parametrize(
    ("flags", "says"),
    [(("--rule", "none"), "selects nothing with rule=none"), (("--compat", "ragen"), "is not in the authors' code")],
)
def test_flags_that_contradict_the_statistic_are_refused(tmp_path, capsys, flags, says: str) -> None:
    file = save(tmp_path / "r.npz", rewards=REWARDS, replay_returns=REPLAYS)
    assert says in refusal(capsys, "filter", file, *FLAGS, *flags)
