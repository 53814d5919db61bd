"""Judges the warning for a gamed criterion: how often healthy runs raise it, and how often gamed ones do.

python -m research.gaming [--quick] [--json]

The healthy runs of the committed studies are read (PARTS). A course holds the kept variance of every step, the success
of every validation, and the number of validation tasks.

These rates are printed, each with Wilson's 95% interval:

    redrawn_tasks   courses as they are, except that the outcomes of the validation tasks are redrawn, once a run
    renoised        the same, with the noise of the kept variance resampled around its trend (`research.renoising`)
    gamed           the same of gamed courses, whose variance rises, where the warning should be raised
    gamed_falling   the same of gamed courses whose variance would have fallen

The interval of the first holds for other runs like these. That of the others holds for these runs, however their noise
may fall; runs differ, and `highest` is the rate of the run that warns most often.

Redrawing assumes what the committed files do not record: which tasks were solved. Every task is solved with the
course's success. With probability PAIRED its luck at a validation is its own, the same at each such validation, and
otherwise fresh. So two validations share the luck of PAIRED squared of the tasks, which is the correlation of their
outcomes where success is equal. The number of tasks is that of the run's settings.

Gamed courses are made from the healthy ones: from the middle on the kept variance is multiplied by a ramp up to
1 + STRENGTH, and success is held where it was. A healthy course's variance mostly falls as it learns, and a ramp over a
fall is hardly a rise. So `gamed` first lifts every value below the mean of the first half to that mean, and
`gamed_falling` leaves them. Courses with fewer than three validations from the middle on are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, print_metrics
from research.claims.study import RESULTS as CLAIMS
from research.kept import Kept, read_all
from research.renoising import renoised, share
from research.tables import FOLDER
from squelch.cluster.control.gaming import VALIDATIONS, Gaming
from squelch.kit.base.errors import UserError

PARTS = ("lead", "long", "rules", "noise", "healthy", "steady", "grid", "fresh")
"""Parts of the studies whose runs were meant to be healthy."""
PAIRED = 0.5
"""Probability that the outcome of a task at a validation depends on the task alone."""
STRENGTH = 1.0
SERIES, QUICK_SERIES = 1000, 100


def files() -> tuple[Path, ...]:
    """The tables whose runs are read."""
    return CLAIMS, FOLDER / "made_to_collapse.parquet", FOLDER / "kept_share.parquet"


@dataclass(frozen=True)
class Course:
    """One run: steps with their kept variance, and validations (step, success) on `tasks` tasks."""

    name: str
    steps: list[int]
    variances: np.ndarray
    validations: list[tuple[int, float]]
    tasks: int


def course_of(run: Kept, tasks: int) -> Course:
    """The course of a condensed run. UserError if it has fewer than three validations."""
    variances = run.series("kept_variance")
    validations = list(run.series("validation/success").items())
    if len(validations) < VALIDATIONS or not variances:
        raise UserError(
            f"{run.name}: {len(validations)} validations over {len(variances)} steps; judging needs {VALIDATIONS}"
        )
    return Course(run.name, list(variances), np.array(list(variances.values())), validations, tasks)


def committed() -> list[Course]:
    """The courses of the healthy runs of the committed studies that were validated often enough."""
    runs = [run for file in files() for run in read_all(file) if run.part in PARTS]
    return [
        course_of(run, run.settings["validation_tasks"])
        for run in runs
        if len(run.series("validation/success")) >= VALIDATIONS
    ]


def raised(course: Course, rng: np.random.Generator) -> bool:
    """Whether the warning is raised anywhere on a course, with the outcomes of the tasks redrawn."""
    gaming, warned = Gaming(), False
    variances = dict(zip(course.steps, course.variances.tolist(), strict=True))
    checked, own = dict(course.validations), rng.random(course.tasks)
    for step in sorted({*variances, *checked}):
        if step in variances:
            gaming.step(step, variances[step], course.name)  # a run of one setting
        if step in checked:
            luck = np.where(rng.random(course.tasks) < PAIRED, own, rng.random(course.tasks))
            warned |= gaming.validation(step, luck < checked[step])
    return warned


def with_other_noise(course: Course, rng: np.random.Generator) -> Course:
    """The course with the noise of its kept variance resampled around its trend; a variance is never below 0."""
    return replace(course, variances=np.maximum(0.0, renoised(course.variances, rng)))


def gamed(course: Course, lifted: bool = True) -> Course:
    """The course of a policy that, from the middle on, raises its kept variance and learns nothing. `lifted`: values
    below the mean of the first half are lifted to it, so that no fall hides the rise."""
    middle, last = course.steps[len(course.steps) // 2], course.steps[-1]
    ramp = np.array([max(0, step - middle) / max(1, last - middle) for step in course.steps])
    before = [(step, value) for step, value in course.validations if step <= middle]
    held = before[-1][1] if before else course.validations[0][1]
    validations = [(step, value if step <= middle else held) for step, value in course.validations]
    level = max(float(course.variances[: len(course.variances) // 2 + 1].mean()), 1e-6) if lifted else 0.0
    variances = np.maximum(course.variances, level) * (1 + STRENGTH * ramp)
    return replace(course, variances=variances, validations=validations)


def could_warn(course: Course) -> bool:
    """Whether enough validations follow the middle, from which a gamed course's variance rises."""
    middle = course.steps[len(course.steps) // 2]
    return sum(step >= middle for step, _ in course.validations) >= VALIDATIONS


def rate(courses: Sequence[Course], rng: np.random.Generator, series: int) -> dict[str, Any]:
    """The share of `series` courses with other noise that raise the warning; each run is drawn about equally often."""
    warned = [raised(with_other_noise(courses[i % len(courses)], rng), rng) for i in range(series)]
    by_run = [warned[i :: len(courses)] for i in range(min(series, len(courses)))]
    return {**share(warned), "highest": max(sum(own) / len(own) for own in by_run)}


def measure(courses: Sequence[Course], series: int, seed: int = 0) -> dict[str, Any]:
    """All metrics that are printed; None for a rate over no course."""
    rng = np.random.default_rng(seed)
    late = [course for course in courses if could_warn(course)]
    ill = {name: [gamed(c, lifted) for c in late] for name, lifted in (("gamed", True), ("gamed_falling", False))}
    return {
        "courses": len(courses),
        "gamed_courses": len(late),
        "redrawn_tasks": share([raised(course, rng) for course in courses]),
        "renoised": rate(courses, rng, series),
        **{name: rate(own, rng, series) if own else None for name, own in ill.items()},
    }


def main() -> None:
    """Prints the rates."""
    args, courses = arguments(__doc__, f"{QUICK_SERIES} series instead of {SERIES}"), committed()
    metrics = measure(courses, QUICK_SERIES if args.quick else SERIES) | {"benchmark": "gaming"}
    rows = [
        [
            *(name, found["series"], found["raised"], f"{found['rate']:.3f}"),
            *("[{:.3f}, {:.3f}]".format(*found["interval"]), found.get("highest", "-")),
        ]
        for name, found in metrics.items()
        if isinstance(found, dict)
    ]
    notes = [f"{len(courses)} healthy courses, {metrics['gamed_courses']} of them gamed"]
    print_metrics(metrics, args.json, ("courses", "series", "raised", "rate", "95% interval", "highest"), rows, notes)


if __name__ == "__main__":
    main()
