"""The regimes through which the committed runs went, as the rules of `kit.diagnosis.regime` read their metrics.

python -m research.regimes [--quick] [--json]

Reads the runs that were made to collapse, the healthy ones beside them, and those of the claims that have the recipe's
regularisers (PARTS). A scoring is read as the scorer reads it, with two differences, because the files keep less than
it knows: MI counts as significant if its 95% interval lies above 0 (they lack the p-value; the rules have this for such
records), and the number of judged reasonings is the most that a step has. For each run the stretches of one regime are
printed with their first steps; `untrue` is the first scoring at which the share of true statements, a mean over two, is
below half of the run's baseline.

A healthy run has no truth to compare with, except that its success does not fall: whatever is not `used` there is
read by a person, or is a false call. How often the reasoning was called untrue in runs that were not made to collapse
is counted by part. Where the world is very noisy (`noise`), the reward hardly depends on what is written, and the share
of true statements may indeed fall.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.common import arguments, print_metrics
from research.claims.study import RESULTS as CLAIMS
from research.kept import Kept, read_all
from research.tables import FOLDER
from squelch.kit.diagnosis.metrics import REGIMES
from squelch.kit.diagnosis.regime import RegimeGauge, RegimeInputs, true_share

PARTS = ("collapse", "healthy", "lead", "long", "rules", "noise")
NOT_MADE = PARTS[1:]
"""Those whose runs were not made to collapse."""
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Course:
    """The regimes of one run: (step, regime) of each scoring, and the steps of those that were called untrue."""

    run: Kept
    regimes: tuple[tuple[int, str], ...]
    called: tuple[int, ...]

    @property
    def untrue(self) -> int | None:
        """The first step at which the reasoning was called untrue; None if it never was."""
        return next(iter(self.called), None)

    @property
    def stretches(self) -> list[tuple[str, int]]:
        """(regime, first step) of each stretch of one regime."""
        grouped = itertools.groupby(self.regimes, key=lambda pair: pair[1])
        return [(regime, next(iter(pairs))[0]) for regime, pairs in grouped]

    @property
    def words(self) -> str:
        """The stretches in words: `used, unused from 40`."""
        first, *others = self.stretches
        return ", ".join([first[0], *(f"{regime} from {step}" for regime, step in others)])


def course_of(run: Kept) -> Course:
    """The regimes of a condensed run."""
    own = run.settings
    judged = own["prompts"] * min(own["group_size"], own["samples_per_prompt"])
    names = ("mi_seq_est", "mi_seq_est_standard_error", "retrieval_accuracy", "reasoned")
    mi, error, retrieval, reasoned = (run.series(f"first_turn/{name}") for name in names)
    named, right, follows = (run.series(key) for key in ("judge/names", "judge/right", "probe/link/follows"))
    gauge, found, called = RegimeGauge(), [], []
    for step in sorted(reasoned):
        value, share = mi.get(step, math.nan), named.get(step, math.nan)
        inputs = RegimeInputs(
            value,
            math.nan,
            retrieval.get(step, math.nan),
            1 / own["prompts"],
            value - NORMAL_95 * error.get(step, math.nan),
            reasoned[step],
            _followed(follows, step, 2 * own["probe_every"]),
            true_share(share, right.get(step, math.nan), judged),
            not math.isnan(share),
        )
        found.append((step, gauge.read(inputs)))
        if gauge.untrue == 1:
            called.append(step)
    return Course(run, tuple(found), tuple(called))


def _followed(follows: dict[int, float], step: int, oldest: int) -> float:
    """What the last evaluation of the probe before the step says, unless it is older than `oldest` steps. That of the
    step itself comes after its scoring."""
    last = max((read for read in follows if read < step), default=None)
    return math.nan if last is None or step - last > oldest else follows[last]


def committed() -> list[Course]:
    """The courses of the committed runs of PARTS that keep the share of turns with reasoning, by part and name."""
    runs = [
        run for file in (FOLDER / "made_to_collapse.parquet", CLAIMS) for run in read_all(file) if run.part in PARTS
    ]
    found = [course_of(run) for run in runs if run.series("first_turn/reasoned")]
    return sorted(found, key=lambda one: (PARTS.index(one.run.part), one.run.name))


def counted(courses: Iterable[Course]) -> dict[str, dict[str, int]]:
    """By part and arm, the number of scorings in each regime that occurs."""
    found: dict[str, Counter[str]] = {}
    for course in courses:
        where = f"{course.run.part} {course.run.recipe} {course.run.arm}"
        found.setdefault(where, Counter()).update(regime for _, regime in course.regimes)
    return {where: {name: one[name] for name in REGIMES if one[name]} for where, one in found.items()}


def called_untrue(courses: Iterable[Course]) -> dict[str, dict[str, int]]:
    """By part that was not made to collapse: runs and scorings, and how many of each were called untrue."""
    found: dict[str, dict[str, int]] = {}
    for course in (one for one in courses if one.run.part in NOT_MADE):
        own = found.setdefault(
            course.run.part, dict.fromkeys(("runs", "runs_untrue", "scorings", "scorings_untrue"), 0)
        )
        own["runs"] += 1
        own["runs_untrue"] += bool(course.called)
        own["scorings"] += len(course.regimes)
        own["scorings_untrue"] += len(course.called)
    return found


def in_words(scorings: Mapping[str, int]) -> str:
    """The numbers of scorings by regime: `19 unused, 7 used`."""
    return ", ".join(f"{number} {regime}" for regime, number in scorings.items())


def main() -> None:
    """Prints the regimes of each run, and how often each occurs."""
    options = arguments(__doc__, "the same: the metrics are read from committed files")
    courses = committed()
    metrics = {
        "runs": {
            one.run.name: {"regimes": [[step, regime] for step, regime in one.regimes], "untrue": one.untrue}
            for one in courses
        },
        "scorings": counted(courses),
        "untrue": called_untrue(courses),
    }
    rows = [[one.run.name, one.words, "never" if one.untrue is None else one.untrue] for one in courses]
    notes = [f"{where}: {in_words(found)}" for where, found in counted(courses).items()]
    notes += [
        f"{part}: called untrue in {one['runs_untrue']} of {one['runs']} runs, {one['scorings_untrue']} of "
        f"{one['scorings']} scorings"
        for part, one in called_untrue(courses).items()
    ]
    print_metrics(metrics, options.json, ["run", "untrue from", "regimes by first step"], rows, ["", *notes])


if __name__ == "__main__":
    main()
