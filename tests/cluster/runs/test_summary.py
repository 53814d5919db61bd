"""What a run's summary says of its success and its time."""

from pathlib import Path
from types import SimpleNamespace

from squelch.cluster.config import load
from squelch.cluster.control.ledger import Ledger
from squelch.cluster.runs.summary import Outcome, _success, summarise_run
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Mixture
from squelch.kit.archive.writer import Archive
from squelch.kit.base.package import code_version, commit

ONE = Mixture.of(EnvironmentConfig())


def line(step: int, success: float, gain: float) -> dict[str, float]:
    bounds = {"validation/success_low": success - 0.1, "validation/success_high": success + 0.1}
    gains = {"gain": gain, "gain_low": gain - 0.1, "gain_high": gain + 0.1}
    return {"validation/step": step, "validation/success": success} | bounds | gains


def test_a_gain_over_other_fixed_tasks_is_none_of_this_summary() -> None:
    """Found by a reviewer: "before" was of step 40, "after" of step 20, on the tasks before a change."""
    old = [line(10, 0.5, 0.1), line(20, 0.9, 0.4)]
    outcome = SimpleNamespace(first_validation={"step": 40, "solved": [1, 0, 0, 0]}, last={}, best=(0.25, 40))
    alone = _success(ONE, outcome, old)
    assert alone["before"]["step"] == 40 and "after" not in alone and "gain" not in alone
    both = _success(ONE, outcome, [*old, line(60, 0.5, 0.25)])
    assert both["after"]["step"] == 60 and both["gain"]["mean"] == 0.25


def test_the_seconds_of_a_run_are_those_of_all_its_lines_and_of_the_work_after_them(tmp_path: Path) -> None:
    """Found by a reviewer: the first validation was in `squelch_part_seconds_total` and not in the summary."""
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it"])
    archive = Archive(config.run_dir)
    archive.metrics(0, {"seconds/validation": 5.0})
    archive.metrics(1, {"seconds/step": 2.0, "seconds/validation": 3.0, "seconds/probe": 1.0})
    outcome = Outcome(
        ending=None, steps=1, optimizer_steps=1, policy_version=1, training_seconds=2.0, totals={}, last={},
        carried={"seconds/checkpoint": 0.5}, first_validation=None, best=(0.0, 0), ledger=Ledger(),
    )  # fmt: skip
    summary = summarise_run(config, outcome, 11.5)
    assert (summary["version"], summary["commit"]) == (code_version(), commit())
    seconds = summary["seconds"]
    known = {part: value for part, value in seconds.items() if value}
    assert known == {"validation": 8.0, "probe": 1.0, "checkpoint": 0.5, "step": 2.0}
