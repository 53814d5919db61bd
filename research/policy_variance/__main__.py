"""Bias and coverage of the policy variance (docs/guide/filter.md, "Noisy rewards") against a truth that is known
exactly.

python -m research.policy_variance [--quick] [--json] [--write]

Eight FrozenLakes, with the paper's noise: the executed direction is uniform over the four with probability p. The truth
of each tabular policy is computed by dynamic programming (`research.policy_variance.lake`). Groups of G trajectories
with R replays each are drawn again and again, and scored by `actors.filter.policy_variance`. `--write` writes
docs/research/policy-variance.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import markdown_table, print_figures
from research.policy_variance.lake import draw_plans, exact, plan_returns, replays
from research.policy_variance.policies import NUM_LAKES, POLICIES, lakes, options_at
from squelch.actors.diagnosis.uncertainty import t_quantile
from squelch.actors.filter.policy_variance import STANDARD_ERRORS, policy_variance, standard_error
from squelch.actors.filter.scores import sample_variance

PAGE = Path(__file__).parents[2] / "docs" / "research" / "policy-variance.md"
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


HEAD = """\
# Policy variance compared with its exact value

`python -m research.policy_variance --write` generates this page; do not edit it.
[filter.md](../guide/filter.md#noisy-rewards) defines the estimate V. {lakes} FrozenLakes, groups of {group_size}
trajectories with R replays each, {draws} groups of each lake in each row; figures are means over the lakes, in reward
squared. With probability p the executed direction is uniform over the four. The truth is computed by dynamic
programming (`research/policy_variance/lake.py`): the variance of the expected return over the policy's own draws, one
action for each time (plans) or for each time and cell (policies that react).

- **plain**: mean of the reward variance, which is what the filter ranks by default. Of a policy whose draws hardly
  matter it is nearly all noise.
- **bias**: mean of V minus the truth, with the standard error of that mean.
- **replay - original**: mean return of the replays minus that of the trajectories: 0 for plans.
- **told**: share of groups with V above 2 standard errors, which are those that the filter may keep.
- **covers, one group**: share of the intervals V ± t SE of a single group (t with {degrees} degrees of freedom) that
  contain the lake's truth. Where few plans differ from the rest, most groups contain none of them and their intervals
  are too short. **covers, mean of {lakes}**: the same for the mean over a group of each lake, as a step exports it.
"""
TAIL = """\
**Plans** that were fixed before any noise was seen: V has no bias, and from 4 replays on the intervals of its mean hold
in 91 to 97% of draws. With 2 replays they are too short where fewer than one replay in ten is paid. More replays tell
smaller variances from noise, and a group of plans without variance is told in at most 1% of draws.

**Policies that react** are replayed without being able to react, so V is biased, in either direction. A policy that
always takes the best action for the cell it is in has no variance of its own, but its episodes have different actions,
because noise moved it: V is too large. A policy that gives up in half of its episodes and else saves itself from every
slip has a large variance, but the replays of what it did to save itself fail: V is too small. At p = 1 no action
decides anything, and V is still above 0, because an episode that noise ended early has a shorter plan, whose replays
end sooner; with many replays such groups are told from 0. The difference between replays and originals shows that a
policy reacts, and not by how much V is wrong.
"""


def page(found: dict[str, Any]) -> str:
    """The text of docs/research/policy-variance.md."""
    table = markdown_table(tuple(COLUMNS.values()), map(cells, found["rows"]))
    return "\n".join([HEAD.format(**found, degrees=GROUP - 1), *table, "", TAIL])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 groups of each lake in each row instead of 400")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--write", action="store_true", help="write docs/research/policy-variance.md")
    args = parser.parse_args(arguments)
    found = measure(50 if args.quick else 400)
    if args.write:
        PAGE.write_text(page(found), encoding="utf-8")
    print_figures(found, args.json, tuple(COLUMNS.values()), [cells(row) for row in found["rows"]], [])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
