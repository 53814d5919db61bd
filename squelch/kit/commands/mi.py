"""`squelch mi`: computes the mutual-information proxies, with intervals and null distributions, of a score matrix that
any trainer can write.

The command starts in well under 0.5 s: it imports no torch, Ray or vLLM. Bad input raises a `UserError` that names the
file and the key and says what would be right.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.commands.filter import read_npz
from squelch.kit.process.terminal import aligned, known, say, say_json
from squelch.kit.readers.records import suffix_of

if TYPE_CHECKING:
    import numpy as np

    from squelch.kit.diagnosis.proxies import Compat, Proxies
    from squelch.kit.diagnosis.uncertainty import Uncertainty


def run(args: argparse.Namespace) -> int:
    """Prints the proxies of a score matrix; returns 0, or raises UserError for bad input."""
    found, has_time = mi_reports(args.file, args.compat, args.seed)
    if args.json:
        plain = [mi_json(report, sure, args.half_width) for report, sure in found]
        say_json(plain if has_time else plain[0])
    else:
        titles = [f"time {time}" if has_time else "" for time in range(len(found))]
        tables = (mi_table(*each, args.half_width, title) for each, title in zip(found, titles, strict=True))
        say("\n\n".join(tables))
    return 0


def mi_reports(path: Path, compat: Compat, seed: int = 0) -> tuple[list[tuple[Proxies, Uncertainty]], bool]:
    """The proxies and their uncertainty at each time, and whether the file has a time axis. The moving average runs
    over the times."""
    suffix_of(path, (".npz",), "give an .npz with `log_likelihood`")
    arrays = read_npz(path, "log_likelihood", ("prompt_id",), also=("lengths",))
    matrix, lengths, prompt = arrays["log_likelihood"], arrays["lengths"], arrays.get("prompt_id")
    has_time = matrix.ndim == 4
    if matrix.ndim not in (3, 4) or 0 in matrix.shape:
        raise UserError(
            f"{path}: `log_likelihood` has shape {matrix.shape}; it must be (N, K, N), or (T, N, K, N) with a time axis"
        )
    if lengths.shape != matrix.shape[:-1]:
        raise UserError(f"{path}: `lengths` has shape {lengths.shape}; it must be {matrix.shape[:-1]}")
    if not has_time:
        matrix, lengths = matrix[None], lengths[None]
    if prompt is not None and prompt.ndim == 2 and len(prompt) == len(matrix):
        prompts = list(prompt)
    else:
        prompts = [prompt] * len(matrix)
    with as_user_error(about=path):
        return _measured(matrix, lengths, prompts, compat, seed), has_time


def _measured(
    matrix: np.ndarray, lengths: np.ndarray, prompts: Sequence[np.ndarray | None], compat: Compat, seed: int
) -> list[tuple[Proxies, Uncertainty]]:
    """The proxies and their uncertainty at each time.

    Args:
        matrix: (T, N, K, N), nats per sequence.
        lengths: (T, N, K), tokens.
        prompts: the ids of the N prompts at each time; None if all prompts are distinct.
    """
    from squelch.kit.api.information import mi
    from squelch.kit.diagnosis.proxies import EmaState

    ema = EmaState()
    found = [
        mi(matrix[time], lengths[time], prompt, compat=compat, seed=(seed, time), ema=ema)
        for time, prompt in enumerate(prompts)
    ]
    return [(one.proxies, one.uncertainty) for one in found]


def mi_json(report: Proxies, sure: Uncertainty, half_width: float) -> dict[str, Any]:
    """The output of `--json` for one matrix; a metric is null if no reasoning was usable."""
    plain = report.as_dict()
    bounds = {"per_sequence": plain.pop("upper_bound"), "per_token": plain.pop("upper_bound_per_token")}
    for key in ("recall", "recall_chance"):
        plain[key] = {str(k): value for k, value in plain[key].items()}
    intervals = {name: [found.low, found.high] for name, found in sure.intervals.items()}
    null = {name: {"p_value": found.p_value, "point_95": found.point_95} for name, found in sure.nulls.items()}
    needed = {"half_width": half_width, "prompts": sure.prompts_needed("mi_est", half_width)}
    return {
        **plain,
        "upper_bound": bounds,
        "interval_95": intervals,
        "null": null,
        "no_interval_because": sure.why_not,
        "prompts_needed": needed,
    }


def mi_table(report: Proxies, sure: Uncertainty, half_width: float, title: str = "") -> str:
    """The report as a table: each metric with its interval, unit, and chance level, bound or null if it has one."""
    used = f"of {report.num_prompts} distinct prompts, compat={report.compat}"
    rows = [
        ("reasonings used", f"{report.num_samples}", "", used, ""),
        *((f"left out: {reason}", str(count), "", "", "") for reason, count in report.excluded.items()),
    ]
    for name, label, value, note in _mi_rows(report):
        found, null = sure.intervals.get(name), sure.nulls.get(name)
        interval = f"[{found.low:.4f}, {found.high:.4f}]" if found else ""
        against = f"null {null.point_95:.4f}, p = {null.p_value:.3f}" if null else ""
        rows.append((label, known(value, ".4f"), interval, note, against))
    notes = [f"no intervals: {sure.why_not}"] if sure.why_not else []
    zeros = {"retrieval_accuracy": report.retrieval_chance, "mi_est": 0.0, "mi_seq_est": 0.0}
    notes += disagreement(
        (sure.nulls[name].p_value, found.low, found.high, zeros[name])
        for name, found in sure.intervals.items()
        if name in sure.nulls
    )
    needed = sure.prompts_needed("mi_est", half_width)
    if needed is not None:
        notes.append(f"a 95% interval of MI-Est of +-{half_width:g} nats per token needs about {needed} prompts")
    return "\n".join([*([title] if title else []), *aligned(rows), *notes])


SMALL_P = 0.05
DISAGREEMENT = (
    "a small p beside an interval that holds 0 (or chance): p compares with these reasonings dealt to these prompts at "
    "random, and the interval is about other prompts too; dependence on these prompts is shown, its size is not"
)


def disagreement(tested: Iterable[tuple[float, float, float, float]]) -> list[str]:
    """The note on p-values beside intervals that hold the value without dependence, if there are such. `tested`:
    p-value, ends of the interval, and that value, of each metric."""
    return [DISAGREEMENT] if any(p <= SMALL_P and low <= zero <= high for p, low, high, zero in tested) else []


def _mi_rows(report: Proxies) -> list[tuple[str, str, float | None, str]]:
    """(key, name, value, unit or chance level) of each metric."""
    return [
        (
            "retrieval_accuracy",
            "retrieval accuracy",
            report.retrieval_accuracy,
            f"chance {report.retrieval_chance:.4f}",
        ),
        *(
            (f"recall@{k}", f"recall@{k}", value, f"chance {report.recall_chance[k]:.4f}")
            for k, value in report.recall.items()
            if k < report.num_prompts  # else it is 1 by construction
        ),
        ("mi_est", "MI-Est", report.mi_est, f"nats per token, at most {known(report.upper_bound_per_token, '.4f')}"),
        (
            "mi_seq_est",
            "MI-Seq-Est",
            report.mi_seq_est,
            f"nats per sequence, at most {known(report.upper_bound, '.4f')}",
        ),
        ("mi_zscore", "MI-ZScore", report.mi_zscore, "in std of the marginals"),
        ("mi_zscore_ema", "MI-ZScore-EMA", report.mi_zscore_ema, "in their moving average"),
        ("conditional_entropy", "H(Z|X)", report.conditional_entropy, "nats per token"),
        ("marginal_entropy", "H(Z)", report.marginal_entropy, "nats per token"),
    ]
