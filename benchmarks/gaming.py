"""Judges the warning for a gamed criterion: how often healthy runs raise it, and how often gamed ones do.

python -m benchmarks.gaming [--healthy RUN ...] [--quick] [--json]

RUN is the folder of a healthy run. Without any, the healthy runs of the committed studies are read (STUDIES, PARTS). A
course holds the kept variance of every step and the success of every validation.

Three rates are printed: over the courses as they are; over courses whose noise is resampled around their own trend; and
over gamed courses, where the warning should be raised. Each has Wilson's 95% interval. That of drawn courses holds for
these runs, however their noise may fall; runs differ, and `highest` is the rate of the run that warns most often.

The kept variance is resampled as a running mean over 2 BLOCK + 1 steps plus blocks of BLOCK neighbouring residuals of
the same run. Each of TASKS tasks is solved with the course's success, and a share PAIRED of them keep their luck from
one validation to the next. Gamed courses are made from the healthy ones: from the middle on the kept variance is
multiplied by a ramp up to 1 + STRENGTH, and success is held where it was. Courses with fewer than three validations
from there on are left out of these.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.diagnosis.uncertainty import wilson_interval
from benchmarks.claims.plan import STUDY as CLAIMS
from benchmarks.common import print_figures
from benchmarks.studies import kept_share, made_to_collapse
from benchmarks.studies.kept import Kept, condense, of_content, read_all
from cluster.control.gaming import VALIDATIONS, Gaming
from cluster.errors import UserError

STUDIES = (CLAIMS.results, made_to_collapse.STUDY.results, kept_share.RESULTS)
PARTS = ("lead", "long", "healthy", "grid", "fresh")
"""Parts of the studies whose runs were meant to be healthy."""
BLOCK = 4
PAIRED = 0.5
"""Share of the tasks whose outcome depends on the task alone: validations on fixed tasks are correlated."""
STRENGTH = 1.0
TASKS = 256


@dataclass(frozen=True)
class Course:
    """One run: steps with their kept variance, and validations (step, success)."""

    name: str
    steps: list[int]
    variances: np.ndarray
    validations: list[tuple[int, float]]


def course_of(run: Kept) -> Course:
    """The course of a condensed run. UserError if it has fewer than three validations."""
    variances = run.series("kept_variance")
    validations = list(run.series("validation/success").items())
    if len(validations) < VALIDATIONS or not variances:
        raise UserError(
            f"{run.name}: {len(validations)} validations over {len(variances)} steps; judging needs {VALIDATIONS}"
        )
    return Course(run.name, list(variances), np.array(list(variances.values())), validations)


def committed() -> list[Course]:
    """The courses of the healthy runs of the committed studies that were validated often enough."""
    runs = [run for folder in STUDIES for run in read_all(folder) if run.part in PARTS]
    return [course_of(run) for run in runs if len(run.series("validation/success")) >= VALIDATIONS]


def raised(course: Course, rng: np.random.Generator) -> bool:
    """Whether the warning is raised anywhere on a course, whose tasks are drawn."""
    gaming, told = Gaming(), False
    variances = dict(zip(course.steps, course.variances.tolist(), strict=True))
    checked, fixed = dict(course.validations), rng.random(TASKS)
    for step in sorted({*variances, *checked}):
        if step in variances:
            gaming.step(step, variances[step])
        if step in checked:
            luck = np.where(rng.random(TASKS) < PAIRED, fixed, rng.random(TASKS))
            told |= gaming.validation(step, luck < checked[step])
    return told


def renoised(course: Course, rng: np.random.Generator) -> Course:
    """The course with the noise of its kept variance resampled around its trend."""
    values, count = course.variances, len(course.variances)
    near = [values[max(0, i - BLOCK) : i + BLOCK + 1] for i in range(count)]
    trend = np.array([part.mean() for part in near])
    noise = (values - trend) / np.array([math.sqrt(max(1 - 1 / len(part), 0.5)) for part in near])
    drawn = np.zeros(0)
    while len(drawn) < count:
        start = int(rng.integers(max(1, count - BLOCK + 1)))
        drawn = np.append(drawn, noise[start : start + BLOCK])
    return Course(course.name, course.steps, np.maximum(0.0, trend + drawn[:count]), course.validations)


def gamed(course: Course) -> Course:
    """The course of a policy that, from the middle on, raises its kept variance and learns nothing."""
    middle, last = course.steps[len(course.steps) // 2], course.steps[-1]
    ramp = np.array([max(0, step - middle) / max(1, last - middle) for step in course.steps])
    before = [(step, value) for step, value in course.validations if step <= middle]
    held = before[-1][1] if before else course.validations[0][1]
    validations = [(step, value if step <= middle else held) for step, value in course.validations]
    level = max(float(course.variances[: len(course.variances) // 2 + 1].mean()), 1e-6)
    return Course(course.name, course.steps, np.maximum(course.variances, level) * (1 + STRENGTH * ramp), validations)


def could_warn(course: Course) -> bool:
    """Whether enough validations follow the middle, from which a gamed course's variance rises."""
    middle = course.steps[len(course.steps) // 2]
    return sum(step >= middle for step, _ in course.validations) >= VALIDATIONS


def rate(courses: Sequence[Course], rng: np.random.Generator, series: int) -> dict[str, Any]:
    """The share of courses that raise the warning, each drawn as often as `series` allows."""
    each = [raised(renoised(courses[i % len(courses)], rng), rng) for i in range(series)]
    told, by_run = sum(each), [each[i :: len(courses)] for i in range(len(courses))]
    low, high = wilson_interval(told, series)
    highest = max(sum(own) / len(own) for own in by_run)
    return {"series": series, "raised": told, "rate": told / series, "interval": [low, high], "highest": highest}


def measure(courses: Sequence[Course], series: int, seed: int = 0) -> dict[str, Any]:
    """All figures that are printed."""
    rng = np.random.default_rng(seed)
    own = [raised(course, rng) for course in courses]
    ill = [gamed(course) for course in courses if could_warn(course)]
    low, high = wilson_interval(sum(own), len(own))
    return {
        "courses": len(courses),
        "as_they_are": {
            **{"series": len(own), "raised": sum(own), "rate": sum(own) / len(own), "interval": [low, high]},
            "highest": float(max(own)),
        },
        "renoised": rate(courses, rng, series),
        "gamed": rate(ill, rng, series) if ill else None,
    }


def _run(folder: Path) -> Kept:
    return of_content(condense(folder, part="healthy", recipe="", arm=""))


def main() -> None:
    """Prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=Path, nargs="*", default=[], metavar="RUN", help="folders of healthy runs")
    parser.add_argument("--quick", action="store_true", help="100 series instead of 1,000")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    try:
        courses = [course_of(_run(folder)) for folder in args.healthy] or committed()
    except UserError as error:
        parser.error(str(error))
    if not courses:
        parser.error("no committed study holds a healthy run; name folders of runs with --healthy")
    figures = measure(courses, 100 if args.quick else 1000) | {"benchmark": "gaming"}
    rows = [
        [
            *(name, found["series"], found["raised"], f"{found['rate']:.3f}"),
            *("[{:.3f}, {:.3f}]".format(*found["interval"]), f"{found['highest']:.3f}"),
        ]
        for name, found in figures.items()
        if isinstance(found, dict)
    ]
    notes = [f"{len(courses)} healthy courses"]
    print_figures(figures, args.json, ("courses", "series", "raised", "rate", "95% interval", "highest"), rows, notes)


if __name__ == "__main__":
    main()
