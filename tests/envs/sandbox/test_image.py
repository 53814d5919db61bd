"""The image: in a folder that the programs' user can reach, whole whenever a result counts, one for each user."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from squelch.envs.sandbox import Limits, Pool, Question, image, manifest
from squelch.envs.sandbox.identity import NOBODY, Identity
from squelch.envs.sandbox.image import Image, Watch, check_folder, find
from squelch.envs.sandbox.proof import prove

PATIENT = Limits(wall_s=10, total_s=30)
ALLOW_EVERYTHING = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away and run programs as nobody")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="squelch-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def small(folder: Path) -> Path:
    """A small folder with a manifest."""
    place = folder / "image"
    (place / "root" / "inner").mkdir(parents=True)
    for name in ("root/a.py", "root/inner/b.py", "filter.bpf"):
        (place / name).write_text(name)
    manifest.write(place)
    return place


@pytest.fixture
def copy(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Image]:
    """The real image once more, made of links to its files, so that one can be removed. It is mended as fast."""
    original = pool.backend.image.place
    monkeypatch.setattr(image, "_write", lambda draft: link(original, draft))
    with tempfile.TemporaryDirectory(prefix="squelch-test-", dir=original.parent) as made:
        Path(made).chmod(0o755)
        link(original, Path(made, "image"))
        yield Image(Path(made, "image"))


def test_a_file_that_links_to_nothing_needs_no_library(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("#!/bin/sh")
    assert image._shared_objects([tmp_path / "text"]) == {}


def link(original: Path, place: Path) -> None:
    shutil.copytree(original, place, copy_function=os.link)
    (place / manifest.FILE).unlink()
    shutil.copy(original / manifest.FILE, place)


def remove_module(place: Path, name: str) -> None:
    """What a cleaner of temporary folders does, which also puts the folder's times back (as systemd-tmpfiles does)."""
    for path in place.rglob(f"{name}*.py*"):
        times = path.parent.stat()
        path.unlink()
        os.utime(path.parent, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_damage_is_named(small: Path) -> None:
    assert manifest.damage(small) == []
    (small / "root" / "inner" / "b.py").unlink()
    (small / "root" / "c.py").touch()
    (small / "root" / "a.py").write_text("other")
    found = ["root/inner/b.py is missing", "root/c.py was added", "root/a.py has changed"]
    assert manifest.damage(small) == found and manifest.few([*found, "more"]).endswith("has changed; 1 more")
    (small / manifest.FILE).write_text("{")
    assert "it cannot be read" in manifest.damage(small)[0]


def test_a_change_of_content_alone_is_found_by_reading(small: Path) -> None:
    file = small / "root" / "a.py"
    times = file.stat()
    file.write_text("Root/a.py")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert manifest.damage(small) == [] and manifest.damage(small, contents=True) == ["root/a.py has changed"]


def test_a_watch_notices_what_is_removed_even_if_times_are_put_back(small: Path, monkeypatch) -> None:
    whole = small.with_name("whole")
    link(small, whole)
    monkeypatch.setattr(image, "_write", lambda draft: link(whole, draft))
    watch = Watch(Image(small))
    first = watch.check()
    assert watch.check() == first
    remove_module(small / "root" / "inner", "b")
    assert watch.check() == first + 1 and manifest.damage(small) == []
    (small / "root").chmod(0o755)  # changes nothing, but the results of that time are not trusted
    assert watch.check() == first + 2


def test_a_watch_says_what_it_cannot_mend(small: Path, monkeypatch) -> None:
    def fails(draft: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image, "_write", fails)
    watch = Watch(Image(small))
    watch.check()
    (small / "filter.bpf").unlink()
    with pytest.raises(RuntimeError, match=r"is damaged \(filter.bpf is missing\): .*No space left"):
        watch.check()


def test_right_programs_pass_though_a_cleaner_removes_a_module(pool: Pool, copy: Image) -> None:
    program = "import time\ntime.sleep(float(input()))\nimport textwrap\nprint(textwrap.dedent('  right'))"
    mine = Pool(_backend_in(pool, copy), warm=2)
    try:
        assert mine.run(program, [Question("0")], PATIENT)[0].output == b"right\n"
        remove_module(copy.place, "textwrap")
        assert mine.run(program, [Question("0")], PATIENT)[0].output == b"right\n"
        shutil.rmtree(copy.place / "root" / "python" / "lib")  # not even an interpreter starts
        assert mine.run(program, [Question("0.1")] * 2, PATIENT)[1].output == b"right\n"
    finally:
        mine.close()


@pytest.mark.slow
def test_the_doctors_proof_sees_a_hole_in_the_call_filter(pool: Pool, copy: Image) -> None:
    copy.filter_file.unlink()
    copy.filter_file.write_bytes(ALLOW_EVERYTHING)
    manifest.write(copy.place)
    mine = Pool(_backend_in(pool, copy), warm=2)
    try:
        assert set(prove(mine).broken) == {"changes the times of a device", "locks a shared file", "opens a socket"} | (
            {"enters a new name space"}
        )
    finally:
        mine.close()


def _backend_in(pool: Pool, copy: Image):
    """The pool's back end with the image in another place."""
    old, new = str(pool.backend.image.place), str(copy.place)
    command = pool.backend.command
    moved = replace(
        command,
        arguments=tuple(word.replace(old, new) for word in command.arguments),
        environment=tuple((name, value.replace(old, new)) for name, value in command.environment),
    )
    return replace(pool.backend, image=copy, command=moved)


def test_a_damaged_image_is_mended_and_said_when_it_is_looked_up(copy: Image, monkeypatch) -> None:
    monkeypatch.setattr(image, "_place", lambda folder: copy.place)
    assert image.build(copy.place.parent).mended == ()
    remove_module(copy.place, "heapq")
    mended = image.build(copy.place.parent).mended
    assert any("heapq.py is missing" in found for found in mended) and manifest.damage(copy.place) == []


def test_a_squatted_name_costs_one_other_folder_and_no_more(folder: Path) -> None:
    first = image._place(folder)
    first.mkdir()
    first.chmod(0o777)  # what others could have made, or could change
    second = image._place(folder)
    assert second != first and second.name.startswith(first.name)
    second.mkdir(mode=0o755)
    assert image._place(folder) == second
    if os.geteuid() == 0:
        os.chown(second, 12345, 12345)
        assert image._place(folder) not in (first, second)


@as_root
def test_the_image_goes_to_the_first_folder_that_the_programs_user_can_enter(folder: Path, monkeypatch) -> None:
    closed, reachable = folder / "closed", folder / "open"
    closed.mkdir(mode=0o700)
    reachable.mkdir()
    reachable.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    monkeypatch.setattr(image, "FURTHER_FOLDERS", (reachable,))
    monkeypatch.setattr(image, "build", lambda folder: Image(folder))
    assert find(Identity(NOBODY)).place == reachable and find(Identity(None)).place == closed
    reachable.chmod(0o700)
    with pytest.raises(ValueError, match=r"/closed: nobody \(65534\), who .* cannot enter it; .*/open: nobody.*TMPDIR"):
        find(Identity(NOBODY))


def test_a_folder_in_which_others_can_rename_files_is_refused(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(OSError, match="can rename the files of others"):
        check_folder(shared, Identity(None))
    shared.chmod(0o1777)
    check_folder(shared, Identity(None))
    with pytest.raises(OSError, match="cannot write there"):
        check_folder(shared / "missing", Identity(None))


def test_a_folder_without_execution_is_refused(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(OSError, match="without permission to execute"):
        check_folder(folder, Identity(None))
