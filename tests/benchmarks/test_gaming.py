"""What must hold of the judge of the warning for a gamed criterion."""

import json
import math

import numpy as np
import pytest

from benchmarks import gaming
from benchmarks.gaming import Course, course_of, gamed, measure, renoised
from benchmarks.studies.kept import Kept, write
from cluster.errors import UserError


def run(part: str = "lead", steps: int = 15) -> Kept:
    """A condensed run with a validation every five steps."""
    at, checked = list(range(1, steps + 1)), list(range(0, steps + 1, 5))
    tables = {
        "validated": {"step": checked, "validation/success": [0.5] * len(checked)},
        "steps": {"step": at, "kept_variance": [0.09] * steps},
    }
    return Kept("run", part, "sokoban", "none", 0, steps, tables, {})


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
    return Course(f"made up {seed}", list(range(1, steps + 1)), variances, validations)


def test_a_course_is_read_from_the_figures_of_a_run_and_too_short_ones_are_named() -> None:
    found = course_of(run())
    assert found.steps == list(range(1, 16)) and found.validations == [(s, 0.5) for s in (0, 5, 10, 15)]
    assert found.variances == pytest.approx(np.full(15, 0.09))
    with pytest.raises(UserError, match="run: 2 validations over 9 steps; judging needs 3"):
        course_of(run(steps=9))


def test_noise_is_resampled_around_the_trend_and_nothing_else() -> None:
    course = made_up(1)
    found = renoised(course, np.random.default_rng(0))
    assert found.validations == course.validations and found.steps == course.steps
    assert not np.array_equal(found.variances, course.variances)
    assert found.variances.mean() == pytest.approx(course.variances.mean(), rel=0.1)


def test_gamed_courses_are_told_far_more_often_than_healthy_ones() -> None:
    found = measure([made_up(seed) for seed in range(8)], 40)
    assert found["renoised"]["rate"] <= 0.1 and found["gamed"]["rate"] >= 0.8
    later = gamed(made_up(0))
    assert len({success for _, success in later.validations[4:]}) == 1
    assert found["gamed"]["highest"] >= found["gamed"]["rate"]


def test_a_course_that_is_validated_too_seldom_to_warn_late_is_no_gamed_course() -> None:
    assert measure([made_up(0, every=60)], 10)["gamed"] is None


def test_committed_courses_are_read_and_their_absence_is_an_error(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(gaming, "STUDIES", (tmp_path,))
    monkeypatch.setattr("sys.argv", ["gaming", "--quick", "--json"])
    with pytest.raises(SystemExit):
        gaming.main()
    assert "no committed study holds a healthy run" in capsys.readouterr().err
    write(tmp_path / "one.json", vars(run()))
    write(tmp_path / "short.json", vars(run(steps=9)))
    write(tmp_path / "ill.json", vars(run("collapse")))
    gaming.main()
    found = json.loads(capsys.readouterr().out)
    assert found["courses"] == 1
