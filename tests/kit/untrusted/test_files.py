"""Only regular files are read and replaced, at most so many bytes of them, and every error names the file."""

import os
from pathlib import Path

import pytest

from squelch.kit.untrusted.files import (
    Missing,
    Unreadable,
    WrongKind,
    brief,
    decoding,
    is_file,
    is_folder,
    open_file,
    open_own,
    read_bytes,
    reason,
    require_output,
    require_own,
    state,
    text_of,
)
from tests.kit.untrusted.kinds import KINDS, called


@pytest.mark.timeout(5)
@pytest.mark.parametrize("kind", KINDS)
def test_no_other_kind_of_file_is_opened_or_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    KINDS[kind](path)
    for refuse in (open_file, require_output, lambda path: read_bytes(path, 10)):
        with pytest.raises(Unreadable, match=f"^{path} is {called(kind)}; a regular file is needed$"):
            refuse(path)
    assert not is_file(path)


def test_a_regular_file_is_read_through_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("real")
    assert read_bytes(tmp_path / "link", 3) == b"abc"
    with pytest.raises(Unreadable, match=r"link is larger than 2 bytes"):
        read_bytes(tmp_path / "link", 2)
    assert is_folder(tmp_path) and is_file(tmp_path / "link") and state(tmp_path / "none") is None
    require_output(tmp_path / "new")
    with pytest.raises(Missing, match="none does not exist"):
        open_file(tmp_path / "none")


def test_a_file_whose_size_lies_is_bounded(tmp_path: Path) -> None:
    """Files of the kernel state a size of 0 and hold more."""
    with pytest.raises(Unreadable, match="larger than 8 bytes"):
        read_bytes(Path("/proc/self/status"), 8)
    with open(tmp_path / "sparse", "wb") as file:
        os.truncate(file.fileno(), 2**40)
    with pytest.raises(Unreadable, match="larger than 1 MiB"):
        read_bytes(tmp_path / "sparse", 2**20)


@pytest.mark.parametrize("name", ["a\x00b", "x" * 300, "file/below"])
def test_a_name_that_leads_nowhere_is_an_error_or_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unreadable):
        open_file(tmp_path / name)


def test_links_that_lead_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(Unreadable, match="a cannot be looked up"):
        is_file(tmp_path / "a")


def test_any_error_of_a_decoder_names_the_file() -> None:
    for error in (RuntimeError("x\ny"), KeyError("k"), SyntaxError("s"), MemoryError(), RecursionError()):
        with (
            pytest.raises(Unreadable, match=r"^it (is damaged|needs more memory)") as caught,
            decoding("it", "is damaged"),
        ):
            raise error
        assert "\n" not in str(caught.value)
    with pytest.raises(KeyboardInterrupt), decoding("it", "is damaged"):
        raise KeyboardInterrupt


def test_what_errors_quote_is_bounded() -> None:
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    assert all(len(brief(value)) <= 80 for value in ("x" * 10**6, 1 << 40_000, deep, {"a": ["b" * 10**6]}))
    assert len(reason(ValueError("y" * 10**6))) <= 300 and reason(OSError(28, "No space left on device"))


def test_text_is_utf_8() -> None:
    assert text_of(b"\xef\xbb\xbfa", "it") == "a"
    for data in (b"\xff", "a".encode("utf-16"), b"\xed\xa0\x80"):
        with pytest.raises(Unreadable, match="it cannot be read as text"):
            text_of(data, "it")


@pytest.mark.timeout(5)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_a_regular_file_is_appended_to(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "it")
    with pytest.raises(WrongKind, match=f"it is {called(kind)}"):
        open_own(tmp_path / "it")


def test_nothing_is_appended_through_a_link_or_a_second_name(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "link").symlink_to("precious")
    (tmp_path / "dangling").symlink_to("new")
    os.link(tmp_path / "precious", tmp_path / "second")
    for name, what in (("link", "is a link"), ("dangling", "is a link"), ("second", "has a second name")):
        with pytest.raises(WrongKind, match=f"{name} {what}"):
            open_own(tmp_path / name)
    assert (tmp_path / "precious").read_text() == "kept" and not (tmp_path / "new").exists()
    for word in (b"a", b"b"):
        with open_own(tmp_path / "own") as file:
            file.write(word)
    assert (tmp_path / "own").read_text() == "ab"


def test_a_folder_is_its_own_if_no_link_in_it_leads_out(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    (run / "below").mkdir()
    (run / "below" / "latest").symlink_to("../file")
    (run / "circle").symlink_to(".")
    (tmp_path / "run2").mkdir()
    (tmp_path / "link").symlink_to("run")
    require_own(run)
    require_own(tmp_path / "link")
    for target in ("../../run2", "/etc/passwd", "../../nowhere", "../../link/../run2"):
        (run / "below" / "out").symlink_to(target)
        with pytest.raises(WrongKind, match="run/below/out is a link that leads out of"):
            require_own(run)
        (run / "below" / "out").unlink()


def test_of_a_chain_of_errors_in_one_text_the_innermost_is_said_whole() -> None:
    text = (
        "HTTPSConnectionPool(host='hub.example', port=443): Max retries exceeded with url: /api (Caused by "
        "NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new "
        "connection: [Errno 111] Connection refused'))"
    )
    assert reason(ConnectionError(text)) == "Failed to establish a new connection: [Errno 111] Connection refused"
    assert reason(ValueError("plain (text)")) == "plain (text)"
