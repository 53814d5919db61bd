"""Copies of folders: whole and equal to what was offered, or not there; made once a host."""

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.process import folders
from squelch.actors.process.folders import Entry, content_digest, copied, holds, listing, read_chunk, write_files


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "CHUNK_BYTES", 4)


def made(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def fetching(folder: Path, entries: tuple[Entry, ...]):
    return lambda index, number: read_chunk(folder / entries[index].name, number)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@settings(max_examples=20)  # each syncs its files
@given(st.dictionaries(st.sampled_from(["a", "b.txt", "sub__c", "sub__deep__d"]), st.binary(max_size=13), min_size=1))
def test_a_copy_has_the_files_of_the_original_whatever_their_sizes(tmp_path_factory, files):
    base = tmp_path_factory.mktemp("copy")
    original = made(base / "original", **files)
    entries = listing(original)
    copied(base / "copy", entries, fetching(original, entries))
    assert contents(base / "copy") == contents(original) != {}
    assert holds(base / "copy", entries) and listing(base / "copy") == entries


def test_only_the_files_that_match_are_listed(tmp_path):
    made(tmp_path, **{"config.json": b"1", "weights.bin": b"2", "sub__config.json": b"3"})
    assert [entry.name for entry in listing(tmp_path, ("*.json",))] == ["config.json"]


@pytest.mark.parametrize("change", [b"other", b"othe", None])
def test_another_content_under_the_same_path_is_noticed(tmp_path, change):
    entries = listing(made(tmp_path / "a", file=b"first", kept=b"x"))
    changed = made(tmp_path / "b", file=b"first", kept=b"x")
    assert holds(changed, entries)
    (changed / "file").write_bytes(change) if change else (changed / "file").unlink()
    assert not holds(changed, entries)
    assert content_digest(entries) != content_digest(listing(changed))


def test_a_copy_that_arrives_damaged_is_refused_by_name_and_leaves_nothing(tmp_path):
    entries = listing(made(tmp_path / "a", file=b"0123456789"))
    with pytest.raises(ValueError, match="file arrived damaged: its SHA-256 is"):
        copied(tmp_path / "cache" / "copy", entries, lambda index, number: b"0123")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["copy.lock"]


def test_a_source_that_fails_half_way_leaves_nothing(tmp_path):
    entries = listing(made(tmp_path / "a", file=b"0123456789"))

    def breaks(index: int, number: int) -> bytes:
        if number == 1:
            raise ValueError("chunk lost with 10.0.0.1")
        return read_chunk(tmp_path / "a" / "file", number)

    with pytest.raises(ValueError, match="chunk lost"):
        copied(tmp_path / "cache" / "copy", entries, breaks)
    assert not (tmp_path / "cache" / "copy").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside", ""])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="leaves its folder"):
        write_files(tmp_path / "in", [Entry(name, 0, "")], lambda index, number: b"")
    assert not (tmp_path / "outside").exists()


def test_a_folder_that_cannot_be_written_names_the_variable_that_moves_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot be written on this host \(.*SQUELCH_CACHE"):
        copied(tmp_path / "file" / "copy", (), lambda index, number: b"")


def _copy(base: Path, results) -> None:
    fetched = []
    entries = listing(base / "a")

    def fetch(index: int, number: int) -> bytes:
        fetched.append(number)
        return read_chunk(base / "a" / "file", number)

    copied(base / "copy", entries, fetch)
    results.put((os.getpid(), len(fetched)))


def test_one_process_of_a_host_makes_the_copy_and_the_others_wait(tmp_path):
    made(tmp_path / "a", file=b"0123456789" * 100)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    children = [context.Process(target=_copy, args=(tmp_path, results)) for _ in range(3)]
    for child in children:
        child.start()
    fetched = sorted(results.get(timeout=180)[1] for _ in children)
    for child in children:
        child.join(180)
    assert fetched[:2] == [0, 0] and fetched[2] > 0
    assert contents(tmp_path / "copy") == contents(tmp_path / "a")


def test_a_folder_with_one_more_file_of_the_kind_is_another_content(tmp_path):
    """Found by a reviewer: a host's own chat template was used because all files that were offered were there, too."""
    entries = listing(made(tmp_path / "a", **{"config.json": b"1"}), ("*.json", "*.jinja"))
    other = made(tmp_path / "b", **{"config.json": b"1", "weights.bin": b"2"})
    assert holds(other, entries, ("*.json", "*.jinja"))
    (other / "chat_template.jinja").write_text("another")
    assert not holds(other, entries, ("*.json", "*.jinja")) and holds(other, entries)
