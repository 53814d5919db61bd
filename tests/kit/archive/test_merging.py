"""The files of finished blocks of steps are merged, and whatever happens meanwhile every row is read exactly once."""

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.inspector.groups import GroupIndex
from squelch.kit.archive import merging, parts
from squelch.kit.archive.parts import SCORES, parts_in
from squelch.kit.archive.reader import group_steps, read_group, read_groups, read_index
from squelch.kit.archive.schema import ARCHIVE_SCHEMA
from squelch.kit.archive.score_matrices import read_scores, scored_steps, scores_table
from squelch.kit.archive.store import LocalStore
from squelch.kit.archive.writer import Archive
from squelch.kit.untrusted import parquet
from tests.kit.archive.small_groups import archive_step
from tests.kit.archive.test_score_matrices import matrix
from tests.stores import Memory

BLOCK, AT_ONCE = 4, 2


class Killed(BaseException):
    """The process ends here."""


class Watched(Memory):
    """A store in memory. `before` is called with the kind and the key of each access before it has an effect."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str, str], None] = lambda kind, key: None

    @contextmanager
    def put(self, key: str) -> Iterator[BinaryIO]:
        self.before("begin", key)
        with Memory.put(self, key) as file:
            yield file
            self.before("put", key)

    def get(self, key: str) -> BinaryIO:
        self.before("get", key)
        return super().get(key)

    def list(self, prefix: str = "") -> list[str]:
        self.before("list", prefix)
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self.before("delete", key)
        super().delete(key)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "STEPS_PER_BLOCK", BLOCK)
    monkeypatch.setattr(merging, "PARTS_AT_ONCE", AT_ONCE)


def is_scored(step: int) -> bool:
    return step % 3 != 0


def write(archive: Archive, step: int, count: int = 1, scored: bool = True) -> None:
    """A step of `count` groups; its score matrices, if it is scored."""
    archive_step(archive, step, count)
    if scored and is_scored(step):
        archive.write_scores(step, scores_table({"first_turn": matrix(2, 1, seed=step)}, step))


def rows(store: Watched | Path) -> list[tuple[int, str, int]]:
    table = read_groups(store, columns=["step", "group_id", "trajectory"])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def rows_of(step: int, count: int) -> list[tuple[int, str, int]]:
    return [(step, f"{step:06d}-{number:03d}", trajectory) for number in range(count) for trajectory in range(3)]


def names(store: Watched, folder: str = "groups") -> list[str]:
    return [key.partition("/")[2] for key in store.files if key.startswith(f"{folder}/step")]


def assert_scores(store: Watched, steps: list[int]) -> None:
    assert [step for step in scored_steps(store) if step in steps] == [step for step in steps if is_scored(step)]
    for step in filter(is_scored, steps):
        given = matrix(2, 1, seed=step).values
        np.testing.assert_allclose(read_scores(store, step)["first_turn"].values, given, rtol=1e-6)


class History:
    """A run's archive, what must be in it, and the operation before which its process ends."""

    def __init__(self, folder: Path, scored: bool = True) -> None:
        self.folder, self.scored, self.store, self.steps = folder, scored, Watched(), dict[int, int]()
        self.unsettled: range = range(0)
        """Steps of which rows may be there or not, until the call ends."""
        self.left: int | None = None
        self.store.before = self.before
        self.archive = Archive(folder, self.store)

    def before(self, kind: str, key: str) -> None:
        if kind not in ("begin", "put", "delete"):
            return
        if kind == "delete" or (kind == "put" and "steps-" in key):
            self.look(key.partition("/")[0])
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def look(self, *folders: str) -> None:
        """Another process reads these folders, or both: it finds each row once."""
        settled = {step: count for step, count in self.steps.items() if step not in self.unsettled}
        if settled and "groups" in (folders or ("groups",)):
            found = rows(self.store)
            assert len(set(found)) == len(found)
            expected = [row for step in sorted(settled) for row in rows_of(step, settled[step])]
            assert [row for row in found if row[0] not in self.unsettled] == expected
        if settled and self.scored and SCORES in (folders or (SCORES,)):
            assert_scores(self.store, sorted(settled))

    def do(self, call: Callable[[], None], unsettled: range) -> bool:
        """Whether the call came to its end."""
        self.unsettled = unsettled
        try:
            call()
        except Killed:
            self.left = None
            self.look()
            self.archive = Archive(self.folder, self.store)
            return False
        return True

    def write(self, step: int, count: int) -> None:
        if self.do(lambda: write(self.archive, step, count, self.scored), range(step, step + 1)):
            self.steps[step] = count
        else:  # as a resume does
            self.cut(step - 1)

    def cut(self, step: int) -> None:
        wanted = {one: count for one, count in self.steps.items() if one <= step}
        while not self.do(lambda: self.archive.truncate_after(step), range(step + 1, 10**6)):
            self.steps = wanted
        self.steps, self.unsettled = wanted, range(0)
        self.look()


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("kill"), st.integers(0, 25)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("cut"), st.integers(0, 6)),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(ACTIONS, max_size=12), st.randoms(use_true_random=False))
def test_whatever_is_written_merged_cut_and_killed_each_row_is_read_once(actions, random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder))
        for name, value in actions:
            last = max(history.steps, default=0)
            if name == "kill":
                history.left = value
            elif name == "restart":
                history.archive = Archive(Path(folder), history.store)
            elif name == "cut":
                history.cut(max(0, last - value))
            for _ in range(value if name == "write" else 0):
                history.write(max(history.steps, default=0) + 1, random.choice((0, 1, 2)))
        history.left = None
        history.look()
        if history.steps:
            assert read_index(history.store).num_rows == sum(history.steps.values())
            assert group_steps(history.store) == sorted(history.steps)


def test_a_kill_before_any_operation_of_a_merge_or_of_a_cut_in_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    begun = History(tmp_path, scored=False)
    for step in range(1, 7):
        begun.write(step, 1)
    for number in range(20):
        history = History(tmp_path, scored=False)
        history.store.files, history.steps, history.left = dict(begun.store.files), dict(begun.steps), number
        for step in (7, 8, 9):
            history.write(step, 1)
        history.cut(5)


def test_a_long_run_has_a_file_a_block_and_the_parts_of_the_newest_steps(tmp_path: Path) -> None:
    archive = Archive(tmp_path, store := Watched())
    for step in range(1, 50):
        write(archive, step)
        for folder in ("groups", SCORES):
            assert len(names(store, folder)) <= step // BLOCK + 2 * BLOCK
    assert names(store)[:2] == ["steps-000001-000003.parquet", "steps-000004-000007.parquet"]
    assert names(store, SCORES)[:2] == ["steps-000001-000002.parquet", "steps-000004-000007-b.parquet"]
    assert rows(store) == [row for step in range(1, 50) for row in rows_of(step, 1)]
    assert_scores(store, list(range(1, 50)))


def test_a_merged_file_has_the_schema_of_a_part_and_the_policy_version_of_each_scorer_step(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for step in range(1, 14):
        write(archive, step, 2)
    table = pq.read_table(tmp_path / "groups/steps-000004-000007.parquet")
    part = pq.read_schema(tmp_path / "groups/step-000013.parquet")
    assert table.schema.equals(part, check_metadata=True) and table.schema.equals(ARCHIVE_SCHEMA)
    assert table.equals(read_groups(tmp_path, [4, 5, 6, 7]))
    scores = pq.read_table(tmp_path / SCORES / "steps-000004-000007-b.parquet")
    assert set(zip(scores["step"].to_pylist(), scores["policy_version"].to_pylist(), strict=True)) == {
        (4, 4),
        (5, 5),
        (7, 7),
    }


def test_of_a_merged_file_only_the_row_groups_of_the_step_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, read, tokens = Archive(tmp_path), parquet.read_row_group, []
    for step in range(1, 12):
        write(archive, step, 2)

    def counted(file, where, group, columns):
        tokens.append((Path(where).name, group)) if "token_ids" in columns else None
        return read(file, where, group, columns)

    monkeypatch.setattr(parquet, "read_row_group", counted)
    assert len(read_group(tmp_path, 6, "000006-001")) == 3
    assert tokens == [("steps-000004-000007.parquet", 2)]
    tokens.clear()
    assert set(read_groups(tmp_path, [1, 3, 7])["step"].to_pylist()) == {1, 3, 7}
    assert [group for _, group in tokens] == [0, 2, 3]


def merged_when(store: Watched, archive: Archive, kind: str, key: str) -> None:
    """Has the archive's blocks merged just after the first access of this kind to a key that begins so."""

    def before(found: str, at: str) -> None:
        if found == kind and at.startswith(key):
            store.before = lambda *_: None
            for _ in range(2 * BLOCK):
                archive._groups.advance()
            assert "groups/steps-000004-000007.parquet" in store.files

    store.before = before


@pytest.mark.parametrize(
    ("kind", "key"),
    [("list", "groups/steps-"), ("get", "groups/step-000001"), ("get", "groups/step-000005")],
    ids=["between the listings", "after them", "while it reads"],
)
def test_a_reader_before_whom_files_are_merged_reads_every_row_once(tmp_path: Path, kind: str, key: str) -> None:
    archive, store = Archive(tmp_path, Watched()), Watched()
    for step in range(1, 10):
        archive_step(archive, step, 1)
        store.files |= archive.store.files  # parts that are merged already are there as well
    store.files = {key: data for key, data in store.files.items() if "steps-" not in key}
    merged_when(store, Archive(tmp_path, store), kind, key)
    assert rows(store) == [row for step in range(1, 10) for row in rows_of(step, 1)]


def test_a_step_of_a_merged_file_that_is_written_again_replaces_its_rows(tmp_path: Path) -> None:
    archive = Archive(tmp_path, store := Watched())
    for step in range(1, 12):
        write(archive, step)
    write(archive, 5, 2)
    expected = [row for step in range(1, 12) for row in rows_of(step, 2 if step == 5 else 1)]
    assert rows(store) == expected
    for step in (12, 13):
        write(archive, step)
    assert names(store).count("steps-000004-000007.parquet") == 1 and "step-000005.parquet" not in names(store)
    assert rows(store)[: len(expected)] == expected


def test_a_damaged_part_leaves_its_block_unmerged_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Archive(tmp_path, store := Watched())
    with caplog.at_level(logging.WARNING):
        for step in range(1, 16):
            if step == 7:
                store.files["groups/step-000005.parquet"] = b"no Parquet"
            archive_step(archive, step, 1)
    assert {"step-000004.parquet", "steps-000008-000011.parquet"} <= set(names(store))
    assert len(caplog.records) == 1 and "step-000005.parquet" in caplog.text
    assert len(read_group(store, 6, "000006-000")) == 3


def test_a_merge_that_the_end_of_a_run_finds_unfinished_leaves_no_file(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for step in range(1, 5):
        archive_step(archive, step, 1)
    assert list((tmp_path / "groups").glob(".*"))
    archive.finish()
    assert not list((tmp_path / "groups").glob(".*"))
    assert rows(tmp_path) == [row for step in range(1, 5) for row in rows_of(step, 1)]


def test_the_index_of_merged_steps_is_that_of_their_parts(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for step in range(1, 12):
        archive_step(archive, step, step % 3)
    whole, index = read_index(tmp_path), GroupIndex(LocalStore(tmp_path))
    index.refresh()
    for path in (tmp_path / "groups").glob("index-*"):
        path.unlink()
    assert read_index(tmp_path).equals(whole)
    again = GroupIndex(LocalStore(tmp_path))
    again.refresh()
    assert again.table.equals(index.table)


@pytest.mark.parametrize("name", ["steps-000001-999999999", "steps-000003-000001", "steps-000004-000005-0"])
def test_a_name_of_other_than_steps_of_one_block_is_no_merged_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / f"{name}.parquet").write_bytes(b"")
    assert parts_in(LocalStore(tmp_path), "groups") == []
