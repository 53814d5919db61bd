"""A run's folder is read as it is, live or finished; bad files and newer schemas are named; no heavy package loads."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from squelch.cluster.config import dump, load
from squelch.cluster.runs.driver import Driver
from squelch.cluster.runs.driver import name as own_name
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.archive.group_index import index_rows
from squelch.kit.archive.rows import to_table
from squelch.kit.archive.store import LocalStore
from squelch.kit.archive.version import VERSION_KEY
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from tests.kit.archive.small_groups import archive_step, small_group


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def some_run(folder: Path, steps: int = 3) -> Archive:
    write(folder / "config.yaml", dump(load("frozenlake", [f"runs_dir={folder.parent}", f"name={folder.name}"])))
    archive = Archive(folder)
    for step in range(1, steps + 1):
        archive_step(archive, step, 2)
        archive.metrics(step, {"success": 0.5})
        archive.event("learner", "train", 10.0 * step, 10.0 * step + 1)
    return archive


def test_a_live_run_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    archive = some_run(tmp_path / "it")
    run = RunFolder(tmp_path / "it")
    with open(tmp_path / "it" / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "succ')
    assert run.name == "it" and run.config().name == "it" and run.config(["seed=7"]).seed == 7
    assert [line["step"] for line in run.metrics()] == [1, 2, 3]
    assert run.steps() == [1, 2, 3] and len(run.groups([2], ["group_id"])) == 6
    assert run.index().equals(index_rows(run.groups()))
    assert len(run.events()) == 3 and run.last_event()["start"] == 30.0
    assert run.summary() is None and run.checkpoints() == {} and run.decompositions() == {}
    stamp = run.metrics_stamp()
    archive.metrics(4, {})
    assert run.metrics_stamp() != stamp


def test_a_finished_run_has_its_summary_wherever_and_in_whichever_order_its_files_are_copied(tmp_path: Path) -> None:
    some_run(tmp_path)
    run = RunFolder(tmp_path)
    write(tmp_path / "summary.json", json.dumps({"schema": 1, "finished": True}))
    os.utime(tmp_path / "summary.json", (1, 1))
    assert run.current_summary() == run.summary() == {"schema": 1, "finished": True}


def test_an_earlier_summary_is_not_that_of_a_run_that_another_process_drives(tmp_path: Path) -> None:
    some_run(tmp_path)
    run, driver = RunFolder(tmp_path), Driver(tmp_path)
    write(tmp_path / "summary.json", json.dumps({"schema": 1, "finished": True, "driver": "process 0 on there"}))
    driver.hold(lambda _: None)
    assert run.current_summary() is None and run.summary() is not None
    write(tmp_path / "summary.json", json.dumps({"schema": 1, "finished": True, "driver": own_name()}))
    assert run.current_summary() is not None
    driver.close()


def test_only_whole_checkpoints_and_decompositions_are_found(tmp_path: Path) -> None:
    for name in ("step-10", "step-9", ".step-11.partial", "step-x"):
        write(tmp_path / "checkpoints" / name / "loop.json", "{}")
    write(tmp_path / "checkpoints" / "step-12" / "hf" / "config.json", "{}")
    write(tmp_path / "gradients" / "step-000004.json", '{"step": 4}')
    write(tmp_path / "gradients" / ".step-000005.json.partial", "{")
    run = RunFolder(tmp_path)
    assert run.checkpoints() == {9: "checkpoints/step-9", 10: "checkpoints/step-10"}
    assert run.decompositions() == {4: {"step": 4}}


@pytest.mark.parametrize("name", ["summary.json", "gradients/step-000001.json"])
@pytest.mark.parametrize(
    ("text", "says"), [("{", "not JSON"), ("[]", "one JSON object"), ('{"schema": 3}', "schema 3.*newer")]
)
def test_a_damaged_or_newer_json_file_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    write(tmp_path / name, text)
    run = RunFolder(tmp_path)
    with pytest.raises(UserError, match=rf"{name}.*{says}"):
        run.summary() if name == "summary.json" else run.decompositions()


def test_groups_of_a_newer_schema_are_refused_by_name(tmp_path: Path) -> None:
    some_run(tmp_path, 1)
    table = to_table(small_group()).replace_schema_metadata({VERSION_KEY: "9"})
    pq.write_table(table, tmp_path / "groups" / "step-000001.parquet")
    with pytest.raises(UserError, match=r"step-000001\.parquet has schema 9.*reads schema 1 and 2"):
        RunFolder(tmp_path).groups()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "nowhere")
    with pytest.raises(UserError, match="does not exist; give a run's folder"):
        run.require()
    with pytest.raises(UserError, match=r"config\.yaml does not exist"):
        run.config()
    (tmp_path / "config.yaml").write_text("# nothing\n")
    for read in (RunFolder(tmp_path).config, RunFolder(tmp_path).settings):
        with pytest.raises(UserError, match=r"config\.yaml is empty, though a run writes every setting"):
            read()  # it passed for a run with the defaults, which `eval` started
    with pytest.raises(UserError, match="holds no groups"):
        run.steps()
    assert run.metrics() == [] and run.events() == [] and run.last_event() is None
    write(tmp_path / "config.yaml", "- a list")
    with pytest.raises(UserError, match="mapping of settings"):
        RunFolder(tmp_path).config()


class Elsewhere:
    """A store that is no local folder: only the protocol's methods."""

    def __init__(self, folder: Path) -> None:
        local = LocalStore(folder)
        self.put, self.get, self.list, self.delete, self.stat = (
            local.put,
            local.get,
            local.list,
            local.delete,
            local.stat,
        )

    def where(self, key: str = "") -> str:
        return f"bucket/it/{key}".rstrip("/")


def test_a_run_in_another_store_is_read_and_written_through_the_protocol_alone(tmp_path: Path) -> None:
    some_run(tmp_path / "it")
    run, local = RunFolder(Elsewhere(tmp_path / "it")), RunFolder(tmp_path / "it")
    assert run.name == "it" and run.require().config() == local.config()
    assert run.metrics() == local.metrics()
    assert run.groups().equals(local.groups()) and run.index().equals(local.index())
    archive = Archive(tmp_path / "lines", Elsewhere(tmp_path / "far"))
    archive_step(archive, 1, 2)
    archive.metrics(1, {"success": 0.5})
    archive.finish()
    assert LocalStore(tmp_path / "far").list() == [
        "groups/index-000000.parquet",
        "groups/step-000001.parquet",
        "metrics.parquet",
    ]
    archive = Archive(tmp_path / "lines", Elsewhere(tmp_path / "far"))
    archive.truncate_after(0)
    assert LocalStore(tmp_path / "far").list("groups/step") == [] and len(RunFolder(tmp_path / "far").index()) == 0
