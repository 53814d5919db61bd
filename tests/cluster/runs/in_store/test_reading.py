"""A run in a store is read as it grows, or copied; every command that reads a folder takes its URL."""

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from squelch.cluster.cli import main
from squelch.cluster.commands.arguments import place_of
from squelch.cluster.commands.existing_runs.status import status
from squelch.cluster.commands.existing_runs.watch import watch
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.in_store import reading
from squelch.cluster.runs.in_store.manifest import Manifest, Snapshot, Span, StoredFile, manifest_key, newest
from squelch.cluster.runs.in_store.mirror import Mirror
from squelch.cluster.runs.in_store.reading import Followed, local_copy
from squelch.kit.archive.store import LocalStore
from squelch.kit.base.errors import UserError
from tests.cluster.report.synthetic import Made, write_run
from tests.stores import Memory


def sent(tmp_path: Path, folder: Path) -> tuple[Mirror, str]:
    """A run's copy in a store, and its URL."""
    mirror = Mirror(folder, LocalStore(tmp_path / "store" / folder.name), 1, "the driver")
    mirror.take_over(resume=False)
    mirror.mark()
    mirror.upload()
    return mirror, f"file://{tmp_path}/store/{folder.name}"


def test_the_runs_of_a_store_are_listed_if_the_store_is_given(tmp_path: Path, capsys) -> None:
    for name in ("a", "b"):
        sent(tmp_path, write_run(tmp_path, Made(name, steps=3)))
    damaged = LocalStore(tmp_path / "store" / "c")
    with damaged.put(manifest_key(1)) as file:
        file.write(b"{")
    assert main(["status", f"file://{tmp_path}/store"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["a"].split()[:3] == ["a", "running", "2"] and "unreadable" in rows["c"] and "b" in rows
    assert main(["status", f"file://{tmp_path}/store/a"]) == 0 and capsys.readouterr().out.startswith("a: ")


def test_a_run_in_a_store_is_followed_while_its_driver_replaces_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, Made("a", steps=3))
    mirror, url = sent(tmp_path, folder)
    run = RunFolder(place_of(url))
    before = run.metrics()
    lines = (folder / "metrics.jsonl").read_text()
    for change in range(3):  # files that the last two manifests do not name are deleted
        lines = " " * change + lines.lstrip() + lines.splitlines(keepends=True)[-1]
        (folder / "metrics.jsonl").write_text(lines)
        mirror.upload()
    assert len(run.metrics()) == len(before) + 3, "a file that is gone is looked up in the newest manifest"
    (folder / "metrics.jsonl").write_text(lines + lines.splitlines(keepends=True)[-1])
    mirror.upload()
    assert len(run.metrics()) == len(before) + 3, "which is not read again at once"
    monkeypatch.setattr(reading, "FOLLOW_S", -1.0)
    assert len(run.metrics()) == len(before) + 4
    for change in (run.store.put, run.store.delete, lambda key: run.store.create(key, b"")):
        with pytest.raises(PermissionError, match="written by its driver only"):
            change("config.yaml")


def test_a_run_that_vanishes_with_its_store_is_no_run_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = sent(tmp_path, write_run(tmp_path, Made("a", steps=3)))
    place = place_of(url)
    monkeypatch.setattr(reading, "FOLLOW_S", -1.0)
    assert "step 2" in status(place)
    (tmp_path / "store").rename(tmp_path / "not mounted")
    with pytest.raises(UserError, match="a holds the run no more: is the store still there"):
        status(place)
    (tmp_path / "not mounted").rename(tmp_path / "store")
    assert "step 2" in status(place)


def test_a_manifest_that_is_still_the_newest_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FOLLOW_S", -1.0)
    store, read = Memory(), list[str]()
    mirror = Mirror(write_run(tmp_path, Made("a", steps=3)), store, 1, "the driver")
    mirror.take_over(resume=False)
    mirror.upload()
    get = store.get
    store.get = lambda key: read.append(key) or get(key)  # type: ignore[method-assign, func-returns-value]
    run = Followed(Snapshot(store, newest(store)))
    read.clear()
    assert "config.yaml" in run.list() and not read, "nothing is new"
    (mirror.run_dir / "late.json").write_text("{}")
    mirror.upload()
    assert "late.json" in run.list() and read == [manifest_key(mirror.manifest.number)]


@pytest.mark.slow
def test_watch_and_report_take_the_place_of_a_run_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path, Made("a", steps=5))
    (folder / "summary.json").write_text('{"schema": 1, "finished": true}')
    _, url = sent(tmp_path, folder)
    text = io.StringIO()
    watch(place_of(url), console=Console(file=text, width=200), sleep=lambda _: None)
    assert "finished" in text.getvalue() and len(text.getvalue().splitlines()) >= 5
    monkeypatch.chdir(tmp_path)
    assert main(["report", url]) == 0
    assert "report.html: " in capsys.readouterr().out and (tmp_path / "report.html").is_file()
    assert (tmp_path / "report-data/dynamics.csv").read_bytes(), "here, because a store is only read"


@pytest.mark.slow
def test_an_evaluation_fetches_its_checkpoint_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path, Made("a", steps=3))
    for step in (1, 2):
        for name in ("loop.json", "hf/model.safetensors", "sharded/0-0.safetensors"):
            path = folder / f"checkpoints/step-{step}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} of {step}")
    seen: dict[str, Any] = {}

    def evaluate(asked: Any, run_dir: Path, say: Any, fetch: Any) -> int:
        seen["before"] = sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file())
        fetch("checkpoints/step-2/hf")
        assert (asked.checkpoints, asked.overrides, asked.intervene) == (["best"], [], False)
        seen["name"], seen["after"] = run_dir.name, (run_dir / "checkpoints/step-2/hf/model.safetensors").read_text()
        seen["folder"] = run_dir
        return 0

    monkeypatch.setattr("squelch.cluster.loop.evaluation.evaluate", evaluate)
    _, url = sent(tmp_path, folder)
    assert main(["eval", url]) == 0
    assert seen["before"] == ["checkpoints/step-1/loop.json", "checkpoints/step-2/loop.json", "config.yaml"]
    assert seen["name"] == "a" and seen["after"] == "hf/model.safetensors of 2" and not seen["folder"].exists()


def test_a_closed_file_of_another_digest_is_not_shown(tmp_path: Path) -> None:
    span = Span(generation=1, sequence=1, size=2, sha256=hashlib.sha256(b"{}").hexdigest())
    manifest = Manifest(number=1, files={"summary.json": StoredFile(spans=(span,), modified_ns=1)})
    store = LocalStore(tmp_path)
    for data in (b"[]", b"{} ", b"{"):
        with store.put(span.name("summary.json")) as file:
            file.write(data)
        with pytest.raises(OSError, match=r"summary\.g1-1\.json is not the file that the manifest names"):
            Snapshot(store, manifest).get("summary.json")
    with store.put(span.name("summary.json")) as file:
        file.write(b"{}")
    assert Snapshot(store, manifest).get("summary.json").read() == b"{}"
    with pytest.raises(ValueError, match="less than"):
        Span(generation=1, sequence=1, size=10**30, sha256=span.sha256)


def test_a_copy_of_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    mirror, url = sent(tmp_path, write_run(tmp_path, Made("a", steps=3)))
    name = mirror.manifest.files["config.yaml"].spans[0].name("config.yaml")
    (tmp_path / "store/a" / name).write_text("name: another\n")
    with local_copy(url) as copy, pytest.raises(UserError, match=r"config.*is not the file that the manifest names"):
        copy.fetch(lambda key: key == "config.yaml")
    with pytest.raises(UserError, match="holds no run"), local_copy(f"file://{tmp_path}/store"):
        pass
