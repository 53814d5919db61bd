"""The study of the kept share: its cells are runs that can be made, and its criterion is the one that was fixed."""

import json

import pytest

from benchmarks.studies import kept_share
from benchmarks.studies.kept_share import (
    AUTO,
    FRESH_SEEDS,
    GRID,
    GRID_SEEDS,
    TOLERANCES,
    arms_of,
    best_fixed,
    judged,
    verdict_of,
)
from cluster.errors import UserError
from cluster.sweep.plan import make_plan


def one(arm: str, seed: int, success: float, environment: str = "sokoban") -> dict:
    return {"environment": environment, "arm": arm, "seed": seed, "success": success, "rho": [0.9, 0.8]}


def grid(environment: str = "sokoban") -> list[dict]:
    """0.7 and 1 are equally good on the grid's seeds, and better than the others."""
    means = {0.5: 0.3, 0.7: 0.45, 0.9: 0.4, 1.0: 0.45}
    return [one(f"rho{rho:g}", seed, means[rho], environment) for rho in GRID for seed in GRID_SEEDS]


@pytest.mark.parametrize("environment", TOLERANCES)
@pytest.mark.parametrize("stage", ["grid", "fresh"])
def test_every_stage_is_a_sweep_that_can_be_made(environment: str, stage: str, tmp_path) -> None:
    arms, seeds = arms_of(stage, environment, grid(environment))
    plan = make_plan(environment, [f"runs_dir={tmp_path}"], arms, {arm.label: list(seeds) for arm in arms}, name="s")
    assert len(plan.cells) == len(arms) * len(seeds)
    steered = [cell.config.filter.kept_share.steer for cell in plan.cells]
    assert sum(steered) == (len(FRESH_SEEDS) if stage == "fresh" else 0)


def test_the_best_fixed_rho_is_chosen_on_other_seeds_and_the_nearest_to_the_start_among_equals() -> None:
    assert best_fixed(grid(), "sokoban") == 1.0 and not set(GRID_SEEDS) & set(FRESH_SEEDS)
    assert best_fixed(grid()[1:], "sokoban") is None
    with pytest.raises(UserError, match="run `--run grid countdown`"):
        arms_of("fresh", "countdown", grid())


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "holds"), (-0.05, "holds"), (-0.2, "fails"), (-0.08, "cannot be told")]
)
def test_the_verdict_is_of_the_interval_over_five_fresh_seeds(shift: float, verdict: str) -> None:
    noise = (0.0, 0.01, -0.01, 0.02, -0.02)
    fresh = [one("rho1", seed, 0.5) for seed in FRESH_SEEDS]
    fresh += [one(AUTO, seed, 0.5 + shift + e) for seed, e in zip(FRESH_SEEDS, noise, strict=True)]
    found = judged([*grid(), *fresh], "sokoban")
    assert found["verdict"] == verdict and found["difference"]["mean"] == pytest.approx(shift)
    assert judged([*grid(), *fresh[1:]], "sokoban")["verdict"] == "not run"
    assert verdict_of(None, None, 0.05) == "cannot be told"


def test_the_committed_figures_are_judged_and_without_them_nothing_was_run(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(kept_share, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["kept_share", "--quick"])
    assert kept_share.main() == 0 and "no run was kept yet" in capsys.readouterr().out
    for number, row in enumerate(grid()):
        (tmp_path / f"{number}.json").write_text(json.dumps(row))
    monkeypatch.setattr("sys.argv", ["kept_share", "--json"])
    assert kept_share.main() == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["verdict"] for row in rows] == ["not run"] * 3 and rows[2]["best"] == 1.0
