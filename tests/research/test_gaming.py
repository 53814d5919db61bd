"""What must hold of the judge of the warning for a gamed criterion."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from research import gaming, tables
from research.gaming import SERIES, Course, committed, course_of, gamed, measure, with_other_noise
from research.kept import Kept
from squelch.kit.base.errors import UserError
from tests.research.condensed import content_of

DOCS = Path(__file__).parents[2] / "docs"
TASKS = 256
TITLES = {"sokoban": "Sokoban", "frozenlake": "FrozenLake", "countdown": "Countdown"}


def run(part: str = "lead", steps: int = 15) -> Kept:
    """A condensed run with a validation every five steps."""
    at, checked = list(range(1, steps + 1)), list(range(0, steps + 1, 5))
    tables = {
        "validated": {"step": checked, "validation/success": [0.5] * len(checked)},
        "steps": {"step": at, "kept_variance": [0.09] * steps},
    }
    return Kept(f"{part}{steps}", part, "sokoban", "none", 0, steps, tables, {}, settings={"validation_tasks": TASKS})


def made_up(seed: int, steps: int = 120, every: int = 20) -> Course:
    """A run that learns: success follows a logistic curve, and the variance that of binary rewards at the groups'
    success, which differ, plus noise."""
    rng = np.random.default_rng(seed)
    start, slope, level = rng.uniform(-2.0, 0.5), rng.uniform(0.5, 3.0) / steps, rng.uniform(0.5, 1.5)

    def at(step: int) -> float:
        return 1 / (1 + math.exp(-(start + slope * step)))

    odds = [1 / (1 + np.exp(-(start + slope * step + level * rng.normal(size=8)))) for step in range(1, steps + 1)]
    shares = [rng.binomial(16, p) / 16 for p in odds]
    variances = np.array([float((share * (1 - share)).mean()) for share in shares])
    validations = [(step, at(step)) for step in range(0, steps + 1, every)]
    return Course(f"made up {seed}", list(range(1, steps + 1)), variances, validations, TASKS)


def test_a_course_is_read_from_the_metrics_of_a_run_and_too_short_ones_are_named() -> None:
    found = course_of(run(), TASKS)
    assert found.steps == list(range(1, 16)) and found.validations == [(s, 0.5) for s in (0, 5, 10, 15)]
    assert found.variances == pytest.approx(np.full(15, 0.09))
    with pytest.raises(UserError, match="lead9: 2 validations over 9 steps; judging needs 3"):
        course_of(run(steps=9), TASKS)


def test_noise_is_resampled_around_the_trend_and_nothing_else() -> None:
    course = made_up(1)
    found = with_other_noise(course, np.random.default_rng(0))
    assert found.validations == course.validations and found.steps == course.steps
    assert not np.array_equal(found.variances, course.variances)
    assert found.variances.mean() == pytest.approx(course.variances.mean(), rel=0.1)


def test_gamed_courses_are_told_far_more_often_than_healthy_ones() -> None:
    found = measure([made_up(seed) for seed in range(8)], 40)
    assert found["renoised"]["rate"] <= 0.1 and found["gamed"]["rate"] >= 0.8
    later = gamed(made_up(0))
    assert len({success for _, success in later.validations[4:]}) == 1
    assert found["gamed"]["highest"] >= found["gamed"]["rate"]
    assert "highest" not in found["redrawn_tasks"], "each run is drawn once"


def test_gamed_courses_are_lifted_over_their_fall_or_keep_it() -> None:
    course = replace(made_up(0), variances=np.linspace(0.2, 0.1, 120))
    lifted, falling = gamed(course), gamed(course, lifted=False)
    assert lifted.variances[-1] > 1.5 * lifted.variances[0] and falling.variances[-1] < 1.1 * falling.variances[0]
    assert lifted.validations == falling.validations


def test_the_number_of_validation_tasks_is_that_of_the_runs_settings() -> None:
    """A success is a number of solved tasks divided by the number of tasks, so the committed files show it."""
    courses = committed()
    assert {course.tasks for course in courses} == {256, 512}
    for course in courses:
        solved = [success * course.tasks for _, success in course.validations]
        assert solved == pytest.approx([round(number) for number in solved], abs=0.01), course.name


def test_the_outcomes_of_two_validations_are_correlated_as_the_module_says(monkeypatch) -> None:
    seen = []

    class Seen(gaming.Gaming):
        def validation(self, step, solved) -> bool:
            seen.append(np.array(solved, dtype=float))
            return False

    monkeypatch.setattr(gaming, "Gaming", Seen)
    gaming.raised(course_of(run(steps=10), 20_000), np.random.default_rng(0))
    found = np.corrcoef(seen)
    assert found[np.triu_indices(3, 1)] == pytest.approx(np.full(3, gaming.PAIRED**2), abs=0.03)


def test_the_pages_have_the_rates_over_the_committed_courses() -> None:
    courses = committed()
    found = measure(courses, SERIES)
    own, drawn, ill, falling = (found[name] for name in ("redrawn_tasks", "renoised", "gamed", "gamed_falling"))
    between = "{:.3f} to {:.3f}".format(*own["interval"]).replace("0.000", "0")
    told = f"in {own['raised']} of {own['series']} (95% interval {between}"
    by_recipe = {name: sum(f"-{name}-" in course.name for course in courses) for name in ("sokoban", "frozenlake")}
    by_recipe["countdown"] = len(courses) - sum(by_recipe.values())
    counts = [f"{by_recipe[name]} of {title}" for name, title in TITLES.items()]
    series = [f"in {drawn['raised']} of {drawn['series']:,} series", f"{found['gamed_courses']} of the courses"]
    series += [f"in {rate['raised']} of {rate['series']:,}" for rate in (ill, falling)]
    words = " ".join((DOCS / "research" / "alarms.md").read_text().split())
    missing = [part for part in (told, *counts, *series) if part not in words]
    assert not missing, "docs/research/alarms.md: python -m research.gaming"


def test_a_course_that_is_validated_too_seldom_to_warn_late_is_no_gamed_course() -> None:
    assert measure([made_up(0, every=60)], 10)["gamed"] is None


def test_committed_courses_are_read(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(gaming, "files", lambda: (tmp_path / "t.parquet",))
    monkeypatch.setattr("sys.argv", ["gaming", "--quick", "--json"])
    tables.add(tmp_path / "t.parquet", map(content_of, (run(), run(steps=9), run("collapse"))))
    gaming.main()
    found = json.loads(capsys.readouterr().out)
    assert found["courses"] == 1
    monkeypatch.setattr("sys.argv", ["gaming", "--quick"])
    gaming.main()
    assert re.search(r"^redrawn_tasks +1 +0 +0\.000 .* -$", capsys.readouterr().out, re.MULTILINE)
