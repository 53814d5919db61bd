"""A start-up says what it is doing: a bar on a terminal, a line elsewhere, a file for `status` and `watch`."""

import asyncio
import errno
import io
import os
import pty
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from squelch.actors.process.stage import OnStage
from squelch.cluster.commands.arguments import described_place
from squelch.cluster.commands.existing_runs.status import status
from squelch.cluster.fleet.waiting import announced
from squelch.cluster.loop import startup
from squelch.cluster.loop.persistence.run_log import Work
from squelch.cluster.loop.startup import Startup
from squelch.cluster.runs.driver import Driver
from squelch.cluster.runs.starting import FILE, Stage
from squelch.kit.base.errors import UserError


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_outside_a_terminal_a_line_comes_although_nothing_happens(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(startup, "EVERY_S", 0.2)
    monkeypatch.setattr(startup, "TICK_S", 0.05)
    said: list[str] = []
    start = Startup(said.append, io.StringIO(), tmp_path / "run")
    start.stage("starting Ray", "5 to 15 s")
    eventually(lambda: len(said) >= 2)
    start.close()
    assert re.fullmatch(r"starting Ray \(\d+ s so far, usually 5 to 15 s\)", said[-1])
    assert not (tmp_path / "run").exists()
    ended = len(said)
    time.sleep(0.4)
    assert len(said) == ended


def quickly(monkeypatch) -> list[float]:
    """A clock of the test's own, at which the start-up looks often."""
    monkeypatch.setattr(startup, "TICK_S", 0.02)
    return [1000.0]


@pytest.mark.parametrize("terminal", ["dumb", "in the background", "none"])
def test_a_run_is_silent_on_no_terminal_for_longer_than_the_bound_and_in_a_file_between_its_steps(
    monkeypatch, tmp_path: Path, terminal: str
) -> None:
    now = quickly(monkeypatch)
    monkeypatch.setenv("TERM", "dumb" if terminal == "dumb" else "xterm")
    if terminal == "in the background":
        monkeypatch.setattr(startup.os, "tcgetpgrp", lambda _: -1)
    ours, theirs = pty.openpty()
    said: list[str] = []
    played = [3]
    with open(theirs, "w", buffering=1) as shown, open(ours, "rb"):
        screen = io.StringIO() if terminal == "none" else shown
        run = Startup(said.append, screen, tmp_path / "never", clock=lambda: now[0])
        run.trains()
        run.say("step    1/9")
        run.work(Work("step 2: playing", now[0], lambda: (played[0], 12, "groups")))
        for played[0] in (4, 6):
            now[0] += startup.EVERY_S
            if terminal == "none":
                time.sleep(0.2)
            else:
                eventually(lambda: len(said) == played[0] // 2)
        run.close()
    assert said[0] == "step    1/9"
    assert said[1:] == [] if terminal == "none" else [
        "step 2: playing: 4 of 12 groups (33%, 15 s so far, about 30 s left)",
        "step 2: playing: 6 of 12 groups (50%, 30 s so far, about 30 s left)",
    ]  # fmt: skip


def test_after_the_first_step_a_terminal_still_shows_the_bar_and_the_folder_no_file(
    monkeypatch, tmp_path: Path
) -> None:
    now = quickly(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with open(theirs, "w", buffering=1) as screen, open(ours, "rb", buffering=0) as shown:
        run = Startup(lambda text: print(text, file=screen), screen, tmp_path, clock=lambda: now[0])
        run.stage("starting the actors")
        run.advance("learner")
        assert (tmp_path / FILE).exists()
        run.trains()
        run.work(Work("step 2: training on 3 groups", now[0], lambda: (7, 0, "passes")))
        run.advance("no file")
        text = ""
        while "7 passes" not in text:
            text += shown.read(1 << 16).decode()
        run.close()
    assert "step 2: training on 3 groups" in text and not (tmp_path / FILE).exists()


def test_a_terminal_that_is_gone_costs_the_bar_alone(monkeypatch, tmp_path: Path) -> None:
    def gone(bar: startup.Progress) -> None:
        raise OSError(errno.EIO, "Input/output error")

    ours, theirs = pty.openpty()
    said: list[str] = []
    with open(theirs, "w", buffering=1) as screen, open(ours, "rb"):
        start = Startup(said.append, screen, tmp_path / "never")
        start.stage("starting Ray")
        stop = startup.Progress.stop
        monkeypatch.setattr(startup.Progress, "stop", gone)
        assert start._bar is not None
        bar = start._bar
        start.say("a line")
        start.close()
        stop(bar)
    assert said == ["a line"]


def test_a_terminal_shows_a_bar_below_the_lines_and_nothing_of_it_stays() -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", buffering=1) as screen, open(ours, "rb", buffering=0) as shown:
        start = Startup(lambda text: print(text, file=screen), screen, Path("never"))
        start._begin = start._require_folder = lambda: None
        start.stage("preparing the model")
        start.advance("loss [b]0.5[/b]", 0.5)
        start.say("a line")
        start.close()
        start.say("another")
        text = shown.read(1 << 16).decode()
        while "another" not in text:
            text += shown.read(1 << 16).decode()
    assert "preparing the model: loss [b]0.5[/b]" in text and "50%" in text
    assert text.endswith("another\r\n") and "\x1b[?25l" not in text, "a killed process would not show the cursor again"


def test_status_shows_the_stage_from_the_first_long_one_until_the_first_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    driver, now = Driver(folder), [1000.0]
    start = Startup(lambda _: None, None, folder, lambda: driver.hold(lambda _: None), clock=lambda: now[0])
    start.stage("preparing the model", "2 to 4 minutes")
    assert not folder.exists(), "a model that is refused leaves no folder"
    start.advance("learning, loss 0.500", 0.25)
    assert described_place(str(folder)) == folder, "there is no config.yaml yet"
    text = status(folder)
    assert text.startswith("run: starting, preparing the model: learning, loss 0.500 (25%, ") and "\n" not in text
    now[0] += 1.0
    start.advance("learning, loss 0.400", 0.5)
    assert "0.500" in status(folder), "the file is not written at every word"
    start.stage("starting the actors")
    assert "starting, starting the actors (" in status(folder)
    driver.close()
    assert "starting the actors" not in status(folder), "its process was killed"
    start.close()
    assert not (folder / FILE).exists()


def test_a_second_run_of_the_name_is_refused_before_its_warm_up(tmp_path: Path) -> None:
    other = Driver(tmp_path)
    other.hold(lambda _: None)
    start = Startup(lambda _: None, None, tmp_path, lambda: Driver(tmp_path).hold(lambda _: None))
    with pytest.raises(UserError, match="drives this run"):
        start.advance("collecting demonstrations", 0.0)
    start.close()
    other.close()


@pytest.mark.parametrize("text", ["{}", '{"name": "a", "since": 1e999}', '{"name": "a", "since": 0, "share": 7}'])
def test_a_stage_of_another_shape_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert status(tmp_path) == f"{tmp_path.name}: starting"


def test_the_time_that_is_left_follows_from_the_share() -> None:
    assert Stage("a", 100.0, "1 min", share=0.25).times(110.0) == "25%, 10 s so far, about 30 s left"
    assert Stage("a", 100.0, "1 min", share=0.01).times(110.0) == "10 s so far, usually 1 min"
    assert Stage("a", 100.0).times(90.0) == "0 s so far"


def test_actors_that_are_still_awaited_are_named() -> None:
    heard: list[str] = []
    on_stage: OnStage = lambda what, _: heard.append(what)  # noqa: E731

    async def main() -> None:
        calls = {name: asyncio.sleep(at / 100) for at, name in enumerate(["learner", "rollout-0", "b", "c", "d"])}
        await asyncio.gather(*announced(calls, {"rollout-0": "rollout-0 (engine)"}, on_stage).values())

    asyncio.run(main())
    assert heard[0] == "0 of 5 up, waiting for learner, rollout-0 (engine), b and 2 more"
    assert heard[1].startswith("1 of 5 up, waiting for rollout-0") and heard[-1] == "5 of 5 up"


def test_no_thread_of_a_start_up_outlives_it(tmp_path: Path) -> None:
    start = Startup(lambda _: None, None, tmp_path)
    start.close()
    start._thread.join(180)
    assert not start._thread.is_alive() and os.listdir(tmp_path) == []


def test_a_full_disk_costs_the_stage_in_the_folder_alone(monkeypatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(startup, "write_stage", full)
    start = Startup(lambda _: None, None, tmp_path)
    start.advance("learner 1 of 2")
    start.close()
