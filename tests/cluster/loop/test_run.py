"""How a run ends that meets an error or a signal on the way: one paragraph for the user; no trace of a fault lost."""

import asyncio
import errno
import json
import os
import platform
import pty
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from squelch.cluster.config import load
from squelch.cluster.control.actor_errors import Refused
from squelch.cluster.loop import run
from squelch.cluster.loop.exit_code import EXIT_FAILED, EXIT_PAUSED
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoint_dir
from squelch.cluster.loop.persistence.state import LoopState, check_folder
from squelch.cluster.runs.driver import Driver
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.kit.archive.store import ArchiveError
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import installed_version, version_text
from squelch.kit.filter.windows import make_window
from squelch.kit.metrics.loggers import Loggers
from squelch.kit.process.signals import Interrupted, Signals, listening
from squelch.kit.untrusted.files import Unreadable
from squelch.learner.checkpoint.manifest import FORMAT, LOOP, MANIFEST, SHARDED, TOKENIZER, Manifest, tokenizer_digest
from squelch.learner.refusal import SettingRefused

pytestmark = pytest.mark.usefixtures("hangups_count")


class Quiet:
    """A start-up that nobody watches."""

    began = 0.0

    def say(self, _: str) -> None:
        pass

    def advance(self, *_: object) -> None:
        pass

    def stage(self, *_: str) -> None:
        pass


def ending(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception) -> Callable[..., int]:
    """`train` of a run whose loop raises the error; nothing is started. Takes whom it speaks to."""

    async def fail(*_: object) -> int:
        raise error

    for name in ("check_address", "check_machine", "check_scoring", "connect", "disconnect"):
        monkeypatch.setattr(run, name, lambda *_, **__: None)
    monkeypatch.setattr(run.RunEnd, "watch_ray", lambda _: None)
    monkeypatch.setattr(run, "prepare_model", lambda *_: tmp_path)
    monkeypatch.setattr(run, "weight_bytes", lambda *_: 0)
    monkeypatch.setattr(run, "opening_lines", lambda *_: [])
    exporter = SimpleNamespace(close=lambda: None, set=lambda *_: None, url="", has_moved=False)
    monkeypatch.setattr(run, "_open_recorder", lambda _: exporter)
    monkeypatch.setattr(run, "_train", fail)
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it"])
    return lambda say=lambda _: None, at_end=lambda: None: run.train(config, False, say, at_end)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("operands could not be broadcast\n  together"),
        Refused("far trace", ValueError("operands could not be broadcast together")),
        RuntimeError("operands could not be broadcast together"),
    ],
)
def test_a_bug_hours_into_a_run_is_not_the_users_fault_and_says_where_its_trace_is_and_how_to_go_on(
    monkeypatch, tmp_path, error
) -> None:
    train, said = ending(monkeypatch, tmp_path, error), []
    assert train(said.append) == 1
    kept = tmp_path / "it" / "log" / "failure.log"
    text = f"operands could not be broadcast together (trace: {kept})"
    assert said[-1].startswith(f"failed: {text}. ")
    assert "in fail\n    raise error" in kept.read_text()


@pytest.mark.parametrize("remote", [False, True])
def test_a_setting_that_a_step_does_not_fit_is_the_users_to_mend(monkeypatch, tmp_path, remote) -> None:
    refused = SettingRefused("learner.token_budget=9 is smaller than one trajectory")
    error = Refused("Traceback:\n  File 'far.py', line 7", refused) if remote else refused
    with pytest.raises(UserError, match=r"^learner\.token_budget=9 is smaller than .* \(trace: .*failure\.log\)$"):
        ending(monkeypatch, tmp_path, error)()
    assert ("File 'far.py', line 7" in (tmp_path / "it" / "log" / "failure.log").read_text()) == remote


@pytest.mark.parametrize("error", [ValueError("no decoder layers"), Refused("trace", ValueError("no decoder layers"))])
def test_what_an_actor_refuses_at_its_start_is_the_users_to_mend(tmp_path, error) -> None:
    async def start(on_stage: object, resumes: bool) -> None:
        raise error

    fleet = SimpleNamespace(start=start, config=load("frozenlake", [f"runs_dir={tmp_path}", "name=it"]))
    with pytest.raises(UserError, match=r"^no decoder layers \(trace: .*failure\.log\)$"):
        asyncio.run(run._start(fleet, None, Quiet()))


@pytest.mark.parametrize(
    "error", [UserError("filter: no"), ArchiveError("no space is left"), Unreadable("x.json is no file")]
)
def test_what_is_surely_the_users_is_said_as_it_is_and_leaves_no_trace(monkeypatch, tmp_path, error) -> None:
    with pytest.raises(UserError, match=f"^{error}$"):
        ending(monkeypatch, tmp_path, error)()
    assert not (tmp_path / "it" / "log" / "failure.log").exists()


@pytest.mark.parametrize(
    "error",
    [
        ArchiveError("no space is left"),
        Unreadable("x.json is no file"),
        UserError("standard output cannot be written"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_disk_that_is_full_once_a_run_trains_is_how_it_ends_and_no_bad_input(monkeypatch, tmp_path, error) -> None:
    train, ended = ending(monkeypatch, tmp_path, error), []

    async def begun(*arguments: Any) -> int:
        arguments[-1].end.coordinator = object()
        raise error

    monkeypatch.setattr(run, "_train", begun)
    monkeypatch.setattr(run.RunEnd, "_try_to_summarise", lambda _, how: ended.append(how))
    said: list[str] = []
    assert train(said.append) == 1
    assert [how.cause for how in ended] == [EndCause.FAILED] and str(error) in ended[0].text
    assert said[-1].startswith(f"failed: {error} (trace: ") and "failure.log" in said[-1]


def test_a_trace_that_cannot_be_written_hides_nothing(monkeypatch, tmp_path) -> None:
    (tmp_path / "it" / "log" / "failure.log").mkdir(parents=True)
    train, said = ending(monkeypatch, tmp_path, ValueError("too wide")), []
    assert train(said.append) == 1
    cannot = "its trace cannot be written: "
    assert said[-1].startswith(f"failed: too wide ({cannot}") and "is a folder; a regular file is needed)." in said[-1]


def test_a_cluster_found_too_small_is_left(monkeypatch, tmp_path) -> None:
    train = ending(monkeypatch, tmp_path, ValueError("not reached"))
    left: list[bool] = []

    def too_small(*_: object, **__: object) -> None:
        raise UserError("the cluster has 1 CPUs")

    monkeypatch.setattr(run, "connect", too_small)
    monkeypatch.setattr(run, "disconnect", lambda: left.append(True))
    with pytest.raises(UserError, match="the cluster has 1 CPUs"):
        train()
    assert left == [True]


@pytest.mark.parametrize(
    ("algorithm", "changes", "says"),
    [
        ("grpo", {"epsilon_unit": None}, r"loop\.json: .*filter\.epsilon_unit=absolute to go on with it"),
        ("grpo", {"measured": {"statistic": "sum"}}, r"loop\.json: .*restore filter\.statistic"),
        ("grpo", {"no_signal": {}}, r"loop\.json cannot be read \(KeyError: .*the checkpoint is damaged"),
        ("grpo", {"no_signal": 3}, r"loop\.json cannot be read \(TypeError: .*the checkpoint is damaged"),
        ("ppo", {}, r"step-3 was written under learner\.algorithm=ppo, and this run asks for grpo"),
    ],
)
def test_a_checkpoint_that_this_run_cannot_continue_is_refused_before_anything_starts(
    monkeypatch, tmp_path, algorithm, changes, says
) -> None:
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it"])
    folder = checkpoint_dir(config.run_dir, 3)
    (folder / SHARDED).mkdir(parents=True)
    (config.run_dir / "config.yaml").touch()
    manifest = Manifest(format=FORMAT, optimizer_steps=3, algorithm=algorithm, identity={}, modules={})
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    window = {key: value for key, value in (make_window(config.filter).state() | changes).items() if value is not None}
    (folder / LOOP).write_text(json.dumps(asdict(LoopState(clock=3, filter=window))))
    monkeypatch.setattr(run, "_open_recorder", lambda _: pytest.fail("the run was started"))
    with pytest.raises(UserError, match=says):
        run.train(config, True, lambda _: None)


@pytest.mark.parametrize("change", [{"vocab_size": 99}, {"hidden_size": 8}, "tokenizer"])
def test_a_resume_with_another_model_is_refused_before_anything_starts(tmp_path, change) -> None:
    sizes, model = {"vocab_size": 64, "hidden_size": 32, "dtype": "float32"}, tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(sizes))
    (model / "tokenizer.json").write_text("{}")
    identity = {f"config.json: {key}": value for key, value in sizes.items()} | {"config.json: dtype": "bfloat16"}
    identity |= {"config.json: num_hidden_layers": 2, TOKENIZER: tokenizer_digest(model)}
    checkpoint = tmp_path / "step-3"
    (checkpoint / SHARDED).mkdir(parents=True)
    manifest = Manifest(format=FORMAT, optimizer_steps=3, algorithm="grpo", identity=identity, modules={})
    (checkpoint / MANIFEST).write_text(manifest.model_dump_json())
    run._check_model(checkpoint, model)
    if change == "tokenizer":
        (model / "tokenizer.json").write_text("[]")
    else:
        (model / "config.json").write_text(json.dumps(sizes | change))
    with pytest.raises(
        UserError, match=r"step-3 is of another model: (config\.json: .*_size|digest of the tokenizer) is"
    ):
        run._check_model(checkpoint, model)


class LoadingFleet:
    """A fleet whose learner loads until the fleet is stopped; the signal comes while it does."""

    def __init__(self, number: signal.Signals) -> None:
        self.number, self.stopped = number, threading.Event()
        self.learner = SimpleNamespace(call=self.load)

    async def start(self, on_stage: object, resumes: bool) -> None:
        assert resumes

    async def load(self, row: object, _: Path) -> None:
        await asyncio.to_thread(self._load)

    def _load(self) -> None:
        os.kill(os.getpid(), self.number)
        self.stopped.wait(2.0)

    async def stop(self) -> None:
        self.stopped.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_checkpoint_loads_ends_the_run_before_it_trains(monkeypatch, tmp_path, number) -> None:
    fleet = LoadingFleet(number)
    monkeypatch.setattr(run, "Fleet", lambda *_: fleet)
    monkeypatch.setattr(run, "RayActors", lambda *_, **__: None)
    monkeypatch.setattr(run, "make_coordinator", lambda *_: pytest.fail("the run went on to train"))
    (tmp_path / "tokenizer.json").write_text("{}")
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it"])
    recorder = SimpleNamespace()
    with listening() as signals, pytest.raises(Interrupted, match=f"^{number.name}$"):
        state, end = LoopState(clock=3), run.RunEnd(config, lambda _: None, 0.0, lambda code: code)
        held = {"uploads": None, "recorder": recorder, "output": None, "startup": Quiet(), "end": end}
        context = run._Context(True, state, tmp_path, driver=None, signals=signals, **held)
        asyncio.run(run._train(config, tmp_path, recorder, context))


def test_a_signal_before_the_actors_are_ready_ends_with_its_own_code(monkeypatch, tmp_path) -> None:
    train, said = ending(monkeypatch, tmp_path, Interrupted(signal.SIGTERM)), []
    assert train(said.append) == 128 + signal.SIGTERM
    assert said[-1] == "stopped by SIGTERM before the actors were ready"


def test_a_signal_that_came_as_the_models_warm_up_ended_starts_no_actors(monkeypatch, tmp_path) -> None:
    train, said = ending(monkeypatch, tmp_path, AssertionError("it trained")), []

    def prepare(*_: object) -> Path:
        heard = threading.Event()
        with listening() as signals, signals.answering(lambda _: heard.set()):
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.wait(180)
        return tmp_path

    monkeypatch.setattr(run, "prepare_model", prepare)
    assert train(said.append) == 143 and said[-1] == "stopped by SIGTERM before the actors were ready"


@pytest.mark.parametrize("folder", ["/proc/none", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(monkeypatch, tmp_path, folder) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(run, "prepare_model", lambda *_: pytest.fail("a warm-up was begun"))
    config = load("frozenlake", [f"runs_dir={tmp_path / folder}", "name=it"])
    with pytest.raises(UserError, match=f"^cannot write to .*{folder}/it .*runs_dir=FOLDER"):
        run.train(config, False, lambda _: None)
    config = load("frozenlake", [f"runs_dir={tmp_path / 'new'}"])
    check_folder(config.run_dir)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def coordinator(stop, is_ending: bool = False) -> SimpleNamespace:
    """A run in its seventh step."""
    work = "the run is ending already" if is_ending else "finishing step 7, then a checkpoint"
    return SimpleNamespace(stop=stop, last_work=work, is_ending=is_ending)


async def until(holds: Callable[[], object]) -> None:
    """Lets the loop run until something holds; at most a minute."""
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never held")


@pytest.mark.parametrize(("before", "said"), [([], []), ([signal.SIGTERM], [Ending(EndCause.SIGNAL, "SIGTERM")])])
def test_a_signal_that_came_as_the_start_up_ended_stops_the_run(before, said) -> None:
    reasons: list[Ending] = []

    async def begin() -> None:
        signals = Signals()
        signals.arrived += before
        run._stop_on_signals(coordinator(reasons.append), signals, lambda _: None)
        await asyncio.sleep(0)

    asyncio.run(begin())
    assert reasons == said


def test_a_signal_is_answered_at_once_also_while_the_loop_is_busy() -> None:
    reasons: list[Ending] = []
    answers: Queue[str] = Queue()

    async def busy() -> None:
        run._stop_on_signals(coordinator(reasons.append), signals, answers.put)
        os.kill(os.getpid(), signal.SIGINT)
        assert answers.get(timeout=180.0) == "finishing step 7, then a checkpoint; again to stop now"
        await until(lambda: reasons)

    with listening() as signals:
        asyncio.run(busy())
    assert reasons == [Ending(EndCause.SIGNAL, "SIGINT")]


def test_a_signal_while_a_finished_run_writes_its_last_checkpoint_does_not_make_it_a_stopped_one() -> None:
    answers: Queue[str] = Queue()

    async def ending() -> None:
        run._stop_on_signals(coordinator(pytest.fail, is_ending=True), signals, answers.put)
        os.kill(os.getpid(), signal.SIGTERM)
        assert answers.get(timeout=180.0) == "the run is ending already; again to stop now"
        await asyncio.sleep(0.05)

    with listening() as signals:
        asyncio.run(ending())


def test_a_closed_terminal_stops_a_run_once_as_sigterm_does_unless_it_was_ignored_at_the_start() -> None:
    reasons: list[Ending] = []

    async def hang_up() -> None:
        run._stop_on_signals(coordinator(reasons.append), signals, lambda _: None)
        for _ in range(2):  # a shell and the kernel both say so
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)

    with listening() as signals:
        asyncio.run(hang_up())
    assert reasons == [Ending(EndCause.SIGNAL, "SIGHUP")]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with listening() as signals:
            asyncio.run(hang_up())
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert len(reasons) == 1


BETWEEN = """
import os, pytest, signal, sys, time
from pathlib import Path
from squelch.cluster.loop import run
from tests.cluster.loop.test_run import ending

def send():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

async def stopped(*arguments):
    arguments[-1].signals.arrived.append(signal.SIGTERM)
    return 143

def say(text):
    print(text, file=sys.__stdout__, flush=True)

train = ending(pytest.MonkeyPatch(), Path(sys.argv[1]), ValueError())
run._train = stopped
if sys.argv[2] == "disconnect":
    run.disconnect = send
    train(say)
else:
    train(say, send)
"""


@pytest.mark.parametrize("during", ["disconnect", "report"])
def test_a_second_signal_between_the_loops_end_and_the_last_upload_says_how_to_go_on(tmp_path, during) -> None:
    folder = tmp_path / "it" / "checkpoints" / "step-6"
    folder.mkdir(parents=True)
    (folder / "loop.json").touch()
    command, root = [sys.executable, "-c", BETWEEN, str(tmp_path), during], Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=root)
    assert done.returncode == 143, done.stderr
    last = f"stopping now; the last checkpoint is {folder}: --resume continues after step 6"
    assert done.stdout.splitlines()[-1] == last


HUNG_UP = """
import asyncio, os, signal, sys
from types import SimpleNamespace
from squelch.cluster.loop import run
from squelch.kit.process.signals import listening
from squelch.kit.process.terminal import say

async def main():
    stopped = asyncio.Event()
    coordinator = SimpleNamespace(stop=lambda _: stopped.set(), last_work="finishing step 7", is_ending=False)
    run._stop_on_signals(coordinator, signals, say)
    say("ready")
    await stopped.wait()
    say("step 7")
    open(sys.argv[1], "w").write("ended in good order")

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
with listening() as signals:
    asyncio.run(main())
"""


def test_a_run_whose_terminal_is_gone_ends_in_good_order(tmp_path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", HUNG_UP, str(tmp_path / "end")])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "end").read_text() == "ended in good order"


def test_the_endpoint_says_which_run_it_serves() -> None:
    recorder = run._open_recorder(load("frozenlake", ["recorder.port=0", "name=mine", "filter.rule=top_k"]))
    with urllib.request.urlopen(recorder.url, timeout=180) as reply:
        text = reply.read().decode()
    recorder.close()
    assert 'squelch_run_info{environment="FrozenLake",filter="top_k",run="mine"} 1.0' in text
    assert f'squelch_build_info{{python="{platform.python_version()}",version="{installed_version()}"}} 1.0' in text


def scraped(url: str) -> dict[str, str]:
    with urllib.request.urlopen(url, timeout=180) as reply:
        return dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line[0] != "#")


@pytest.mark.parametrize(
    ("end", "code", "ended"),
    [
        (0, 0, "1.0"),
        (EXIT_PAUSED, EXIT_PAUSED, "1.0"),
        (EXIT_FAILED, EXIT_FAILED, "0.0"),  # e.g. nothing counts
        (143, 143, "1.0"),
        (Interrupted(signal.SIGTERM), 143, "1.0"),  # before the actors were ready
        (RuntimeError("a bug"), EXIT_FAILED, "0.0"),
    ],
    ids=str,
)
def test_a_run_that_ends_says_so_at_its_endpoint_and_one_that_fails_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: int | BaseException, code: int, ended: str
) -> None:
    recorder, last = run._open_recorder(load("frozenlake", ["recorder.port=0"])), dict[str, str]()
    train, close = ending(monkeypatch, tmp_path, AssertionError("unused")), recorder.close
    assert scraped(recorder.url)["squelch_run_ended"] == "0.0"

    async def steps(*_: object) -> int:
        if isinstance(end, BaseException):
            raise end
        return end

    def read_and_close() -> None:
        last.update(last or scraped(recorder.url))
        close()

    monkeypatch.setattr(recorder, "close", read_and_close)
    monkeypatch.setattr(run, "_open_recorder", lambda _: recorder)
    monkeypatch.setattr(run, "_train", steps)
    assert (train(), last["squelch_run_ended"]) == (code, ended)


class Spy:
    """A logger that notes its steps, and the exit code with which it is closed."""

    def __init__(self) -> None:
        self.reported: list[object] = []

    def step(self, step: int, flat: object) -> None:
        self.reported.append(step)

    def close(self, exit_code: int) -> None:
        self.reported.append(f"exit {exit_code}")


def test_a_runs_loggers_get_its_steps_and_its_exit_code(monkeypatch, tmp_path) -> None:
    train, exporter, logger = ending(monkeypatch, tmp_path, ValueError("unused")), Spy(), Spy()
    exporter.close, exporter.set, exporter.url, exporter.has_moved = lambda: None, lambda *_: None, "", False

    async def steps(*arguments: object) -> int:
        (loggers,) = (one for one in arguments if isinstance(one, Loggers))
        loggers.step(1, {})
        return 3

    monkeypatch.setattr(run, "_open_recorder", lambda _: exporter)
    monkeypatch.setattr(run, "open_loggers", lambda *_: [logger])
    monkeypatch.setattr(run, "_train", steps)
    assert train() == 3
    assert (exporter.reported, logger.reported) == ([1], [1, "exit 3"])


def test_a_run_that_fails_is_closed_as_failed_in_its_loggers(monkeypatch, tmp_path) -> None:
    logger = Spy()
    train = ending(monkeypatch, tmp_path, RuntimeError("a bug"))
    monkeypatch.setattr(run, "open_loggers", lambda *_: [logger])
    assert train() == 1 and logger.reported == ["exit 1"]


def test_a_logger_that_cannot_start_ends_the_run_before_its_actors(monkeypatch, tmp_path) -> None:
    def refuse(*_: object) -> list[Spy]:
        raise ValueError("recorder.loggers: Weights & Biases: nobody is logged in")

    train = ending(monkeypatch, tmp_path, AssertionError("started"))
    monkeypatch.setattr(run, "open_loggers", refuse)
    with pytest.raises(UserError, match="nobody is logged in"):
        train()


def test_the_environment_whose_notes_a_run_begins_with_is_in_the_style_that_is_set(monkeypatch, tmp_path) -> None:
    words = ["environment.prompt=natural", "environment.options.observation_format=grid_coord"]
    config = load("frozenlake", [*words, f"runs_dir={tmp_path}", "name=it"])
    ending(monkeypatch, tmp_path, UserError("the loop began"))
    with pytest.raises(UserError, match=r"^the loop began$"):
        run.train(config, False, lambda _: None)


def test_a_run_that_another_process_drives_is_refused_and_its_archive_untouched(monkeypatch, tmp_path) -> None:
    train = ending(monkeypatch, tmp_path, ArchiveError("the loop was reached"))
    other = Driver(tmp_path / "it")
    other.hold(lambda _: None)
    with pytest.raises(UserError, match="drives this run"):
        train()
    assert not (tmp_path / "it" / "config.yaml").exists()
    other.close()
    with pytest.raises(UserError, match="the loop was reached"):
        train()


def finished(tmp_path: Path, **facts: object) -> None:
    """The folder of a run that made its 3 steps."""
    folder = tmp_path / "it"
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it", "loop.steps=3"])
    run.create_run(config, lambda _: None)
    summary = {"schema": 1, "finished": True, "stopped": None, "steps": 3, "ledger": {"balanced": True}} | facts
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text('{"step": 3, "time": 1.0}\n')


EARLY = {"finished": False, "end_cause": "early_stop", "stopped": "early stop: success fell"}
STOPPED = {"finished": False, "stopped": "stopped by SIGINT"}


@pytest.mark.parametrize(
    ("facts", "words", "remedy"),
    [({}, ["loop.steps=3"], "raise loop.steps=3"), (EARLY, ["loop.steps=3"], "change the setting that ended it")],
)
def test_a_finished_run_is_not_resumed_and_says_what_to_raise(tmp_path, facts, words, remedy) -> None:
    finished(tmp_path, **facts)
    before = (tmp_path / "it" / "summary.json").read_bytes()
    said: list[str] = []
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it", *words])
    assert run.train(config, True, said.append, lambda: pytest.fail("a report is written")) == 0
    assert "is finished" in said[-1] and remedy in said[-1] and len(said) == 1
    assert (tmp_path / "it" / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({}, "loop.steps=4"),
        (EARLY, "filter.rule=none"),
        (EARLY, "sampling.temperature=0.9"),
        ({"finished": False, "stopped": "stopped by SIGINT"}, "seed=0"),
    ],
)
def test_a_run_with_something_left_to_do_goes_on_and_its_old_summary_is_aside(
    monkeypatch, tmp_path, facts, word
) -> None:
    finished(tmp_path, **facts)
    ending(monkeypatch, tmp_path, ArchiveError("the loop was reached"))
    with pytest.raises(UserError, match="the loop was reached"):
        run.train(load("frozenlake", [f"runs_dir={tmp_path}", "name=it", "loop.steps=3", word]), True, lambda _: None)
    assert not (tmp_path / "it" / "summary.json").exists()
    assert json.loads((tmp_path / "it" / "summary.earlier.json").read_text())["steps"] == 3


def test_what_happens_to_the_store_is_said_on_the_terminal(monkeypatch, tmp_path) -> None:
    train, said = ending(monkeypatch, tmp_path, RuntimeError("a bug")), []
    uploads = SimpleNamespace(say=lambda text: pytest.fail(f"said to the log: {text}"))

    def fail(*_: object) -> None:
        uploads.say("store: it is slow")
        raise ArchiveError("over")

    uploads.finish, uploads.close, uploads.stopped_by, uploads.unsent = lambda: None, lambda: None, None, lambda: None
    monkeypatch.setattr(run, "open_uploads", lambda *_: uploads)
    monkeypatch.setattr(run, "_train", fail)
    with pytest.raises(UserError, match="over"):
        train(said.append)
    assert "store: it is slow" in said


@pytest.mark.parametrize("began", [True, False])
def test_what_changed_is_reported_of_a_run_that_began_and_not_of_one_that_a_sweep_prepared(tmp_path, began) -> None:
    words = [f"runs_dir={tmp_path}", "name=it"]
    prepared, started = load("frozenlake", words), load("frozenlake", [*words, "scorer.every=7"])
    prepared.run_dir.mkdir()
    run.create_run(prepared, lambda _: None)
    if began:
        (prepared.run_dir / "metrics.jsonl").write_text('{"step": 1}\n')
    said: list[str] = []
    run.create_run(started, said.append)
    assert [line for line in said if "changed" in line] == (
        ["setting changed since the run started: scorer.every: None -> 7"] if began else []
    )
    assert load(str(prepared.run_dir / "config.yaml")) == started
    assert (prepared.run_dir / "config.yaml").read_text().startswith(f"# Written by Squelch {version_text()}.\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rollout.num_gpus=99"], r"the cluster has \d+ GPUs? and the run needs 99 "),
        (["cluster.num_cpus=1", "learner.num_cpus=2"], r"the cluster has 1 CPUs? and the run needs"),
        (["scorer.model=nowhere"], r"^scorer\.model: .*nowhere: no config\.json"),
        (["environment.name=nowhere:Lake"], "'nowhere' cannot be imported"),
    ],
)
def test_a_run_that_cannot_start_is_refused_before_its_model_is_warmed_up(monkeypatch, tmp_path, words, says) -> None:
    monkeypatch.setattr(run, "prepare_model", lambda *_: pytest.fail("a warm-up was begun"))
    with pytest.raises(UserError, match=says):
        run.train(load("frozenlake", [f"runs_dir={tmp_path}", "name=it", *words]), False, lambda _: None)


def test_settings_of_several_environments_are_read_before_a_model_is_warmed_up(monkeypatch, tmp_path) -> None:
    words = ["environment=null", "environments=[{name: FrozenLake}, {name: Sokoban, format: {worked_turn: true}}]"]
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it", *words])
    monkeypatch.setattr(run, "prepare_model", lambda *_: tmp_path)
    _, _, notes = run._prepare(config, None, False, Quiet())
    without = "setting without effect: environments[1].format.worked_turn=true does nothing with environments[1].prompt"
    assert [note for note in notes if note.startswith(without)]
