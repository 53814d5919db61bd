"""Bias and coverage of the fixed probe's estimates and of the links to answers, against truth that is computed exactly.

python -m research.known_links [--quick] [--json] [--write]

Channels from prompt to reasoning to answer with finitely many values are enumerated (research/channels/links.py),
so that each link is a sum. For each estimate, number of tasks N and samples K the benchmark prints the mean, its
difference from what the interval is made for, and how often the nominal 95% interval contains that. `--write` writes
research/results/known_links.csv and the page that is made from it, docs/research/known-truth.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from research.channels.clusters import clustered, draw_hard, part_channel
from research.channels.links import (
    CHANNELS,
    LinkChannel,
    draw_links,
    draw_probe,
    named_channel,
    probe_channel,
    probe_information,
)
from research.judging import Report, judge
from research.known_page import BAND, EITHER, LINKS, QUICK, TRIALS, UNEQUAL, pooled, write
from squelch.kit.diagnosis.fixed_probe import TaskMeans
from squelch.kit.diagnosis.links import LinksEvaluation
from squelch.kit.diagnosis.uncertainty import wilson_interval
from squelch.kit.scoring.settings import OTHERS, REFERENCES

SIZES = ((8, 2), (8, 4), (8, 8), (32, 2), (32, 4), (32, 8))
"""(N, K)."""
STRENGTHS = {"weak": 0.5, "medium": 1.0, "strong": 2.5}
Draw = tuple[float, float, float]
"""(estimate, low, high) of one evaluation."""


def coverage(
    name: str, channel: str, size: tuple[int, int | str], draws: Sequence[Draw], truth: float | None
) -> dict[str, Any]:
    """A row: bias and coverage of an estimate over draws. `size`: N and K, or what K is for whom. `truth`: what its
    interval is made for; None: the estimate's own expectation, for which the mean over the draws stands."""
    value, low, high = np.array(draws).T
    target = float(value.mean()) if truth is None else truth
    held = int(((low <= target + 1e-9) & (target - 1e-9 <= high)).sum())
    exact = bool((high - low).max() < 1e-9)
    return {
        "estimate": name,
        "channel": channel,
        "tasks": size[0],
        "samples": size[1],
        "target": target,
        "mean": float(value.mean()),
        "bias": float(value.mean()) - target,
        "half_width": float((high - low).mean() / 2),
        "held": held,
        "draws": len(value),
        "covers": held / len(value),
        "verdict": "exact" if exact else judged(held, len(value)),
    }


def judged(held: int, draws: int) -> str:
    """`in` the band, `below` or `above` it; a share counts as outside only if its Wilson interval is."""
    low, high = wilson_interval(held, draws)
    return "below" if high < BAND[0] else "above" if low > BAND[1] else "in"


def _draw(found: TaskMeans | None) -> Draw:
    interval = found.interval() if found else None
    if found is None or interval is None:
        raise RuntimeError("an evaluation with two samples of each task has an interval")
    return found.value, interval.low, interval.high


def of_probe(trials: int) -> list[dict[str, Any]]:
    """The fixed probe's MI with all pairs and under a budget, and its leave-own-out form."""
    rows = []
    for tasks, samples in SIZES:
        for channel, strength in STRENGTHS.items():
            log_p = probe_channel(tasks, strength, tasks + samples)
            truth, size = probe_information(log_p), (tasks, samples)
            whole = [draw_probe(log_p, samples, seed, nulls=False) for seed in range(trials)]
            rows.append(coverage("MI", channel, size, [_draw(one.mi) for one in whole], truth))
            rows.append(coverage("MI, own left out", channel, size, [_draw(one.upper) for one in whole], None))
            if tasks > OTHERS + 1:
                part = [_draw(draw_probe(log_p, samples, seed, OTHERS, nulls=False).mi) for seed in range(trials)]
                rows.append(coverage(f"MI, {OTHERS} others", channel, size, part, truth))
    return rows


HARD = {"template": (0.0, 0.0), "one part": (2.5, 0.0), "both parts": (1.0, 1.0)}
"""How much the reasoning depends on each of the two parts of a task."""


def of_hard(trials: int) -> list[dict[str, Any]]:
    """The MI against near variations of the tasks, for the tasks and clusters of the row."""
    rows = []
    for tasks, samples in SIZES:
        for channel, strengths in HARD.items():
            drawn = clustered(part_channel((64, 8), strengths, tasks + samples), tasks, tasks + samples)
            draws = [_draw(draw_hard(drawn, samples, seed)[0].mi) for seed in range(trials)]
            rows.append(coverage("I_hard", channel, (tasks, samples), draws, drawn.hard()))
    return rows


def of_links(trials: int) -> list[dict[str, Any]]:
    """The links of each channel, with K pairs of every task, and where half of the tasks have fewer."""
    rows = []
    for tasks, samples in SIZES:
        for name in CHANNELS:
            channel = named_channel(name, tasks, tasks)
            rows += _links(trials, name, channel, (tasks, samples), samples)
            if tasks > OTHERS + 1:
                rows += of_few(trials, name, channel, (tasks, samples))
    for tasks in sorted({tasks for tasks, _ in SIZES}):
        counts = np.repeat(UNEQUAL, tasks // len(UNEQUAL)).tolist()
        for name in CHANNELS:
            rows += _links(trials, name, named_channel(name, tasks, tasks), (tasks, EITHER), counts)
    return rows


def _links(
    trials: int, name: str, channel: LinkChannel, size: tuple[int, int | str], samples: int | list[int]
) -> list[dict[str, Any]]:
    rng = np.random.default_rng((size[0], int(np.sum(samples)), zlib.crc32(name.encode())))
    found = [draw_links(channel, samples, rng, nulls=False) for _ in range(trials)]
    rows = []
    for link, truth in TARGETS.items():
        draws = [_draw(vars(one)[link]) for one in found]
        rows.append(coverage(NAMES[link], name, size, draws, truth(channel) if truth else None))
    rows.append(coverage("both forms", name, size, [_both_forms(one) for one in found], channel.information()))
    if rows[-1]["verdict"] != "exact":
        rows[-1]["verdict"] = "in" if rows[-1]["covers"] >= BAND[0] else "below"
    return rows


def of_few(trials: int, name: str, channel: LinkChannel, size: tuple[int, int]) -> list[dict[str, Any]]:
    """D and X past Z under a budget of pairs."""
    rng = np.random.default_rng((*size, zlib.crc32(name.encode()), 1))
    found = [draw_links(channel, size[1], rng, False, REFERENCES, OTHERS) for _ in range(trials)]
    kinds = {
        f"D, {REFERENCES} a prompt": ("dependence", channel.dependence()),
        f"X past Z, {OTHERS} others": ("past_reasoning", channel.past_reasoning()),
    }
    return [
        coverage(label, name, size, [_draw(vars(one)[link]) for one in found], truth)
        for label, (link, truth) in kinds.items()
    ]


def _both_forms(evaluation: LinksEvaluation) -> Draw:
    """I(A;Z|X), from its own lower end to the upper end of the form that leaves the own reasoning out."""
    (value, low, _), (_, _, high) = _draw(evaluation.information), _draw(evaluation.information_upper)
    return value, low, high


TARGETS: Mapping[str, Callable[[LinkChannel], float] | None] = {
    "information": None,
    "information_upper": None,
    "dependence": LinkChannel.dependence,
    "past_reasoning": LinkChannel.past_reasoning,
}
NAMES = {
    "information": "I(A;Z|X)",
    "information_upper": "I(A;Z|X), own left out",
    "dependence": "D",
    "past_reasoning": "X past Z",
}


def measure(trials: int) -> list[dict[str, Any]]:
    """All rows."""
    return of_probe(trials) + of_hard(trials) + of_links(trials)


COLUMNS = ("estimate", "channel", "N", "K", "target", "mean", "bias", "half width", "covers", "verdict")


def cells(row: Mapping[str, Any]) -> list[Any]:
    """The printed cells of a row."""
    keys = ("estimate", "channel", "tasks", "samples", "target", "mean", "bias", "half_width", "covers", "verdict")
    return [row[key] for key in keys]


def report(quick: bool = False) -> Report:
    """Draws the evaluations and reports their coverage."""
    rows = measure(QUICK if quick else TRIALS)
    found = pooled(rows)
    notes = [f"{row['estimate']}, K = {row['samples']}: covers {row['covers']:.3f}, {row['verdict']}" for row in found]
    metrics = {"benchmark": "known_links", "band": BAND, "rows": rows, "pooled": found}
    return Report(metrics, COLUMNS, [cells(row) for row in rows], notes, write=lambda: write({LINKS: rows}))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    return judge(__doc__, report, argv, quick=f"{QUICK} evaluations a row instead of {TRIALS}", writes="known-truth.md")


if __name__ == "__main__":
    raise SystemExit(main())
