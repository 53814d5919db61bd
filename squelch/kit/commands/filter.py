"""`squelch filter`: applies the filter to files that any trainer can write. `squelch mi` uses this module's reader of
.npz files.

The command starts in well under 0.5 s: it imports no torch, Ray or vLLM; Parquet is read apart. Bad input
raises a `UserError` that names the file and the key and says what would be right.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.archive.parts import GROUPS, parts_in
from squelch.kit.archive.reader import CONFIG
from squelch.kit.archive.store import LocalStore
from squelch.kit.base.errors import UserError, as_user_error, bad_files_are_the_users
from squelch.kit.base.lookup import look_up
from squelch.kit.commands.filter_table import filter_table
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.statistics import STATISTICS
from squelch.kit.process.terminal import aligned, remark, say, say_json
from squelch.kit.readers.formats import names_in
from squelch.kit.readers.records import SUFFIXES, columns_of, suffix_of
from squelch.kit.untrusted.decoder_process import apart, bounded_reading
from squelch.kit.untrusted.files import is_file, is_folder, state
from squelch.kit.untrusted.memory import memory_of_at_most

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from squelch.kit.api.filtering import FilterResult
    from squelch.kit.filter.measure import GroupStatistics
    from squelch.kit.readers.reward_tables import RewardTable

RHO, EPSILON = (FilterConfig.model_fields[name].default for name in ("rho", "epsilon"))
"""Defaults of the flags."""


def tables() -> str:
    """The meaning of each statistic and each rule."""
    statistics = [(f"  {entry.name}", f"{entry.help} ({entry.unit})") for entry in STATISTICS.values()]
    rules = [(f"  {rule.name}", rule.keeps) for rule in RULES.values()]
    return "\n".join(["statistics:", *aligned(statistics), "", "rules, and which groups each keeps:", *aligned(rules)])


def _name_of(table: Mapping[str, Any], what: str) -> Callable[[str], str]:
    """Returns a reader for a flag that takes a name of the table; the error of an unknown name names the nearest."""

    def read(name: str) -> str:
        try:
            look_up(table, name, what)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return name

    return read


rule, statistic = _name_of(RULES, "rule"), _name_of(STATISTICS, "statistic")
"""Readers of `--rule` and `--statistic`."""

NEEDED = "give an .npz with `rewards`, a run's folder, or a .jsonl, .json or .parquet with rewards"
COLUMNS = (
    *("group_id", "trajectory", "step", "split", "episode_return", "format_penalty", "failure_cause"),
    *("loss_mask", "log_probs", "task_kind", "label"),
)
"""Columns of the archive from which the filter's statistics are computed."""
MEASURED = ("lengths", "surprisals")
"""Columns that are computed from a trajectory's tokens."""
SHOWN_STEPS = 10
"""Of those that are missing, in messages."""
SORTED_BY = ("step", "group_id", "trajectory")


@dataclass(frozen=True)
class Window:
    """Groups that are ranked together, and the position of each in the file."""

    step: int | None
    positions: list[int]
    groups: list[GroupStatistics]


def run(args: argparse.Namespace) -> int:
    """Prints the filter's decision on each group of a file; returns 0, or raises UserError for bad input."""
    config = filter_config(args)
    notes: list[str] = []
    windows = read_windows(args.file, args.format, args.reward, args.group, notes)
    for note in notes:
        remark(note)
    count, missing = missing_steps(windows)
    if count:
        shown = ", ".join(map(str, missing)) + (", ..." if count > len(missing) else "")
        remark(f"{args.file}: {count} steps within its range have no groups and are left out: {shown}")
    report = filter_report(args.file, windows, config)
    if args.json:
        say_json(report)
    else:
        say(filter_table(report))
    return 0


def missing_steps(windows: Sequence[Window]) -> tuple[int, list[int]]:
    """(number, the first SHOWN_STEPS) of the steps between the first and the last window's of which there is no window;
    none where windows have no steps."""
    steps = sorted({window.step for window in windows if window.step is not None})
    gaps = [range(before + 1, step) for before, step in pairwise(steps)]
    return sum(map(len, gaps)), list(islice(chain.from_iterable(gaps), SHOWN_STEPS))


def filter_config(args: argparse.Namespace) -> FilterConfig:
    """The filter's settings from the flags; UserError for a value out of range."""
    from squelch.kit.api.filtering import OutOfRange, filter_settings

    names = ("rule", "rho", "statistic", "keep", "include_zero", "epsilon", "epsilon_unit", "compat")
    try:
        return filter_settings(**{name: getattr(args, name) for name in names}, band=tuple(args.band))
    except OutOfRange as error:
        raise UserError(f"--{error}") from error
    except ValueError as error:
        raise UserError(str(error)) from error


def read_windows(
    path: Path,
    format_name: str | None = None,
    rewards: Sequence[str] = (),
    group: str | None = None,
    notes: list[str] | None = None,
) -> list[Window]:
    """The windows of a file: one for an .npz, one per step for archived groups and for files of other trainers, whose
    format, rewards and column of groups may be given. `notes`: takes what a reader should know."""
    with bad_files_are_the_users():
        if state(path) is None:
            raise UserError(f"{path} does not exist; {NEEDED}")
        suffix = suffix_of(path, (".npz", *SUFFIXES), NEEDED)
        if suffix == ".npz":
            return _windows_of_npz(path)
        if not (format_name or rewards or group) and _is_archive(path, suffix):
            return _windows_of_archive(path)
        from squelch.kit.readers.reward_tables import read_rewards

        table = read_rewards(path, format_name, rewards, group)
        if notes is not None:
            notes += table.notes
        return _windows_of_rewards(table)


def _is_archive(path: Path, suffix: str) -> bool:
    """Whether a file holds archived groups, or a folder is not one of another trainer's files."""
    if suffix:
        return suffix == ".parquet" and "episode_return" in columns_of(path)
    if not is_folder(path) or is_file(path / CONFIG):
        return True
    store = LocalStore(path)
    return any(parts_in(store, folder) for folder in (GROUPS, "")) or not names_in(path, None)


def _windows_of_rewards(table: RewardTable) -> list[Window]:
    import numpy as np

    from squelch.kit.filter.measure import GroupStatistics

    rows: dict[tuple[int | None, int], list[float]] = {}
    for step, group, reward in zip(table.steps, table.groups, table.rewards, strict=True):
        rows.setdefault((step, group), []).append(reward)
    windows: dict[int | None, Window] = {}
    order = sorted(rows, key=lambda key: -1 if key[0] is None else key[0])  # stable: groups as they come
    for position, (step, group) in enumerate(order):
        window = windows.setdefault(step, Window(step, [], []))
        window.positions.append(position)
        window.groups.append(GroupStatistics.from_row(str(group), step or 0, np.array(rows[step, group])))
    return list(windows.values())


def _windows_of_npz(path: Path) -> list[Window]:
    from squelch.kit.api.filtering import groups_of

    arrays = read_npz(path, "rewards", ("lengths", "surprisals", "penalties", "kinds"))
    with as_user_error(about=path):
        groups = groups_of(**arrays)
    return [Window(None, list(range(len(groups))), groups)]


def _windows_of_archive(path: Path) -> list[Window]:
    with bounded_reading(str(path)):
        rows: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, *MEASURED)}
        for table in apart(str(path), _measured, str(path)):
            for name, values in table.items():
                rows[name] += values
    if not rows["step"]:
        raise UserError(f"{path} holds no trajectories of split `train`; only those pass the filter")
    return _windows_of_rows(rows)


def _measured(path: str) -> Iterator[dict[str, list[Any]]]:
    """Called apart: the columns of the trajectories of split `train`, a row group at a time, with two numbers in the
    place of their tokens: `lengths`, the number of sampled tokens, and `surprisals`, their mean -log p in nats."""
    import pyarrow.compute as pc

    from squelch.kit.archive.reader import stream_groups

    for table in stream_groups(Path(path), columns=COLUMNS):
        yield _without_tokens(table.filter(pc.equal(table["split"], "train")))


def _without_tokens(table: pa.Table) -> dict[str, list[Any]]:
    import numpy as np

    from squelch.kit.archive.rows import list_column

    masks, log_probs = list_column(table, "loss_mask"), list_column(table, "log_probs")
    lengths = np.array([mask.sum() for mask in masks], dtype=np.float64)
    sums = np.array([-row[mask.astype(bool)].sum(dtype=np.float64) for row, mask in zip(log_probs, masks, strict=True)])
    small = table.drop_columns(["loss_mask", "log_probs"]).to_pydict()
    return {**small, "lengths": lengths.tolist(), "surprisals": (sums / np.maximum(lengths, 1)).tolist()}


def _windows_of_rows(rows: Mapping[str, Sequence[Any]]) -> list[Window]:
    """Splits rows into groups and windows, in order of step and group."""
    import numpy as np

    columns, sort_keys = _trajectory_columns(rows), list(zip(*(rows[name] for name in SORTED_BY), strict=True))
    order = sorted(range(len(sort_keys)), key=sort_keys.__getitem__)
    windows: dict[int, Window] = {}
    for position, (key, places) in enumerate(groupby(order, key=lambda place: sort_keys[place][:2])):
        step, group_id = key
        window = windows.setdefault(step, Window(step, [], []))
        window.positions.append(position)
        window.groups.append(_group(group_id, step, columns, np.array(list(places))))
    return list(windows.values())


def _trajectory_columns(rows: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    """(num_trajectories,) arrays by name; `alive` is False for a failed trajectory."""
    import numpy as np

    numbers = {
        name: np.array(rows[column], np.float64)
        for name, column in {
            "returns": "episode_return",
            "penalties": "format_penalty",
            "lengths": "lengths",
            "surprisals": "surprisals",
        }.items()
    }
    return {
        **numbers,
        "penalties": np.nan_to_num(numbers["penalties"]),
        "alive": np.array([cause is None for cause in rows["failure_cause"]]),
        "trajectory": np.array(rows["trajectory"]),
        "kinds": np.array(rows["task_kind"], object),
        "labels": np.array(rows["label"], object),
    }


def _group(group_id: str, step: int, columns: Mapping[str, np.ndarray], rows: np.ndarray) -> GroupStatistics:
    from squelch.kit.filter.measure import GroupStatistics

    alive = rows[columns["alive"][rows]]
    returns, penalties, lengths, surprisals = (
        columns[name][alive] for name in ("returns", "penalties", "lengths", "surprisals")
    )
    indices, kind = tuple(columns["trajectory"][alive].tolist()), columns["kinds"][rows[0]]
    values = (returns, penalties, lengths, surprisals)
    label = columns["labels"][rows[0]] or ""
    return GroupStatistics(group_id, step, len(rows), indices, *values, kind=kind, label=label)


def filter_report(path: Path, windows: Sequence[Window], config: FilterConfig) -> dict[str, Any]:
    """The output of `--json`. Positions count groups over the whole file, in order of step and ticket."""
    from squelch.kit.filter.metrics import kept_fraction, kept_mass

    chosen = [_decision(path, window, config) for window in windows]
    variances = [variance for found in chosen for variance in found.variances.tolist()]
    rows = [row for window, found in zip(windows, chosen, strict=True) for row in _rows(window, found)]
    kept, told = [row["decision"] == "kept" for row in rows], ("index", "reason", "decision", "code")
    whole: dict[str, Any] = {
        "kept": [row["index"] for row in rows if row["decision"] == "kept"],
        "statistic": [row["score"] for row in rows],
        "kept_mass": kept_mass(variances, kept),
        "kept_fraction": kept_fraction(kept),
        "num_zero": sum(found.num_zero for found in chosen),
        "rejected": [{key: row[key] for key in told} for row in rows if row["decision"] != "kept"],
        "num_groups": len(rows),
        "filter": config.describe(),
        "compat": config.compat,
        "threshold": chosen[0].threshold if len(chosen) == 1 else None,
        "rejection": chosen[0].rejection if len(chosen) == 1 else "",
        **_coverage([group for window in windows for group in window.groups], rows),
    }
    if windows[0].step is not None:
        whole["group_ids"] = [row["group_id"] for row in rows]
        whole["steps"] = [_step_row(window, found) for window, found in zip(windows, chosen, strict=True)]
    return whole


def _decision(path: Path, window: Window, config: FilterConfig) -> FilterResult:
    from squelch.kit.api.filtering import decide

    with as_user_error(about=path):
        return decide(window.groups, config)


def _rows(window: Window, found: FilterResult) -> Iterable[dict[str, Any]]:
    for i, (position, group) in enumerate(zip(window.positions, window.groups, strict=True)):
        code, score = found.codes[i], float(found.scores[i])
        yield {
            "index": position,
            "group_id": group.group_id,
            "score": score if math.isfinite(score) else None,
            "decision": "refused" if code == "refused" else "kept" if found.kept[i] else "dropped",
            "code": code,
            "reason": found.reasons[i],
        }


def _coverage(groups: Sequence[GroupStatistics], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The kinds of tasks of the groups that were not refused, and of the kept ones, the most frequent kind first;
    empty if no group names its kind."""
    from squelch.kit.filter.coverage import effective_number, kind_name

    named = [
        (kind, row["decision"])
        for group, row in zip(groups, rows, strict=True)
        if (kind := kind_name(group.kind)) is not None and row["decision"] != "refused"
    ]
    played, kept = Counter(kind for kind, _ in named), Counter(kind for kind, decision in named if decision == "kept")
    if not played:
        return {}
    effective = {"groups": effective_number(played.values())}
    effective |= {"kept": effective_number(kept.values())} if kept else {}
    kinds = {kind: {"groups": number, "kept": kept[kind]} for kind, number in played.most_common()}
    return {"kinds": kinds, "effective_kinds": effective}


def _step_row(window: Window, found: FilterResult) -> dict[str, Any]:
    return {
        "step": window.step,
        "kept": [window.positions[i] for i in found.kept.nonzero()[0]],
        "num_groups": len(window.groups),
        "kept_mass": found.kept_mass,
        "kept_fraction": found.kept_fraction,
        "num_zero": found.num_zero,
        "threshold": found.threshold,
        "rejection": found.rejection,
    }


def read_npz(path: Path, required: str, optional: Iterable[str], also: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of an .npz as numbers. Pickled objects are refused; `UserError` names file, key and remedy."""
    from squelch.kit.untrusted import arrays

    needed = (required, *also)
    with bad_files_are_the_users(), memory_of_at_most(str(path)):
        if state(path) is None:
            raise UserError(f"{path} does not exist; give an .npz with {', '.join(f'`{name}`' for name in needed)}")
        found = arrays.read_npz(path, needed, optional)
        return {name: _numbers(path, name, array) for name, array in found.items()}


LABELS = ("prompt_id", "kinds")


def _numbers(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """The array as float64; labels (LABELS) are returned unchanged, because they may be numbers or texts."""
    if name in LABELS and array.dtype.kind in "fiubSU":
        return array
    if array.dtype.kind not in "fiub":
        raise UserError(f"{path}: `{name}` holds {array.dtype}; it must hold numbers")
    return array.astype("float64")
