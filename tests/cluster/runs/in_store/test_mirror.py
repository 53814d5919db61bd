"""Whatever was uploaded when, and whoever died meanwhile: a resume from the store sees one whole state of the run."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.archive.store import LocalStore, Store
from cluster.commands.arguments import place_of
from cluster.commands.existing_runs.status import status
from cluster.errors import UserError
from cluster.loop.persistence.state import checkpoints, prune
from cluster.runs.folder import RunFolder
from cluster.runs.in_store.manifest import (
    Manifest,
    Snapshot,
    StoredFile,
    Superseded,
    find_run,
    newest,
    numbers,
    object_name,
)
from cluster.runs.in_store.mirror import MARK, Mirror, Stopped
from tests.stores import Memory, tree


def read(store: Store, key: str) -> bytes:
    with store.get(key) as file:
        return file.read()


@dataclass
class Host:
    """A host's copy of a run that does nothing but write files, as the loop does: step by step."""

    folder: Path

    @property
    def clock(self) -> int:
        return len((self.folder / "metrics.jsonl").read_bytes().splitlines())

    def begin(self) -> None:
        (self.folder / "groups").mkdir(parents=True)
        (self.folder / "config.yaml").write_text("name: run\n")
        (self.folder / "metrics.jsonl").touch()

    def step(self) -> None:
        step = self.clock + 1
        (self.folder / "groups").mkdir(exist_ok=True)
        (self.folder / f"groups/step-{step:06d}.parquet").write_text(f"groups of {step}")
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "time": 1.0}) + "\n")

    def checkpoint(self) -> None:
        step = self.clock
        for path in (self.folder / "checkpoints").glob(f"step-{step}"):
            shutil.rmtree(path)
        partial = self.folder / f"checkpoints/.step-{step}.partial"
        (partial / "sharded").mkdir(parents=True)
        (partial / "sharded/0-0.safetensors").write_text(f"weights of {step}")
        (partial / "loop.json").write_text(json.dumps({"clock": step}))
        partial.rename(self.folder / f"checkpoints/step-{step}")
        prune(self.folder, 2, best_step=-1)

    def resume(self) -> None:
        """Cuts off what follows the newest checkpoint, as a resumed run does."""
        step = max((step for step, _ in checkpoints(self.folder)), default=0)
        lines = (self.folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:step]
        (self.folder / "metrics.jsonl").write_text("".join(lines))
        for part in (self.folder / "groups").glob("step-*"):
            if int(part.stem.partition("-")[2]) > step:
                part.unlink()


def assert_whole(store: Store) -> int:
    """Every file of the newest manifest is there, and together they are a run that can go on; its newest checkpoint."""
    manifest = newest(store)
    snapshot = Snapshot(store, manifest)
    content = {key: b"".join(snapshot.chunks(key)) for key in manifest.files}  # verifies each
    if not content:
        return 0
    lines = [json.loads(line)["step"] for line in content.get("metrics.jsonl", b"").splitlines()]
    assert lines == list(range(1, len(lines) + 1))
    saved = RunFolder(snapshot).checkpoints()
    for step, key in saved.items():
        assert json.loads(content[f"{key}/loop.json"]) == {"clock": step}
        assert content[f"{key}/sharded/0-0.safetensors"] == f"weights of {step}".encode()
        assert len(lines) >= step
        for earlier in range(1, step + 1):
            assert content[f"groups/step-{earlier:06d}.parquet"] == f"groups of {earlier}".encode()
    return max(saved, default=0)


OPERATIONS = st.one_of(
    st.sampled_from(["step", "checkpoint", "torn", "upload"]),
    st.tuples(st.sampled_from(["fails", "fails late"]), st.integers(0, 12)),
    st.sampled_from(["killed", "empty host"]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
def test_at_every_moment_the_store_holds_a_state_from_which_the_run_goes_on(tmp_path_factory, operations) -> None:
    root, store, hosts, safe = tmp_path_factory.mktemp("hosts"), Memory(), 1, 0
    host = Host(root / "1")
    mirror = Mirror(host.folder, store, 1, "driver 1")
    assert mirror.take_over(resume=False) is None
    host.begin()
    mirror.mark()
    for operation in operations:
        store.lives, store.late = 10**9, False
        if operation in ("step", "checkpoint"):
            getattr(host, operation)()
        elif operation == "torn":
            with (host.folder / "events.jsonl").open("a") as file:
                file.write('{"actor": "x"}\n{"act')
        elif operation == "upload":
            mirror.upload()
            safe = max(safe, max((step for step, _ in checkpoints(host.folder)), default=0))
        elif isinstance(operation, tuple):
            store.lives, store.late = operation[1], operation[0] == "fails late"
            try:
                mirror.upload()
            except OSError:
                store.lives = 10**9
        else:  # the driver is gone; another one goes on, here or on a host that has nothing
            hosts += 1
            folder = host.folder if operation == "killed" else root / str(hosts)
            mirror = Mirror(folder, store, hosts, f"driver {hosts}")
            copy = mirror.take_over(resume=True)
            host = Host(folder)
            if copy is not None:
                assert not folder.exists()
                mirror.adopt(copy)
            elif not folder.exists():
                host.begin()
            mirror.mark()
            host.resume()
        assert assert_whole(store) >= safe
    store.lives = 10**9
    for _ in range(2):
        host.step()
        mirror.upload()
    wanted = {key: data for key, data in tree(host.folder).items() if key != "events.jsonl"}
    manifest = newest(store)
    assert {key: read(Snapshot(store, manifest), key) for key in manifest.files if key != "events.jsonl"} == wanted
    kept = manifest.names() | {name for number in numbers(store) for name in _of(store, number)}
    assert set(store.list("files/")) <= kept and len(numbers(store)) <= 2, "what is obsolete is deleted"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["step", "checkpoint"])), max_size=8))
def test_what_the_loop_writes_during_an_upload_leaves_the_state_whole(tmp_path_factory, meanwhile) -> None:
    host, mirror = started(tmp_path_factory.mktemp("host") / "run", store := Memory())
    for _ in range(2):
        host.step()
        host.checkpoint()
    put, sent = store.put, 0

    def busy(key: str):
        nonlocal sent
        for at, operation in meanwhile:
            if at == sent:
                getattr(host, operation)()
        sent += 1
        return put(key)

    store.put = busy
    mirror.upload()
    assert assert_whole(store) >= 2
    store.put = put
    mirror.upload()
    assert assert_whole(store) == max(step for step, _ in checkpoints(host.folder))


def _of(store: Memory, number: int) -> set[str]:
    return Manifest.model_validate_json(store.files[f"manifests/{number:09d}.json"]).names()


def started(folder: Path, store: Store, generation: int = 1) -> tuple[Host, Mirror]:
    host, mirror = Host(folder), Mirror(folder, store, generation, f"driver {generation}")
    mirror.take_over(resume=False)
    host.begin()
    mirror.mark()
    return host, mirror


def test_a_copy_equals_the_folder_and_what_it_holds_is_not_sent_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    host, mirror = started(tmp_path / "a", store)
    host.step()
    host.checkpoint()
    (host.folder / "log").mkdir()
    (host.folder / "log/driver.log").write_text("not sent")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("not sent")
    (host.folder / "link").symlink_to(tmp_path / "elsewhere")
    (host.folder / "secret").symlink_to(tmp_path / "elsewhere/secret")
    assert mirror.upload()[0] == 5 and mirror.upload() == (0, 0)
    other = Mirror(tmp_path / "b", store, 2, "driver 2")
    copy = other.take_over(resume=True)
    assert copy is not None
    other.adopt(copy)
    sent = {key: data for key, data in tree(host.folder).items() if data != b"not sent"}
    assert tree(tmp_path / "b") == sent and (tmp_path / "b" / MARK).exists()
    times = [(folder / "metrics.jsonl").stat().st_mtime_ns for folder in (host.folder, tmp_path / "b")]
    assert times[0] == times[1]
    assert other.upload() == (0, 0) and other.manifest.number == 3
    again = Mirror(tmp_path / "b", store, 3, "driver 3")
    assert again.take_over(resume=True) is None and again.upload() == (0, 0)
    assert not list(tmp_path.glob(".*"))


def test_a_driver_that_was_superseded_can_change_nothing(tmp_path: Path) -> None:
    store = Memory()
    host, old = started(tmp_path / "a", store)
    host.step()
    old.upload()
    new = Mirror(tmp_path / "b", store, 2, "driver 2 on another host")
    copy = new.take_over(resume=True)
    assert copy is not None
    host.step()
    before = newest(store)
    with pytest.raises(Superseded, match="driver 2 on another host goes on with this run"):
        old.upload()
    assert newest(store) == before
    assert_whole(store)
    new.adopt(copy)
    assert (tmp_path / "b/groups/step-000001.parquet").exists()


def test_a_manifest_whose_answer_was_lost_is_the_drivers_own(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    store.lives, store.late = 3, True
    with pytest.raises(OSError, match="down"):
        mirror.upload()
    assert newest(store).number == 2
    store.lives = 10**9
    host.step()
    mirror.upload()
    assert newest(store).number == 3 and assert_whole(store) == 0


def test_a_driver_that_takes_over_while_the_old_one_writes_gets_the_later_state(tmp_path: Path) -> None:
    host, old = started(tmp_path / "a", store := Memory())
    host.step()
    old.upload()
    create, raced = store.create, list[str]()

    def race(key: str, data: bytes) -> bool:
        if not raced:
            raced.append(key)
            host.step()
            store.create = create
            old.upload()
        return create(key, data)

    store.create = race
    new = Mirror(tmp_path / "b", store, 2, "driver 2")
    copy = new.take_over(resume=True)
    assert copy is not None and Host(copy).clock == 2


def test_a_folder_and_a_store_that_have_gone_different_ways_are_not_mixed(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    mirror.upload()
    new = Mirror(tmp_path / "b", store, 2, "driver 2 on b")
    new.adopt(new.take_over(resume=True) or Path())
    with pytest.raises(UserError, match=r"driver 2 on b has gone on with the run elsewhere\). Move .*a away"):
        Mirror(host.folder, store, 3, "driver 3").take_over(resume=True)
    with pytest.raises(UserError, match=r"already holds a run\. Continue it with --resume, or choose another name"):
        Mirror(tmp_path / "c", store, 3, "driver 3").take_over(resume=False)


def test_a_copy_that_ends_half_way_leaves_no_run_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    mirror.upload()
    name = newest(store).files["groups/step-000001.parquet"].name
    good, store.files[name] = store.files[name], b"other"
    with pytest.raises(UserError, match=r"step-000001\.g1-\d+\.parquet is not the file .*damaged"):
        Mirror(tmp_path / "b", store, 2, "driver 2").take_over(resume=True)
    assert not (tmp_path / "b").exists()
    store.files[name] = good
    other = Mirror(tmp_path / "b", store, 3, "driver 3")
    copy = other.take_over(resume=True)
    assert copy is not None
    (tmp_path / "b").mkdir()
    (tmp_path / "b/other").touch()
    with pytest.raises(UserError, match="b is in the way"):
        other.adopt(copy)


def test_an_upload_that_is_stopped_or_fails_goes_on_where_it_was(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    host.step()
    store.lives = 2
    with pytest.raises(OSError, match="down"):
        mirror.upload()
    store.lives = 10**9
    changes = store.changes
    mirror.upload()
    assert store.changes - changes == 3, "two files that were left, and the manifest"
    with (host.folder / "events.jsonl").open("a") as file:
        file.write('{"actor": "store"}\n')
    assert mirror.upload() == (0, 0) and "events.jsonl" in newest(store).files
    host.step()
    mirror.stop = lambda: True
    with pytest.raises(Stopped):
        mirror.upload()
    assert_whole(store)


@pytest.mark.parametrize("key", ["../a", "/a", "a/../b", ".hidden", "a/.store.json", "a//b", ""])
def test_a_manifest_of_a_stranger_names_no_file_outside_of_the_run(key: str) -> None:
    file = StoredFile(name="files/a", size=0, sha256="0" * 64, modified_ns=0)
    store = Memory(
        {
            "manifests/000000001.json": json.dumps(
                Manifest(number=1).model_dump() | {"files": {key: file.model_dump()}}
            ).encode()
        }
    )
    with pytest.raises(UserError, match=r"000000001\.json is no manifest"):
        newest(store)
    for name in ("lease/x", "files/../x", "/files/x", "files"):
        with pytest.raises(ValueError, match="no file of a run's store"):
            StoredFile(name=name, size=0, sha256="0" * 64, modified_ns=0)


def test_a_place_that_holds_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run: give the place of a run in its store"):
        find_run(f"file://{tmp_path}")
    with pytest.raises(UserError, match="ftp:// is no store"):
        find_run("ftp://host/run")
    with pytest.raises(UserError, match="schema 9"):
        newest(Memory({"manifests/000000001.json": b'{"schema_version": 9}'}))


def test_the_status_of_a_run_is_read_from_its_store(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", LocalStore(tmp_path / "store/run"))
    host.step()
    mirror.upload()
    assert status(place_of(f"file://{tmp_path}/store/run")).startswith("run")
    with pytest.raises(UserError, match="holds no run"):
        place_of(f"file://{tmp_path}/store")


def test_an_object_keeps_the_suffix_of_its_file() -> None:
    names: Iterable[str] = (object_name("groups/step-000012.parquet", 3, 17), object_name("a/README", 1, 2))
    assert list(names) == ["files/groups/step-000012.g3-17.parquet", "files/a/README.g1-2"]
