"""One boot: two hosts, a run, faults one after another, and the verdict on what the run left behind.

The run has no last step that it could reach: it is asked to stop after the last fault. After each fault it must end
`STEPS_AFTER` further steps. A run that ends instead must name the cause on its last line; it is then resumed. A run
that does neither within `PATIENCE_S` hangs.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.e2e.faults.injection import Injector, small_disk
from tests.e2e.faults.judge import Verdict, judge
from tests.e2e.faults.plan import DRIVER, HOST, Fault
from tests.e2e.faults.session import End, Hung, Session
from tests.e2e.hosts import ADDRESS, Host, Hosts, hosts

STEPS_AFTER = 2
PATIENCE_S = 180.0
START_S = 330.0
STOP_S = 90.0
MEND_S = 5.0
NOTICE_S = 60.0
LASTING = ("kill", "stop")
"""Kinds that a run must notice."""
PROMPTS, GROUP_SIZE = 4, 4
SMALL = (
    "loop.steps=100000",
    f"loop.prompts={PROMPTS}",
    f"sampling.group_size={GROUP_SIZE}",
    "loop.max_staleness=1",
    "loop.checkpoint_every=5",
    "validation.every=10",
    "validation.tasks=8",
    "scorer.every=2",
    "scorer.max_pairs=64",
    "scorer.trajectory_draws=8",
    "scorer.probe.every=0",
    "environment_actor.count=2",
    "rollout.count=2",
    "rollout.num_cpus=0.25",
    "rollout.kv_cache_gib=0.125",
    "rollout.max_num_seqs=16",
    "learner.ranks=2",
    "learner.placement=spread",
    "filter.no_signal_limit=100000",
    "recorder.port=0",
)
"""A run of small steps."""
IMPATIENT = (
    "cluster.hung_after_s=8",
    "learner.hung_after_s=8",
    "learner.start_timeout_s=60",
    "learner.step_timeout_s=60",
    "learner.checkpoint_timeout_s=60",
    "learner.regroup_timeout_s=10",
    "loop.group_timeout_s=60",
    "environment_actor.generation_timeout_s=25",
    "environment_actor.episode_timeout_s=40",
    "rollout.update_timeout_s=30",
    "rollout.start_timeout_s=200",
    "scorer.timeout_s=120",
    "cluster.start_timeout_s=300",
    "cluster.max_restarts=20",
    "cluster.restart_window_s=120",
    "cluster.restart_backoff_s=0.5",
)
"""Limits that are shorter than a user's, so that a hundred faults fit into an hour and a half."""


@dataclass(frozen=True)
class Returned:
    """A rollout worker that is back at work."""

    actor: str
    start_s: float
    """What its process and engine took to start."""
    back_s: float
    """From the fault to its first healthy moment."""


@dataclass
class Suffered:
    """What a fault did. `outcome`: went on, ended (by name, and was resumed), ended without a cause, hung, or no such
    process."""

    fault: Fault
    victim: str
    outcome: str
    step: int
    began: float
    """Unix time of the fault."""
    seconds: float
    """From the fault to the end of the second step after it, resumption included."""
    detected_s: float | None = None
    """From the fault to the first restart that the run recorded; None if there was none."""
    restarted: tuple[str, ...] = ()
    line: str = ""
    """The last line of a run that ended."""
    returned: tuple[Returned, ...] = ()


def run_boot(
    faults: Sequence[Fault],
    model: str,
    folder: Path,
    minutes: float = 60.0,
    words: Sequence[str] = (),
    look: Callable[[Path], None] = lambda _: None,
) -> dict[str, Any]:
    """Boots, injects the faults, stops the run; the boot's result as JSON-able data. No fault is injected once
    `minutes` are over. `look` is called with the folder of the run that has ended, before its disk goes."""
    before, began = os.getloadavg(), time.time()
    suffered: list[Suffered] = []
    with small_disk(folder / "runs") as disk, booted(folder) as cluster:
        session = _session(cluster, disk, model, folder, words)
        verdict: Verdict | None = None
        try:
            session.start()
            _require(session, 1)
            for fault in faults:
                if time.time() - began > 60 * minutes:
                    break
                suffered.append(_suffer(session, Injector(cluster, disk), cluster, fault))
                if suffered[-1].outcome == "hung":
                    break
            end = session.finish(STOP_S)
            _note_returns(session, suffered)
            verdict = judge(session.run_dir, PROMPTS, GROUP_SIZE)
            look(session.run_dir)
        except Hung as error:
            end = End(-1, str(error))
        finally:
            session.kill()
            _keep_logs(session, folder)
    machine = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    return {
        "machine": {**machine, "python": platform.python_version()},
        "seconds": time.time() - began,
        "end": asdict(end),
        "faults": [asdict(one) for one in suffered],
        "verdict": None if verdict is None else asdict(verdict),
    }


def booted(folder: Path) -> Any:
    """The driver's host and another, `a`, with Ray on both once entered."""
    return _Booted(folder)


class _Booted:
    """Context of the two hosts."""

    def __init__(self, folder: Path) -> None:
        short = Path(tempfile.mkdtemp(prefix="sqf-", dir="/tmp"))
        self._hosts = hosts(short, folder, [], {"a": {}})

    def __enter__(self) -> Hosts:
        cluster = self._hosts.__enter__()
        cluster.start(cluster.driver, "--num-cpus=6")
        cluster.start(cluster.others[0], "--num-cpus=2")
        return cluster

    def __exit__(self, *error: Any) -> None:
        self._hosts.__exit__(*error)


def _session(cluster: Hosts, disk: Path, model: str, folder: Path, words: Sequence[str]) -> Session:
    command = ["frozenlake", "name=faults", f"runs_dir={disk}", f"model.path={model}", f"cluster.address='{ADDRESS}'"]
    return Session(
        ["train", *command, *SMALL, *IMPATIENT, *words],
        disk / "faults",
        folder / "run.log",
        cluster.command(),
        cluster.env,
    )


def _require(session: Session, step: int) -> None:
    """Waits for a step of a run that has no reason to end."""
    end = session.until_step(step, START_S)
    if end is not None:
        raise Hung(f"the run ended with {end.code} before step {step}: {end.line}")


def _suffer(session: Session, injector: Injector, cluster: Hosts, fault: Fault) -> Suffered:
    step, pace = session.step(), _pace(session)
    time.sleep(fault.moment * pace)
    began = time.time()
    injected = injector.inject(fault, session.driver)
    if not injected.victim:
        return Suffered(fault, "", "no such process", step, began, 0.0)
    try:
        end = session.until_step(session.step() + STEPS_AFTER, PATIENCE_S)
        outcome = "went on" if end is None else "ended" if _explained(end, fault) else "ended without a cause"
        injected.end()
        _await_notice(session, fault, began)
        if fault.target == HOST:
            _mend(cluster, cluster.others[0])
        if end is not None:
            session.start()
            _require(session, session.step() + STEPS_AFTER)
    except Hung as error:
        end, outcome = End(-1, str(error)), "hung"
        injected.end()
    found = _notices(session, began)
    detected = min((event["start"] for event in found), default=None)
    return Suffered(
        fault,
        injected.victim,
        outcome,
        step,
        began,
        time.time() - began,
        None if detected is None else detected - began,
        tuple(sorted({event["actor"] for event in found})),
        "" if end is None else end.line,
    )


def _explained(end: End, fault: Fault) -> bool:
    """Whether the run's last line names the cause of its end; a driver that was killed can name none."""
    return fault.target == DRIVER or end.line.startswith(("failed: ", "squelch: "))


def _notices(session: Session, since: float) -> list[dict[str, Any]]:
    """The restarts and ends of actors that the run has recorded since a unix time."""
    return [event for event in session.events() if event["name"] in ("restart", "lost") and event["start"] >= since]


def _note_returns(session: Session, suffered: Sequence[Suffered]) -> None:
    """Notes at each fault which of the rollout workers that it cost came back before the next fault cost more."""
    events, ends = session.events(), [*(fault.began for fault in suffered[1:]), math.inf]
    for number, fault in enumerate(suffered):
        cost = {actor for later in suffered[number + 1 :] for actor in later.restarted}
        before = math.inf if not cost & set(fault.restarted) else ends[number]
        fault.returned = _returns(events, fault, before)


def _returns(events: Sequence[dict[str, Any]], fault: Suffered, before: float) -> tuple[Returned, ...]:
    """The rollout workers that a fault cost, and that were back before a unix time."""
    joined = [e for e in events if e["name"] == "joined" and "start_s" in e and fault.began <= e["start"] < before]
    back = {e["actor"]: Returned(e["actor"], e["start_s"], e["end"] - fault.began) for e in reversed(joined)}
    return tuple(back[actor] for actor in fault.restarted if actor in back)


def _await_notice(session: Session, fault: Fault, began: float) -> None:
    """Waits until the run has noticed a fault that no step needs to meet, such as an idle actor that hangs."""
    deadline = time.monotonic() + NOTICE_S
    while fault.kind in LASTING and fault.target != DRIVER and session.ended is None and time.monotonic() < deadline:
        if _notices(session, began):
            return
        time.sleep(0.2)


def _pace(session: Session) -> float:
    """Median seconds of the last steps."""
    times = [when for _, when in session.steps()][-6:]
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    return gaps[len(gaps) // 2] if gaps else 1.0


def _mend(cluster: Hosts, host: Host) -> None:
    """Starts a host's Ray again if the cluster had declared it dead."""
    assert host.process is not None
    try:
        host.process.wait(MEND_S)
    except subprocess.TimeoutExpired:
        return
    host.end()
    cluster.start(host, "--num-cpus=2")


def _keep_logs(session: Session, folder: Path) -> None:
    """Copies the text that the run left, because its disk is about to go."""
    for path in [*session.run_dir.glob("log/*"), *session.run_dir.glob("*.jsonl"), *session.run_dir.glob("*.json")]:
        (folder / path.name).write_bytes(path.read_bytes())
