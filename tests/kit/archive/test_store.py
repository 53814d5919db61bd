"""A local store holds whole files only, and lists no others."""

import errno
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.archive import store as store_module
from squelch.kit.archive.store import MAX_DEPTH, LocalStore, RangeReader, Stat
from squelch.kit.base import disk
from squelch.kit.base.disk import whole_file, write_whole
from squelch.kit.untrusted.files import Unreadable

NAME = st.text("ab", min_size=1, max_size=3)


def put(store: LocalStore, key: str, data: bytes) -> None:
    with store.put(key) as file:
        file.write(data)


@given(st.dictionaries(NAME, st.binary(max_size=4), max_size=4), NAME, st.text("ab", max_size=2))
def test_what_was_put_is_what_is_there(tmp_path_factory, files: dict[str, bytes], folder: str, prefix: str) -> None:
    store = LocalStore(tmp_path_factory.mktemp("store"))
    for name, data in files.items():
        put(store, f"{folder}/{name}", data)
    keys = {f"{folder}/{name}": data for name, data in files.items()}
    assert store.list() == sorted(keys)
    assert store.list(f"{folder}/{prefix}") == sorted(key for key in keys if key.startswith(f"{folder}/{prefix}"))
    for key, data in keys.items():
        with store.get(key) as file:
            assert file.read() == data
        found = store.stat(key)
        assert isinstance(found, Stat) and found.size == len(data)
        store.delete(key)
        store.delete(key)
    assert store.list() == [] and store.stat(f"{folder}/c") is None


def test_a_write_that_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, "a/b", b"first")
    with pytest.raises(RuntimeError), store.put("a/b") as file:
        file.write(b"half")
        raise RuntimeError
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b").read_bytes() == b"first"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch, call: str) -> None:
    path = tmp_path / "one.json"
    write_whole(path, "first")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((disk.os, "fsync") if call == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space"), whole_file(path) as file:
        file.write(b"second")
    assert [p.name for p in tmp_path.iterdir()] == ["one.json"] and path.read_text() == "first"


def test_a_half_written_file_is_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.put("whole") as file:
        file.write(b"x")
        file.flush()
        assert store.list() == []
    assert store.list() == ["whole"]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../outside", "a/../../b"])
def test_a_key_outside_the_store_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        LocalStore(tmp_path).path(key)


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert LocalStore(tmp_path / "none").list("groups/") == []


@pytest.mark.timeout(5)
def test_links_among_folders_are_followed_only_where_the_prefix_names_them(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    put(store := LocalStore(run), "groups/step-1", b"")
    for number in range(20):
        (run / f"circle{number}").symlink_to(".")
        (run / "groups" / f"up{number}").symlink_to("..")
    (tmp_path / "larger disk" / "step-2").mkdir(parents=True)
    (tmp_path / "larger disk" / "step-2" / "loop.json").write_text("")
    (run / "checkpoints").symlink_to(tmp_path / "larger disk")
    assert store.list() == store.list("groups/") == ["groups/step-1"]
    assert store.list("checkpoints/") == ["checkpoints/step-2/loop.json"]


def test_files_are_listed_down_to_a_bound_of_folders(tmp_path: Path) -> None:
    inside = "/".join("a" * MAX_DEPTH)
    (tmp_path / inside / "a").mkdir(parents=True)
    (tmp_path / inside / "listed").touch()
    (tmp_path / inside / "a" / "too-deep").touch()
    assert LocalStore(tmp_path).list() == [f"{inside}/listed"]


def test_a_folder_of_too_many_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        put(store := LocalStore(tmp_path), f"{name}/x", b"")
    monkeypatch.setattr(store_module, "MAX_LISTED", 6)
    assert len(store.list()) == 3
    monkeypatch.setattr(store_module, "MAX_LISTED", 5)
    with pytest.raises(Unreadable, match="holds more than 5 files; give the folder of one run"):
        store.list()


class Ranges(RangeReader):
    """A file whose bytes come at most two at a time."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data))
        self._data = data

    def _read_at(self, position: int, length: int) -> bytes:
        assert 0 <= position < position + length <= len(self._data)
        return self._data[position : position + min(length, 2)]


def test_ranges_are_read_from_the_beginning_on_and_from_wherever_they_are_sought() -> None:
    assert io.BufferedReader(Ranges(b"01234")).read() == b"01234"
    file = Ranges(b"01234")
    assert [file.read(1), file.tell(), file.read(3), file.tell()] == [b"0", 1, b"12", 3]
    assert [file.seek(-1, io.SEEK_CUR), file.seek(-2, io.SEEK_END), file.read(), file.seek(-9)] == [2, 3, b"34", 0]
