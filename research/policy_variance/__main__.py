"""Bias and coverage of the policy variance (docs/guide/filter.md, "Noisy rewards") against a truth that is known
exactly.

python -m research.policy_variance [--quick] [--json] [--write]

Eight FrozenLakes, with the paper's noise: the executed direction is uniform over the four with probability p. The truth
of each tabular policy is computed by dynamic programming (`research.policy_variance.lake`). Groups of G trajectories
with R replays each are drawn again and again, and scored by `actors.filter.policy_variance`. `--write` writes
docs/research/policy-variance.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common import markdown_table
from research.judging import PAGES, Report, judge, template
from research.policy_variance.lake import draw_plans, exact, plan_returns, replays
from research.policy_variance.policies import NUM_LAKES, POLICIES, lakes, options_at
from squelch.actors.diagnosis.uncertainty import t_quantile
from squelch.actors.filter.policy_variance import STANDARD_ERRORS, policy_variance, standard_error
from squelch.actors.filter.scores import sample_variance

PAGE = PAGES / "policy-variance.md"
NOISE = (0.2, 0.5, 0.8, 1.0)
GROUP = 16
REPLAYS = (2, 4, 32)
COLUMNS = {
    "policy": "policy",
    "p": "p",
    "replays": "R",
    "truth": "truth",
    "plain": "plain",
    "mean": "mean of V",
    "bias": "bias",
    "bias_error": "its error",
    "gap": "replay - original",
    "told": "told",
    "covers_group": "covers, one group",
    "covers_mean": f"covers, mean of {NUM_LAKES}",
}


def study(name: str, p: float, count: int, draws: int, seed: int) -> dict[str, Any]:
    """One row: a policy on every lake, `draws` groups of `count` replays a trajectory on each."""
    rng = np.random.default_rng((seed, sorted(POLICIES).index(name), round(100 * p), count))
    options = options_at(p)
    parts = []
    for lake in lakes():
        policy = POLICIES[name](lake)
        played = draw_plans(lake, options, policy, draws * GROUP, rng)
        returns = replays(plan_returns(lake, options, played.plans), count, rng)
        grouped = returns.reshape(draws, GROUP, count)
        plain = sample_variance(played.returns.reshape(draws, GROUP))
        gap = float(returns.mean() - played.returns.mean())
        found, error = policy_variance(grouped), standard_error(grouped)
        parts.append((exact(lake, options, policy)[1], plain.mean(), found, error, gap))
    truth, plain, found, error, gap = (np.array(column) for column in zip(*parts, strict=True))
    return {"policy": name, "p": p, "replays": count, **_figures(truth, plain, found, error, gap)}


def _figures(
    truth: np.ndarray, plain: np.ndarray, found: np.ndarray, error: np.ndarray, gap: np.ndarray
) -> dict[str, float]:
    """The figures of a row. `found`, `error`: (num_lakes, draws); the others (num_lakes,)."""
    means = found.mean(axis=0)
    half = t_quantile(0.975, GROUP - 1) * error
    half_of_mean = t_quantile(0.975, NUM_LAKES * (GROUP - 1)) * np.sqrt((error**2).sum(axis=0)) / NUM_LAKES
    return {
        "truth": float(truth.mean()),
        "plain": float(plain.mean()),
        "mean": float(found.mean()),
        "bias": float(found.mean() - truth.mean()),
        "bias_error": float(means.std(ddof=1) / math.sqrt(len(means))),
        "gap": float(gap.mean()),
        "told": float((found > STANDARD_ERRORS * error).mean()),
        "covers_group": float((np.abs(found - truth[:, None]) <= half).mean()),
        "covers_mean": float((np.abs(means - truth.mean()) <= half_of_mean).mean()),
    }


def measure(draws: int, seed: int = 0) -> dict[str, Any]:
    """All rows."""
    rows = [study(name, p, count, draws, seed) for name in POLICIES for p in NOISE for count in REPLAYS]
    return {"benchmark": "policy_variance", "draws": draws, "group_size": GROUP, "lakes": NUM_LAKES, "rows": rows}


def cells(row: dict[str, Any]) -> list[str]:
    """The printed cells of a row."""
    signed = {"bias", "gap"}
    small = {"policy": "{}", "p": "{:g}", "replays": "{}", "told": "{:.2f}", "bias_error": "{:.4f}"}
    texts = {name: small.get(name, "{:+.4f}" if name in signed else "{:.4f}") for name in COLUMNS}
    texts |= {"covers_group": "{:.3f}", "covers_mean": "{:.3f}"}
    return [_unsigned_zero(texts[name].format(row[name])) for name in COLUMNS]


def _unsigned_zero(number: str) -> str:
    return number.lstrip("+-") if number[1:] == "0.0000" else number


def page(found: dict[str, Any]) -> str:
    """The text of docs/research/policy-variance.md."""
    table = "\n".join(markdown_table(tuple(COLUMNS.values()), map(cells, found["rows"])))
    return template("policy-variance").format(**found, degrees=GROUP - 1, table=table)


def report(quick: bool = False) -> Report:
    """Draws groups of every policy and reports the estimates."""
    found = measure(50 if quick else 400)
    rows = [cells(row) for row in found["rows"]]
    return Report(found, tuple(COLUMNS.values()), rows, write=lambda: PAGE.write_text(page(found)))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    quick = "50 groups of each lake in each row instead of 400"
    return judge(__doc__, report, argv, quick=quick, writes=PAGE.name)


if __name__ == "__main__":
    raise SystemExit(main())
