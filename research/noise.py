"""The study of environment noise: does a filter by policy variance keep what the plain filter loses to noise?

python -m research.noise [--quick] [--json] [--write]

Everything here was fixed before the first cell ran; do not change it once a cell has.

    environment    the recipe frozenlake; the executed direction is uniform over the four with probability p (the
                   paper's Figure 9), which is a uniform slip at rate 0.75 p
    arms           none: no filter. plain: top-p 0.9 of the reward variance (absolute epsilon 0.01). shared: the same,
                   with one noise for all trajectories of a group, as in the authors' code. policy_variance: top-p 0.9
                   of the policy variance of 32 replays, epsilon 0; a step in which it is significant for no
                   group is learned from unfiltered
    p, seeds       0, 0.2, 0.5: seeds 0 to 2. 0.8, 1: seeds 0 to 4
    success        on the fixed validation tasks, under the same noise, after step 60
    metric         success of an arm minus that of `none`, paired by seed: mean and 95% t-interval
    criterion      for policy_variance at p = 0.8 and at p = 1: the interval's lower end is above -0.03. It holds if so,
                   it fails if the upper end is below -0.03, and otherwise five seeds leave it not significant. The same
                   is reported of plain and shared, for which nothing is claimed

32 replays, because on the lakes of docs/research/policy-variance.md 4 make almost no group significant at p = 0.5. The
cells of `none` and `plain` are those of Figure 9 in `research.claims`; the others were run under the same settings,
which stand in the table as `changed`. At p = 0 nothing is noisy, so `shared` is `plain` by construction and was not
run; `policy_variance` ranks by the reward variance there, and differs from `plain` by its epsilon and by what it does
without a signal. `--write` writes docs/research/policy-variance.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import markdown_table
from research.claims import plan
from research.claims.study import RESULTS as CLAIMS
from research.judging import PAGES, Report, judge, template
from research.kept import (
    Kept,
    apart,
    caveats,
    last_success,
    not_worse,
    read_all,
    validated_by_seed,
)
from research.tables import FOLDER, read_csv
from squelch.cluster.sweep.table import INTERVAL, t_interval, text
from squelch.kit.process.terminal import UNKNOWN

PAGE, RESULTS = PAGES / "policy-variance.md", FOLDER / "noise.parquet"
EXACT = FOLDER / "policy_variance.csv"
"""Of a finished study: V against its exact value, a row for each policy, p and number of replays."""
TOLERANCE = 0.03
ENOUGH = 4
"""Replays from which the mean's intervals hold."""
JUDGED, JUDGED_AT = "policy_variance", plan.MANY
ARMS = {"none": "none", "plain": "top_p", "shared": "shared", "policy_variance": "policy_variance"}
"""The arms, by the name that their runs have."""


def committed() -> list[Kept]:
    """The condensed runs of this study and of Figure 9."""
    return [*read_all(RESULTS), *(run for run in read_all(CLAIMS) if run.part == "noise")]


def validated(runs: Sequence[Kept], arm: str, level: float) -> dict[int, Kept]:
    """The runs of an arm that were validated, by seed; without noise `shared` is `plain`."""
    named = plan.noise_arm(ARMS["plain"] if level == 0 and arm == "shared" else ARMS[arm], level)
    return validated_by_seed((run for run in runs if run.arm == named), plan.seeds_at(level))


def row(runs: Sequence[Kept], arm: str, level: float) -> dict[str, Any]:
    """An arm at a noise level: its success, its difference from `none`, and the verdict of the criterion."""
    own, none = validated(runs, arm, level), validated(runs, "none", level)
    pairs = [(own[seed], none[seed]) for seed in sorted(own.keys() & none.keys())]
    paired = [last_success(one) - last_success(other) for one, other in pairs]
    difference = t_interval(paired) if arm != "none" else t_interval([])
    return {
        "p": level,
        "arm": arm,
        "seeds": len(own),
        "success": t_interval([last_success(run) for run in own.values()]),
        "minus_none": difference,
        "note": apart(pairs),
        "judged": arm == JUDGED and level in JUDGED_AT,
        "verdict": verdict(difference, len(paired), len(plan.seeds_at(level))) if arm != "none" else "",
    }


def verdict(difference: Mapping[str, Any], pairs: int, wanted: int) -> str:
    """What the criterion of the module's head says of a difference from `none` over so many seeds of the wanted."""
    if pairs < wanted:
        return f"{pairs} of {wanted} seeds run" if pairs else "not run"
    return not_worse(difference["low"], difference["high"], TOLERANCE)


def judged(runs: Sequence[Kept]) -> list[dict[str, Any]]:
    """A row for each level and arm."""
    return [row(runs, arm, level) for level in plan.NOISE_LEVELS for arm in ARMS]


COLUMNS = ("p", "arm", "seeds", "success", "minus none", f"above -{TOLERANCE}")


def cells(found: Mapping[str, Any]) -> list[str]:
    """The printed cells of a row."""
    said = f"**{found['verdict']}**" if found["judged"] else found["verdict"] or UNKNOWN
    parts = [text(found["success"]), text(found["minus_none"], "+")]
    return [f"{found['p']:g}", found["arm"], str(found["seeds"]), *parts, said]


EXACT_COLUMNS = {
    **{"policy": "policy", "truth": "truth", "plain": "plain", "mean": "mean of V", "bias": "bias"},
    **{"significant": "significant", "covers_group": "covers, one group", "covers_mean": "covers, mean of 8"},
}
EXACT_AT, REPLAYS = "0.5", "32"


def covered() -> str:
    """From the smallest to the largest share of the mean's intervals that hold, of plans with 4 replays or more."""
    plans = [row for row in read_csv(EXACT) if row["policy"].startswith("plan") and int(row["replays"]) >= ENOUGH]
    shares = sorted(100 * float(row["covers_mean"]) for row in plans)
    return f"{shares[0]:.0f} to {shares[-1]:.0f}%"


def markdown(rows: Sequence[Mapping[str, Any]], runs: Sequence[Kept]) -> str:
    """The text of docs/research/policy-variance.md."""
    shown = (
        [row[key] for key in EXACT_COLUMNS]
        for row in read_csv(EXACT)
        if row["p"] == EXACT_AT and row["replays"] == REPLAYS
    )
    return template("policy-variance").format(
        table="\n".join(markdown_table(COLUMNS, map(cells, rows))),
        tolerance=TOLERANCE,
        interval=INTERVAL,
        notes="\n".join(f"- {note}" for note in (*notes_of(rows), *caveats(runs))),
        exact="\n".join(markdown_table([*EXACT_COLUMNS.values()], shown)),
        covered=covered(),
    )


def notes_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each row whose pairs did not all start from the same weights."""
    return [f"{one['arm']} at p = {one['p']:g}: {one['note']}" for one in rows if one["note"]]


def report(quick: bool = False) -> Report:
    """Judges the tables."""
    runs = committed()
    found = judged(runs)
    notes = [f"{one['arm']} at p = {one['p']:g}: {one['verdict']}" for one in found if one["judged"]]
    notes += [*notes_of(found), *caveats(runs)]
    metrics = {"benchmark": "noise_study", "tolerance": TOLERANCE, "rows": found}
    return Report(
        metrics, COLUMNS, [cells(one) for one in found], notes, lambda: PAGE.write_text(markdown(found, runs))
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv, writes=PAGE.name)


if __name__ == "__main__":
    raise SystemExit(main())
