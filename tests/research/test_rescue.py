"""The study of the advice after an alarm: where its runs begin, and what is judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from research import rescue
from research.kept import Kept
from research.rescue import BEGINNINGS, SEEDS, Collapsed, compared, main, measure
from squelch.cluster.sweep.table import text


def kept(arm: str, seed: int, success: float, part: str = "rescue") -> Kept:
    tables = {"validated": {"step": [0, 40], "validation/success": [0.3, success]}}
    return Kept(f"{part}-{arm}_s{seed}", part, "frozenlake", arm, seed, 40, tables, {}, from_step=12)


@pytest.mark.parametrize(
    ("other", "gains", "verdict"),
    [
        ("last", (0.2, 0.21, 0.22), "holds"),
        ("last", (-0.2, -0.21, -0.22), "fails"),
        ("last", (-0.2, 0.0, 0.2), "cannot be told"),
        ("best", (-0.02, -0.021, -0.022), "holds"),
        ("anew", (-0.2, -0.21, -0.22), "fails"),
        ("anew", (0.2, 0.21), "not run"),
    ],
)
def test_verdicts_are_of_differences_within_a_seed(other, gains, verdict):
    runs = [run for s, gain in enumerate(gains) for run in (kept("named", s, 0.5 + gain), kept(other, s, 0.5))]
    found = compared(runs, other)
    assert found["verdict"] == verdict and found["seeds"] == list(range(len(gains)))


def collapsed(seed: int, alarm: dict | None) -> Collapsed:
    tables = {"validated": {"step": [0, 30, 60], "validation/success": [0.3, 0.5, 0.1]}}
    return Collapsed(Kept(f"collapse_s{seed}", "collapse", "frozenlake", "entropy0.2", seed, 60, tables, {}), alarm)


def test_a_seed_without_an_alarm_is_told_and_left_out_of_the_verdicts():
    alarm = {"name": "probe_falling", "step": 36, "checkpoint": 18}
    runs = [
        kept(arm, seed, success) for seed in (0, 1) for arm, success in (("named", 0.6 + seed / 100), ("last", 0.2))
    ]
    figures = measure([collapsed(0, alarm), collapsed(1, alarm), collapsed(2, None)], [*runs, kept("last", 2, 0.9)])
    first, _, third, *verdicts = rescue.notes(figures)
    assert first.endswith("success 0.300, at best 0.500, after 60 steps 0.100; first alarm: probe_falling of step 36")
    assert third.endswith("first alarm: no alarm")
    assert "2 seeds; above 0: holds" in verdicts[list(rescue.OTHERS).index("last")]
    assert rescue.rows(figures)[0] == ["0", "named", "12", "0.300", "0.600", "-"]


def test_where_the_alarm_named_the_best_checkpoint_one_run_stands_for_both():
    alarm = {"name": "probe_falling", "step": 36, "checkpoint": 30}
    own = [replace(kept("named", seed, 0.6 + seed / 100), from_step=30 if seed else 12) for seed in range(3)]
    figures = measure([collapsed(seed, alarm) for seed in range(3)], [*own, kept("best", 0, 0.5)])
    assert [(one["seed"], one["begins"]) for one in figures["rescues"]] == [
        *((0, "named"), (0, "best"), (1, "named"), (1, "best"), (2, "named"), (2, "best"))
    ]
    assert figures["compared"][0]["difference"]["mean"] == pytest.approx(0.1 / 3), "0 where one run stands for both"


def test_the_measurements_have_the_differences_of_the_committed_runs():
    words = " ".join((Path(__file__).parents[2] / "docs" / "research" / "alarms.md").read_text().split())
    found = measure(*rescue.committed())
    for one in found["compared"]:
        if one["other"] != "best":
            assert text(one["difference"], "+") in words, "docs/research/alarms.md"
    for one in found["rescues"]:
        assert f"{one['after']:.3f}" in words


def test_the_command_judges_the_committed_files(capsys):
    assert main(["--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(one["seed"], one["begins"]) for one in found["rescues"]} == {(s, arm) for s in SEEDS for arm in BEGINNINGS}
