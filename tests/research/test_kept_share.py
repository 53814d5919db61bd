"""The study of the kept share: its cells are runs that can be made, and its criterion is the one that was fixed."""

import json
import statistics
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from research import kept_share, tables
from research.kept import DIGITS, Kept, last_success, not_worse
from research.kept_share import (
    AUTO,
    FRESH_SEEDS,
    GRID,
    GRID_SEEDS,
    RHO,
    START,
    STEPS,
    TOLERANCES,
    best_fixed,
    committed,
    fixed,
    judged,
    validated,
)
from squelch.cluster.sweep.table import text
from tests.research.condensed import content_of

BESIDE = ("sokoban",)
"""Environments of which some cells ran two at a time, so that their seconds do not compare."""
PAGE = Path(__file__).parents[2] / "docs" / "research" / "kept-share.md"


def one(arm: str, seed: int, success: float, environment: str = "sokoban") -> Kept:
    tables = {
        "validated": {"step": [0, 40], "validation/success": [0.1, success]},
        "kept_share": {"step": [1, 2], "kept_share/rho": [0.9, 0.8]},
    }
    return Kept(f"{environment}-{arm}_s{seed}", "part", environment, arm, seed, 40, tables, {})


def grid(environment: str = "sokoban") -> list[Kept]:
    """0.7 and 1 are equally good on the grid's seeds, and better than the others."""
    means = {0.5: 0.3, 0.7: 0.45, 0.9: 0.4, 1.0: 0.45}
    return [one(f"rho{rho:g}", seed, means[rho], environment) for rho in GRID for seed in GRID_SEEDS]


def test_the_best_fixed_rho_is_chosen_on_other_seeds_and_the_nearest_to_the_start_among_equals() -> None:
    assert best_fixed(grid(), "sokoban") == 1.0 and not set(GRID_SEEDS) & set(FRESH_SEEDS)
    assert best_fixed(grid()[1:], "sokoban") is None
    lacking = replace(grid()[0], tables={})
    assert best_fixed([lacking, *grid()[1:]], "sokoban") is None, "a run without validations tells nothing"


def test_rhos_with_equally_many_solved_tasks_are_equal_although_their_shares_are_rounded() -> None:
    solved = {0.5: (100, 100), 0.7: (129, 129), 0.9: (128, 130), 1.0: (100, 100)}
    found = [
        one(f"rho{rho:g}", seed, float(f"{count / 256:.{DIGITS}g}"))
        for rho, counts in solved.items()
        for seed, count in zip(GRID_SEEDS, counts, strict=True)
    ]
    assert best_fixed(found, "sokoban") == 0.9


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
    assert not found["note"]
    table = {"step": [0, 40], "validation/success": [0.2, 0.5]}
    elsewhere = replace(fresh[0], tables={**fresh[0].tables, "validated": table})
    assert judged([*grid(), elsewhere, *fresh[1:]], "sokoban")["note"].endswith("same weights: 1")
    assert not_worse(None, None, 0.05) == "cannot be told"


def test_the_committed_figures_are_judged_and_without_them_nothing_was_run(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(kept_share, "RESULTS", tmp_path / "t.parquet")
    assert kept_share.main(["--quick"]) == 0 and "no run was kept yet" in capsys.readouterr().out
    tables.add(kept_share.RESULTS, map(content_of, grid()))
    assert kept_share.main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["verdict"] for row in rows] == ["not run"] * 3 and rows[2]["best"] == 1.0


def test_the_table_of_the_docs_is_that_of_the_committed_figures() -> None:
    told = ["countdown", "frozenlake", "sokoban"]
    columns = [table_column(name) for name in told]
    rhos = ", ".join(f"{rho:g}" for rho in GRID)
    heads = (
        f"grid, seeds {GRID_SEEDS[0]} and {GRID_SEEDS[1]}: rho {rhos}",
        f"fresh, seeds {FRESH_SEEDS[0]} to {FRESH_SEEDS[-1]}: best fixed rho, its success",
        "the controller's success",
        "its difference, paired by seed",
        f"verdict at a tolerance of {TOLERANCES['countdown']:g}, on Sokoban {TOLERANCES['sokoban']:g}",
        "the controller's moves, in five runs",
        f"seconds of a step, median, against a fixed rho of {START:g}",
    )
    page = PAGE.read_text()
    for head, *cells in zip(heads, *columns, strict=True):
        assert "| " + " | ".join([head, *cells]) + " |\n" in page, "python -m research.kept_share"
    names = {"countdown": "Countdown", "frozenlake": "FrozenLake", "sokoban": "Sokoban"}
    titles = [f"{names[name]}, {STEPS[name]} steps" for name in told]
    assert f"| | {' | '.join(titles)} |" in page
    measured = [sum(len(run.series("kept_share/measured")) for run in steered(name)) for name in told]
    assert "in {} measurements on Countdown, {} on FrozenLake and {} on Sokoban".format(*measured) in page


@cache
def runs() -> list[Kept]:
    """The committed runs, read once."""
    return committed()


def table_column(environment: str) -> list[str]:
    """The cells of the page's table of one environment, from the committed files."""
    found = runs()
    row = judged(found, environment)
    assert row["verdict"] != "not run" and not row["note"]
    by_rho = {rho: validated(found, environment, fixed(rho), GRID_SEEDS).values() for rho in GRID}
    means = {rho: f"{statistics.fmean(map(last_success, runs)):.3f}" for rho, runs in by_rho.items()}
    moves = sum(a != b for run in steered(environment) for a, b in pairwise(run.series(RHO).values()))
    verdict = str(row["verdict"])
    if verdict == "cannot be told":
        verdict += f", by {abs(row['difference']['low'] + row['tolerance']):.3f}"
    return [
        ", ".join(f"**{mean}**" if rho == row["best"] else mean for rho, mean in means.items()),
        f"{row['best']:g}, {text(row['fixed'])}",
        text(row["auto"]),
        text(row["difference"], "+"),
        verdict,
        str(moves) if moves else "none",
        "-"
        if environment in BESIDE
        else f"{step_seconds(environment, AUTO):.2f}, {step_seconds(environment, fixed(START)):.2f}",
    ]


def steered(environment: str) -> list[Kept]:
    """The committed runs of the controller."""
    return [run for run in runs() if (run.recipe, run.arm) == (environment, AUTO)]


def step_seconds(environment: str, arm: str) -> float:
    """Median over an arm's runs of their median seconds of a step: of the fresh runs, or of the grid's without such."""
    own = [each for each in tables.read(kept_share.RESULTS) if (each["recipe"], each["arm"]) == (environment, arm)]
    fresh = [each for each in own if each["part"] == "fresh"]
    return statistics.median(each["step_seconds"] for each in fresh or own)
