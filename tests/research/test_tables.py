"""A study's table gives back what was put in, is written by one process at a time, and refuses what is damaged."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from research import tables
from research.kept import of_content, read_all
from research.tables import FOLDER, add, read
from squelch.kit.base.errors import UserError


def run(name: str, **others: object) -> dict:
    series = {"step": [1, 10], "probe/mi": [0.1, None], "note": ["a", "b"]}
    labels = {"name": name, "part": "p", "recipe": "r", "arm": "a", "seed": 3, "steps": 20, "set": [], "groups": {}}
    return {**labels, "tables": {"probe": series}, **others}


def test_a_run_comes_back_as_it_was_put_in(tmp_path: Path) -> None:
    one = run("one", set=["a=1", "b=c"], success={"before": {"step": 0, "low": 0.25}}, note="", groups={"reward": 0.5})
    add(tmp_path / "t.parquet", [one, run("other")])
    assert read(tmp_path / "t.parquet") == [one, run("other")]


def test_a_run_replaces_the_one_of_its_name_and_leaves_the_others(tmp_path: Path) -> None:
    add(tmp_path / "t.parquet", [run("b"), run("a")])
    add(tmp_path / "t.parquet", [run("b", steps=30)])
    assert [(one["name"], one["steps"]) for one in read(tmp_path / "t.parquet")] == [("a", 20), ("b", 30)]
    assert read(tmp_path / "none.parquet") == []


def test_a_folder_has_a_file_for_each_run(tmp_path: Path) -> None:
    add(folder := tmp_path / "runs", [run("b", commit="0123456789ab")])
    before = (folder / "b.parquet").stat().st_mtime_ns
    add(folder, [run("a", commit="0123456789ab")])
    assert [one["name"] for one in read(folder)] == ["a", "b"] and (folder / "b.parquet").stat().st_mtime_ns == before
    assert {file.name for file in tmp_path.rglob("*.parquet")} == {"a.parquet", "b.parquet"}
    with pytest.raises(UserError, match="runs: its runs would be of several commits"):
        add(folder, [run("c", commit="ba9876543210")])


def test_a_table_refuses_runs_of_a_second_commit(tmp_path: Path) -> None:
    """A run that did not record its commit counts as one of another."""
    add(tmp_path / "t.parquet", [run("a", commit="0123456789ab")])
    for other in (run("b", commit="ba9876543210"), run("b")):
        with pytest.raises(UserError, match=r"t\.parquet: its runs would be of several commits"):
            add(tmp_path / "t.parquet", [other])
    add(tmp_path / "t.parquet", [run("a", commit="ba9876543210")])
    assert [(one["name"], one["commit"]) for one in read(tmp_path / "t.parquet")] == [("a", "ba9876543210")]


def test_writers_at_once_lose_no_run(tmp_path: Path) -> None:
    """The lock is one of the kernel, which two threads share no more than two processes do."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: add(tmp_path / "t.parquet", [run(f"run{number}")]), range(4)))
    assert [one["name"] for one in read(tmp_path / "t.parquet")] == [f"run{number}" for number in range(4)]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    file.write_text("half of a fi")
    with pytest.raises(UserError, match=r"t\.parquet is no table of condensed runs"):
        read(file)


@pytest.mark.parametrize(
    "damage", [{"steps": "20"}, {"tables": {"t": {"step": [1], "mi": ["0.1"]}}}, {"tables": {"t": {"step": [1.0]}}}]
)
def test_a_run_that_lacks_what_a_judge_needs_is_named(damage: dict, tmp_path: Path) -> None:
    content = run("one", tables={}) | damage
    if "steps" in damage:
        with pytest.raises(UserError, match="one is no condensed run"):
            tables.parsed(content, of_content, "one")
        return
    add(tmp_path / "t.parquet", [content | {"steps": 1}])
    if "mi" in content["tables"]["t"]:
        with pytest.raises(UserError, match=r"t\.parquet: one is no condensed run"):
            read_all(tmp_path / "t.parquet")


def test_all_results_are_small() -> None:
    files = [file for file in FOLDER.iterdir() if file.suffix != ".lock"]
    assert len(files) <= 30 and sum(file.stat().st_size for file in files) <= 2 << 20
