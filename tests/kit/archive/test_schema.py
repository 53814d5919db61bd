"""The schema loses nothing on the way, with or without a version; schema 1 is read, another one refused by name."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.writers.schema import PAGE, page
from squelch.cluster.inspector.groups import GroupIndex
from squelch.kit.archive import reader
from squelch.kit.archive.group_index import index_rows
from squelch.kit.archive.reader import read_group, read_groups, read_index
from squelch.kit.archive.rows import from_table, to_table
from squelch.kit.archive.schema import ARCHIVE_SCHEMA, OPTIONAL
from squelch.kit.archive.store import ArchiveError, LocalStore
from squelch.kit.archive.version import VERSION_KEY
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from squelch.kit.filter.decisions import Decision
from squelch.kit.records.content import content_key
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import (
    Group,
    Segment,
    Task,
    Ticket,
    Trajectory,
    Turn,
    Untrained,
    VersionSpan,
    summarise,
)
from tests.kit.archive.small_groups import archive_step, small_group
from tests.pictures import placed

LATER = ("segments", "label", "untrained", "failure_rewarded")
"""Columns that schema 1 lacks."""
SHORT = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBER = st.floats(-10, 10)


@st.composite
def turns(draw, start: int, end: int) -> Turn:
    reasoning = sorted(draw(st.tuples(st.integers(start, end), st.integers(start, end))))
    versions = sorted(draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    flags = draw(st.tuples(st.booleans(), st.booleans()))
    return Turn(start, end, *reasoning, draw(NUMBER), -abs(draw(NUMBER)), *flags, draw(st.integers(0, 5)), *versions)


@st.composite
def untrained(draw) -> Untrained:
    size = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size))
    sampled = np.arange(size) >= draw(st.integers(0, size))
    log_probs = np.where(sampled, -1.5, 0).astype(np.float32)
    return Untrained(draw(SHORT), np.array(ids, dtype=np.int32), sampled, log_probs, 0, draw(st.integers(0, 9)))


@st.composite
def trajectories(draw, index: int) -> Trajectory:
    """Alternating fed and sampled stretches of up to 4 tokens, with everything that the schema holds."""
    stretches = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=3))
    ends = np.cumsum([size for pair in stretches for size in pair], dtype=int).tolist()
    sampled = list(zip(ends[::2], ends[1::2], strict=True))
    size = ends[-1] if ends else 0
    mask = np.zeros(size, dtype=bool)
    for start, end in sampled:
        mask[start:end] = True
    log_probs = np.where(mask, -draw(st.integers(0, 9)), 0).astype(np.float32)
    spans = tuple(VersionSpan(a, b, draw(st.integers(0, 9))) for a, b in sampled)
    failure = st.builds(Failure, st.sampled_from([c for c in FailureCause if c is not FailureCause.OTHER]), SHORT)
    picture = st.builds(placed, st.integers(0, 12), st.binary(max_size=5))
    away = picture.map(lambda p: dataclasses.replace(p, data=None, reference=f"pictures/{p.digest}.png"))
    return Trajectory(
        index,
        np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size)), dtype=np.int32),
        mask,
        log_probs,
        [draw(turns(a, b)) for a, b in sampled],
        success=draw(st.booleans()),
        truncated=draw(st.booleans()),
        failure=draw(st.none() | failure),
        worker=draw(SHORT),
        bootstrap_last_state=draw(st.booleans()),
        version_spans=draw(st.sampled_from([None, spans])),
        pictures=tuple(draw(st.lists(picture | away, max_size=2))),
        segments=tuple(Segment(end, draw(SHORT)) for _, end in sampled[:-1] if draw(st.booleans())),
        untrained=tuple(draw(st.lists(untrained(), max_size=2))),
        failure_rewarded=draw(st.none() | SHORT),
    )


@st.composite
def groups(draw) -> Group:
    size, options = draw(st.integers(1, 3)), draw(st.dictionaries(SHORT, st.integers(0, 9), max_size=2))
    task = Task(draw(SHORT), draw(st.integers(0, 2**40)), "train", tuple(options.items()))
    ticket = Ticket(draw(SHORT), draw(st.integers(1, 1000)), task, size, seed=0)
    return Group(ticket, draw(SHORT), [draw(trajectories(i)) for i in range(size)], draw(st.none() | SHORT))


def assert_same(one: Trajectory, other: Trajectory) -> None:
    for field in dataclasses.fields(Trajectory):
        mine, theirs = vars(one)[field.name], vars(other)[field.name]
        if isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype or not len(mine)
        elif field.name == "untrained":
            np.testing.assert_equal([vars(one) for one in mine], [vars(one) for one in theirs])
        else:
            assert mine == theirs, field.name


@settings(max_examples=30, deadline=None)
@given(groups(), st.booleans())
def test_a_group_comes_back_from_a_file_as_it_was(tmp_path_factory, group: Group, stated: bool) -> None:
    """Also from one that states no version, as another trainer writes it."""
    path, written = tmp_path_factory.mktemp("groups") / "one.parquet", to_table(group)
    pq.write_table(written if stated else written.replace_schema_metadata(None), path)
    table = read_groups(path)
    assert table.schema.equals(ARCHIVE_SCHEMA, check_metadata=True) and table["decision"].null_count == len(table)
    for sent, back in zip(group.trajectories, from_table(table), strict=True):
        assert_same(sent, back)
    assert table["task_kind"].to_pylist() == [group.task_kind] * len(group.trajectories)


def test_a_run_of_schema_1_is_read_resumed_and_merged_and_its_trajectories_are_one_segment(tmp_path: Path) -> None:
    archive_step(Archive(tmp_path), 1, 2)
    former = {VERSION_KEY: "1"}
    for path in (tmp_path / "groups").iterdir():
        table = pq.read_table(path)
        kept = [name for name in table.column_names if name not in LATER]
        pq.write_table(table.select(kept).replace_schema_metadata(former), path)
    archive = Archive(tmp_path)
    for step in (2, 100, 101):
        archive_step(archive, step, 2)
    assert len(list((tmp_path / "groups").glob("steps-*"))) == 1, "the steps before 100 are merged"
    table = read_groups(tmp_path)
    assert table.schema.equals(ARCHIVE_SCHEMA, check_metadata=True)
    assert all(table[name].null_count == len(table) for name in LATER)
    for one in from_table(table):
        assert one.segments == one.untrained == () and one.failure_rewarded is None
        assert one.spans == [(0, 5)] and one.prompt_ids(0).tolist() == [0, 1]
    assert read_index(tmp_path)["step"].to_pylist() == [1, 1, 2, 2, 100, 100, 101, 101]


def test_segments_that_no_trajectory_can_have_are_refused_by_name(tmp_path: Path) -> None:
    whole, path = to_table(small_group()), tmp_path / "odd.parquet"
    place, kind = whole.column_names.index("segments"), whole.schema.field("segments")
    for starts, says in (
        ([0], "ascend"),
        ([5], "ascend"),
        ([1, 1], "ascend"),
        ([3], "inside a turn"),
        ([2], "sampled"),
    ):
        wrong = [None, [{"start": start, "cause": "x"} for start in starts], None]
        pq.write_table(whole.set_column(place, kind, pa.array(wrong, kind.type)), path)
        with pytest.raises(ArchiveError, match=rf"odd\.parquet: .*segment.*{says}|odd\.parquet.*{says}"):
            read_groups(path)
    wrong = [[{"start": None, "cause": "x"}], None, None]
    pq.write_table(whole.set_column(place, kind, pa.array(wrong, kind.type)), path)
    with pytest.raises(ArchiveError, match=r"column `segments.start` holds nulls"):
        read_groups(path)


def test_untrained_conversations_that_cannot_be_are_refused_by_name(tmp_path: Path) -> None:
    whole, path = to_table(small_group()), tmp_path / "odd.parquet"
    place, kind = whole.column_names.index("untrained"), whole.schema.field("untrained")
    fine = {"rule": "r", "token_ids": [1, 2], "sampled": [False, True], "log_probs": [0.0, -1.0]}
    fine |= {"version_min": 0, "version_max": 0}
    for odd in ({}, {"rule": None}, {"log_probs": [0.0]}, {"sampled": [True] * 3}, {"token_ids": [1, None]}):
        wrong = pa.array([[fine], [{**fine, **odd}], None], kind.type)
        pq.write_table(whole.set_column(place, kind, wrong), path)
        if odd:
            with pytest.raises(ArchiveError, match=r"odd\.parquet: .*`untrained"):
                read_groups(path)
        else:
            assert [len(one.untrained) for one in from_table(read_groups(path))] == [1, 1, 0]


def test_a_file_of_another_trainer_may_lack_what_may_be_null(tmp_path: Path) -> None:
    path = tmp_path / "theirs.parquet"
    table = to_table(small_group()).replace_schema_metadata(None)
    pq.write_table(table.select([name for name in table.column_names if name not in OPTIONAL]), path)
    found = read_groups(path)
    assert found.schema.equals(ARCHIVE_SCHEMA, check_metadata=True)
    assert {name for name in OPTIONAL if found[name].null_count < len(found)} == set()


def test_a_file_from_before_schema_1_is_refused_by_name_with_the_commit_that_reads_it(tmp_path: Path) -> None:
    table, path = to_table(small_group()).replace_schema_metadata(None), tmp_path / "old.parquet"
    cut = table["bootstrap_last_state"]
    pq.write_table(table.drop_columns(["bootstrap_last_state"]).append_column("cut", cut), path)
    with pytest.raises(ArchiveError, match=r"old\.parquet lacks the columns \['bootstrap_last_state'\].* 03d7dc21"):
        read_groups(path)
    old = [[{**turn, "truncated": False} for turn in row] for row in table["turns"].to_pylist()]
    renamed = [[{key: turn[key] for key in turn if key != "hit_token_limit"} for turn in row] for row in old]
    pq.write_table(table.set_column(table.column_names.index("turns"), "turns", pa.array(renamed)), path)
    with pytest.raises(ArchiveError, match=r"old\.parquet"):
        read_groups(path)


@pytest.mark.parametrize(
    ("stated", "says"), [("3", "schema 3.*newer"), ("0", "schema 0.* 03d7dc21"), ("one", "whole number")]
)
def test_another_schema_is_refused_by_name_with_what_to_do(tmp_path: Path, stated: str, says: str) -> None:
    table = to_table(small_group()).replace_schema_metadata({VERSION_KEY: stated})
    pq.write_table(table, tmp_path / "later.parquet")
    with pytest.raises(ArchiveError, match=rf"later\.parquet.*{says}"):
        read_groups(tmp_path / "later.parquet")
    block = tmp_path / "run" / "groups" / "index-000000.parquet"
    block.parent.mkdir(parents=True)
    pq.write_table(table, block)
    with pytest.raises(ArchiveError, match=rf"index-000000\.parquet.*{says}"):
        read_index(tmp_path / "run")


def test_a_turn_is_stored_with_the_content_key_of_its_prompt() -> None:
    group = small_group()
    (turn,) = to_table(group)["turns"][0].as_py()
    assert turn["content_key"] == content_key(group.trajectories[0].token_ids[:2])


def test_the_index_says_of_each_group_what_its_summary_does(tmp_path: Path) -> None:
    archive_step(Archive(tmp_path), 7, 2)
    rows, summary = read_index(tmp_path).to_pylist(), summarise(small_group(7))
    assert [row["group_id"] for row in rows] == ["000007-000", "000007-001"]
    row = rows[0]
    assert row["returns"] == [0.0, 1.0, None] and row["successes"] == [False, True, None]
    assert row["reward_variance"] == pytest.approx(np.var(summary.returns, ddof=1)) and row["mean_return"] == 0.5
    assert (row["num_trajectories"], row["num_failures"], row["failure_causes"]) == (3, 1, ["step_timeout"])
    assert (row["version_min"], row["version_max"]) == (summary.version_min, summary.version_max) == (6, 6)
    assert (row["decision"], row["score"], row["task_kind"], row["task_key"]) == ("kept", 0.5, "easy", "key")
    assert (row["lengths"], row["num_turns"], row["num_tokens"]) == ([3, 3, 3], [1, 1, 1], 15)


def test_the_index_of_all_steps_is_that_of_the_parts_whatever_was_written_again_or_forgotten(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for step, count in ((1, 3), (2, 0), (99, 2), (100, 1), (250, 2), (1, 2)):
        archive_step(archive, step, count)
    names = sorted(path.name for path in (tmp_path / "groups").glob("index-*"))
    assert names == ["index-000000.parquet", "index-000100.parquet", "index-000200.parquet"]
    assert read_index(tmp_path).equals(index_rows(read_groups(tmp_path)))
    archive.truncate_after(99)
    assert [row["step"] for row in read_index(tmp_path).to_pylist()] == [1, 1, 99, 99]
    archive.truncate_after(50)
    assert read_index(tmp_path).equals(index_rows(read_groups(tmp_path)))


def test_steps_that_the_index_lacks_are_read_from_their_parts(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for step in (1, 2, 3):
        archive_step(archive, step, 2)
    whole, block = read_index(tmp_path), tmp_path / "groups" / "index-000000.parquet"
    pq.write_table(whole.filter([step != 2 for step in whole["step"].to_pylist()]), block)
    assert read_index(tmp_path).equals(whole)
    block.unlink()
    assert read_index(tmp_path).equals(whole)
    (tmp_path / "groups" / "step-000003.parquet").unlink()
    pq.write_table(whole, block)
    assert set(read_index(tmp_path)["step"].to_pylist()) == {1, 2}


def test_an_index_without_a_group_is_read(tmp_path: Path) -> None:
    archive_step(Archive(tmp_path), 1, 0)
    assert len(read_index(tmp_path)) == 0


@pytest.mark.parametrize("name", ["returns", "successes", "lengths", "num_turns", ""])
def test_a_damaged_index_is_refused_by_name_with_what_to_do(tmp_path: Path, name: str) -> None:
    archive_step(Archive(tmp_path), 1, 2)
    path = tmp_path / "groups/index-000000.parquet"
    block = pq.read_table(path)
    if name:
        at = block.schema.get_field_index(name)
        pq.write_table(block.set_column(at, block.schema.field(at), pa.array([[]] * 2, block.schema.types[at])), path)
    else:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArchiveError, match=f"index-000000.parquet.*{name}.*; delete it: it is rebuilt from the parts"):
        read_index(tmp_path)


@pytest.mark.parametrize("name", ["index-000000", "step-000001"])
def test_row_groups_that_are_small_one_by_one_are_bounded_together(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_step(Archive(tmp_path), 1, 2)
    path = tmp_path / "groups" / f"{name}.parquet"
    table = pq.read_table(path)
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(60):
            writer.write_table(table)
    monkeypatch.setattr(reader, "MOST_ROWS", 100)
    if name.startswith("step"):
        (tmp_path / "groups" / "index-000000.parquet").unlink()
        with pytest.raises(ArchiveError, match=rf"{name}\.parquet has more than 100 rows or 1024 MiB"):
            read_group(tmp_path, 1, "000001-000")
    for read in (read_index, lambda place: GroupIndex(LocalStore(place)).refresh()):
        with pytest.raises((ArchiveError, UserError), match=rf"{name}\.parquet has more than 100 rows or 256 MiB"):
            read(tmp_path)


def test_an_index_of_too_many_blocks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 100, 200):
        archive_step(Archive(tmp_path), step, 2)
    monkeypatch.setattr(reader, "MOST_GROUPS", 5)
    with pytest.raises(ArchiveError, match=f"the index of {tmp_path} has more than 5 rows"):
        read_index(tmp_path)


def test_the_index_of_many_groups_is_read_without_the_parts(tmp_path: Path) -> None:
    archive_step(Archive(tmp_path), 3, 2)
    (tmp_path / "groups" / "step-000003.parquet").write_bytes(b"no Parquet")
    assert len(read_index(tmp_path)) == 2


def test_the_page_says_what_the_code_does() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.writers.schema`"


def test_rows_of_several_environments_have_their_label_and_the_index_names_them_by_it(tmp_path: Path) -> None:
    task = Task("Sokoban", 7, label="boxes")
    empty = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32)
    failure = Failure(FailureCause.OTHER)
    lost = Trajectory(0, *empty, [], False, False, failure)
    tables = [
        to_table(Group(Ticket(f"000001-00{i}", 1, one, 1, 0), "", [lost]))
        for i, one in enumerate((task, dataclasses.replace(task, label="")))
    ]
    decisions = {
        f"000001-00{i}": Decision(f"000001-00{i}", 1, "refused", "refused", "failed", None, None, None)
        for i in range(2)
    }
    Archive(tmp_path).write_groups(1, tables, decisions, "none")
    table = read_groups(tmp_path)
    assert table["label"].to_pylist() == ["boxes", None] and table["environment"].to_pylist() == ["Sokoban"] * 2
    assert read_index(tmp_path)["environment"].to_pylist() == ["boxes", "Sokoban"]
