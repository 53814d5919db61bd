"""A condensed run of a study, read from the content that its table keeps (`research.tables`).

The content has tables of metrics by step (a list for each metric, None where it is missing): `scored` (one entry a
scoring), `validated`, `probe` (evaluations of the fixed probe), `steps` (training steps), `blocks` (means over `BLOCK`
training steps, named by the last of them) and `gradients` (decompositions); and in `groups` Spearman's correlations
over all groups of the run, of a group's reward variance with its mean return (`reward`), mean surprisal of its tokens
(`entropy`) and their mean number (`length`).

A run that ended because the filter found no signal is an end like any other: left out, it would bias every comparison,
because only runs that filter can end so. Its content says `ended: no_signal` and `planned`, the steps that it was to
make; `steps` are those that it made. Its last validation counts for the planned last step, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from research.tables import read_as
from squelch.cluster.setting_keys import below

Table = Mapping[str, Sequence[float | None]]
BLOCK = 10
SUCCESS = "validation/success"
DEPENDENCE, SURPRISE = "probe/link/dependence", "probe/link/surprise"
SHARE = "probe/link/dependence_share"
"""D as a share of the answer's surprise under reasonings of other prompts."""
ACTIONS = "actions_per_trajectory"


@dataclass(frozen=True)
class Kept:
    """One condensed run."""

    name: str
    part: str
    recipe: str
    arm: str
    seed: int
    steps: int
    tables: Mapping[str, Table]
    groups: Mapping[str, float]
    ended: str = ""
    """`no_signal` if the run ended so before its planned last step."""
    planned: int = 0
    """Steps that a run which ended before its last step was to make."""
    commit: str = ""
    """The commit at which the run was made (`research.cells.code_commit`); empty if it was not recorded."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Settings that judges of finished studies need, such as `validation_tasks`."""

    @property
    def horizon(self) -> int:
        """The step up to which the run shows how its arm went: its last, or the planned last one if it ended before."""
        return max(self.steps, self.planned)

    def series(self, key: str) -> dict[int, float]:
        """A metric by step, without the steps that lack it; empty if the run lacks the metric."""
        table = next((t for t in self.tables.values() if key in t), {"step": ()})
        values = table.get(key, ())
        pairs = zip(table["step"], values, strict=bool(values))
        return {int(step): value for step, value in pairs if step is not None and value is not None}


OTHERS = ("ended", "planned", "commit", "settings")
"""Entries of a content that a run need not have."""


def of_content(content: Mapping[str, Any]) -> Kept:
    """A run from its content. KeyError, TypeError or ValueError if something is missing or of a wrong
    form."""
    labels = ("name", "part", "recipe", "arm", "seed", "steps", "tables", "groups")
    others = {name: content[name] for name in OTHERS if name in content}
    for name in ("seed", "steps", *(others.keys() & {"planned"})):
        if type(content[name]) is not int:
            raise TypeError(f"{name} is {content[name]!r} and no whole number")
    for name, table in content["tables"].items():
        _check_table(name, table)
    run = Kept(**{name: content[name] for name in labels}, **others)
    return carried(derived(run, [*content.get("set", ()), *content.get("changed", ())]))


def _check_table(name: str, table: Table) -> None:
    number = len(table["step"])
    for key, values in table.items():
        if len(values) != number:
            raise ValueError(f"{name}: {len(values)} values of {key} for {number} steps")
        if wrong := [value for value in values if value is not None and not isinstance(value, int | float)]:
            raise TypeError(f"{name}: {wrong[0]!r} among the values of {key} is no number")


ACTION_REWARD, SOLVED_REWARD = -0.1, 11.0
"""Of Sokoban with one box, whose returns are SOLVED_REWARD * success + ACTION_REWARD * actions."""


def derived(run: Kept, words: Sequence[str]) -> Kept:
    """The run with metrics that older runs did not record, computed from those that they did: the share of D, and in
    Sokoban the actions of an episode. `words`: what the run changed of its recipe; under other options of the
    environment its returns do not tell the number of actions."""
    tables = dict(run.tables)
    if SURPRISE in (probe := tables.get("probe", {})) and SHARE not in probe:
        pairs = zip(probe[DEPENDENCE], probe[SURPRISE], strict=True)
        share = [d / surprise if d is not None and surprise else None for d, surprise in pairs]
        tables["probe"] = {**probe, SHARE: share}
    other = any(below(word.partition("=")[0], ("environment.options",)) for word in words)
    steps = tables.get("steps", {})
    told = run.recipe == "sokoban" and not other and {"success", "reward_mean"} <= steps.keys()
    if told and ACTIONS not in steps:
        returns = zip(steps["success"], steps["reward_mean"], strict=True)
        tables["steps"] = {**steps, ACTIONS: [_actions(*each) for each in returns]}
    return replace(run, tables=tables)


def _actions(success: float | None, reward: float | None) -> float | None:
    return None if success is None or reward is None else (reward - SOLVED_REWARD * success) / ACTION_REWARD


def carried(run: Kept) -> Kept:
    """The run with its last validation repeated at its planned last step, if it ended before."""
    table = run.tables.get("validated")
    if not run.ended or not table:
        return run
    last = table["step"][-1]
    if last is None:
        raise ValueError("its last validation has no step")
    if last >= run.horizon:
        return run
    longer = {key: [*values, run.horizon if key == "step" else values[-1]] for key, values in table.items()}
    return replace(run, tables={**run.tables, "validated": longer})


def early_ends(runs: Iterable[Kept]) -> list[str]:
    """A note for a report: how many runs ended before their planned last step, and what is missing of each."""
    found = [run for run in runs if run.ended]
    ended = [f"{run.name} after step {run.steps} of {run.planned}, {_validated(run)}" for run in found]
    head = (
        f"{len(found)} runs ended for lack of signal; their last validation counts for the planned last step, "
        "and other metrics are missing after their own last step: "
    )
    return [head + "; ".join(ended)] if found else []


def _validated(run: Kept) -> str:
    at = [step for step in run.series(SUCCESS) if step <= run.steps]
    if not at:
        return "never validated"
    later = "" if at[-1] == run.steps else ", so not the policy that it ended with"
    return f"last validated at step {at[-1]}{later}"


def read_all(file: Path) -> list[Kept]:
    """Every condensed run in a study's table, by name. UserError if one is damaged."""
    return read_as(file, of_content)


def validated_by_seed(runs: Iterable[Kept], seeds: Sequence[int]) -> dict[int, Kept]:
    """The runs of these seeds that were validated, by seed."""
    return {run.seed: run for run in runs if run.seed in seeds and run.series(SUCCESS)}


def last_success(run: Kept) -> float:
    """The last validation success of a run that was validated."""
    series = run.series(SUCCESS)
    return series[max(series)]


def start(run: Kept) -> float | None:
    """Validation success before training."""
    return run.series(SUCCESS).get(0)


BEFORE = ("probe/mi", "probe/conditional_entropy")
"""Metrics of the fixed probe that distinguish weights before training: evaluations of equal weights are equal."""


def alike(one: Kept, other: Kept) -> bool:
    """Whether two runs of one seed started from the same weights, as far as their files show: by the probe before
    training where both have it, else by their success there, which is a multiple of one over the number of tasks and
    also differs with the noise of an environment."""
    probed = [tuple(run.series(key).get(0) for key in BEFORE) for run in (one, other)]
    if None not in (*probed[0], *probed[1]):
        return probed[0] == probed[1]
    return start(one) == start(other)


def apart(groups: Iterable[Sequence[Kept]], named: str = "seeds whose runs") -> str:
    """A note that counts the groups of runs that did not all start from the same weights; empty without such. Runs of
    one warm-up do; those that were made on two machines, or under two sets of the environment's options, do not."""
    count = sum(not all(alike(runs[0], run) for run in runs[1:]) for runs in groups)
    return f"{named} did not start from the same weights: {count}" if count else ""


def commits(runs: Iterable[Kept]) -> list[str]:
    """A note for a report: the commit at which the runs were made."""
    found = sorted({run.commit for run in runs})
    return [f"The runs: commit {', '.join(found) if all(found) else 'not recorded'}"] if found else []


def caveats(runs: Sequence[Kept]) -> list[str]:
    """The notes for a report on what the runs are: their commit, and which ended early."""
    return [*commits(runs), *early_ends(runs)]


def not_worse(low: float | None, high: float | None, tolerance: float) -> str:
    """The verdict on "not worse by more than the tolerance", from the interval of a difference. Without an interval the
    verdict is "not significant"."""
    if low is None or high is None:
        return "not significant"
    return "holds" if low > -tolerance else "fails" if high < -tolerance else "not significant"
