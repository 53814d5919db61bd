"""One step of `squelch monitor`: its rows are read and scored under the checkpoint that sampled them. Loads torch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from squelch.kit.api.monitor import Monitor
from squelch.kit.api.samples import Row
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.commands.following import Ready
from squelch.kit.commands.score import NotRead, load
from squelch.kit.filter.metrics import mean
from squelch.kit.findings.view import StepView
from squelch.kit.readers.format_rows import as_float
from squelch.kit.readers.score_files import notes_on_file, read_samples
from squelch.kit.readers.step_views import view_of


def observe(monitor: Monitor, ready: Ready, args: argparse.Namespace) -> tuple[dict[str, float], list[str], StepView]:
    """The metrics of a step, what to know of it, and what its rows show. NotRead, or UserError that names what is at
    fault."""
    rows: list[tuple[int, Row]] = []
    notes: list[str] = []
    for path in ready.files:
        with as_user_error(UserError, into=NotRead):
            found = read_samples(path, ready.step, args.format, args.pictures, args.turns)
        rows += [(len(rows) + number, row) for number, row in found.rows]
        notes += notes_on_file(found, path, ready.model)
    given = {**vars(args), "file": ready.files[0], "model": ready.model, "max_prompts": None}  # the monitor draws them
    reasonings, engine = load(argparse.Namespace(**given), rows)
    reward = mean_reward([row for _, row in rows])
    if reward is not None:
        monitor.record_reward(ready.step, reward)
    with as_user_error(about=f"{ready.checkpoint}, {ready.model}"):
        metrics = monitor.observe_read(ready.step, engine, reasonings)
    metrics |= {} if reward is None else {"reward_mean": reward}
    return metrics, list(dict.fromkeys(notes)), view_of(ready.step, rows)


def mean_reward(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over the rows of the sum of their rewards; None if no reward function scored any. A sum that no float
    holds does not count."""
    sums = []
    for row in rows:
        known = [as_float(value) for value in (row.get("rewards") or {}).values() if isinstance(value, int | float)]
        finite = [value for value in known if math.isfinite(value)]
        with suppress(OverflowError):
            sums += [math.fsum(finite)] if finite else []
    return mean(sums) if sums else None
