"""The study of runs that are made to collapse: its runs, the frozen alarm, and what is judged."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from research import made_to_collapse
from research.kept import Kept, read_all
from research.made_to_collapse import (
    FROZEN,
    LARGEST_FALSE,
    RESULTS,
    false_alarms,
    frozen,
    judged,
    main,
    measure,
)
from squelch.actors.diagnosis.uncertainty import wilson_interval
from squelch.cluster.errors import UserError

PAGE = Path(__file__).parents[2] / "docs" / "research" / "alarms.md"


def kept(part: str, d: list[float], success: list[float], seed: int = 0, validated: list[float] | None = None) -> Kept:
    steps, probe = list(range(0, 10 * len(d), 10)), {}
    for key, values in (("probe/mi", [2.0] * len(d)), ("probe/link/dependence", d)):
        probe |= {key: values, f"{key}_standard_error": [0.05] * len(d), f"{key}_p_value": [0.001] * len(d)}
    each = {"step": list(range(1, len(success) + 1)), "success": success}
    ends = [success[0], success[-1]]
    checked = {"step": [0, len(success)], "validation/success": ends if validated is None else validated}
    tables = {"probe": {"step": steps, **probe}, "steps": each, "validated": checked}
    return Kept(f"{part}_s{seed}", part, "frozenlake", "none", seed, 120, tables, {})


FALLING = [1.0] * 4 + [0.1] * 8
SUCCESS = [0.5] * 80 + [0.1] * 30


def test_gentle_runs_are_judged_apart():
    runs = [kept("collapse", FALLING, SUCCESS), *(kept("gentle", FALLING, SUCCESS[: n + 30]) for n in (75, 80))]
    found = measure([*runs, kept("steady", [1.0] * 12, [0.5] * 110)], 10)
    assert (len(found["collapsed"]), len(found["gentle"]["collapsed"]), len(found["gentle"]["healthy"])) == (1, 2, 1)
    assert found["false_alarms"] is None and found["gentle"]["false_alarms"]["raised"] == 0


def test_the_alarm_is_the_one_that_was_frozen():
    assert frozen() == FROZEN, "the alarm was changed: judge it on runs that it has not seen"


def test_the_lead_is_from_the_alarm_to_the_fall_of_success():
    row = judged(kept("collapse", FALLING, SUCCESS))
    assert (row["alarm"], row["by"]) == (50, "dependence")
    assert row["fall"] is not None and row["lead"] == row["fall"] - 50 > 0
    assert judged(kept("healthy", [1.0] * 12, [0.5] * 110))["lead"] is None


def test_an_alarm_that_cleared_before_the_fall_is_early_and_has_no_lead():
    """Found by a reviewer: an alarm of steps 30 to 40 counted as a lead of 72 over a fall at step 102."""
    passing = kept("collapse", [1.0, 1.0, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], SUCCESS)
    row = judged(passing)
    assert (row["alarm"], row["lead"], row["early"]) == (None, None, 1) and row["fall"] is not None
    assert judged(replace(passing, part="healthy", tables={**passing.tables, "validated": {"step": []}}))["alarm"] == 30


def test_the_lead_counts_from_the_step_at_which_the_run_knew_the_reading():
    run = kept("collapse", FALLING, SUCCESS)
    late = {**run.tables["probe"], "probe/recorded": [step + 3 for step in run.tables["probe"]["step"]]}
    row = judged(replace(run, tables={**run.tables, "probe": late}))
    assert (row["alarm"], row["lead"]) == (53, row["fall"] - 53)


def test_a_low_end_of_noisy_success_is_no_fall_and_gives_the_alarm_no_lead():
    """Found with made-up runs: half of those with a steady success had a "fall" within their last steps."""
    rng = np.random.default_rng(0)
    runs = [kept("collapse", FALLING, rng.normal(0.4, 0.12, 110).tolist(), s, [0.4, 0.38]) for s in range(20)]
    assert {row["fall"] for row in map(judged, runs)} == {None}
    assert measure(runs, 1)["lead"]["n"] == 0


def test_steady_runs_with_little_noise_raise_no_false_alarm_and_falling_ones_do():
    steady = [kept("healthy", [1.0 + 0.02 * (i % 2) for i in range(12)], [0.5] * 110, s) for s in range(3)]
    found = false_alarms(steady, 200)
    assert found["raised"] == 0 and found["high"] <= 0.02
    assert found["themselves"]["raised"] == 0 and found["themselves"]["interval"][1] > 0.5, "three runs tell little"
    assert false_alarms([kept("healthy", FALLING, SUCCESS)], 50)["raised"] == 50


def test_a_healthy_run_without_readings_is_refused_and_does_not_count_as_quiet():
    found = kept("healthy", [1.0] * 12, [0.5] * 110)
    without = {name: values for name, values in found.tables["probe"].items() if "dependence" not in name}
    for probe in (without, {"step": []}):
        with pytest.raises(UserError, match=r"healthy_s0: 0 readings of probe/.* with an error; judging needs 4"):
            false_alarms([replace(found, tables={**found.tables, "probe": probe})], 10)


def test_in_the_committed_runs_six_fell_the_alarm_was_raised_in_each_and_in_no_healthy_one(capsys):
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fallen = [row for row in found["collapsed"] if row["fall"] is not None]
    assert len(found["collapsed"]) == 7 and len(fallen) == found["lead"]["n"] == 6
    assert all(row["alarm"] is not None and row["early"] == 0 for row in fallen)
    (steady,) = [row for row in found["collapsed"] if row["fall"] is None]
    assert "length" in steady["run"] and steady["alarm"] is None
    assert [(row["alarm"], row["early"], row["fall"]) for row in found["healthy"]] == [(None, 0, None)] * 6
    false = found["false_alarms"]
    assert (false["runs"], false["series"], false["raised"], false["themselves"]["raised"]) == (6, 2000, 0, 0)
    words = " ".join(PAGE.read_text().split())
    for part in (
        f"all six that collapsed ({wilson_interval(6, 6)[0]:.2f} to 1;",
        f"none of the six healthy ones (0 to {false['themselves']['interval'][1]:.2f})",
        f"(at most {false['high']:.4f}; wanted: {LARGEST_FALSE:g})",
        "{mean:.1f} steps [{low:.1f}, {high:.1f}]".format(**found["lead"]),
    ):
        assert part in words, f"docs/{PAGE.name} lacks {part!r}"


def test_the_page_has_the_row_of_every_committed_run_that_fell():
    found = measure(read_all(RESULTS), 1)
    rows = [row for row in [*found["collapsed"], *found["gentle"]["collapsed"]] if row["fall"] is not None]
    assert len(rows) == 8
    text = PAGE.read_text()
    for row in rows:
        by = row["by"].replace("mi", "MI").replace("dependence", "D")
        ends = " | ".join(f"{first:.2f} to {last:.2f}" for first, last in list(row["ends"].values())[1:])
        cells = f"| {row['fall']} | {row['alarm']}, {by} | {row['lead']} | {ends} |"
        assert text.count(cells) == 1, f"docs/{PAGE.name} lacks {row['run']}: {cells}"


def test_the_mean_lead_has_an_interval_over_runs():
    runs = [kept("collapse", FALLING, [0.5] * n + [0.1] * (110 - n), n) for n in (70, 80, 90)]
    lead = measure(runs, 10)["lead"]
    assert lead["n"] == 3 and lead["low"] < lead["mean"] < lead["high"]


def test_the_share_of_falls_that_are_told_has_an_interval_as_the_false_alarms_have():
    runs = [kept("collapse", d, SUCCESS, seed) for seed, d in enumerate([FALLING] * 5 + [[1.0] * 12])]
    first, *_ = made_to_collapse.notes(measure(runs, 10))
    assert first.endswith("whose success fell: 6, of these with an alarm: 5 [0.44, 0.97]")
