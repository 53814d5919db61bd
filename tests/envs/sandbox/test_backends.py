"""The strongest back end that works is chosen and reported; one that does not isolate is used only if named."""

from __future__ import annotations

import dataclasses
import logging
import os

import pytest

from squelch.envs.sandbox import Limits, Pool, Question, backends
from squelch.envs.sandbox.backends import Backend, bubblewrap, choose, namespaces, probe, rlimits
from squelch.envs.sandbox.identity import identities
from squelch.envs.sandbox.image import find
from squelch.envs.sandbox.proof import HOSTILE, prove

PATIENT = Limits(wall_s=10, total_s=30)


@pytest.fixture(autouse=True)
def _forget() -> None:
    backends.probe_all.cache_clear()


def broken(image, identity) -> Backend:
    raise FileNotFoundError("it is not installed")


def test_each_back_end_that_works_locks_programs_in(backend: Backend) -> None:
    mine = Pool(backend, warm=1)
    try:
        program = "import os\nprint(os.getuid(), os.listdir('/'), len(os.listdir('/python/lib')), input())"
        run = mine.run(program, [Question("x")], PATIENT)[0]
        assert run.output.startswith(b"65534 ") and b"'python'" in run.output and b"'home'" not in run.output
        assert mine.run("while True: pass", [Question()], Limits(wall_s=0.3))[0].outcome == "late"
    finally:
        mine.close()


def test_every_back_end_bounds_processes_at_the_same_number(backend: Backend) -> None:
    program = "import os, time\nfor n in range(9):\n    try:\n        if os.fork() == 0: time.sleep(1); os._exit(0)\n"
    program += "    except OSError:\n        break\nprint(n)"
    mine = Pool(backend, warm=1)
    try:
        for allowed in (0, 3):
            run = mine.run(program, [Question()], PATIENT.model_copy(update={"processes": allowed}))[0]
            assert run.output == b"%d\n" % allowed
    finally:
        mine.close()


@pytest.mark.slow
def test_the_doctors_hostile_programs_do_no_harm_in_any_back_end(backend: Backend) -> None:
    mine = Pool(backend, warm=2)
    try:
        proof = prove(mine)
    finally:
        mine.close()
    assert proof.broken == () and proof.tried >= len(HOSTILE)


def test_a_back_end_without_a_bound_on_files_says_so(backend: Backend) -> None:
    bounded = not any("number of files" in missing for missing in backend.missing)
    assert bounded == (backend.name == "namespaces")


def test_the_strongest_that_works_is_taken_and_reported(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        chosen = choose(False)
    assert chosen.name == pool.backend.name
    assert f"sandbox: {chosen.name}" in caplog.text


def test_the_next_one_is_taken_where_the_strongest_fails(pool: Pool) -> None:
    choice = backends.probe_all((broken, namespaces, bubblewrap))
    assert choice.backend is not None and choice.backend.name in ("namespaces", "bubblewrap")
    assert "it is not installed" in choice.refused[0]


def test_nothing_runs_where_nothing_isolates() -> None:
    with pytest.raises(ValueError, match=r"nothing here isolates.*it is not installed.*apt-get install bubblewrap"):
        choose(False, (broken,))


def test_the_unsafe_way_is_an_option_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    chosen = choose(True, (broken,))
    assert not chosen.isolates and "NOTHING ISOLATES" in caplog.text and "isolation of files" in chosen.describe()
    unsafe = Pool(chosen, warm=1)
    try:
        assert unsafe.run("print(input())", [Question("x")], PATIENT)[0].output == b"x\n"
        assert unsafe.run("while True: pass", [Question()], Limits(wall_s=0.3))[0].outcome == "late"
        block = unsafe.run("bytearray(2**30)", [Question()], PATIENT)[0]
        assert block.outcome == "failed" and "MemoryError" in block.error
        assert unsafe.run("print(open('/etc/passwd').read())", [Question()], PATIENT)[0].output, "it is not isolated"
        user = int(unsafe.run("import os\nprint(os.getuid())", [Question()], PATIENT)[0].output)
        assert user == (65534 if os.geteuid() == 0 else os.geteuid()), "not even here is it root"
    finally:
        unsafe.close()


@pytest.mark.parametrize(
    "own_file", [backends.HOST_FILES[0], "/in/a/folder/that/only/its/owner/enters"], ids=["own", "hidden"]
)
def test_the_probe_sees_through_a_back_end_that_does_not_isolate(
    monkeypatch: pytest.MonkeyPatch, own_file: str
) -> None:
    monkeypatch.setattr(backends, "HOST_FILES", (own_file, *backends.HOST_FILES[1:]))
    identity = identities()[-1]
    pretender = dataclasses.replace(rlimits(find(identity), identity), isolates=True)
    with pytest.raises(ValueError, match=r"not locked in: .*it reads the host's files.*it opens sockets"):
        probe(pretender)
