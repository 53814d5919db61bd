"""The decisive test of the mechanism: why do groups of low reward variance harm, and what does dropping them repair?

python -m research.mechanism --list
python -m research.mechanism --run [--only WORD ...] [--minutes N] [--parallel N]
    [--runs-dir DIR] [--set KEY=VALUE ...]
python -m research.mechanism --import FILE ...
python -m research.mechanism [--quick] [--json] [--write]

`--run` adds each finished cell to research/results/mechanism.parquet; commit it. `--write` writes
docs/research/mechanism.md, whose first table also has the claims of `research.constant_rate`.

Two explanations are tested. The paper's section 3: in groups of low variance the regularisers dominate the update. Its
appendix N: division by a group's standard deviation inflates noise. Everything here was fixed before the first cell
ran; do not change it once a cell has.

    setting        Sokoban, 90 steps, GRPO with token_mean, no KL term, constant rate 1e-4 (the pilot of
                   `research.constant_rate`), seeds 10 to 14. Filter: top-p 0.9, absolute epsilon 0.01. Each seed has
                   its own warm-up and tasks, which its arms share, seeds 10 to 12 with `research.constant_rate`. No
                   arm stops early; a step of which nothing is kept is skipped. Where whole groups are dropped the
                   loss is scaled by rho, as in the paper; Adam cancels a constant factor
    (a) divisor    advantages divided by the group's standard deviation (std) or by s, the root of the mean group
                   variance of the window before the filter (window); each without filter and with it. Entropy bonus
                   0.001
    (b) target     divided by s, entropy bonus 0.1: no filter, and a filter of the whole group (groups), of the policy
                   term alone (task), of the bonus alone (regulariser)
    (c) dose       divided by the group's standard deviation, entropy bonus 0.001: as many groups as top-p keeps, drawn
                   at random. No rule of the filter draws at random. Tasks are independent draws, so the first five of
                   a step's eight groups are a random five: the arm plays 5 groups a step without filter. In the first
                   90 steps top-p kept 5.1 to 5.6 of 8, mean 5.3, in the eight filtered Sokoban runs of
                   `research.claims`; what it keeps here is reported
    (d) reward     an action reward of 0, divided by the group's standard deviation, without filter and with it:
                   optional, and compared within itself, because its warm-up is its own
    success        on the fixed validation tasks after step 90
    contrasts      differences of success within a seed; means over seeds with 95% t-intervals
    primary        the interaction in (a), (top-p minus none under std) minus (top-p minus none under window), claimed
                   above 0: the filter repairs what the division breaks. And regulariser minus no filter in (b), claimed
                   above 0: low-variance groups harm through the regularisers
    criterion      judged once, when all five seeds are there, before that "n of 5 seeds". Holds if the whole interval
                   is above 0, fails if it is below, else not significant. Each is at 95% without a correction, so that
                   one of the two is significant by chance in up to one study of ten
    exploratory    every other contrast: printed with its interval and without a verdict
    power          at 80%, three seeds see effects of 0.11 to 0.19 of success, five 0.06 to 0.10, and an interaction of
                   0.08 to 0.14; less is "not significant", which is no evidence of no effect
    order          seed by seed the six arms of the primary contrasts, then the other three, then (d)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common import markdown_table
from research import constant_rate
from research.cells import Study, StudyCell, command
from research.constant_rate import AGGREGATION, NONE, RATE, STEP_S, TOP_P, Settings, interval, mi_change, verdict
from research.judging import PAGES, Report, template
from research.kept import Kept, apart, caveats, last_success, read_all, validated_by_seed
from research.tables import FOLDER
from squelch.cluster.report.tables import TABLE_4, TASKS
from squelch.cluster.sweep.table import INTERVAL, text
from squelch.cluster.terminal import UNKNOWN

PAGE, RESULTS = PAGES / "mechanism.md", FOLDER / "mechanism.parquet"
RECIPE, STEPS, SEEDS = "sokoban", 90, (10, 11, 12, 13, 14)
LEARNING_RATE = 1e-4
RANDOM_GROUPS = 5
COMMON = (*constant_rate.COMMON, f"{AGGREGATION}=token_mean", f"{RATE}={LEARNING_RATE}")
WINDOW: Settings = {"learner.objective.divisor": "window"}
BONUS: Settings = {**WINDOW, "learner.objective.entropy_coefficient": 0.1}
FIRST: Mapping[tuple[str, str], Settings] = {
    ("divisor", "std_none"): NONE,
    ("divisor", "std_top_p"): TOP_P,
    ("divisor", "window_none"): {**NONE, **WINDOW},
    ("divisor", "window_top_p"): {**TOP_P, **WINDOW},
    ("target", "bonus_none"): {**NONE, **BONUS},
    ("target", "bonus_regulariser"): {**TOP_P, **BONUS, "filter.target": "regulariser"},
}
"""The arms of the primary contrasts, by part and name."""
THEN: Mapping[tuple[str, str], Settings] = {
    ("target", "bonus_groups"): {**TOP_P, **BONUS, "filter.target": "groups"},
    ("target", "bonus_task"): {**TOP_P, **BONUS, "filter.target": "task"},
    ("dose", "std_random"): {**NONE, "loop.prompts": RANDOM_GROUPS},
}
ARMS = {**FIRST, **THEN}
FREE: Settings = {"environment.options.action_reward": 0.0}
OPTIONAL: Mapping[tuple[str, str], Settings] = {
    ("reward", "free_none"): {**NONE, **FREE},
    ("reward", "free_top_p"): {**TOP_P, **FREE},
}
"""Arms that are no part of the study's count of runs: they run if time is left."""
THREE_SEES, FIVE_SEES, INTERACTION_SEES = "0.11 to 0.19", "0.06 to 0.10", "0.08 to 0.14"
"""Effects on success that are seen at 80%, by three and by five seeds, and as an interaction by five."""


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of the arms' success within a seed. `paper`, `power`: of a primary one, which is judged."""

    says: str
    weights: Mapping[str, int]
    paper: str = ""
    power: str = ""


def minus(arm: str, other: str) -> Mapping[str, int]:
    """The weights of a difference of two arms."""
    return {arm: 1, other: -1}


CONTRASTS = (
    Contrast(
        "The filter raises success more where the group's std divides than where s does (interaction)",
        {**minus("std_top_p", "std_none"), **minus("window_none", "window_top_p")},
        "appendix N: division inflates the noise of low-variance groups; not tested",
        INTERACTION_SEES,
    ),
    Contrast(
        "Without the entropy bonus on low-variance groups success is higher (divided by s, bonus 0.1)",
        minus("bonus_regulariser", "bonus_none"),
        "section 3: the regularisers dominate low-variance groups; not tested apart",
        FIVE_SEES,
    ),
    Contrast("std: top-p minus no filter", minus("std_top_p", "std_none")),
    Contrast("window: top-p minus no filter", minus("window_top_p", "window_none")),
    Contrast("no filter: window minus std", minus("window_none", "std_none")),
    Contrast("bonus 0.1: groups minus no filter", minus("bonus_groups", "bonus_none")),
    Contrast("bonus 0.1: task minus no filter", minus("bonus_task", "bonus_none")),
    Contrast("bonus 0.1: regulariser minus groups", minus("bonus_regulariser", "bonus_groups")),
    Contrast("std: top-p minus as many groups at random", minus("std_top_p", "std_random")),
    Contrast("std: as many groups at random minus no filter", minus("std_random", "std_none")),
    Contrast("action reward 0, std: top-p minus no filter", minus("free_top_p", "free_none")),
)


def every_cell() -> Iterator[StudyCell]:
    """The cells, those of the primary contrasts first."""
    for arms in (FIRST, THEN, OPTIONAL):
        for seed in SEEDS:
            for (part, arm), chosen in arms.items():
                settings = {**chosen, "model.tiny_seed": seed}
                yield StudyCell(part, RECIPE, arm, settings, seed, STEPS, STEP_S[RECIPE])


def study() -> Study:
    """The study with all of its cells."""
    return Study("mechanism", COMMON, tuple(every_cell()), RESULTS)


def by_arm(runs: Sequence[Kept]) -> dict[str, dict[int, Kept]]:
    """The runs of every arm, by seed."""
    arms = [arm for _, arm in (*ARMS, *OPTIONAL)]
    return {arm: validated_by_seed((run for run in runs if run.arm == arm), SEEDS) for arm in arms}


def judged(contrast: Contrast, arms: Mapping[str, Mapping[int, Kept]]) -> dict[str, Any]:
    """A contrast over the seeds of which all of its arms are there, and the verdict on a primary one."""
    seeds = [seed for seed in SEEDS if all(seed in arms[arm] for arm in contrast.weights)]
    success = [sum(w * last_success(arms[arm][seed]) for arm, w in contrast.weights.items()) for seed in seeds]
    found = interval(success)
    return {
        "says": contrast.says,
        "paper": contrast.paper,
        "primary": bool(contrast.power),
        "difference": found,
        "verdict": verdict(found, len(SEEDS)) if contrast.power else "exploratory",
        "power": contrast.power or UNKNOWN,
        "note": apart([[arms[arm][seed] for arm in contrast.weights] for seed in seeds]),
    }


def arm_row(arm: str, runs: Mapping[int, Kept]) -> dict[str, Any]:
    """What the runs of an arm measured."""
    return {
        "arm": arm,
        "seeds": len(runs),
        "success": interval([last_success(run) for run in runs.values()]),
        "mi_change": interval([mi_change(run) for run in runs.values()]),
        "kept": interval([mean_of(run, "kept_fraction") for run in runs.values()]),
        "varied": interval([mean_of(run, "dropped_with_variance") for run in runs.values()]),
    }


def mean_of(run: Kept, key: str) -> float | None:
    """The mean of a metric over the run; None if the run lacks it."""
    values = run.series(key).values()
    return statistics.fmean(values) if values else None


NAMES = {"sokoban": "Sokoban", "frozenlake": "FrozenLake"}


def long_claims(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """The rows of the table of claims that `research.constant_rate` tests, of its rows."""
    for found in rows:
        where = f"{NAMES[found['recipe']]}, {found['algorithm'].upper()}, {constant_rate.STEPS} steps"
        if found["filter"] == "none":
            late = f"Without the filter success falls late ({where})"
            yield claim(late, "collapses (Table 5, Sokoban)", found["late_change"], above=False)
            mi = f"Without the filter MI degrades ({where}), nats"
            yield claim(mi, "degrades (Figure 5b)", found["mi_change"], above=False)
        else:
            _, gain = TABLE_4[found["algorithm"], "Qwen2.5-3B"][TASKS.index(NAMES[found["recipe"]])]
            paper = f"{gain / 100:+.3f} in peak success (Table 4)"
            yield claim(f"The filter raises success ({where})", paper, found["minus_none"], power=THREE_SEES)


def claim(says: str, paper: str, found: Mapping[str, Any], above: bool = True, power: str = UNKNOWN) -> list[str]:
    """A row of the table of claims, of the runs at a constant rate."""
    return [says, paper, text(found, "+"), verdict(found, len(constant_rate.SEEDS), above), power]


CLAIMS = ("claim", "paper", "here at constant rate", "verdict", "power")
OTHERS = ("contrast", "success", "seeds")
MEASURED = ("arm", "seeds", "success", "MI change", "kept share", "dropped groups with variance")


def claim_cells(found: Mapping[str, Any]) -> list[str]:
    """The printed cells of a contrast."""
    return [found["says"], found["paper"], text(found["difference"], "+"), found["verdict"], found["power"]]


def other_cells(found: Mapping[str, Any]) -> list[str]:
    """The printed cells of an exploratory contrast on the page."""
    return [found["says"], text(found["difference"], "+"), f"{found['difference']['n']} of {len(SEEDS)}"]


def arm_cells(found: Mapping[str, Any]) -> list[str]:
    """The printed cells of an arm."""
    metrics = (text(found["success"]), text(found["mi_change"], "+"), text(found["kept"]), text(found["varied"]))
    return [f"`{found['arm']}`", f"{found['seeds']} of {len(SEEDS)}", *metrics]


def markdown(runs: Sequence[Kept], long_rows: Sequence[Mapping[str, Any]]) -> str:
    """The text of docs/research/mechanism.md."""
    arms = by_arm(runs)
    found = [judged(contrast, arms) for contrast in CONTRASTS]
    primary = [claim_cells(one) for one in found if one["primary"]]
    others = [other_cells(one) for one in found if not one["primary"]]
    measured = [arm_cells(arm_row(arm, own)) for arm, own in arms.items()]
    page = template("mechanism").format(
        done=sum(len(arms[arm]) for _, arm in ARMS),
        cells=len(ARMS) * len(SEEDS),
        hours=f"{sum(cell.minutes for cell in every_cell() if (cell.part, cell.arm) in ARMS) / 60:.1f}",
        claims="\n".join(markdown_table(CLAIMS, [*primary, *long_claims(long_rows)])),
        others="\n".join(markdown_table(OTHERS, others)),
        arms="\n".join(markdown_table(MEASURED, measured)),
        interval=INTERVAL,
    )
    return page + "".join(f"- {note}\n" for note in notes_of(found, runs))


def notes_of(found: Sequence[Mapping[str, Any]], runs: Sequence[Kept]) -> list[str]:
    """What is not as planned: seeds of several warm-ups, runs with other settings or that ended early."""
    return [*(f"{one['says']}: {one['note']}" for one in found if one["note"]), *caveats(runs)]


def written() -> str:
    """The page of the committed runs of this study and of `research.constant_rate`."""
    return markdown(read_all(RESULTS), constant_rate.report().metrics["rows"])


def report(quick: bool = False) -> Report:
    """Judges the table."""
    runs = read_all(RESULTS)
    arms = by_arm(runs)
    found = [judged(contrast, arms) for contrast in CONTRASTS]
    metrics = {"benchmark": "mechanism", "rows": found, "arms": [arm_row(*one) for one in arms.items()]}
    rows = [claim_cells(one) for one in found]
    return Report(metrics, CLAIMS, rows, notes_of(found, runs), lambda: PAGE.write_text(written()))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, study, report, argv, writes=PAGE.name)


if __name__ == "__main__":
    raise SystemExit(main())
