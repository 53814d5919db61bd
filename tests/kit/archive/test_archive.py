"""The archive's files are whole or absent, readable by others, and survive a resume."""

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from squelch.kit.archive.reader import is_of_step, last_event, read_events, read_group, read_groups, read_metrics
from squelch.kit.archive.rows import to_table
from squelch.kit.archive.schema import ARCHIVE_SCHEMA, TRAJECTORY_SCHEMA
from squelch.kit.archive.store import ArchiveError
from squelch.kit.archive.writer import Archive
from squelch.kit.base import disk
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn
from squelch.kit.untrusted import parquet
from tests.disk import files_of_at_most
from tests.kit.archive.small_groups import archive_step


@dataclass(frozen=True)
class Decided:
    score: float | None
    decision: str
    reason: str


def group_table(step: int, number: int, size: int = 2) -> pa.Table:
    """A group of `size` one-turn trajectories of 5 tokens, the last 3 sampled."""
    ticket = Ticket(f"{step:06d}-{number:03d}", step, Task("FrozenLake", seed=number), size, seed=0)
    turn = Turn(2, 5, 2, 4, 1.0, 0.0, True, False, 1, step - 1, step - 1)
    trajectories = [
        Trajectory(
            index=i,
            token_ids=np.arange(5, dtype=np.int32) + i,
            loss_mask=np.array([False, False, True, True, True]),
            log_probs=np.array([0, 0, -1, -0.5, -0.25], dtype=np.float32),
            turns=[turn],
            success=bool(i % 2),
            truncated=False,
            failure=Failure(FailureCause.STEP_TIMEOUT) if i == size - 1 and number == 1 else None,
        )
        for i in range(size)
    ]
    return to_table(Group(ticket, "key", trajectories))


def write(archive: Archive, step: int, groups: int = 3) -> Path:
    tables = [group_table(step, number) for number in range(groups)]
    decisions = {
        f"{step:06d}-{n:03d}": Decided(None if n == 1 else 0.25 * n, "dropped" if n == 0 else "kept", "zero")
        for n in range(groups)
    }
    archive.write_groups(step, tables, decisions, "top_p rho=0.9")
    return archive.run_dir / "groups" / f"step-{step:06d}.parquet"


def test_groups_come_back_as_written_with_their_decisions(tmp_path: Path) -> None:
    path = write(Archive(tmp_path), 12)
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    table = read_groups(tmp_path)
    assert table.schema.equals(ARCHIVE_SCHEMA, check_metadata=True)
    assert pq.read_schema(path).metadata[b"squelch.schema"] == b"2"
    written = pa.concat_tables([group_table(12, n) for n in range(3)])
    assert table.select(TRAJECTORY_SCHEMA.names).equals(written)
    assert table["score"].to_pylist() == [0.0, 0.0, None, None, 0.5, 0.5]
    assert table["decision"].to_pylist() == ["dropped"] * 2 + ["kept"] * 4
    assert set(table["filter"].to_pylist()) == {"top_p rho=0.9"}


def test_a_step_without_any_group_still_has_its_part(tmp_path: Path) -> None:
    Archive(tmp_path).write_groups(1, [], {})
    assert len(read_groups(tmp_path)) == 0


def test_a_group_without_a_decision_breaks_an_invariant_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="000001-000"):
        Archive(tmp_path).write_groups(1, [group_table(1, 0)], {})
    assert list((tmp_path / "groups").iterdir()) == []


def test_a_step_written_again_replaces_its_part(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    write(archive, 1, groups=3)
    write(archive, 1, groups=2)
    assert len(read_groups(tmp_path)) == 4


def test_the_writer_gives_back_groups_as_they_were_played_in_any_order(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    write(archive, 12)
    write(archive, 13)
    found = archive.groups(12, ["000012-002", "000012-000"])
    assert [table.equals(group_table(12, number)) for table, number in zip(found, (2, 0), strict=True)] == [True, True]
    with pytest.raises(ArchiveError, match=r"step-000012\.parquet lacks the groups \['000013-000'\]"):
        archive.groups(12, ["000012-000", "000013-000"])
    with pytest.raises(ArchiveError, match=r"no groups of steps \[14\]"):
        archive.groups(14, ["000014-000"])


def test_read_groups_selects_steps_and_takes_a_folder_or_a_file(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    first, _ = write(archive, 1), write(archive, 2)
    assert set(read_groups(tmp_path, steps=[2])["step"].to_pylist()) == {2}
    assert len(read_groups(tmp_path / "groups")) == 12
    assert set(read_groups(first)["step"].to_pylist()) == {1}
    with pytest.raises(ArchiveError, match="no groups of steps"):
        read_groups(tmp_path, steps=[9])


def test_read_groups_reads_only_the_columns_asked_for(tmp_path: Path) -> None:
    write(Archive(tmp_path), 1)
    table = read_groups(tmp_path, columns=["group_id", "decision"])
    assert table.column_names == ["group_id", "decision"] and len(table) == 6
    path = tmp_path / "theirs.parquet"
    pq.write_table(group_table(1, 0), path)
    assert read_groups(path, columns=["decision"])["decision"].null_count == 2


def test_a_table_of_another_trainer_without_decisions_is_read_with_nulls(tmp_path: Path) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(group_table(1, 0), path)
    assert read_groups(path)["decision"].null_count == 2


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = write(Archive(tmp_path), 1)
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], b"", b"PAR1 nothing here PAR1"):
        path.write_bytes(broken)
        with pytest.raises(ArchiveError, match=path.name):
            read_groups(tmp_path)


def test_missing_columns_and_wrong_types_are_named(tmp_path: Path) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(group_table(1, 0).drop_columns(["loss_mask"]), path)
    with pytest.raises(ArchiveError, match="loss_mask"):
        read_groups(path)
    table = group_table(1, 0)
    pq.write_table(table.set_column(2, "step", pa.array(["one", "two"])), path)
    with pytest.raises(ArchiveError, match="does not fit"):
        read_groups(path)


def test_a_full_disk_names_the_file_and_keeps_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path)
    write(archive, 1, groups=2)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(ArchiveError, match=r"step-000001\.parquet.*no space.*runs_dir"):
        write(archive, 1, groups=3)
    with pytest.raises(ArchiveError, match=r"step-000002\.parquet"):
        write(archive, 2)
    left = sorted(path.name for path in (tmp_path / "groups").iterdir())
    assert left == ["index-000000.parquet", "step-000001.parquet"]
    assert len(read_groups(tmp_path)) == 4


def _limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_file_that_really_cannot_grow_leaves_whole_lines_and_no_partial_part(tmp_path: Path) -> None:
    code = """
import sys
from squelch.kit.archive.store import ArchiveError
from squelch.kit.archive.writer import Archive
import numpy as np, pyarrow as pa
archive = Archive(sys.argv[1])
try:
    for step in range(1000):
        archive.metrics(step, {"success": 0.5, "text": "x" * 300})
except ArchiveError as error:
    print("lines", error)
column = pa.array(np.random.default_rng(0).integers(0, 2**62, 5000))
try:
    with_size = pa.table({"x": column})
    archive._write("groups/step-000001.parquet", with_size)
except ArchiveError as error:
    print("part", error)
"""
    run = subprocess.run(
        [sys.executable, "-B", "-c", code, str(tmp_path)],  # without -B, modules cut off where the disk is full
        preexec_fn=_limit_file_size,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert run.returncode == 0, run.stderr
    assert "lines cannot write" in run.stdout and "part cannot write" in run.stdout
    steps = [record["step"] for record in read_metrics(tmp_path)]
    assert steps == list(range(len(steps))) and len(steps) > 5
    assert (tmp_path / "metrics.jsonl").read_bytes().endswith(b"\n")
    assert list((tmp_path / "groups").iterdir()) == []


def test_metrics_are_one_json_object_a_line_and_visible_at_once(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.metrics(1, {"success": np.float32(0.5), "kept_mass": math.nan, "seconds/step": 2.0}, at=100.0)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"step": 1, "time": 100.0, "success": 0.5, "kept_mass": None, "seconds/step": 2.0}
    assert "NaN" not in lines[0]


def test_neither_the_line_before_step_1_nor_one_of_a_scorer_step_alone_is_the_record_of_a_step() -> None:
    lines = [{"step": 0, "seconds/step": 1.0}, {"step": 1, "mi_est": 0.5}, {"step": 1, "seconds/step": 1.0}]
    assert [is_of_step(line) for line in lines] == [False, False, True]


def test_a_torn_last_line_is_not_read_and_is_dropped_on_reopening(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.metrics(1, {"success": 0.5})
    archive.close()
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 2, "succ')
    assert [record["step"] for record in read_metrics(tmp_path)] == [1]
    Archive(tmp_path).metrics(2, {"success": 0.6})
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]


def test_a_damaged_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n')
    with pytest.raises(ArchiveError, match=r"metrics\.jsonl line 2"):
        read_metrics(tmp_path)


def test_truncating_forgets_later_steps_and_appending_goes_on(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for step in range(1, 5):
        write(archive, step)
        archive.metrics(step, {"success": step / 10})
    archive.truncate_after(2)
    archive.metrics(3, {"success": 0.9})
    assert [(r["step"], r["success"]) for r in read_metrics(tmp_path)] == [(1, 0.1), (2, 0.2), (3, 0.9)]
    assert set(read_groups(tmp_path)["step"].to_pylist()) == {1, 2}


def test_truncating_does_not_touch_the_metrics_if_no_line_is_later(tmp_path: Path) -> None:
    """Found by a reviewer: a resume that failed had made the run's summary older than its metrics."""
    archive = Archive(tmp_path)
    for step in (1, 2):
        write(archive, step)
        archive.metrics(step, {"success": 0.5})
    before = os.stat(tmp_path / "metrics.jsonl")
    archive.truncate_after(2)
    after = os.stat(tmp_path / "metrics.jsonl")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    archive.metrics(3, {"success": 0.5})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_finish_writes_the_lines_as_parquet_with_nulls_where_a_step_lacks_a_key(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.metrics(1, {"success": 0.5, "kept_mass": None}, at=1.0)
    archive.metrics(2, {"success": 1, "validation/success": 0.25, "stop": "collapsed"}, at=2.0)
    assert archive.finish()
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.to_pydict() == {
        "step": [1, 2],
        "time": [1.0, 2.0],
        "success": [0.5, 1.0],
        "kept_mass": [None, None],
        "validation/success": [None, 0.25],
        "stop": [None, "collapsed"],
    }
    assert table.schema.field("kept_mass").type == pa.float64()


def test_finish_without_a_step_writes_nothing(tmp_path: Path) -> None:
    assert not Archive(tmp_path).finish()
    assert not (tmp_path / "metrics.parquet").exists()


def test_events_keep_their_facts_and_have_no_length_if_a_clock_was_set_back(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.event("learner", "train", 10.0, 12.5, step=3, waited_for="filter")
    assert read_events(tmp_path) == [
        {"actor": "learner", "name": "train", "start": 10.0, "end": 12.5, "step": 3, "waited_for": "filter"}
    ]
    for step in range(200):
        archive.event("rollout", "weights", 20.0, 21.0 + step, version=step)
    assert last_event(tmp_path) == {"actor": "rollout", "name": "weights", "start": 20.0, "end": 220.0, "version": 199}
    archive.event("env-0", "work", 10.0, 9.99)
    assert last_event(tmp_path) == {"actor": "env-0", "name": "work", "start": 10.0, "end": 10.0}


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ArchiveError, match="run"):
        Archive(tmp_path / "run")


def test_one_group_is_read_from_the_row_groups_that_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squelch.kit.archive.writer.ROWS_PER_ROW_GROUP", 4)  # groups of 3 rows straddle row groups
    archive_step(Archive(tmp_path), 5, 6)
    decoded: list[tuple[int, int]] = []
    read = parquet.read_row_group

    def counted(file: pq.ParquetFile, where: str, group: int, columns: list[str]) -> pa.Table:
        decoded.extend([(group, len(columns))] if len(columns) > 1 else [])
        return read(file, where, group, columns)

    monkeypatch.setattr(parquet, "read_row_group", counted)
    whole = read_groups(tmp_path, [5])
    decoded.clear()
    found = read_group(tmp_path, 5, "000005-003")
    assert found.equals(whole.filter(pc.equal(whole["group_id"], "000005-003"))) and len(found) == 3
    assert [number for number, _ in decoded] == [2], "rows 9 to 11 of 18 are in row group 2"
    with pytest.raises(ArchiveError, match=r"step-000005\.parquet holds no group 'other'"):
        read_group(tmp_path, 5, "other")
    with pytest.raises(ArchiveError, match="step-000006"):
        read_group(tmp_path, 6, "000005-003")


def test_the_last_event_is_found_however_long_it_is(tmp_path: Path) -> None:
    """Found by a reviewer: an event with a trace of 9 kB made `squelch status` fail for good."""
    archive = Archive(tmp_path)
    for size in (10, 9_000, 100_000, 10):
        archive.event("scorer", "failed", 1.0, 2.0, cause="x" * size)
        found = last_event(tmp_path)
        assert found is not None and found["cause"] == "x" * size


def test_no_number_of_failed_appends_tears_a_line(tmp_path: Path) -> None:
    """Found by a reviewer: the second failure in a row cut the file at the place of the first one's half line."""
    archive = Archive(tmp_path)
    archive.event("a", "work", 1.0, 2.0)
    size = (tmp_path / "events.jsonl").stat().st_size
    for more in (10, 25, 7):
        with files_of_at_most(size + more), pytest.raises(ArchiveError):
            archive.event("b", "work", 1.0, 2.0)
        assert (tmp_path / "events.jsonl").stat().st_size == size
    archive.event("c", "work", 1.0, 2.0)
    assert [event["actor"] for event in read_events(tmp_path)] == ["a", "c"]
