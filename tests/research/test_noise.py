"""The study of noise: its cells are runs that can be made, and its criterion judges committed metrics as it says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from research import noise
from research.claims import plan
from research.kept import Kept, last_success
from research.noise import ARMS, TOLERANCE, judged, validated, verdict


def kept(arm: str, level: float, seed: int, last: float, first: float = 0.9) -> Kept:
    table = {"step": [0, 30, 60], "validation/success": [first, None, last]}
    return Kept("n", "noise", "frozenlake", plan.noise_arm(ARMS[arm], level), seed, 60, {"validated": table}, {})


def row(runs: list[Kept], arm: str, level: float) -> dict[str, Any]:
    (found,) = [one for one in judged(runs) if (one["arm"], one["p"]) == (arm, level)]
    return found


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(-0.02, 0.1, "holds"), (-0.05, 0.1, "not significant"), (-0.09, -0.04, "fails"), (-0.03, 0.0, "not significant")],
)
def test_the_criterion_is_that_of_the_modules_head(low: float, high: float, said: str) -> None:
    assert verdict({"low": low, "high": high}, 5, 5) == said and TOLERANCE == 0.03
    assert verdict({"low": low, "high": high}, 2, 5) == "2 of 5 seeds run"
    assert verdict({"low": None, "high": None}, 0, 5) == "not run"


def test_a_level_is_judged_by_the_last_success_paired_by_seed_once_all_seeds_are_there() -> None:
    none = [kept("none", 0.8, seed, 0.2 + 0.1 * seed) for seed in range(5)]
    own = [kept("policy_variance", 0.8, seed, 0.21 + 0.1 * seed) for seed in range(5)]
    found = row(none + own, "policy_variance", 0.8)
    assert found["judged"] and found["verdict"] == "holds" and found["minus_none"]["mean"] == pytest.approx(0.01)
    assert found["minus_none"]["low"] == pytest.approx(0.01), "paired, although the seeds differ by 0.1"
    assert row(none + own[:4], "policy_variance", 0.8)["verdict"] == "4 of 5 seeds run"
    assert not row(none + own, "policy_variance", 0.5)["judged"]


def test_pairs_of_the_two_studies_that_did_not_start_from_the_same_weights_are_counted() -> None:
    none = [kept("none", 0.8, seed, 0.2) for seed in range(5)]
    own = [kept("policy_variance", 0.8, seed, 0.21, 0.9 if seed else 0.8) for seed in range(5)]
    assert row(none + own, "policy_variance", 0.8)["note"].endswith("same weights: 1")
    assert "same weights: 1\n" in noise.markdown(judged(none + own), none + own)
    assert not row(none + own[1:], "policy_variance", 0.8)["note"]


def test_the_probe_tells_weights_apart_whose_success_is_equal_and_shared_noise_from_other_weights() -> None:
    def probed(run: Kept, mi: float) -> Kept:
        probe = {"step": [0], "probe/mi": [mi], "probe/conditional_entropy": [0.8]}
        return replace(run, tables={**run.tables, "probe": probe})

    none = [probed(kept("none", 0.8, seed, 0.2), 1.7) for seed in range(5)]
    own = [probed(kept("shared", 0.8, seed, 0.21, 0.9), 1.7 if seed else 1.6) for seed in range(5)]
    assert row(none + own, "shared", 0.8)["note"].endswith("same weights: 1")


def test_without_noise_shared_noise_is_the_plain_filter_and_the_policy_variance_has_runs_of_its_own() -> None:
    runs = [kept("plain", 0.0, seed, 0.7) for seed in range(3)]
    shared = {seed: last_success(run) for seed, run in validated(runs, "shared", 0.0).items()}
    assert shared == {0: 0.7, 1: 0.7, 2: 0.7} and not validated(runs, "policy_variance", 0.0)


def test_the_committed_metrics_are_judged_and_nothing_is_run(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(noise, "PAGE", tmp_path / "noise.md")
    assert noise.main(["--quick", "--json", "--write"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == len(plan.NOISE_LEVELS) * len(ARMS)
    assert (tmp_path / "noise.md").read_text().count("policy_variance |") == len(plan.NOISE_LEVELS)


def test_the_page_is_fresh() -> None:
    page = noise.markdown(judged(noise.committed()), noise.committed())
    assert noise.PAGE.read_text() == page, "python -m research.noise --write"
