"""The end of a run by an error, or without Ray: its words, its summary and its exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from squelch.cluster.config import dump, load
from squelch.cluster.control.actor_errors import Failed
from squelch.cluster.control.ledger import Ledger
from squelch.cluster.loop import exit_code
from squelch.cluster.loop.exit_code import RunEnd
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.status import read_status
from squelch.cluster.runs.summary import Outcome
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError

STUCK = """
import asyncio, atexit, sys, threading, time
from types import SimpleNamespace
from tests.cluster.loop.test_exit_code import ending

async def main(blocked):
    end = ending(sys.argv[1], print)
    end.loop = asyncio.get_running_loop()
    threading.Timer(0.2, end.without_ray, ["Ray's head: its gcs at h:1 has ended (refused)"]).start()
    time.sleep(600) if blocked else await asyncio.sleep(600)

atexit.register(time.sleep, 600)  # as Ray's own end, which waits for gcs
asyncio.run(main(sys.argv[2] == "blocked"))
"""


def ending(folder: str | Path, say, coordinator: bool = True) -> RunEnd:
    """The end of a run that made 3 of its steps."""
    config = load("frozenlake", [f"runs_dir={folder}", "name=it", "loop.steps=3"])
    end = RunEnd(config, say, time.time(), lambda code: say("uploaded") or code)
    if coordinator:
        archive = Archive(config.run_dir)
        archive.metrics(3, {"seconds/step": 2.0, "total_steps": 3.0})
        (config.run_dir / "config.yaml").write_text(dump(config))
        outcome = Outcome(
            ending=None, steps=3, optimizer_steps=3, policy_version=3, training_seconds=6.0, totals={}, last={},
            carried={}, first_validation=None, best=(0.0, 0), ledger=Ledger(),
        )  # fmt: skip
        end.coordinator = SimpleNamespace(outcome=lambda: outcome)
    return end


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (EndCause.EARLY_STOP, 0),
        (EndCause.NO_SIGNAL, 1),
        (EndCause.PAUSED, 3),
        (EndCause.STORE, 1),
        (EndCause.NOTHING_COUNTS, 1),
    ],
)
def test_the_exit_code_says_whether_a_rule_ended_the_run_or_paused_it(tmp_path, cause: EndCause, code: int) -> None:
    end, said = ending(tmp_path, lambda _: None), list[str]()
    end.say = said.append
    assert end.coordinator is not None
    end.coordinator.ending = Ending(cause, "as it says")
    assert end.done(SimpleNamespace(finish=lambda: None), []) == code
    what = "what failed" if cause is EndCause.NOTHING_COUNTS else "what it learned"
    assert "as it says" in said[-2] and said[-1].startswith(f"to see {what}: squelch inspect")


def test_a_run_that_fails_leaves_a_summary_with_the_cause_and_is_not_finished(tmp_path) -> None:
    said: list[str] = []
    assert ending(tmp_path, said.append).failed(Failed("far trace", RuntimeError("no room for one rank"))) == 1
    summary = json.loads((tmp_path / "it" / "summary.json").read_text())
    assert (summary["end_cause"], summary["stopped"]) == ("failed", "failed: no room for one rank")
    assert summary["steps"] == 3 and not summary["finished"]
    status = read_status(RunFolder(tmp_path / "it"), time.time())
    assert (status.state, status.stopped) == ("stopped", "failed: no room for one rank")


@pytest.mark.parametrize("has_begun", [True, False])
def test_without_a_checkpoint_nobody_is_sent_to_resume(tmp_path, has_begun) -> None:
    said: list[str] = []
    ending(tmp_path, said.append, coordinator=has_begun).failed(RuntimeError("no home"))
    assert "--resume" not in said[-1] and "start it again" in said[-1]
    assert (f"remove {tmp_path / 'it'}" in said[-1]) == has_begun


@pytest.mark.parametrize("loop", ["blocked", "free"])
def test_without_ray_the_process_ends_at_once_with_cause_and_summary(tmp_path, loop) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", STUCK, str(tmp_path), loop]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=180, env={**os.environ})
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("failed: Ray's head: its gcs at h:1 has ended (refused) (trace: ")
    assert lines[-1] == "uploaded"
    summary = json.loads((tmp_path / "it" / "summary.json").read_text())
    assert summary["stopped"] == "failed: Ray's head: its gcs at h:1 has ended (refused)"
    assert (tmp_path / "it" / "log" / "failure.log").exists()


def test_a_signal_that_ended_ray_too_is_a_stop_and_names_the_checkpoint_to_go_on_from(tmp_path) -> None:
    said: list[str] = []
    end = ending(tmp_path, said.append)
    folder = tmp_path / "it" / "checkpoints" / "step-2"
    folder.mkdir(parents=True)
    (folder / "loop.json").touch()
    end._watch = SimpleNamespace(cause=lambda: signal.SIGHUP)
    assert end._ended_with_ray("its raylet has ended") == 129
    assert said == [
        f"stopped by SIGHUP, which has ended Ray too (its raylet has ended); the last checkpoint is {folder}: --resume "
        "continues after step 2"
    ]
    summary = json.loads((tmp_path / "it" / "summary.json").read_text())
    assert (summary["end_cause"], summary["stopped"], summary["steps"]) == ("signal", "stopped by SIGHUP", 3)
    end._watch = SimpleNamespace(cause=lambda: None)
    assert end._ended_with_ray("its raylet has ended") == 1 and said[-1].startswith("failed: its raylet has ended")


def test_a_second_signal_names_the_last_checkpoint_and_what_the_store_lacks_and_leaves_a_summary(tmp_path) -> None:
    said: list[str] = []
    end = ending(tmp_path, said.append)
    end.unsent = lambda: "Newest checkpoint: step 3 in the folder, step 2 in the store"
    folder = tmp_path / "it" / "checkpoints" / "step-3"
    folder.mkdir(parents=True)
    (folder / "loop.json").touch()
    end.at_once(signal.SIGTERM)
    assert said == [
        f"stopping now; the last checkpoint is {folder}: --resume continues after step 3",
        "store: not everything has been sent. Newest checkpoint: step 3 in the folder, step 2 in the store",
    ]
    summary = json.loads((tmp_path / "it" / "summary.json").read_text())
    assert (summary["end_cause"], summary["stopped"]) == ("signal", "stopped by SIGTERM, at once")


def test_a_second_signal_leaves_the_summary_of_a_run_that_has_ended_as_it_is(tmp_path) -> None:
    end = ending(tmp_path, lambda _: None)
    end.failed(RuntimeError("no room for one rank"))
    end.at_once(signal.SIGTERM)
    assert json.loads((tmp_path / "it" / "summary.json").read_text())["stopped"] == "failed: no room for one rank"


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_second_signal_before_a_checkpoint_sends_nobody_to_resume(tmp_path, has_begun) -> None:
    said: list[str] = []
    ending(tmp_path, said.append, coordinator=has_begun).at_once(signal.SIGTERM)
    assert "--resume" not in said[-1] and (f"{tmp_path / 'it'} has no checkpoint" in said[-1]) == has_begun


def test_a_summary_that_a_full_disk_refuses_is_named_and_changes_no_exit_code(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    monkeypatch.setattr(exit_code, "write_summary", full)
    assert ending(tmp_path, said.append).failed(RuntimeError("no room for one rank")) == 1
    assert said[-1] == f"{tmp_path / 'it' / 'summary.json'} cannot be written: No space left on device"


def test_an_output_that_cannot_be_written_does_not_cost_the_summary(tmp_path) -> None:
    def full(_: str) -> None:
        raise UserError("standard output cannot be written: No space left on device")

    assert ending(tmp_path, full).failed(RuntimeError("no room for one rank")) == 1
    assert json.loads((tmp_path / "it" / "summary.json").read_text())["end_cause"] == "failed"


@pytest.mark.parametrize(
    ("cause", "steps", "code"),
    [(EndCause.SIGNAL, 2, 143), (EndCause.SIGNAL, 3, 0), (EndCause.EARLY_STOP, 2, 0), (EndCause.STORE, 3, 1)],
)
def test_a_signal_decides_the_exit_code_only_of_a_run_that_it_stopped(tmp_path, cause, steps, code) -> None:
    said: list[str] = []
    end = ending(tmp_path, said.append)
    outcome = replace(end.coordinator.outcome(), steps=steps)
    end.coordinator = SimpleNamespace(outcome=lambda: outcome, ending=Ending(cause, "SIGTERM"))
    assert end.done(Archive(tmp_path / "it"), [signal.SIGTERM]) == code
    assert any("continue with --resume" in line for line in said) == (code == 143)


def test_a_run_that_has_ended_stays_as_it_ended_if_ray_or_its_user_ends_the_process(tmp_path, monkeypatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(exit_code, "leave", codes.append)
    said: list[str] = []
    end = ending(tmp_path, said.append)
    end.coordinator.ending = None
    assert end.done(Archive(tmp_path / "it"), []) == 0
    end.at_once(signal.SIGTERM)
    assert said[-1] == "stopping now; the run is done"
    end.without_ray("Ray's head: its gcs at h:1 has ended (refused)")
    assert codes == [0] and json.loads((tmp_path / "it" / "summary.json").read_text())["finished"]
