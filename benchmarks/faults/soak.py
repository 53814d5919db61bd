"""The soak: the demo on several seeds, undisturbed and with a fault every fifth step, compared by validation success.

Every run's folder is kept, so that a seed whose run has ended is left out when the command is repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.faults.cell import IMPATIENT, booted
from tests.e2e.faults.injection import Injector
from tests.e2e.faults.plan import Fault, draw
from tests.e2e.faults.session import Hung, Session
from tests.e2e.hosts import ADDRESS, Hosts

EVERY = 5
KINDS = ("kill", "stop", "slow", "memory")
SILENT_S = 3600.0
BEYOND = 10**9


def soak(folder: Path, seeds: Sequence[int]) -> int:
    """Trains each seed both ways and prints a line a run; 1 if a ledger does not balance, else 0."""
    results = []
    for seed in seeds:
        for disturbed in (False, True):
            results.append(_run(folder.resolve(), seed, disturbed))
            print(json.dumps(results[-1]), flush=True)
    return int(not all(result["balanced"] for result in results))


def _run(folder: Path, seed: int, disturbed: bool) -> dict[str, Any]:
    name = f"seed-{seed}" + ("-faults" if disturbed else "")
    if not (folder / name / "summary.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with booted(folder) as cluster:
            _train(cluster, folder, name, seed, disturbed)
    found = json.loads((folder / name / "summary.json").read_text())
    last = {key: found["success"]["after"][key] for key in ("success", "low", "high")}
    return {
        "seed": seed,
        "disturbed": disturbed,
        "steps": found["steps"],
        "balanced": found["ledger"]["balanced"],
    } | last


def _train(cluster: Hosts, folder: Path, name: str, seed: int, disturbed: bool) -> None:
    limits = IMPATIENT if disturbed else ()
    words = [f"name={name}", f"seed={seed}", f"runs_dir={folder}", "recorder.port=0", f"cluster.address='{ADDRESS}'"]
    command = ["train", "frozenlake", *words, *limits]
    session = Session(command, folder / name, folder / f"{name}.log", cluster.command(), cluster.env)
    faults = draw(seed, 1000, KINDS) if disturbed else []
    try:
        session.start()
        _to_the_end(session, Injector(cluster, folder), faults)
    finally:
        session.kill()


def _to_the_end(session: Session, injector: Injector, faults: Sequence[Fault]) -> None:
    """Injects a fault after every fifth step, and resumes the run after an end that is none."""
    for number, fault in enumerate(faults, 1):
        if _reached(session, number * EVERY):
            return
        time.sleep(fault.moment)
        injector.inject(fault, session.driver)
    if not _reached(session, BEYOND):
        raise Hung("the run has more steps than faults were drawn for")


def _reached(session: Session, step: int) -> bool:
    """Waits for the step; True if the run has come to its own end before. A run that ends otherwise is resumed."""
    while (end := session.until_step(step, SILENT_S)) is not None:
        if end.code == 0:
            return True
        started = session.step()
        session.start()
        session.until_step(started + 1, SILENT_S)
        if session.step() <= started:
            raise Hung(f"the run ended and, resumed, ended again: {end.line}")
    return False
