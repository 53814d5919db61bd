"""An environment that raises, ends the process or hangs at its first task is refused by name, in bounded time."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from squelch.cluster.cli import main
from squelch.cluster.config import load
from squelch.cluster.first_task import first_task, made
from squelch.cluster.loop.run import _with_environments
from squelch.envs.config import EnvironmentConfig
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.envs.registry import constructed

RELEASE = threading.Event()
LAKE = EnvironmentConfig(name="FrozenLake")


class Hostile(FrozenLake):
    """What it does at which call is set by the test."""

    at, does = "", None

    def __init__(self, *split, **options) -> None:
        super().__init__(*split, **options)
        if self.at == "made":
            self.does()

    def reset(self, **about):
        if self.at == "reset":
            self.does()
        return super().reset(**about)


class Pinned(FrozenLake):
    def pinned(self) -> dict[str, object]:
        return {"slip_rate": 0.125}


def raises(error: BaseException):
    def do(*_: object) -> None:
        raise error

    return do


def hostile(monkeypatch: pytest.MonkeyPatch, at: str, does) -> EnvironmentConfig:
    monkeypatch.setattr(Hostile, "at", at)
    monkeypatch.setattr(Hostile, "does", does)
    monkeypatch.setitem(sys.modules, "hostile_lake", SimpleNamespace(Hostile=Hostile, Pinned=Pinned, Slow=Slow))
    return EnvironmentConfig(name="hostile_lake:Hostile")


def test_the_first_task_is_that_of_the_training_split() -> None:
    found = first_task(LAKE, 10.0)
    assert [message["role"] for message in found.messages] == ["system", "user"]
    assert found.kind is not None and found.environment.split == "train"


@pytest.mark.parametrize("at", ["made", "reset"])
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("db down"), "RuntimeError: db down"),
        (TimeoutError("its own"), "TimeoutError: its own"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("environment.options.size: too large"), "environment.options.size: too large"),
    ],
)
def test_whatever_an_environment_raises_is_refused_by_name(monkeypatch, at: str, error: BaseException, says) -> None:
    """Found by a reviewer: only a ValueError was; all else ended the command with a traceback."""
    chosen = hostile(monkeypatch, at, raises(error))
    with pytest.raises(ValueError, match=says) as refused:
        first_task(chosen, 10.0)
    whose = isinstance(error, ValueError) or str(refused.value).startswith("the environment cannot")
    assert whose


@pytest.mark.parametrize("at", ["made", "reset"])
def test_an_environment_that_hangs_is_given_up(monkeypatch, at: str) -> None:
    RELEASE.clear()
    chosen = hostile(monkeypatch, at, lambda *_: RELEASE.wait(60))
    try:
        with pytest.raises(ValueError, match=r"no answer within cluster\.start_timeout_s=0\.2"):
            (made if at == "made" else first_task)(chosen, 0.2)
    finally:
        RELEASE.set()


def test_a_command_names_an_environment_that_cannot_be_made(monkeypatch, capsys) -> None:
    hostile(monkeypatch, "made", raises(RuntimeError("db down")))
    assert main(["config", "frozenlake", "environment.name=hostile_lake:Hostile", "environment.options={}"]) == 2
    reported = capsys.readouterr().err
    assert "the environment cannot be made: RuntimeError: db down" in reported and "Traceback" not in reported


def test_what_an_environment_fixes_at_the_start_is_in_the_runs_settings(monkeypatch, tmp_path: Path) -> None:
    hostile(monkeypatch, "", None)
    words = ["environment.name=hostile_lake:Pinned", "environment.options={size: 4}", f"runs_dir={tmp_path}"]
    config, _ = _with_environments(load("frozenlake", words))
    assert config.environment.options == {"size": 4, "slip_rate": 0.125}


class Slow(FrozenLake):
    def longest_call(self) -> tuple[float, str]:
        return 8.0, "patience_s"


def test_calls_that_an_actor_would_give_up_before_their_own_limit_are_reported(monkeypatch, tmp_path: Path) -> None:
    hostile(monkeypatch, "", None)
    words = ["environment.name=hostile_lake:Slow", f"runs_dir={tmp_path}", "environment_actor.step_timeout_s="]
    notes = {bound: _with_environments(load("frozenlake", [*words[:2], words[2] + bound]))[1] for bound in ("8", "8.5")}
    (note,) = notes["8"]
    assert "may take 8 s (environment.options: patience_s)" in note and "environment_actor.step_timeout_s=8 " in note
    assert not notes["8.5"]


@pytest.mark.parametrize(
    ("name", "options", "seconds"),
    [
        ("FrozenLake", {}, 0.0),
        ("SearchQA", {"num_passages": 100}, 0.0),
        ("SearchQA", {"num_passages": 100, "retriever_url": "http://127.0.0.1:9/retrieve"}, 8.0),
        ("DeepCoder", {"sandbox": {"allow_unsafe": True, "limits": {"total_s": 3.0}}}, 12.0),
        ("Http", {"url": "http://127.0.0.1:9", "timeout_s": 1.0, "retries": 3}, 7.5),
        ("OwnProcess", {"environment": "FrozenLake", "timeout_s": 5.0}, 5.0),
    ],
)
def test_the_longest_call_follows_from_the_environments_settings(name, options, seconds) -> None:
    assert constructed(name, "train", options).longest_call()[0] == seconds


def test_a_floor_for_kinds_that_the_environment_does_not_declare_is_reported(tmp_path: Path, monkeypatch) -> None:
    floor = ["filter.kind_floor=0.25", f"runs_dir={tmp_path}"]
    assert not [note for note in _with_environments(load("frozenlake", floor))[1] if "kind_floor" in note]
    monkeypatch.setattr(FrozenLake, "task_kind", lambda self: None, raising=False)
    kindless = FrozenLake.reset
    monkeypatch.setattr(FrozenLake, "reset", lambda self, **about: _without_kind(kindless(self, **about)))
    (note,) = [note for note in _with_environments(load("frozenlake", floor))[1] if "kind_floor" in note]
    assert note == "filter.kind_floor does nothing: FrozenLake declares no kinds of tasks (`task_kind`)"


def _without_kind(started: tuple) -> tuple:
    shown, info = started
    return shown, {key: value for key, value in info.items() if key != "task_kind"}
