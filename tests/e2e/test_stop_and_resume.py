"""A run that loses a learner rank, is stopped, and loses Ray in the middle of training, goes on as if nothing had
happened: to the bit, with one rollout worker, float32, no staleness and the recomputed anchor.

At every other point of a run, on fakes: tests/cluster/loop/test_the_loop.py."""

import math
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.kit.archive.reader import read_events, read_groups, read_metrics
from squelch.kit.findings import reasoning
from squelch.learner.checkpoint.manifest import read_loop
from tests.e2e.support import STEPS, Finished, Run, actors, assert_sound, children, compared_run, summary, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
TIMES = re.compile(r"seconds|^time$|per_second|^wait/|^restarts/learner$|^recovery/|^scaling/|^operations/|^mfu/|^gpu/")
"""Metrics that an interruption changes."""
SCORED = re.compile(r"^(first_turn|trajectory|turn|judge|scorer|probe)/|^kind/.*/mi_est$")
"""Metrics of a scorer step, or of an evaluation of the probe, stand in the record of whichever step ends after it."""
ALARM = "probe/alarm/"
OF_SCORES = re.compile(rf"^finding/({'|'.join(reasoning.LEVELS)})/")
"""Findings about these metrics, which therefore begin at whichever step that is."""

OF_SEVERAL = re.compile(r"_ema|^judge/")
"""Metrics of a scorer step that depend on the scorer steps before it."""


def groups(run_dir: Path) -> pa.Table:
    """Every row of the archive, tokens and log-probabilities included, in order."""
    keys = ("step", "group_id", "trajectory")
    return read_groups(run_dir).sort_by([(key, "ascending") for key in keys])


def metrics(run_dir: Path) -> tuple[list[dict[str, Any]], dict[Any, dict[str, Any]]]:
    """(a record a step without times and scorer steps, scorer steps by the step scored, probe evaluations by that of
    the probe)."""
    left_out = (TIMES, OF_SCORES)
    lines = [
        {k: v for k, v in line.items() if not any(one.search(k) for one in left_out)} for line in read_metrics(run_dir)
    ]
    # How far the next step's tickets have got when a step is recorded is a time too.
    for line in (line for line in lines if "ledger/in_flight" in line):
        line["ledger/open"] = line.pop("ledger/in_flight") + line.pop("ledger/buffered")
    plain = [{k: v for k, v in line.items() if not SCORED.match(k)} for line in lines if "total_steps" in line]
    scored = [{k: v for k, v in line.items() if SCORED.match(k)} for line in lines]
    # So is the record that counts a scorer step as done: only their number is compared.
    done = sum(line.pop("scorer/done", None) or 0 for line in scored)
    for line in scored:  # which steps are skipped shows in those that are not; whose record says so is a time
        line.pop("scorer/skipped", None)
    by_step: dict[Any, dict[str, Any]] = {("scorer", "done"): {"count": done}}
    for kind in ("scorer", "probe"):
        for line in (line for line in scored if f"{kind}/step" in line):
            of_kind = {k: v for k, v in line.items() if k.startswith("probe/") == (kind == "probe")}
            by_step[kind, line[f"{kind}/step"]] = of_kind
    # An evaluation that comes late has a record of its own, and the alarm is part of a step's: the last one counts.
    probed = [line for of, line in by_step.items() if of[0] == "probe"]
    alarms = [{key: line.pop(key) for key in [*line] if key.startswith(ALARM)} for line in probed]
    by_step["probe", "alarm"] = next((found for found in reversed(alarms) if found), {})
    return plain, by_step


def checksums(run_dir: Path) -> dict[int, set[str]]:
    """Of the weights that reached the rollout workers, by version; a resumed run publishes its first one again."""
    found: dict[int, set[str]] = {}
    for event in read_events(run_dir):
        if event["name"] == "weights":
            found.setdefault(event["version"], set()).add(event["checksum"])
    return found


def weights(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / f"step-{STEPS}" / "hf" / "model.safetensors").read_bytes()


def early_stop(run_dir: Path) -> dict[str, Any]:
    """What its rules had counted at the end."""
    return read_loop(run_dir / "checkpoints" / f"step-{STEPS}")["watchers"]["early_stop"]


def assert_same_scores(ours: dict[Any, dict[str, Any]], theirs: dict[Any, dict[str, Any]]) -> None:
    """A scoring is left out while the one before it is under way, which is a time; what is made of several scorings
    then differs."""
    if ours.keys() != theirs.keys():
        done = ("scorer", "done")
        assert {key for key in ours.keys() ^ theirs.keys() if key[0] != "scorer"} == set()
        ours, theirs = (
            {
                k: {n: v for n, v in found[k].items() if not OF_SEVERAL.search(n)}
                for k in ours.keys() & theirs.keys() - {done}
            }
            for found in (ours, theirs)
        )
        assert any(kind == "scorer" for kind, _ in ours), "the first scored step finds the scorer free, in both"
    assert ours == theirs


def assert_same_run(run_dir: Path, reference: Path) -> None:
    """Every token, log-probability, metric and weight; those before the stop are made from the seed alone."""
    ours, theirs = groups(run_dir), groups(reference)
    for column in ours.column_names:
        assert ours[column].equals(theirs[column]), column
    (ours, our_scores), (theirs, their_scores) = metrics(run_dir), metrics(reference)
    assert [line["step"] for line in ours] == list(range(STEPS + 1))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other
    assert_same_scores(our_scores, their_scores)
    assert checksums(run_dir) == checksums(reference)
    assert weights(run_dir) == weights(reference)
    assert early_stop(run_dir) == early_stop(reference) and len(early_stop(reference)["baseline"]) == STEPS
    mine, other = summary(run_dir), summary(reference)
    assert {k: mine[k] for k in ("success", "tokens_sampled", "tokens_trained")} == {
        k: other[k] for k in ("success", "tokens_sampled", "tokens_trained")
    }
    assert mine["finished"] and mine["ledger"] == other["ledger"] and mine["ledger"]["balanced"]


def assert_written_beside_the_loop(run_dir: Path) -> None:
    """Each checkpoint's files are complete before the next update, and a record after it has its seconds."""
    events, lines = read_events(run_dir), {line["step"]: line for line in read_metrics(run_dir)}
    trained = {
        event["step"]: event["start"] for event in events if (event["actor"], event["name"]) == ("learner", "call")
    }
    saved = {event["step"]: event for event in events if event["name"] == "checkpoint"}
    assert sorted(saved) == [2, 4, STEPS]
    for step in (2, 4):
        parts = saved[step]["seconds"]
        written = saved[step]["start"] + parts["shards"] + parts["export"]
        assert written <= trained.get(step + 1, math.inf), "a step without a signal is not trained on"
        assert parts["seal"] > 0 and lines[step + 1]["seconds/checkpoint"] >= 0
    assert sum(line.get("seconds/checkpoint_write", 0.0) for line in lines.values()) > 0


def logged(run_dir: Path) -> list[int]:
    """The steps of which TensorBoard shows the reward."""
    read = EventAccumulator(str(run_dir / "tensorboard"))
    read.Reload()
    return [event.step for event in read.Scalars("Is it learning/reward_mean")]


def kill_learner(run: Run) -> None:
    """Kills the learner's rank; Ray titles a process by its actor's class."""
    (rank,) = actors(run.process.pid, "LearnerRank")
    rank.kill()


def test_a_run_that_loses_its_learner_and_is_stopped_and_killed_and_resumed_twice_is_the_same_run(
    tiny_policy: Path, tmp_path: Path, whole: Finished
) -> None:
    """Starting a run costs more than all of its steps, so that one run is interrupted three times."""
    folder = tmp_path / "interrupted"
    words = compared_run(folder, tiny_policy)
    run = Run(*words, as_job=True)
    run.until(lambda line: line.startswith(f"step    1/{STEPS}"))
    workers = actors(run.process.pid, "RolloutWorker")
    kill_learner(run)
    run.until(lambda line: line.startswith("the learner is back") and line.endswith("the same weights"))
    run.until(lambda line: line.startswith(f"step    2/{STEPS}"))
    assert workers and all(worker.is_running() for worker in workers), "rollout workers stay up"
    started = children(run.process.pid)
    run.signal_job(signal.SIGTERM)
    assert run.finish() == 128 + signal.SIGTERM, run.text
    assert "stopped by SIGTERM after step" in run.lines[-1]
    assert not wait_gone(started)
    found = summary(folder)
    assert found["ledger"]["balanced"] and not found["finished"] and 1 <= found["steps"] < STEPS - 1

    run = Run(*words, "--resume")
    assert f"after step {found['steps']}" in run.until(lambda line: line.startswith("resumed from"))
    run.until(lambda line: line.startswith(f"step    {max(3, found['steps'] + 1)}/{STEPS}"))
    (worker,) = actors(run.process.pid, "RolloutWorker")
    engine = children(worker.pid)
    worker.kill()
    assert engine and not wait_gone(engine), "a worker that is killed takes its engine along"
    started = [*children(run.process.pid), psutil.Process(run.process.pid)]
    for process in started:
        if process.name() in ("gcs_server", "raylet"):
            process.kill()
    assert run.finish() == 1, run.text
    assert "its raylet" in run.lines[-1] and "continue with --resume" in run.lines[-1] and "Traceback" not in run.text
    assert summary(folder)["end_cause"] == "failed" and not wait_gone(started)
    newest = checkpoints(folder)[-1][0]
    assert newest < STEPS

    run = Run(*words, "--resume")
    assert f"after step {newest}" in run.until(lambda line: line.startswith("resumed from"))
    assert run.finish() == 0, run.text
    assert_same_run(folder, whole.folder)
    assert_sound(folder, tiny_policy)
    assert_written_beside_the_loop(whole.folder)
    assert logged(folder) == logged(whole.folder) == list(range(1, STEPS + 1))
