"""A run that is stopped or killed in the middle goes on from its last checkpoint as if nothing had happened.

To the bit, with one rollout worker, float32, no staleness and the recomputed anchor."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from actors.archive.reader import read_events, read_groups, read_metrics
from cluster.cli import main
from learner.checkpoint import read_loop
from tests.e2e.replay import assert_replays
from tests.e2e.support import Run, children, small_run, summary, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]
STEPS = 5
SETTINGS = (
    f"loop.steps={STEPS}",
    "loop.checkpoint_every=2",
    "validation.every=2",
    "validation.tasks=16",
    "validation.early_stop=paper",
    "scorer.every=2",
    "learner.minibatches=2",
    "learner.objective.anchor=recomputed",
    "learner.objective.kl.coefficient=0.05",
    "gradients.every=3",
    "gradients.groups=7",
)
TIMES = re.compile(r"seconds|^time$|per_second|^wait/")
SCORED = re.compile(r"^(first_turn|trajectory|scorer)/")
"""Figures of a scoring stand in the record of whichever step ends after it."""


@pytest.fixture(scope="module")
def reference(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reference")
    run = Run(*small_run(folder, tiny_policy, "whole", *SETTINGS))
    assert run.finish() == 0, run.text
    return folder / "whole"


def groups(run_dir: Path) -> pa.Table:
    """Every row of the archive, tokens and log-probabilities included, in order."""
    keys = ("step", "group_id", "trajectory")
    return read_groups(run_dir).sort_by([(key, "ascending") for key in keys])


def figures(run_dir: Path) -> tuple[list[dict[str, Any]], dict[Any, dict[str, Any]]]:
    """(a record a step without times and scorings, scorings by the step scored)."""
    lines = [{k: v for k, v in line.items() if not TIMES.search(k)} for line in read_metrics(run_dir)]
    for line in lines[1:]:  # how far the next step's tickets have got when a step is recorded is a time too
        line["ledger/open"] = line.pop("ledger/in_flight") + line.pop("ledger/buffered")
    plain = [{k: v for k, v in line.items() if not SCORED.match(k)} for line in lines]
    scored = [{k: v for k, v in line.items() if SCORED.match(k)} for line in lines]
    return plain, {line["scorer/step"]: line for line in scored if "scorer/step" in line}


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
    return read_loop(run_dir / "checkpoints" / f"step-{STEPS}")["early_stop"]


def assert_same_run(run_dir: Path, reference: Path) -> None:
    """Every token, log-probability, figure and weight; those before the stop are made from the seed alone."""
    ours, theirs = groups(run_dir), groups(reference)
    for column in ours.column_names:
        assert ours[column].equals(theirs[column]), column
    (ours, our_scores), (theirs, their_scores) = figures(run_dir), figures(reference)
    assert [line["step"] for line in ours] == list(range(STEPS + 1))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other
    assert our_scores == their_scores
    assert checksums(run_dir) == checksums(reference)
    assert weights(run_dir) == weights(reference)
    assert early_stop(run_dir) == early_stop(reference) and len(early_stop(reference)["baseline"]) == STEPS
    mine, other = (summary(path.parent, path.name) for path in (run_dir, reference))
    assert {k: mine[k] for k in ("success", "tokens_sampled", "tokens_trained")} == {
        k: other[k] for k in ("success", "tokens_sampled", "tokens_trained")
    }
    assert mine["finished"] and mine["ledger"] == other["ledger"] and mine["ledger"]["balanced"]


def test_every_task_is_trained_on_once_and_every_version_differs(reference: Path) -> None:
    rows = read_groups(reference, columns=["group_id", "task_seed"]).to_pylist()
    tasks = {row["group_id"]: row["task_seed"] for row in rows}
    assert sorted(tasks.values()) == list(range(4 * STEPS))
    versions = checksums(reference)
    assert all(len(sums) == 1 for sums in versions.values())
    assert len(set().union(*versions.values())) == len(versions) > 1


def test_a_step_replayed_from_the_archive_gives_the_same_parameters(
    tiny_policy: Path, reference: Path, tmp_path: Path
) -> None:
    assert_replays(reference, tiny_policy, STEPS, STEPS, tmp_path)


def test_gradients_are_taken_apart_in_a_run_and_from_its_archive(
    reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = next(m for m in read_metrics(reference) if m["step"] == 3)
    assert (
        line["gradients/groups"] == 7 and line["gradients/q6/reward_variance"] >= line["gradients/q1/reward_variance"]
    )
    assert all(line[f"gradients/q{b}/entropy"] > 0 for b in range(1, 7))
    measured = json.loads((reference / "gradients" / "step-000003.json").read_text())
    assert len(measured["groups"]) == 7 and measured["version"] == line["policy_version"] - 1
    assert main(["gradients", str(reference), "--step", "4", "--groups", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["versions"] == {str(found["version"]): 4} and len(found["groups"]) == 4
    assert main(["gradients", str(reference), "--step", "4", "--older", "weight", "--groups", "12"]) == 0
    assert "Norm of the bucket's mean gradient" in capsys.readouterr().out
    assert main(["gradients", str(reference), "--step", "4"]) == 2
    assert "4 groups were sampled by version" in capsys.readouterr().err


def test_sigterm_stops_after_the_step_in_training_and_the_resumed_run_is_the_same_run(
    tiny_policy: Path, tmp_path: Path, reference: Path
) -> None:
    words = small_run(tmp_path, tiny_policy, "stopped", *SETTINGS)
    run = Run(*words)
    run.until(lambda line: line.startswith(f"step    1/{STEPS}"))
    started = children(run.process.pid)
    run.signal(signal.SIGTERM)
    assert run.finish() == 128 + signal.SIGTERM, run.text
    assert "stopped by SIGTERM after step" in run.lines[-1]
    assert not wait_gone(started)
    found = summary(tmp_path, "stopped")
    assert found["ledger"]["balanced"] and not found["finished"] and 1 <= found["steps"] < STEPS

    again = Run(*words, "--resume")
    again.until(lambda line: line.startswith("resumed from"))
    assert again.finish() == 0, again.text
    assert_same_run(tmp_path / "stopped", reference)


def test_a_run_killed_in_the_middle_of_training_resumes_as_the_same_run(
    tiny_policy: Path, tmp_path: Path, reference: Path
) -> None:
    words = small_run(tmp_path, tiny_policy, "killed", *SETTINGS)
    run = Run(*words)
    run.until(lambda line: line.startswith(f"step    3/{STEPS}"))
    started = [*children(run.process.pid), psutil.Process(run.process.pid)]
    run.kill()
    assert not wait_gone(started)

    again = Run(*words, "--resume")
    line = again.until(lambda line: line.startswith("resumed from"))
    assert "after step 2" in line
    assert again.finish() == 0, again.text
    assert_same_run(tmp_path / "killed", reference)


def test_a_name_already_taken_and_a_resume_of_nothing_are_refused(tiny_policy: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "metrics.jsonl").write_text("")
    taken = Run(*small_run(tmp_path, tiny_policy, "taken"))
    assert taken.finish() == 2 and "--resume" in taken.text
    nothing = Run(*small_run(tmp_path, tiny_policy, "nothing"), "--resume")
    assert nothing.finish() == 2 and "holds no run" in nothing.text and not (tmp_path / "nothing").exists()
