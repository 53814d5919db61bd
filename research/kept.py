"""Condenses a finished run of a study into the content that its table keeps (`research.tables`), and reads it again.

The content has tables of metrics by step (a list for each metric, None where it is missing): `scored` (one entry a
scoring), `validated`, `probe` (evaluations of the fixed probe), `steps` (training steps), `blocks` (means over `BLOCK`
training steps, named by the last of them) and `gradients` (decompositions); and in `groups` rank correlations over all
groups of the run.

A run that ended because the filter found no signal is an end like any other: left out, it would bias every comparison,
because only runs that filter can end so. Its content says `ended: no_signal` and `planned`, the steps that it was to
make; `steps` are those that it made. Its last validation counts for the planned last step, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from research.tables import read_as
from squelch.cluster.control.gaming import kept_variance
from squelch.cluster.runs.ending import EndCause, ending_of
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.setting_keys import below
from squelch.cluster.sweep.plan import PLACEMENT
from squelch.kit.archive.reader import stream_groups
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.grounding import spearman

Table = Mapping[str, Sequence[float | None]]
BLOCK = 10
DIGITS = 5
"""Significant digits that are kept."""
SCOPES = ("first_turn", "trajectory")
OF_A_SCOPE = ("mi_est", "mi_seq_est", "mi_zscore", "mi_zscore_ema", "retrieval_accuracy", "conditional_entropy")
SCORED = (
    *(f"{scope}/{name}" for scope in SCOPES for name in (*OF_A_SCOPE, "marginal_entropy")),
    *("first_turn/mi_seq_est_standard_error", "first_turn/reasoned", "judge/names", "judge/right"),
)
SUCCESS = "validation/success"
VALIDATED = (SUCCESS,)
PROBE = (
    *("probe/mi", "probe/mi_standard_error", "probe/mi_p_value", "probe/conditional_entropy"),
    *("probe/hard/mi", "probe/hard/mi_standard_error", "probe/hard/ceiling"),
    *("probe/link/dependence", "probe/link/dependence_standard_error", "probe/link/dependence_p_value"),
    *("probe/link/dependence_share", "probe/link/dependence_share_standard_error"),
    *("probe/link/information", "probe/link/past_reasoning", "probe/link/surprise", "probe/link/follows"),
)
EACH_STEP = (
    *("reward_variance_mean", "reasoning_length", "format_validity", "rollout_entropy"),
    *("kept_fraction", "kept_mass", "zero_variance_groups", "dropped_with_variance"),
    *("tasks_all_fail", "tasks_mixed", "tasks_all_succeed"),
    *("alarm/raised", "gaming/raised", "learner/grad_norm"),
    *("policy_variance_mean", "policy_variance_told_groups", "noise_variance_mean", "replay_gap_mean"),
)
DEPENDENCE, SURPRISE = "probe/link/dependence", "probe/link/surprise"
SHARE = "probe/link/dependence_share"
"""D as a share of the answer's surprise under reasonings of other prompts."""
ACTIONS = "actions_per_trajectory"
STEPS = ("success", "reward_mean", "kept_variance", ACTIONS)
RECORDED = "probe/recorded"
"""The step at which the run knew an evaluation of the probe, which is made of the weights of an earlier one."""
BUCKETS = range(1, 7)
GRADIENTS = tuple(
    f"gradients/q{q}/{part}" for q in BUCKETS for part in ("reward_variance", "task", "task_std", "regulariser")
)
STEP_OF = {"scored": "scorer/step", "validated": "validation/step", "probe": "probe/step"}


NOT_CONTENT = (*PLACEMENT, "model.cache", "model.pretrained_cache")
"""Settings, and blocks of settings, that only say where a run and its models are kept or shown."""
NOT_LEARNED = (*NOT_CONTENT, "loop.checkpoint_every", "loop.keep_checkpoints")
"""Settings, and blocks of settings, that change nothing of what is learned or measured."""


def content_overrides(words: Sequence[str]) -> list[str]:
    """The overrides that are part of a run's content."""
    return [word for word in words if not below(word.partition("=")[0], NOT_CONTENT)]


def changes_learning(word: str) -> bool:
    """Whether an override may change what a cell learns or measures."""
    return not below(word.partition("=")[0], NOT_LEARNED)


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
    overrides: tuple[str, ...] = ()
    """The settings of `--set` with which it was run, without those that say where it is kept; `set` in its content."""
    planned: int = 0
    """Steps that a run which ended before its last step was to make."""
    from_step: int = 0
    """The step of the checkpoint of another run with which it began; 0: with the weights with which that one began."""
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


def finished(folder: Path) -> tuple[RunFolder, Mapping[str, Any]]:
    """A run that reached its last step, or ended for lack of signal, and its summary. UserError for any other."""
    run = RunFolder(folder)
    summary = run.summary()
    if not summary or not (summary["finished"] or without_signal(summary)):
        why = f" ({summary['stopped']})" if summary and summary.get("stopped") else ""
        ending, remedy = ending_of(summary or {}), "continue it with --run"
        if ending is not None and ending.complete:
            remedy = "remove its folder, and run the cell without validation.early_stop"
        raise UserError(f"{folder}: the run has not finished{why}; {remedy}")
    return run, summary


def without_signal(summary: Mapping[str, Any]) -> bool:
    """Whether the run ended before its last step because the filter selected nothing."""
    ending = ending_of(summary)
    return ending is not None and ending.cause is EndCause.NO_SIGNAL and not summary["finished"]


def how_it_ended(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a run's content that say that it ended before its planned last step; empty if it did not."""
    return {"ended": str(EndCause.NO_SIGNAL), "planned": settings["loop.steps"]} if without_signal(summary) else {}


def condense(folder: Path, **labels: Any) -> dict[str, Any]:
    """The content of a run. UserError if the run has neither finished nor ended for lack of signal."""
    run, summary = finished(folder)
    settings, lines = run.settings(), run.metrics()
    tables = {name: _table(lines, keys, STEP_OF[name]) for name, keys in _READ.items()}
    recorded = [{**line, RECORDED: line["step"]} for line in lines]
    tables["probe"] = _table(recorded, (*PROBE, RECORDED), STEP_OF["probe"])
    trained = [line for line in lines if line["step"] > 0]
    tables["steps"] = _table([{**line, "kept_variance": _kept_variance(line)} for line in trained], STEPS, "step")
    tables["blocks"] = _blocks(trained)
    tables["gradients"] = _table(lines, GRADIENTS, "step")
    return {
        "name": folder.name,
        **labels,
        "seed": settings["seed"],
        "steps": summary["steps"],
        **how_it_ended(summary, settings),
        "tables": {name: table for name, table in tables.items() if table["step"]},
        "groups": of_groups(folder),
        "step_seconds": short(summary["seconds_per_step_median"]),
    }


_READ = {"scored": SCORED, "validated": VALIDATED}


def _table(lines: Sequence[Mapping[str, Any]], keys: Sequence[str], step: str) -> dict[str, list[float | None]]:
    """The metrics by the step that they describe. A line repeats no evaluation: only the first with a step counts."""
    rows = {}
    for line in lines:
        at = line.get(step)
        if at is not None and int(at) not in rows and any(line.get(key) is not None for key in keys):
            rows[int(at)] = line
    ordered = sorted(rows)
    known = [key for key in keys if any(row.get(key) is not None for row in rows.values())]
    return {"step": [*ordered], **{key: [short(rows[at].get(key)) for at in ordered] for key in known}}


def _blocks(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    by_block: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_block.setdefault(math.ceil(line["step"] / BLOCK) * BLOCK, []).append(line)
    ordered = sorted(by_block)
    means = {key: [_mean(row.get(key) for row in by_block[at]) for at in ordered] for key in EACH_STEP}
    known = {key: values for key, values in means.items() if any(value is not None for value in values)}
    return {"step": [*ordered], **known}


def _kept_variance(line: Mapping[str, Any]) -> float | None:
    if line.get("num_groups") is None:
        return None
    known = ("reward_variance_mean", "kept_mass", "num_groups", "refused_groups")
    return kept_variance({key: math.nan if line[key] is None else line[key] for key in known})


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return short(statistics.fmean(found)) if found else None


def short(value: float | None) -> float | None:
    """The value to `DIGITS` digits; None if it is not known."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def of_groups(folder: Path) -> dict[str, float]:
    """Spearman's correlation over all groups of a run, of a group's reward variance with its mean return (`reward`),
    mean surprisal of its tokens (`entropy`) and mean number of sampled tokens (`length`). Failed trajectories are left
    out, and groups with fewer than two others."""
    columns = ("group_id", "episode_return", "failure_cause", "loss_mask", "log_probs")
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for table in stream_groups(folder, columns=columns):
        for row in table.to_pylist():
            if row["failure_cause"] is None and (sampled := sum(row["loss_mask"])):
                own = (row["episode_return"], -sum(row["log_probs"]) / sampled, float(sampled))
                rows.setdefault(row["group_id"], []).append(own)
    groups = [np.array(own) for own in rows.values() if len(own) > 1]
    variance = [float(own[:, 0].var(ddof=1)) for own in groups]
    found = {
        name: spearman(variance, [float(own[:, column].mean()) for own in groups])
        for column, name in enumerate(("reward", "entropy", "length"))
    }
    return {name: round(value, 4) for name, value in found.items() if math.isfinite(value)}


OTHERS = ("ended", "planned", "from_step", "commit", "settings")
"""Entries of a content that a run need not have."""


def of_content(content: Mapping[str, Any]) -> Kept:
    """A run from its content. KeyError, TypeError or ValueError if something is missing or of a wrong
    form."""
    labels = ("name", "part", "recipe", "arm", "seed", "steps", "tables", "groups")
    others = {name: content[name] for name in OTHERS if name in content}
    for name in ("seed", "steps", *(others.keys() & {"planned", "from_step"})):
        if type(content[name]) is not int:
            raise TypeError(f"{name} is {content[name]!r} and no whole number")
    for name, table in content["tables"].items():
        _check_table(name, table)
    overrides = tuple(content.get("set", ()))
    run = Kept(**{name: content[name] for name in labels}, overrides=overrides, **others)
    return carried(derived(run, [*overrides, *content.get("changed", ())]))


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


def with_other_settings(runs: Iterable[Kept]) -> list[str]:
    """A note for a report on runs that were made with settings of `--set` that change what is learned or measured."""
    other = [(run.name, [*filter(changes_learning, run.overrides)]) for run in runs]
    named = [f"{name} ({', '.join(words)})" for name, words in other if words]
    return [f"{len(named)} runs were made with other settings than planned: {'; '.join(named)}"] if named else []


def commits(runs: Iterable[Kept]) -> list[str]:
    """A note for a report: the commit at which the runs were made."""
    found = sorted({run.commit for run in runs})
    return [f"The runs: commit {', '.join(found) if all(found) else 'not recorded'}"] if found else []


def caveats(runs: Sequence[Kept]) -> list[str]:
    """The notes for a report on what the runs are: their commit, which ended early, and which were made with other
    settings than planned."""
    return [*commits(runs), *early_ends(runs), *with_other_settings(runs)]


def not_worse(low: float | None, high: float | None, tolerance: float) -> str:
    """The verdict on "not worse by more than the tolerance", from the interval of a difference. Without an interval the
    verdict is "not significant"."""
    if low is None or high is None:
        return "not significant"
    return "holds" if low > -tolerance else "fails" if high < -tolerance else "not significant"
