"""A quarter of the scorer's pairs (actors/diagnosis/budget.py) against all of them, on channels of known truth.

python -m research.pair_budget [--quick] [--json]

The matrices are drawn from enumerated channels (research/channels/reasonings.py). For each channel: the mean and the
largest difference of MI-Est, and how often the quarter's 95% interval contains the mean over draws of the estimate from
all pairs, in nats per token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common import arguments, print_figures
from research.channels.reasonings import Channel, draw, random_channel
from research.known_truth import CHANNELS, enumerate_lm, tiny_lm
from squelch.actors.diagnosis.budget import draw_pairs, estimate
from squelch.actors.diagnosis.proxies import proxies_of_scores

PROMPTS, SAMPLES, SHARE = 64, 8, 0.25
COLUMNS = ("channel", "prompts", "all pairs", "mean difference", "largest difference", "coverage")


def quarter(trials: int) -> list[dict[str, Any]]:
    """A quarter of the pairs against all pairs, for each channel; nats per token."""
    channels = {name: random_channel(1, **CHANNELS[name]) for name in ("weak", "medium", "strong")}
    cases = [(name, channel, PROMPTS) for name, channel in channels.items()]
    model, prompts = tiny_lm()
    cases.append(("tiny LM", enumerate_lm(model, prompts)[0], len(prompts)))
    rows = []
    for name, channel, size in cases:
        rng = np.random.default_rng(0)
        whole, part, low, high = np.array([_drawn(channel, size, trial, rng) for trial in range(trials)]).T
        rows.append(
            {
                "channel": name,
                "prompts": size,
                "all_pairs": float(whole.mean()),
                "mean_difference": float((part - whole).mean()),
                "largest_difference": float(np.abs(part - whole).max()),
                "coverage": float(((low <= whole.mean()) & (whole.mean() <= high)).mean()),
            }
        )
    return rows


def _drawn(channel: Channel, size: int, trial: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """MI-Est from all pairs, MI-Est from a quarter of them, and the ends of the latter's interval."""
    scores = draw(channel, rng, size, SAMPLES)
    wanted = draw_pairs(scores.source, size, max(2, round(SHARE * size) - 1), (trial,))
    found = estimate(np.where(wanted, scores.likelihood, np.nan), scores.lengths, scores.source, scores.weights)
    interval = found.intervals["mi_est"]
    whole = proxies_of_scores(scores).mi_est
    assert whole is not None, "every reasoning of a drawn matrix is usable"
    return whole, found.mi_est, interval.low, interval.high


def main() -> None:
    """Prints the table."""
    args = arguments(__doc__, "40 draws a row instead of 400")
    rows = quarter(40 if args.quick else 400)
    print_figures({"benchmark": "pair_budget", "rows": rows}, args.json, COLUMNS, [list(r.values()) for r in rows], [])


if __name__ == "__main__":
    main()
