"""Reads the rewards and groups of a trainer's file for `squelch filter`.

A file is of a trainer's format (`formats.py`), or any table with a column of prompts or groups and columns of rewards;
`rows.py` reads it. Of a rollout with several turns, the last one's reward counts; a failed one stays in its group
without a reward. Only rewards and a digest of each group are kept, so a file of any size takes little memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from squelch.kit.base.errors import UserError, bad_files_are_the_users, did_you_mean
from squelch.kit.base.values import digest, first, known_id
from squelch.kit.readers.format import Format
from squelch.kit.readers.format_rows import GROUP_COLUMNS, NO_REWARDS, as_float
from squelch.kit.readers.formats import FORMATS, format_named
from squelch.kit.readers.records import Record
from squelch.kit.readers.rows import Read, Rows
from squelch.kit.untrusted.decoder_process import bounded_reading
from squelch.kit.untrusted.files import brief, is_folder, shortened


class RewardRow(NamedTuple):
    """One completion. `rewards`: every number of the record by name; `own`: those that are rewards as far as is known;
    `rollout`: what its turns share, None if it has one."""

    step: int | None
    group: bytes
    rollout: str | None
    rewards: Mapping[str, Any]
    own: tuple[str, ...]
    where: str


class RewardTable(NamedTuple):
    """The rewards of a file, row by row. `steps`: of each row; `groups`: a label of each row's group, from 0;
    `rewards`: NaN for a row that no reward function scored."""

    steps: list[int | None]
    groups: list[int]
    rewards: list[float]
    notes: list[str]


def read_rewards(path: Path, name: str | None, wanted: Sequence[str], group: str | None) -> RewardTable:
    """The rewards of a file or folder.

    Args:
        path: the file.
        name: the format's name; None recognises it.
        wanted: `NAME` or `NAME=WEIGHT` of each reward that counts, weight 1; empty takes the only one that there is.
        group: the column that tells groups apart; None takes the format's own, or a prompt's.
    """
    with bad_files_are_the_users(), bounded_reading(str(path)):
        in_folder = is_folder(path)
        reader = Rows(
            path,
            None if name is None else format_named(name),
            also=None,
            fits=lambda columns: not in_folder or bool({group, *GROUP_COLUMNS}.intersection(columns)),
        )
        rows = _last_turns(row for read in reader if (row := _reward_row(read, reader.format, group)) is not None)
        weights = _weights(path, rows, wanted)
        totals = [_total(row, weights) for row in rows]
    labels: dict[bytes, int] = {}
    groups = [labels.setdefault(row.group, len(labels)) for row in rows]
    return RewardTable([row.step for row in rows], groups, totals, [*reader.notes, *reader.notes_on_left_out()])


def _reward_row(read: Read, found: Format | None, group: str | None) -> RewardRow | None:
    """The rewards of a row, none if it failed; None for a failed row that tells no group. The record's other numbers
    count if they are named."""
    row, record, is_table = read.row, read.record, found is FORMATS["columns"]
    failed = row.get("failed") is not None
    if failed and group is None and first(map(row.get, ("group", "prompt_ids", "prompt"))) is None:
        return None
    rewards = {} if failed else {**_numbers(record), **(row.get("rewards") or {})}
    own = () if failed else tuple(row.get("rewards") or ())
    rollout = str(row["rollout"]) if known_id(row.get("rollout")) else None
    key = _key(record, {} if is_table else row, group, read.where)
    return RewardRow(row["step"], key, rollout, rewards, own, read.where)


def _numbers(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if isinstance(value, int | float) and key not in NO_REWARDS}


def _key(record: Record, row: Mapping[str, Any], column: str | None, where: str) -> bytes:
    """A digest of what the completions of one prompt share."""
    if column is not None and column not in record:
        raise UserError(f"{where}: has no column `{column}`, which --group names; it has {_names(record)}")
    if column is not None:
        value = record[column]
    elif row:
        value = first(map(row.get, ("group", "prompt_ids", "prompt")))
    else:
        value = first(map(record.get, GROUP_COLUMNS))
    if column is not None and not known_id(value):
        raise UserError(f"{where}: `{column}`, which --group names, is {brief(value)}, which tells no group")
    if value is None:
        raise UserError(
            f"{where}: no column tells its group: {', '.join(GROUP_COLUMNS)}, or the one that --group names; it has "
            f"{_names(record)}"
        )
    return digest(value)


def _last_turns(rows: Iterable[RewardRow]) -> list[RewardRow]:
    """The rows without the earlier turns of a rollout."""
    kept: dict[int | tuple[int | None, str], RewardRow] = {}
    for index, row in enumerate(rows):
        kept[index if row.rollout is None else (row.step, row.rollout)] = row
    return list(kept.values())


def _weights(path: Path, rows: Sequence[RewardRow], wanted: Sequence[str]) -> dict[str, float]:
    """The weight of each reward that counts."""
    if not rows:
        raise UserError(f"{path} holds no rows with rewards")
    known = {key for row in rows for key in row.rewards}
    if wanted:
        return dict(_weight(path, text, known) for text in wanted)
    scored = {
        key for row in rows for key in row.own if row.rewards[key] is not None and row.rewards[key] == row.rewards[key]
    }
    if not scored:
        raise UserError(
            f"{path} has no column of rewards; name one with --reward. It has {_names(known) or 'no numbers'}"
        )
    if len(scored) == 1:
        return dict.fromkeys(scored, 1.0)
    raise UserError(
        f"{path} has several columns of numbers: {_names(scored)}; name the rewards with --reward, with a weight if it "
        "is not 1 (--reward accuracy format=0.5)"
    )


def _weight(path: Path, text: str, known: set[str]) -> tuple[str, float]:
    name, equals, weight = text.rpartition("=") if text not in known else (text, "", "")
    name = name if equals else text
    if name not in known:
        raise UserError(
            f"--reward {text}: {did_you_mean(name, sorted(known))}{path} has {_names(known) or 'no numbers'}"
        )
    try:
        value = float(weight) if equals else 1.0
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"--reward {text}: the weight must be a number, e.g. --reward {name}=0.5")
    return name, value


def _total(row: RewardRow, weights: Mapping[str, float]) -> float:
    """The weighted sum of the rewards that the row has; NaN if it has none."""
    found = []
    for name, weight in weights.items():
        value = row.rewards.get(name)
        if value is not None and not isinstance(value, int | float):
            raise UserError(f"{row.where}: `{name}` is {brief(value)}; a reward must be a number, or null")
        number = math.nan if value is None else as_float(value)
        if not math.isnan(number):
            found.append(weight * number)
    return sum(found) if found else math.nan


def _names(names: Any) -> str:
    return shortened(", ".join(f"`{name}`" for name in sorted(map(str, names))), 300)
