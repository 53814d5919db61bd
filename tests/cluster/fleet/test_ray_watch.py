"""Ray's own processes are missed in time, and only if they are gone."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue

import pytest

from squelch.cluster.fleet import bootstrap, ray_watch
from squelch.cluster.fleet.ray_watch import RayWatch, Watched


@contextmanager
def process(answers: bool = True) -> Iterator[tuple[str, threading.Event]]:
    """A port that answers as gRPC does, or not at all; its address, and what ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        dead = threading.Event()

        def serve() -> None:
            while not dead.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                if answers:
                    connection.sendall(bootstrap._SETTINGS_FRAME)
                held.append(connection)
            listener.close()

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", dead
        finally:
            dead.set()
            thread.join()
            for connection in held:
                connection.close()


def test_a_process_that_ends_is_named_at_once_and_one_that_answers_is_not(monkeypatch) -> None:
    monkeypatch.setattr(ray_watch, "POLL_S", 0.05)
    said: Queue[str] = Queue()
    with process() as (gcs, _), process() as (raylet, dead):
        watch = RayWatch([Watched("gcs", gcs, 15.0), Watched("raylet", raylet, 0.0)], said.put)
        with pytest.raises(Empty):
            said.get(timeout=0.3)
        assert watch.ended() is None
        dead.set()
        assert said.get(timeout=180.0).startswith(f"raylet at {raylet} has ended (")
        assert watch.ended().startswith(f"raylet at {raylet} has ended (")
        watch.close()


def test_a_process_that_may_come_back_is_waited_for(monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(ray_watch.time, "monotonic", lambda: clock[0])
    gcs = Watched("gcs", "127.0.0.1:1", 15.0)
    for second in range(15):
        clock[0] = 100.0 + second
        assert gcs.gone() is None
    clock[0] = 115.0
    assert "gcs at 127.0.0.1:1 has ended" in gcs.gone()
    with process() as (gcs.address, _):
        assert gcs.gone() is None and gcs.failures == 0


def test_a_process_that_is_frozen_is_named_after_the_bound(monkeypatch) -> None:
    monkeypatch.setattr(ray_watch, "PROBE_S", 0.05)
    monkeypatch.setattr(ray_watch, "SILENT_S", 0.15)
    with process(answers=False) as (address, _):
        raylet = Watched("raylet", address, 0.0)
        assert raylet.gone() is None
        assert any("has not answered for" in (raylet.gone() or "") for _ in range(10))


def test_a_machine_that_slept_gets_another_chance_to_answer(monkeypatch) -> None:
    clock = iter([0.0, 900.0])
    raylet = Watched("raylet", "127.0.0.1:1", 0.0)
    monkeypatch.setattr(raylet, "error", TimeoutError)
    monkeypatch.setattr(ray_watch.time, "monotonic", lambda: next(clock))
    assert raylet.gone() is None


GONE = """
import atexit, os, signal, sys, threading, time
from squelch.cluster.fleet import ray_watch
from squelch.kit.process.signals import listening
ray_watch.POLL_S, ray_watch.STOP_S = 0.05, float(sys.argv[1])
ray_watch.watch_ray = lambda gone: ray_watch.RayWatch([ray_watch.Watched("raylet", "127.0.0.1:1", 0.0)], gone)
atexit.register(time.sleep, 600)
with listening() as signals, ray_watch.ray_watched(lambda text: print(text, flush=True)):
    signals.first_does(lambda number: None)
    if sys.argv[2:]:
        time.sleep(float(sys.argv[2]))
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["0.05"], 1, "failed: raylet at 127.0.0.1:1 has ended"),
        (["60", "0"], 143, "stopped by SIGTERM: raylet at 127.0.0.1:1 has ended"),
        (["60", "1"], 143, "stopped by SIGTERM: raylet at 127.0.0.1:1 has ended"),
    ],
    ids=["no signal", "a signal before", "a signal after"],
)
def test_a_command_whose_ray_is_gone_ends_with_a_line_and_the_code_of_the_signal_that_ended_ray(
    words: list[str], code: int, said: str
) -> None:
    command = [sys.executable, "-c", GONE, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == code and done.stdout.startswith(said)
