"""The regimes through which the committed runs went, as the rules of `actors.diagnosis.regime` read their figures.

python -m benchmarks.regimes [--quick] [--json]

Reads the runs that were made to collapse, the healthy ones beside them, and those of Sokoban with and without the
filter (`studies`). A scoring is read as the scorer reads it, with two differences, because the files keep less than it
knows: MI counts as told if its 95% interval lies above 0 (they lack the p-value; the rules have this for such records),
and the number of judged reasonings is the most that a step has. For each run the stretches of one regime are printed
with their first steps; `untrue` is the first scoring at which the share of true statements, a mean over two, is below
half of the run's baseline.

A healthy run has no truth to compare with, except that its success does not fall: whatever is not `grounded` there is
read by a person, or is a false call.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.diagnosis.metrics import REGIMES
from actors.diagnosis.regime import Reading, RegimeGauge, true_share
from benchmarks.claims.plan import STUDY as CLAIMS
from benchmarks.common import arguments, print_figures
from benchmarks.studies import made_to_collapse
from benchmarks.studies.cells import Study
from benchmarks.studies.kept import Kept, read_all
from cluster.config import RunConfig

PARTS = ("collapse", "healthy", "lead")
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Course:
    """The regimes of one run: (step, regime) of each scoring; `untrue`: the step of the first untrue one, or None."""

    run: Kept
    regimes: tuple[tuple[int, str], ...]
    untrue: int | None

    @property
    def stretches(self) -> list[tuple[str, int]]:
        """(regime, first step) of each stretch of one regime."""
        grouped = itertools.groupby(self.regimes, key=lambda pair: pair[1])
        return [(regime, next(iter(pairs))[0]) for regime, pairs in grouped]

    @property
    def words(self) -> str:
        """The stretches in words: `grounded, decorative from 40`."""
        first, *others = self.stretches
        return ", ".join([first[0], *(f"{regime} from {step}" for regime, step in others)])


def studies() -> tuple[Study, ...]:
    """The studies whose committed runs are read."""
    return made_to_collapse.STUDY, CLAIMS


def course_of(run: Kept, config: RunConfig) -> Course:
    """The regimes of a condensed run; `config`: its settings."""
    scorer = config.scorer
    judged = config.loop.prompts * min(config.sampling.group_size, scorer.samples_per_prompt)
    names = ("mi_seq_est", "mi_seq_est_standard_error", "retrieval_accuracy", "reasoned")
    mi, error, retrieval, reasoned = (run.series(f"first_turn/{name}") for name in names)
    named, right, follows = (run.series(key) for key in ("judge/names", "judge/right", "probe/link/follows"))
    gauge, found, untrue = RegimeGauge(), [], None
    for step in sorted(reasoned):
        value, share = mi.get(step, math.nan), named.get(step, math.nan)
        reading = Reading(
            value,
            math.nan,
            retrieval.get(step, math.nan),
            1 / config.loop.prompts,
            value - NORMAL_95 * error.get(step, math.nan),
            reasoned[step],
            _followed(follows, step, 2 * scorer.probe.every),
            true_share(share, right.get(step, math.nan), judged),
            not math.isnan(share),
        )
        found.append((step, gauge.read(reading)))
        if untrue is None and gauge.untrue == 1:
            untrue = step
    return Course(run, tuple(found), untrue)


def _followed(follows: dict[int, float], step: int, oldest: int) -> float:
    """What the last reading of the probe before the step says, unless it is older than `oldest` steps. That of the step
    itself comes after its scoring."""
    last = max((read for read in follows if read < step), default=None)
    return math.nan if last is None or step - last > oldest else follows[last]


def committed() -> list[Course]:
    """The courses of the committed runs of PARTS that keep the share of turns with reasoning, by part and name."""
    pairs = [(study, run) for study in studies() for run in read_all(study.results) if run.part in PARTS]
    found = [course_of(run, study.config(run)) for study, run in pairs if run.series("first_turn/reasoned")]
    return sorted(found, key=lambda one: (PARTS.index(one.run.part), one.run.name))


def counted(courses: Iterable[Course]) -> dict[str, dict[str, int]]:
    """By part and arm, the number of scorings in each regime that occurs."""
    found: dict[str, Counter[str]] = {}
    for course in courses:
        where = f"{course.run.part} {course.run.recipe} {course.run.arm}"
        found.setdefault(where, Counter()).update(regime for _, regime in course.regimes)
    return {where: {name: one[name] for name in REGIMES if one[name]} for where, one in found.items()}


def in_words(scorings: Mapping[str, int]) -> str:
    """The numbers of scorings by regime: `19 decorative, 7 grounded`."""
    return ", ".join(f"{number} {regime}" for regime, number in scorings.items())


def main() -> None:
    """Prints the regimes of each run, and how often each occurs."""
    options = arguments(__doc__, "the same: the figures are read from committed files")
    courses = committed()
    figures = {
        "runs": {
            one.run.name: {"regimes": [[step, regime] for step, regime in one.regimes], "untrue": one.untrue}
            for one in courses
        },
        "scorings": counted(courses),
    }
    rows = [[one.run.name, one.words, "never" if one.untrue is None else one.untrue] for one in courses]
    notes = [
        f"{where}: {', '.join(f'{n} {name}' for name, n in all_.items())}" for where, all_ in counted(courses).items()
    ]
    print_figures(figures, options.json, ["run", "untrue from", "regimes by first step"], rows, ["", *notes])


if __name__ == "__main__":
    main()
