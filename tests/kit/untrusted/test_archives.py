"""Zip archives are read within bounds of size, and every damage is named."""

import zipfile
from pathlib import Path

import pytest

from squelch.kit.untrusted import archives
from squelch.kit.untrusted.archives import MAX_DIRECTORY, MAX_MEMBER, member_names, members
from squelch.kit.untrusted.files import Unreadable
from tests.kit.untrusted.zips import DEFLATED, STORED, ZSTANDARD, Member, archive, member

TEXT = b"a member of an archive, " * 9


@pytest.mark.parametrize("method", [STORED, DEFLATED, ZSTANDARD])
def test_members_are_decoded_by_every_method(tmp_path: Path, method: int) -> None:
    path = archive(tmp_path / "one.zip", [member("a", TEXT, method), member("b/c", b"", STORED), member("d", TEXT)])
    assert member_names(path) == ["a", "b/c", "d"]
    assert list(members(path, ["d", "b/c", "a"])) == [("d", TEXT), ("b/c", b""), ("a", TEXT)]


def test_what_pythons_zipfile_writes_is_read_and_the_last_of_one_name_counts(tmp_path: Path) -> None:
    path = tmp_path / "one.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", "first")
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("a", "second")
    assert list(members(path, member_names(path))) == [("a", b"second")]


def refused(path: Path, wanted: list[str]) -> str:
    with pytest.raises(Unreadable) as caught:
        member_names(path)
        list(members(path, wanted))
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 600
    return message


ODD = {
    "encrypted": (Member("a", TEXT, len(TEXT), 0, STORED, 1), "is encrypted"),
    "checksum": (Member("a", TEXT, len(TEXT), 1), "cannot be read as a zip archive"),
    "checksum of zstandard": (member("a", TEXT, ZSTANDARD)._replace(crc=1), "its checksum is wrong"),
    "method": (Member("a", TEXT, len(TEXT), 0, 99), "cannot be read as a zip archive"),
    "deflated": (Member("a", TEXT, len(TEXT), 0, DEFLATED), "cannot be read as a zip archive"),
    "zstandard": (Member("a", TEXT, len(TEXT), 0, ZSTANDARD), "cannot be read as a zip archive"),
    "large": (member("a", bytes(MAX_MEMBER + 1), DEFLATED), "larger than 64 MiB, decoded"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_member_is_named(tmp_path: Path, name: str) -> None:
    odd, says = ODD[name]
    assert says in refused(archive(tmp_path / "one.zip", [odd]), ["a"])


@pytest.mark.parametrize("data", [b"", b"{}", b"PK\3\4" + bytes(99), TEXT])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "one.zip"
    path.write_bytes(data)
    assert "cannot be read as a zip archive" in refused(path, [])


def test_an_archive_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "one.zip", [member("a", TEXT)])
    path.write_bytes(path.read_bytes()[:-40])
    assert "if it is still being written" in refused(path, [])


def test_a_directory_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "one.zip", [member("a", bytes(2 * MAX_DIRECTORY))], MAX_DIRECTORY + 1)
    assert "directory is larger than 16 MiB" in refused(path, [])


def test_members_are_bounded_in_all_by_the_archives_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = member("a", bytes(10_000), DEFLATED)
    path = archive(tmp_path / "one.zip", [one, one._replace(name="b"), one._replace(name="c")])
    monkeypatch.setattr(archives, "MOST_BYTES", 25_000)
    monkeypatch.setattr(archives, "_EXPANSION", 1)
    assert len(list(archives._contents(str(path), ["a", "b"]))) == 4
    with pytest.raises(Unreadable, match=r"one.zip holds more than .*, decoded"):
        list(archives._contents(str(path), ["a", "b", "c"]))
