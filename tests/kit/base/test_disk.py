"""A complete folder takes its name whole."""

from pathlib import Path

import pytest

from squelch.kit.base import disk
from squelch.kit.base.disk import put_in_place, restore_names
from tests.actors.process.test_folders import contents, made


def test_an_older_folder_is_replaced_whole(tmp_path: Path) -> None:
    made(tmp_path / "aside", new=b"1")
    made(tmp_path / "target", old=b"0")
    put_in_place(tmp_path / "aside", tmp_path / "target")
    assert contents(tmp_path) == {"target/new": b"1"}


def test_what_a_killed_process_left_of_an_older_replacement_is_no_obstacle(tmp_path: Path) -> None:
    made(tmp_path / "aside", new=b"1")
    made(tmp_path / "target", old=b"0")
    made(tmp_path / ".target.replaced.partial", older=b"2")
    put_in_place(tmp_path / "aside", tmp_path / "target")
    assert contents(tmp_path) == {"target/new": b"1"}


def killed_between_the_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves what a process leaves that is killed after it moved the older folder away."""
    made(tmp_path / "aside", new=b"1")
    made(tmp_path / "target", old=b"0")
    rename = Path.rename

    def first_only(path: Path, target: Path) -> Path:
        if path.name == "aside":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", first_only)
        put_in_place(tmp_path / "aside", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_folder_that_a_killed_process_was_about_to_replace_gets_its_name_back(tmp_path, monkeypatch) -> None:
    killed_between_the_renames(tmp_path, monkeypatch)
    restore_names(tmp_path)
    assert contents(tmp_path) == {"aside/new": b"1", "target/old": b"0"}
    made(tmp_path / ".target.replaced.partial", older=b"2")  # its successor has the name: it is only to be deleted
    restore_names(tmp_path)
    assert contents(tmp_path)["target/old"] == b"0"


def test_the_next_folder_replaces_the_one_that_had_lost_its_name(tmp_path, monkeypatch) -> None:
    killed_between_the_renames(tmp_path, monkeypatch)
    put_in_place(tmp_path / "aside", tmp_path / "target")
    assert contents(tmp_path) == {"target/new": b"1"}


def test_the_folder_itself_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch) -> None:
    """Found by a reviewer: after a power cut a renamed checkpoint could lack its files."""
    synced: list[Path] = []
    monkeypatch.setattr(disk, "sync", lambda path: synced.append(path.relative_to(tmp_path)))
    made(tmp_path / "aside", new=b"1", sub__deep=b"2")
    put_in_place(tmp_path / "aside", tmp_path / "target")
    assert [path.as_posix() for path in synced[-2:]] == ["aside", "."]
    assert {path.as_posix() for path in synced} == {"aside/new", "aside/sub", "aside/sub/deep", "aside", "."}
