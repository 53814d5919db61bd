"""The name of a run that is given none: the next free one, or that of the run to resume."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.config import RunConfig, load
from squelch.cluster.loop import run
from squelch.cluster.loop.run_name import named
from squelch.cluster.runs.driver import Driver
from squelch.cluster.runs.in_store.mirror import Mirror
from squelch.kit.archive.store import LocalStore

DONE = {"finished": True, "stopped": None, "ledger": {"balanced": True}}
STOPPED = DONE | {"finished": False, "stopped": "stopped by SIGINT", "end_cause": "signal"}


def left(folder: Path, last: int | None, time: float = 0.0, summary: dict[str, object] | None = None) -> Path:
    """The folder of a run after its last recorded step; without one, of a start that failed before."""
    run.create_run(load("frozenlake", [f"runs_dir={folder.parent}", f"name={folder.name}"]), lambda _: None)
    steps = [] if last is None else range(last + 1)
    lines = (json.dumps({"step": step, "time": time + step - (last or 0)}) for step in steps)
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps({"schema": 1, "steps": last or 0} | summary))
    return folder


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`squelch train frozenlake WORDS`: the name of the run, and what was said of it."""
    begun: list[RunConfig] = []

    def trained(config: RunConfig, resume: bool, *_: object) -> int:
        run.find_run(config, resume)
        begun.append(config)
        return 0

    monkeypatch.setattr(run, "train", trained)

    def call(*words: str, recipe: str = "frozenlake", code: int = 0) -> tuple[str, str]:
        begun.clear()
        assert main(["train", recipe, f"runs_dir={tmp_path}", *words]) == code
        said = capsys.readouterr()
        return "".join(config.name for config in begun), said.out + said.err

    return call


def test_a_run_without_a_name_gets_the_next_free_one_and_says_so(train, tmp_path: Path) -> None:
    assert train() == ("frozenlake", "")
    left(tmp_path / "frozenlake", 3)
    name, said = train()
    assert name == "frozenlake-2"
    assert said.startswith(
        f"{tmp_path}/frozenlake holds a run, so this one is {tmp_path}/frozenlake-2; name=NAME gives"
    )
    left(tmp_path / "frozenlake-2", 1)
    left(tmp_path / "frozenlake-4", 1)
    left(tmp_path / "frozenlake-gspo", 1)
    assert train()[0] == "frozenlake-3"


def test_a_name_that_is_given_is_taken_or_refused(train, tmp_path: Path) -> None:
    assert train("name=mine") == ("mine", "")
    left(tmp_path / "mine", 3)
    name, said = train("name=mine", code=2)
    assert name == "" and "mine already holds a run. Continue it with --resume" in said
    assert train("name=mine", "--resume") == ("mine", "")


@pytest.mark.parametrize("last", [None, 0])
def test_a_start_that_failed_before_its_first_step_does_not_block_its_name(train, tmp_path: Path, last) -> None:
    failed = {"finished": False, "stopped": "failed: no home", "end_cause": "failed", "ledger": {"balanced": True}}
    left(tmp_path / "frozenlake", last, summary=failed)
    assert train() == ("frozenlake", "") and train("name=frozenlake") == ("frozenlake", "")


def test_a_run_that_a_process_drives_keeps_its_name_before_its_first_step(train, tmp_path: Path) -> None:
    driver = Driver(left(tmp_path / "frozenlake", None))
    driver.hold(lambda _: None)
    assert train()[0] == "frozenlake-2"
    driver.close()
    assert train()[0] == "frozenlake"


def test_starts_at_the_same_time_get_different_names_and_leave_nothing_behind(tmp_path: Path) -> None:
    config = load("frozenlake", [f"runs_dir={tmp_path / 'runs'}"])
    with named(config, False, print) as one, named(config, False, print) as two:
        assert (one.name, two.name) == ("frozenlake", "frozenlake-2")
    assert not (tmp_path / "runs").exists()
    with named(config, False, print) as again:
        assert again.name == "frozenlake"
    (tmp_path / "runs").mkdir()
    with named(config, False, print):
        pass
    assert (tmp_path / "runs").exists(), "it was there before"


def test_a_resume_without_a_name_takes_the_newest_unfinished_run_and_says_which(train, tmp_path: Path) -> None:
    left(tmp_path / "frozenlake", 3, time=100.0, summary=STOPPED)
    left(tmp_path / "frozenlake-2", 9, time=300.0)  # killed: it has no summary
    left(tmp_path / "frozenlake-3", 9, time=200.0, summary=STOPPED)
    left(tmp_path / "frozenlake-4", 9, time=400.0, summary=DONE)
    (tmp_path / "frozenlake-5").mkdir()
    driver = Driver(left(tmp_path / "frozenlake-6", 9, time=500.0))
    driver.hold(lambda _: None)
    name, said = train("--resume")
    assert name == "frozenlake-2"
    assert said.startswith(f"--resume goes on with {tmp_path}/frozenlake-2, the newest unfinished run of frozenlake")
    assert train("--resume", "name=frozenlake-3") == ("frozenlake-3", "")
    driver.close()
    assert train("--resume")[0] == "frozenlake-6"


def test_if_all_are_finished_a_resume_takes_the_newest(train, tmp_path: Path) -> None:
    left(tmp_path / "frozenlake", 9, time=100.0, summary=DONE)
    left(tmp_path / "frozenlake-2", 9, time=50.0, summary=DONE)
    name, said = train("--resume", "loop.steps=1000")
    assert name == "frozenlake" and "the newest run of frozenlake" in said


def test_a_resume_without_any_run_says_so(train) -> None:
    name, said = train("--resume", code=2)
    assert name == "" and "frozenlake holds no run (no config.yaml); start it without --resume first" in said


def test_a_runs_own_file_names_the_run_that_is_resumed(train, tmp_path: Path) -> None:
    folder = left(tmp_path / "frozenlake", 3, time=100.0, summary=STOPPED)
    left(tmp_path / "frozenlake-2", 9, time=300.0)
    assert train("--resume", recipe=str(folder / "config.yaml")) == ("frozenlake", "")
    assert train(recipe=os.fspath(folder / "config.yaml"))[0] == "frozenlake-3"


def test_the_runs_in_a_store_have_names_too(train, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    for number, folder in enumerate((left(tmp_path / "frozenlake", 3), left(tmp_path / "frozenlake-2", None))):
        mirror = Mirror(folder, LocalStore(tmp_path / "store" / folder.name), 1, f"driver {number}")
        mirror.take_over(False)
        mirror.upload()
        folder.rename(tmp_path / f"away-{number}")
    place = f"store={tmp_path / 'store'}"
    assert train(place)[0] == "frozenlake-2" and train()[0] == "frozenlake"
