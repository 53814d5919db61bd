"""What must hold of the kinds of tasks in `squelch filter`."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.cluster.cli import main
from squelch.kit.archive.schema import ARCHIVE_SCHEMA
from squelch.kit.filter.coverage import SHOWN_KINDS
from tests.kit.commands.test_filter import REWARDS, archive_rows, output, refusal, rewards_file, run_folder

KINDS = np.array(["easy", "hard", "hard", "lost", "easy"])
"""The group `lost` has one survivor, so the filter refuses it, and its kind does not count."""


def test_kept_groups_are_counted_by_kind_from_arrays_and_from_archived_groups(tmp_path, capsys) -> None:
    rows = [
        {**row, "task_kind": str(KINDS[group])}
        for group, rewards in enumerate(REWARDS)
        for row in archive_rows(1, group, list(rewards))
    ]
    part = tmp_path / "part.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=ARCHIVE_SCHEMA), part)
    flags = ("--rule", "top_k", "--rho", "0.4", "--epsilon", "0")
    found = output(capsys, "filter", rewards_file(tmp_path, kinds=KINDS), *flags)
    assert found["kept"] == [1, 4]
    assert found["kinds"] == {"easy": {"groups": 2, "kept": 1}, "hard": {"groups": 2, "kept": 1}}
    assert found["effective_kinds"] == {"groups": 2.0, "kept": 2.0}
    archived = output(capsys, "filter", str(part), *flags)
    assert {key: archived[key] for key in ("kinds", "effective_kinds")} == {
        key: found[key] for key in ("kinds", "effective_kinds")
    }


def test_kinds_may_be_bytes(tmp_path, capsys) -> None:
    found = output(capsys, "filter", rewards_file(tmp_path, kinds=KINDS.astype("S")))
    assert found["kinds"] == output(capsys, "filter", rewards_file(tmp_path, kinds=KINDS))["kinds"]


def test_a_kind_that_loses_all_its_groups_is_named_to_people(tmp_path, capsys) -> None:
    assert (
        main(["filter", rewards_file(tmp_path, kinds=np.array([1, 2, 3, 4, 2])), "--rule", "top_k", "--rho", "0.4"])
        == 0
    )
    text = capsys.readouterr().out
    assert "3; effectively 2.7, 1.0 among the kept ones" in text
    assert next(line for line in text.splitlines() if line.startswith("kinds not kept")).split()[-2:] == ["1,", "3"]


def test_many_starved_kinds_are_cut_short(tmp_path, capsys) -> None:
    count = SHOWN_KINDS + 3
    rewards = np.zeros((count, 2))
    rewards[0, 0] = 1.0
    path = tmp_path / "many.npz"
    np.savez(path, rewards=rewards, kinds=np.arange(count))
    assert main(["filter", str(path)]) == 0
    assert f"{SHOWN_KINDS} and 2 more" in capsys.readouterr().out


def test_without_kinds_nothing_is_said_of_them(tmp_path, capsys) -> None:
    assert "kinds" not in output(capsys, "filter", rewards_file(tmp_path))
    assert "kinds" not in output(capsys, "filter", str(run_folder(tmp_path)))
    assert main(["filter", rewards_file(tmp_path)]) == 0 and "kinds" not in capsys.readouterr().out


def test_no_kept_group_has_no_effective_number(tmp_path, capsys) -> None:
    path = tmp_path / "flat.npz"
    np.savez(path, rewards=np.ones((2, 4)), kinds=np.array(["a", "b"]))
    assert output(capsys, "filter", str(path))["effective_kinds"] == {"groups": 2.0}
    assert main(["filter", str(path)]) == 0 and "none among the kept ones" in capsys.readouterr().out


@pytest.mark.parametrize("kinds", [np.array(["a"]), np.array([["a"] * 4] * 5)])
def test_kinds_of_another_shape_are_refused_by_name(tmp_path, capsys, kinds) -> None:
    assert "`kinds` has shape" in refusal(capsys, "filter", rewards_file(tmp_path, kinds=kinds))
