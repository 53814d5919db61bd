"""Why do groups of low reward variance harm, and what does dropping them repair? A study that was closed unfinished.

python -m research.mechanism [--quick] [--json] [--write]

13 of 45 planned runs are done; research/results/mechanism.parquet has their numbers, and what each changed of its
recipe. `--write` writes docs/research/mechanism.md. All that is said here is exploratory: three of five seeds, and the
contrasts of actions and of D / surprise were looked for after the runs had been seen.

    setting     Sokoban, 90 steps, GRPO with token_mean, no KL term, constant rate 1e-4, entropy bonus 0.001, seeds 10
                to 12. Filter: top-p 0.9, absolute epsilon 0.01. Each seed has its own warm-up and tasks, which its
                arms share. No arm stops early; a step of which nothing is kept is skipped
    arms        advantages divided by the group's standard deviation (std) or by s, the root of the mean group variance
                of the window before the filter (window); each without filter and with it. bonus_none: divided by s,
                entropy bonus 0.1, no filter (one run)
    pilot       one unfiltered run of 60 steps at 2e-4 and at 1e-4, seed 90 (research/results/constant_rate.parquet).
                The rate is the largest at which the last validation success is within 0.05 of the best of its run
    contrasts   differences within a seed; means over seeds with 95% t-intervals
    planned     five seeds, and as the primary contrasts the interaction of divisor and filter, and an arm in which the
                filter spares low-variance groups the entropy bonus; three further arms of the target, one that drops
                groups at random, two without the penalty of an action, and 18 runs of 300 steps
    given up    the entropy bonus of 0.001 and KL of 0.001, which the runs of 300 steps were to have, are about 1/300 of
                the task gradient in the lowest bucket of reward variance (docs/research/claims.md), so dropping groups
                can hardly change what they do; and with `target=regulariser` the bonus is not only moved but smaller
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common import markdown_table
from research import answers
from research.answers import late_actions
from research.claims.statistics import latest, mean
from research.judging import PAGES, Report, interval, judge, template
from research.kept import (
    DEPENDENCE,
    SHARE,
    SUCCESS,
    Kept,
    apart,
    caveats,
    last_success,
    read_all,
    validated_by_seed,
)
from research.tables import FOLDER
from squelch.cluster.sweep.table import INTERVAL, text

PAGE, RESULTS, PILOTS = PAGES / "mechanism.md", FOLDER / "mechanism.parquet", FOLDER / "constant_rate.parquet"
SEEDS = (10, 11, 12)
PLANNED = 5
ARMS = ("std_none", "std_top_p", "window_none", "window_top_p", "bonus_none")
MEASURES: Mapping[str, Callable[[Kept], float | None]] = {
    "success": last_success,
    "actions an episode, last ten steps": late_actions,
    "D at the end, nats": lambda run: latest(run, DEPENDENCE, run.steps),
    "D / surprise at the end": lambda run: latest(run, SHARE, run.steps),
}
"""What the arms are compared by; arms of a seed start from the same weights, so ends differ as changes do."""


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of the arms' measures within a seed."""

    says: str
    weights: Mapping[str, int]


def minus(arm: str, other: str) -> Mapping[str, int]:
    """The weights of a difference of two arms."""
    return {arm: 1, other: -1}


CONTRASTS = (
    Contrast(
        "interaction: top-p minus none with std, minus the same with window",
        {**minus("std_top_p", "std_none"), **minus("window_none", "window_top_p")},
    ),
    Contrast("std: top-p minus no filter", minus("std_top_p", "std_none")),
    Contrast("window: top-p minus no filter", minus("window_top_p", "window_none")),
    Contrast("no filter: window minus std", minus("window_none", "std_none")),
)


def by_arm(runs: Sequence[Kept]) -> dict[str, dict[int, Kept]]:
    """The runs of every arm, by seed."""
    return {arm: validated_by_seed((run for run in runs if run.arm == arm), SEEDS) for arm in ARMS}


def judged(contrast: Contrast, arms: Mapping[str, Mapping[int, Kept]]) -> dict[str, Any]:
    """A contrast of every measure over the seeds of which all of its arms are there."""
    seeds = [seed for seed in SEEDS if all(seed in arms[arm] for arm in contrast.weights)]
    return {
        "says": contrast.says,
        "seeds": len(seeds),
        "differences": {
            name: interval([weighted(contrast.weights, arms, measure, seed) for seed in seeds])
            for name, measure in MEASURES.items()
        },
        "note": apart([[arms[arm][seed] for arm in contrast.weights] for seed in seeds]),
    }


def weighted(
    weights: Mapping[str, int],
    arms: Mapping[str, Mapping[int, Kept]],
    measure: Callable[[Kept], float | None],
    seed: int,
) -> float | None:
    """The weighted sum of a measure over the arms' runs of a seed; None if one is not there, or lacks it."""
    runs = [(weight, arms[arm].get(seed)) for arm, weight in weights.items()]
    known = [weight * value for weight, run in runs if run is not None and (value := measure(run)) is not None]
    return sum(known) if len(known) == len(runs) else None


def mi_change(run: Kept) -> float | None:
    """MI of the probe at the last step minus MI before training, nats."""
    return answers.change_of("probe/mi")(run)


def arm_row(arm: str, runs: Mapping[int, Kept]) -> dict[str, Any]:
    """What the runs of an arm measured."""
    return {
        "arm": arm,
        "seeds": len(runs),
        "success": interval([last_success(run) for run in runs.values()]),
        "mi_change": interval([mi_change(run) for run in runs.values()]),
        "kept": interval([mean(run.series("kept_fraction").values()) for run in runs.values()]),
        "varied": interval([mean(run.series("dropped_with_variance").values()) for run in runs.values()]),
        "answers": answers.measured([*runs.values()]),
    }


COMPARED = ("contrast", "seeds", *MEASURES)
OF_ANSWERS = ("actions an episode, first ten steps", "last ten", "change of D / surprise")
MEASURED = ("arm", "seeds", "success", *OF_ANSWERS, "MI change", "kept share", "dropped groups with variance")


def contrast_cells(found: Mapping[str, Any]) -> list[str]:
    """The printed cells of a contrast."""
    return [found["says"], f"{found['seeds']} of {PLANNED}", *(text(one, "+") for one in found["differences"].values())]


def arm_cells(found: Mapping[str, Any]) -> list[str]:
    """The printed cells of an arm."""
    of_answers = (text(found["answers"][name], answers.MEASURES[name][1]) for name in OF_ANSWERS)
    others = (text(found["mi_change"], "+"), text(found["kept"]), text(found["varied"]))
    return [f"`{found['arm']}`", f"{found['seeds']} of {PLANNED}", text(found["success"]), *of_answers, *others]


def pilot_rows() -> list[list[str]]:
    """The pilots: the rate, the last validation success, and the best."""
    runs = sorted(read_all(PILOTS), key=lambda run: float(run.arm.removeprefix("rate")), reverse=True)
    return [[run.arm.removeprefix("rate"), f"{last_success(run):.3f}", f"{_best(run):.3f}"] for run in runs]


def _best(run: Kept) -> float:
    return max(run.series(SUCCESS).values())


def markdown(runs: Sequence[Kept]) -> str:
    """The text of docs/research/mechanism.md."""
    arms = by_arm(runs)
    found = [judged(contrast, arms) for contrast in CONTRASTS]
    page = template("mechanism").format(
        done=sum(len(own) for own in arms.values()),
        contrasts="\n".join(markdown_table(COMPARED, map(contrast_cells, found))),
        arms="\n".join(markdown_table(MEASURED, [arm_cells(arm_row(*one)) for one in arms.items()])),
        pilots="; ".join(f"{rate}: {last}, {best}" for rate, last, best in pilot_rows()),
        interval=INTERVAL,
    )
    return page + "".join(f"- {note}\n" for note in notes_of(found, runs))


def notes_of(found: Sequence[Mapping[str, Any]], runs: Sequence[Kept]) -> list[str]:
    """What is not as planned: seeds of several warm-ups, and runs that ended early."""
    return [*(f"{one['says']}: {one['note']}" for one in found if one["note"]), *caveats(runs)]


def written() -> str:
    """The page of the committed runs."""
    return markdown(read_all(RESULTS))


def report(quick: bool = False) -> Report:
    """Judges the table."""
    runs = read_all(RESULTS)
    arms = by_arm(runs)
    found = [judged(contrast, arms) for contrast in CONTRASTS]
    metrics = {"benchmark": "mechanism", "rows": found, "arms": [arm_row(*one) for one in arms.items()]}
    return Report(
        metrics,
        COMPARED,
        [contrast_cells(one) for one in found],
        notes_of(found, runs),
        lambda: PAGE.write_text(written()),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the contrasts; returns the exit code."""
    return judge(__doc__, report, argv, writes=PAGE.name)


if __name__ == "__main__":
    raise SystemExit(main())
