"""The filter on TRL's groups: which rows a loss sees, and what it is divided by.

TRL divides the masked sum of a loss as `loss_type` says. The setting `normalizer`:

| `loss_type` | TRL divides by | `kept` | `all` |
|---|---|---|---|
| dapo, cispo, vespo | tokens of the generation batch | tokens of kept groups | unchanged |
| grpo, sapo, luspo, dr_grpo | rows | advantages times all rows / kept rows | unchanged |
| bnpo | unmasked tokens of a micro-batch | unchanged: these are of kept groups | refused |

Scaled advantages do not scale a KL term, so `kept` is refused for the second line with `beta`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

import squelch
from squelch.kit.filter.metrics import step_metrics

OVER_TOKENS = ("dapo", "cispo", "vespo")
OVER_ROWS = ("grpo", "sapo", "luspo", "dr_grpo")
OVER_KEPT_TOKENS = ("bnpo",)


class GroupFilter:
    """Which groups a step of TRL learns from.

    Args:
        normalizer: `kept`: the loss is divided by what is kept; `all`: by what it would be divided by without filter,
            so that the step is smaller the more is dropped.
        settings: those of `squelch.filter` that need rewards alone, e.g. rule="top_p", rho=0.9.

    Raises:
        ValueError: a setting is unknown, out of its range, or needs more than rewards.
    """

    def __init__(self, *, normalizer: Literal["kept", "all"] = "kept", **settings: Any) -> None:
        if normalizer not in ("kept", "all"):
            raise ValueError(f"normalizer is {normalizer!r}; it must be 'kept' or 'all'")
        self.normalizer, self._settings = normalizer, settings
        self.description = self.select(np.array([[0.0, 1.0]])).settings
        """The settings in words."""

    def select(self, rewards: np.ndarray) -> squelch.FilterResult:
        """The decision on the groups of a step; rewards: (num_groups, group_size), NaN for a row without one."""
        return squelch.filter(rewards, **self._settings)

    def require(self, loss_type: str, beta: float) -> None:
        """Raises ValueError if the normaliser cannot be had with this loss."""
        if loss_type not in (*OVER_TOKENS, *OVER_ROWS, *OVER_KEPT_TOKENS):
            raise ValueError(f"loss_type={loss_type!r} is unknown to the filter, which knows TRL 1.16's")
        if loss_type in OVER_KEPT_TOKENS and self.normalizer == "all":
            raise ValueError(
                f"loss_type={loss_type!r} always divides by the tokens that are kept: use normalizer='kept'"
            )
        if loss_type in OVER_ROWS and self.normalizer == "kept" and beta:
            raise ValueError(
                f"loss_type={loss_type!r} divides by rows, and its KL term (beta={beta:g}) cannot follow what is kept: "
                "use normalizer='all', or loss_type='dapo'"
            )

    def says(self, loss_type: str) -> str:
        """What the loss is divided by, in words."""
        unit = "rows" if loss_type in OVER_ROWS else "tokens"
        return f"filter {self.description}; the {loss_type} loss is divided by the {unit} of {self.normalizer} groups"

    def mask(
        self,
        batch: dict[str, Any],
        kept: torch.Tensor,
        kept_fraction: float,
        loss_type: str,
        over_ranks: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Masks the rows of dropped groups in TRL's batch.

        Args:
            batch: this rank's, as `_generate_and_score_completions` returns it.
            kept: (num_rows,) bool, this rank's.
            kept_fraction: of the rows of all ranks.
            loss_type: TRL's.
            over_ranks: sums a scalar over ranks.
        """
        for name in ("completion_mask", "tool_mask"):
            if name in batch:
                batch[name] = batch[name] * kept[:, None].to(batch[name].dtype)
        advantages = batch["advantages"]
        shape = (-1, *[1] * (advantages.dim() - 1))
        if self.normalizer == "kept" and loss_type in OVER_ROWS and kept_fraction > 0:
            advantages = advantages / kept_fraction
        batch["advantages"] = advantages * kept.view(shape).to(advantages.dtype)  # clip ratios leave them out too
        if self.normalizer == "kept" and loss_type in OVER_TOKENS:
            mask = batch["completion_mask"] * batch.get("tool_mask", 1)
            batch["num_items_in_batch"] = over_ranks(mask.sum())


def total_rewards(columns: Sequence[Sequence[float]], weights: Sequence[float]) -> np.ndarray:
    """(num_rows,) the weighted sum of the reward functions that scored a row; NaN if none did."""
    values = np.array(columns, dtype=np.float64)
    total = np.nansum(values * np.array(weights, dtype=np.float64)[:, None], axis=0)
    return np.where(np.isnan(values).all(axis=0), math.nan, total)


@dataclass(frozen=True)
class _Decided:
    verdict: str
    score: float
    variance: float
    mean: float


def filter_metrics(found: squelch.FilterResult, no_signal_streak: int) -> Mapping[str, float]:
    """A decision under the keys that a run exports."""
    verdicts = [
        "kept" if kept else "refused" if code == "refused" else "dropped"
        for kept, code in zip(found.kept, found.codes, strict=True)
    ]
    groups = map(_Decided, verdicts, found.scores.tolist(), found.variances.tolist(), found.means.tolist())
    return step_metrics(list(groups), 0, no_signal_streak)
