"""Whatever was uploaded when, and whoever died meanwhile: a resume from the store sees one whole state of the run."""

import io
import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.commands.arguments import place_of
from squelch.cluster.commands.existing_runs.status import status
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints, prune
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.in_store import manifest as manifests
from squelch.cluster.runs.in_store import mirror as mirroring
from squelch.cluster.runs.in_store.manifest import (
    SPAN_BYTES,
    Manifest,
    Snapshot,
    Span,
    Superseded,
    find_run,
    newest,
    numbers,
)
from squelch.cluster.runs.in_store.mirror import MARK, Mirror, Stopped
from squelch.kit.archive.parts import by_step, merged_key, parts_in
from squelch.kit.archive.store import LocalStore, Store
from squelch.kit.base.errors import UserError
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
        (self.folder / f"groups/step-{step:06d}.parquet").write_text(f"groups of {step}\n")
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
        prune(self.folder, 2, needed=())

    def resume(self) -> None:
        """Cuts off what follows the newest checkpoint, as a resumed run does."""
        step = max((step for step, _ in checkpoints(self.folder)), default=0)
        lines = (self.folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:step]
        (self.folder / "metrics.jsonl").write_text("".join(lines))
        for part in parts_in(LocalStore(self.folder), "groups"):
            if part.steps[-1] > step:
                self._merge(part.steps[: bisect_right(part.steps, step)])
                (self.folder / part.key).unlink()

    def merge(self) -> None:
        """Merges all parts but the newest, as the archive does."""
        found = parts_in(LocalStore(self.folder), "groups")
        self._merge(range(1, self.clock))
        for part in found:
            if part.steps[-1] < self.clock and part.key != merged_key("groups", range(1, self.clock)):
                (self.folder / part.key).unlink()

    def _merge(self, steps: Sequence[int]) -> None:
        if steps:
            text = "".join(f"groups of {step}\n" for step in steps)
            (self.folder / merged_key("groups", steps)).write_text(text)


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
        parts = by_step(parts_in(snapshot, "groups"))
        for earlier in range(1, step + 1):
            assert f"groups of {earlier}".encode() in content[parts[earlier].key].splitlines()
    return max(saved, default=0)


OPERATIONS = st.one_of(
    st.sampled_from(["step", "checkpoint", "merge", "torn", "upload"]),
    st.tuples(st.sampled_from(["fails", "fails late"]), st.integers(0, 12)),
    st.sampled_from(["killed", "empty host"]),
)


@pytest.fixture
def short_spans() -> Iterator[int]:
    """Spans of a few lines, so that a small file has many; their bytes."""
    with patch.object(manifests, "SPAN_BYTES", 64), patch.object(mirroring, "SPAN_BYTES", 64):
        yield 64


@pytest.mark.usefixtures("short_spans")
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
        if operation in ("step", "checkpoint", "merge"):
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
    assert {*store.list("files/")} <= kept and len(numbers(store)) <= 2, "what is obsolete is deleted"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["step", "checkpoint", "merge"])), max_size=8))
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


def test_parts_that_are_merged_while_the_folder_is_listed_are_not_missing_from_the_copy(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "run", store := Memory())
    for _ in range(4):
        host.step()
    host.checkpoint()
    keys = mirror._keys

    def torn() -> Iterator[str]:
        """A listing that was read piece by piece: of the merged file the piece before, of the parts the one after."""
        listed = [key for key in keys() if "groups/" not in key]
        host.merge()
        mirror._keys = keys
        return iter([*listed, "groups/step-000004.parquet"])

    mirror._keys = torn
    mirror.upload()
    assert assert_whole(store) == 4


def _of(store: Memory, number: int) -> set[str]:
    one = Memory({key: data for key, data in store.files.items() if not key.startswith("manifests/")})
    one.files[f"manifests/{number:09d}.json"] = store.files[f"manifests/{number:09d}.json"]
    return newest(one).names()


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


def test_links_and_pipes_among_checkpoints_are_not_sent_and_hold_up_nothing(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    host.checkpoint()
    saved, disk = host.folder / "checkpoints", tmp_path / "larger disk"
    saved.rename(disk)
    saved.symlink_to(disk)
    (tmp_path / "secret").write_text("not sent")
    (saved / "step-1/secret").symlink_to(tmp_path / "secret")
    (saved / "step-1/nothing").symlink_to(tmp_path / "nothing")
    (saved / "best").symlink_to(saved / "step-1")
    os.mkfifo(saved / "step-1/pipe")
    mirror.upload()
    sent = [key for key in newest(store).files if key.startswith("checkpoints/")]
    assert sorted(sent) == ["checkpoints/step-1/loop.json", "checkpoints/step-1/sharded/0-0.safetensors"]


def test_a_store_that_deletes_slowly_is_a_store_that_answers(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    store.files |= {f"files/left.g0-{number}.bin": b"" for number in range(50)}
    reported = list[int]()
    mirror.moved = lambda: reported.append(len(store.files))
    mirror.upload()
    assert len(reported) >= 50 and not any("left" in key for key in store.files)


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


@pytest.mark.parametrize("copied", ["at rest", "while the run goes on"])
def test_a_copy_of_a_folder_that_is_behind_the_store_does_not_replace_what_is_there(tmp_path: Path, copied) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    host.checkpoint()
    mirror.upload()
    shutil.copytree(host.folder, tmp_path / "b")
    if copied == "at rest":  # else the driver that began before the copy was made goes on
        mirror = Mirror(host.folder, store, 2, "driver 2 on a")
        assert mirror.take_over(resume=True) is None
    host.step()
    host.checkpoint()
    mirror.upload()
    with pytest.raises(UserError, match=r"driver \d.* has gone on with the run elsewhere\). Move .*b away"):
        Mirror(tmp_path / "b", store, 3, "driver 3 on b").take_over(resume=True)
    again = Mirror(host.folder, store, 3, "driver 3 on a")
    assert again.take_over(resume=True) is None and again.upload() == (0, 0)
    assert assert_whole(store) == 2


def test_a_folder_is_its_own_again_whenever_its_driver_was_killed(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    for generation, late in enumerate([False, True] * 4, start=2):
        host.step()
        mirror.upload()
        mirror = Mirror(host.folder, store, generation, f"driver {generation}")
        store.lives, store.late = 0, late  # the manifest of the take-over is not written, or its answer is lost
        with pytest.raises(OSError, match="down"):
            mirror.take_over(resume=True)
        store.lives = 10**9
        assert mirror.take_over(resume=True) is None


def test_a_damaged_mark_of_a_folder_is_named_and_not_taken_for_a_bug(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    for damaged, says in (("{", "not JSON"), ('{"folder": "f"}', "is damaged")):
        (host.folder / MARK).write_text(damaged)
        for call in (mirror.upload, lambda: Mirror(host.folder, store, 2, "driver 2").take_over(resume=True)):
            with pytest.raises(UserError, match=rf"\.store\.json.* {says}"):
                call()


def test_a_copy_that_ends_half_way_leaves_no_run_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    mirror.upload()
    name = object_of(newest(store), "groups/step-000001.parquet")
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


def object_of(manifest: Manifest, key: str, number: int = 0) -> str:
    """The key in the store of a span of a file."""
    return manifest.files[key].spans[number].name(key)


def of_a_stranger(content: dict[str, Any]) -> Memory:
    found = {"schema_version": 3, "number": 1, **content}
    return Memory({"manifests/000000001.json": json.dumps(found).encode()})


SPAN = {"generation": 1, "sequence": 1, "size": 2, "sha256": "0" * 64}


@pytest.mark.parametrize("key", ["../a", "/a", "a/../b", ".hidden", "a/.store.json", "a//b", ""])
def test_a_manifest_of_a_stranger_names_no_file_outside_of_the_run(key: str) -> None:
    with pytest.raises(UserError, match=r"000000001\.json is no manifest"):
        newest(of_a_stranger({"files": {key: {"spans": [SPAN], "modified_ns": 0}}}))


def test_spans_of_a_stranger_follow_each_other_and_are_verified() -> None:
    full, key = SPAN | {"size": SPAN_BYTES}, "a.jsonl"
    for spans in ([SPAN, SPAN], [full, SPAN | {"size": SPAN_BYTES + 1}], [SPAN | {"size": 0}], [SPAN | {"size": -1}]):
        with pytest.raises(UserError, match=r"000000001\.json is no manifest"):
            newest(of_a_stranger({"files": {key: {"spans": spans, "modified_ns": 0}}}))
    store = of_a_stranger({"files": {key: {"spans": [full, SPAN], "modified_ns": 0}}})
    snapshot = Snapshot(store, newest(store))
    store.files |= {name: b"xx" for name in snapshot.manifest.names()}
    with pytest.raises(UserError, match=r"a\.g1-1\.jsonl is not the file that the manifest names: it is damaged"):
        list(snapshot.chunks(key))
    with pytest.raises(OSError, match="is damaged"), snapshot.get(key) as file:
        file.read()


@dataclass
class Counting(Memory):
    """A store that counts the bytes it takes."""

    num_bytes: int = 0

    def _change(self, key: str, data: bytes | None) -> None:
        self.num_bytes += len(data or b"")
        super()._change(key, data)


def append(path: Path, line: dict[str, Any], size: int) -> None:
    """Appends a line of about so many bytes."""
    with path.open("a") as file:
        file.write(json.dumps({**line, "filler": "x" * size}) + "\n")


def test_an_upload_sends_what_is_new_and_at_most_a_span_again_of_each_file_that_grows(
    tmp_path: Path, short_spans: int
) -> None:
    host, mirror = started(tmp_path / "a", store := Counting())
    mirror.upload()
    for step in range(1, 101):
        before = store.num_bytes
        if step % 3 == 0:
            (host.folder / f"groups/step-{step:06d}.parquet").write_text("groups")
        append(host.folder / "metrics.jsonl", {"step": step}, 7)
        append(host.folder / "events.jsonl", {"actor": "learner"}, 7)
        mirror.upload()
        new, listed = 100, len(mirror.manifest.model_dump_json())
        assert store.num_bytes - before <= new + 2 * short_spans + listed
    manifest = newest(store)
    assert {key: read(Snapshot(store, manifest), key) for key in manifest.files} == tree(host.folder)
    sent = sorted(span.sequence for span in manifest.files["metrics.jsonl"].spans)
    assert len(sent) > 40 and len(set(sent)) == len(sent), "a full span stays as it was sent"
    assert len(store.list("files/")) <= len(manifest.names()) + 3


@pytest.mark.parametrize("name", ["tensorboard/events.out.tfevents.17.host.4.0", "wandb/run-1/run-1.wandb"])
def test_full_spans_of_files_of_loggers_are_sent_once(tmp_path: Path, name: str, short_spans: int) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    path = host.folder / name
    path.parent.mkdir(parents=True)
    for step in range(50):
        with path.open("ab") as file:
            file.write(bytes([step]) * 20)
        before = mirror.manifest.files[name].spans if step else ()
        mirror.upload()
        full = [span for span in before if span.size == short_spans]
        assert [*mirror.manifest.files[name].spans[: len(full)]] == full
    assert read(Snapshot(store, newest(store)), name) == path.read_bytes()


def test_a_file_of_spans_is_read_from_any_position(tmp_path: Path, short_spans: int) -> None:
    host, mirror = started(tmp_path / "a", store := LocalStore(tmp_path / "store"))
    for _ in range(9):
        host.step()
    mirror.upload()
    whole, snapshot = (host.folder / "metrics.jsonl").read_bytes(), Snapshot(store, newest(store))
    assert len(snapshot.manifest.files["metrics.jsonl"].spans) == -(-len(whole) // short_spans) > 3
    for start in range(len(whole) + 2):
        with snapshot.get("metrics.jsonl") as file:
            assert file.seek(start) == start and file.read(40) == whole[start : start + 40]
            assert file.seek(-7, io.SEEK_END) == len(whole) - 7 and file.read() == whole[-7:]
    with snapshot.get("metrics.jsonl") as file:
        assert file.readlines() == whole.splitlines(keepends=True)
    store.delete(object_of(snapshot.manifest, "metrics.jsonl", -1))
    with pytest.raises(FileNotFoundError):
        snapshot.get("metrics.jsonl")


def test_a_file_of_lines_is_sent_from_the_first_span_that_differs(tmp_path: Path, short_spans: int) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    path = host.folder / "metrics.jsonl"
    lines = [f"{number:0{short_spans - 1}d}\n" for number in range(5)]  # a span each

    def sent(content: list[str], by: Mirror = mirror) -> int:
        """Uploads that content; the number of spans that stayed."""
        known = set(by.manifest.files["metrics.jsonl"].spans)
        path.write_text("".join(content))
        by.upload()
        assert read(Snapshot(store, newest(store)), "metrics.jsonl").decode() == "".join(content)
        return len(known & set(by.manifest.files["metrics.jsonl"].spans))

    mirror.upload()
    assert sent(lines) == 0 and len(mirror.manifest.files["metrics.jsonl"].spans) == 5
    changed = lines[3].replace("3", "7")
    assert sent(lines[:3]) == 3, "a resumed run has cut lines off"
    assert sent([*lines[:3], changed, *lines[4:]]) == 3, "and writes others"
    other = path.with_name("other")
    other.write_text("".join([lines[0].replace("0\n", "8\n"), *lines[1:], "9\n"]))
    other.replace(path)
    assert sent(path.read_text().splitlines(keepends=True)) == 0, "a file that was replaced is compared whole"
    assert sent([]) == 0 and sent(["1\n"]) == 0 and sent(["1\n", "2\n"]) == 0, "a span that is not full is sent anew"
    assert sent(lines[:2]) == 0
    again = Mirror(host.folder, store, 2, "driver 2")
    again.take_over(resume=True)
    assert sent(lines[:3], again) == 2, "also by the next driver"


def test_an_upload_that_fails_between_two_spans_goes_on_after_the_first(tmp_path: Path, short_spans: int) -> None:
    """A store that is full takes the first spans of a file: they must not count as progress at every attempt."""
    host, mirror = started(tmp_path / "a", store := Memory())
    mirror.upload()
    (host.folder / "run.wandb").write_bytes(b"x" * 5 * short_spans)
    kept = list[int]()
    mirror.kept = lambda: kept.append(store.changes)
    for lives in (2, 0, 2):
        store.lives = lives
        with pytest.raises(OSError, match="down"):
            mirror.upload()
    assert len(kept) == 4
    store.lives = 10**9
    mirror.upload()
    assert len(kept) == 5 and read(Snapshot(store, newest(store)), "run.wandb") == b"x" * 5 * short_spans


def test_events_of_uploads_alone_cause_no_upload(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", store := Memory())
    host.step()
    path = host.folder / "events.jsonl"
    append(path, {"actor": "learner"}, 0)
    mirror.upload()
    changes = store.changes
    for _ in range(5):
        append(path, {"actor": "store", "name": "upload"}, 0)
        assert mirror.upload() == (0, 0)
    assert store.changes == changes
    append(path, {"actor": "learner"}, 0)
    mirror.upload()
    assert read(Snapshot(store, newest(store)), "events.jsonl") == path.read_bytes()


def test_a_manifest_that_is_replaced_while_it_is_looked_for_is_looked_for_again(tmp_path: Path) -> None:
    _, mirror = started(tmp_path / "a", store := LocalStore(tmp_path / "store"))
    mirror.upload()
    mirror.run_dir.joinpath("late.json").touch()
    mirror.upload()
    assert numbers(store) == [2, 3]
    with patch("squelch.cluster.runs.in_store.manifest.numbers", side_effect=[[1], [3], [3]]):
        assert newest(store).number == 3


def test_a_place_that_holds_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run: give the place of a run in its store"):
        find_run(f"file://{tmp_path}")
    with pytest.raises(UserError, match="ftp:// is no store"):
        find_run("ftp://host/run")


@pytest.mark.parametrize(("schema", "says"), [(1, "03d7dc21"), (2, "03d7dc21"), (9, "update it")])
def test_a_store_of_another_version_is_refused_with_what_reads_it(schema: int, says: str) -> None:
    with pytest.raises(UserError, match=rf"000000001\.json has schema {schema}.*{says}"):
        newest(of_a_stranger({"schema_version": schema}))


def test_the_status_of_a_run_is_read_from_its_store(tmp_path: Path) -> None:
    host, mirror = started(tmp_path / "a", LocalStore(tmp_path / "store/run"))
    host.step()
    mirror.upload()
    assert status(place_of(f"file://{tmp_path}/store/run")).startswith("run")
    with pytest.raises(UserError, match="holds no run"):
        place_of(f"file://{tmp_path}/store")


def test_an_object_keeps_the_suffix_of_its_file() -> None:
    span = Span(generation=3, sequence=17, size=1, sha256="0" * 64)
    names = [span.name(key) for key in ("groups/step-000012.parquet", "a/README")]
    assert names == ["files/groups/step-000012.g3-17.parquet", "files/a/README.g3-17"]
