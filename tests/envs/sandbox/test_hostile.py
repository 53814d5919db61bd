"""Hostile programs: no harm in the sandbox, harm without it."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from squelch.envs.sandbox import Limits, Pool, Question, Test, judge
from tests.envs.sandbox.conftest import Host
from tests.envs.sandbox.corpus import ANSWERS, Hostile, controlled, corpus, is_running, run_controls

pytestmark = pytest.mark.slow

FILES = sorted({hostile.file for hostile in corpus()})
PATIENT = Limits(wall_s=10, total_s=20, cpu_s=5, memory_mb=256, processes=8)
SHORT = PATIENT.model_copy(update={"wall_s": 0.4})
TESTS = [Test(Question(arguments=(x,)), (answer,)) for x, answer in ANSWERS.items()]
STREAMS = [Test(Question(stdin=f"{x}\n"), (str(answer),)) for x, answer in ANSWERS.items()]
NEXT = "import os\nprint(6 * 7, os.listdir('.'), sorted(os.environ))"


def test_the_corpus_is_large_and_its_names_are_its_own() -> None:
    names = [(hostile.file, hostile.name) for hostile in corpus()]
    assert len(names) >= 340
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("file", FILES)
def test_no_program_escapes_or_forges_and_each_harms_without_the_sandbox(file: str, pool: Pool, host: Host) -> None:
    hostiles = [hostile for hostile in corpus() if hostile.file == file and is_bounded(hostile, pool)]
    places = {hostile.number: place_of(hostile, host) for hostile in hostiles}
    untouched = pool.run(NEXT, [Question()], PATIENT)[0].output
    before = host.names()
    with ThreadPoolExecutor(2) as both:
        harms = list(both.map(lambda h: attack(h, places[h.number], pool, untouched), hostiles))
    assert [harm for harm in harms if harm] == []
    assert host.names() == before, "a program changed the host's files"
    assert all(victim.poll() is None and is_running(victim.pid) for victim in host.victims), "a program hurt a process"
    jobs = [(hostile, places[hostile.number]) for hostile in hostiles if controlled(hostile)]
    harmless = [c.hostile.name for c in run_controls(jobs, host.descriptors) if not c.verdict()]
    assert harmless == [], "these do no harm even without the sandbox: they prove nothing"


def is_bounded(hostile: Hostile, pool: Pool) -> bool:
    """Whether the back end has the bound that stops the program, where only some have it."""
    return hostile.name != "more_files_than_the_scratch_holds" or not any("of files" in lack for lack in pool.missing)


def place_of(hostile: Hostile, host: Host) -> dict[str, str]:
    """The place with a victim of this program's own, where it wants one."""
    place = dict(host.place)
    if "@victim@" in hostile.program:
        place["victim"] = str(host.victim().pid)
    if "@victim_file@" in hostile.program:
        victim = host.folder / f"victim-{hostile.number}"
        victim.write_text("whole")
        place["victim_file"] = str(victim)
    return place


def attack(hostile: Hostile, place: dict[str, str], pool: Pool, untouched: bytes) -> str | None:
    """What harm the program does in the sandbox, in words; None for none."""
    if hostile.mode == "naive":
        verdicts = judge(pool, hostile.text(place), TESTS, PATIENT, "solve") + judge(
            pool, hostile.text(place), STREAMS, PATIENT
        )
        return f"{hostile.name} forged a pass" if any(verdict.passed for verdict in verdicts) else None
    limits = PATIENT if hostile.mode in ("prints", "root prints", "after", "same interpreter") else SHORT
    run = pool.run(hostile.text(place), [Question()], limits)[0]
    if (b"HARM" in run.output and not hostile.after) or (hostile.mode == "alive" and run.outcome != "late"):
        return f"{hostile.name}: {dataclasses.replace(run, output=run.output[:200])}"
    if hostile.after and b"HARM" in pool.run(hostile.text(place, after=True), [Question()], PATIENT)[0].output:
        return f"{hostile.name} harmed the next program"
    following = pool.run(NEXT, [Question()], PATIENT)[0]
    return None if following.output == untouched else f"{hostile.name}: the next program found {following}"
