"""The metrics of a score matrix, of a run's step or of another trainer's, by flat key. Pure."""

from __future__ import annotations

import math

from squelch.kit.diagnosis.fixed_probe import saturated
from squelch.kit.diagnosis.proxies import METRIC_KEYS, RECALL_AT, Proxies
from squelch.kit.diagnosis.uncertainty import Uncertainty

UNKNOWN = (
    dict.fromkeys((*METRIC_KEYS, *(f"recall@{k}" for k in RECALL_AT), "prompts_needed", "mi_saturated"), math.nan)
    | Uncertainty(0, {}, {}).metrics()
    | {"num_samples": 0.0, "pairs_ratio": math.nan}
)
"""A scope's metrics if nothing could be scored."""


def matrix_metrics(report: Proxies, sure: Uncertainty, half_width: float) -> dict[str, float]:
    """Flat keys, without their scope, of the proxies of a whole matrix. `half_width`: nats per token, the half width of
    MI-Est's interval for which `prompts_needed` is given."""
    needed = sure.prompts_needed("mi_est", half_width)
    counts = {"prompts_needed": math.nan if needed is None else float(needed)}
    if report.mi_seq_est is not None and report.upper_bound is not None:
        counts["mi_saturated"] = float(saturated(report.mi_seq_est, report.upper_bound))
    counts |= dict.fromkeys(_certain(report), math.nan)
    return report.metrics() | sure.metrics() | counts | {"num_samples": float(report.num_samples)}


def _certain(report: Proxies) -> list[str]:
    """Keys of Recall@k, and of its interval, for each k that reaches the number of prompts: it is 1 by construction."""
    shares = [f"recall@{k}" for k, chance in report.recall_chance.items() if chance >= 1]
    return [f"{share}{end}" for share in shares for end in ("", "_low", "_high")]
