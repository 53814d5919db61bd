"""`squelch.mi`: how much the reasoning depends on its input (paper, Eq. 1 and Table 1; docs/guide/reasoning.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squelch.kit.api.arrays import labels, numbers
from squelch.kit.diagnosis.proxies import Compat, EmaState, Proxies, Scores, proxies_of_scores, scores_of_matrix, usable
from squelch.kit.diagnosis.uncertainty import Uncertainty, uncertainty

ROUNDING = 1e-6
"""A log-likelihood may exceed 0 by this, nats per token: a log-softmax rounds."""


@dataclass(frozen=True, eq=False)
class MIResult:
    """The proxies of one score matrix, and how sure they are."""

    proxies: Proxies
    """Table 1: `mi_est` (nats per token), `mi_seq_est` (nats per sequence), `retrieval_accuracy` ([0, 1]), `recall`,
    `mi_zscore`, `mi_zscore_ema`, `conditional_entropy` and `marginal_entropy` (nats per token), `upper_bound`, and the
    numbers of prompts, reasonings and excluded reasonings. None for a value that nothing usable defines."""
    uncertainty: Uncertainty
    """`intervals`: 95% intervals over prompts, by the proxy's name; `nulls`: p-value and 95% point under permuted
    prompts; `why_not`: why there are none."""

    def metrics(self) -> dict[str, float]:
        """All of it flat, by the registry's keys without their scope (docs/reference/metrics.md); NaN if unknown."""
        return self.proxies.metrics() | self.uncertainty.metrics()


def mi(
    log_likelihood: Any,
    lengths: Any,
    prompt_id: Any = None,
    *,
    source: Any = None,
    compat: Compat = "paper",
    seed: int | Sequence[int] = 0,
    ema: EmaState | None = None,
) -> MIResult:
    """The mutual-information proxies of a score matrix. `squelch mi` is this function on a file.

    Args:
        log_likelihood: (N, K, N): log p(Z_ik | X_j), natural log, summed over the tokens of reasoning k of prompt i,
            under prompt j. With `source` (num_samples, num_prompts): one row for each reasoning.
        lengths: (N, K), or (num_samples,): tokens of each reasoning; 0 where a reasoning is missing.
        prompt_id: (N,), or (num_prompts,): equal for identical prompts. None: all differ.
        source: (num_samples,) index of the prompt that each reasoning was sampled under.
        compat: `paper`: the mixture is divided by |Z| (Eq. 1); `ragen`: mixture of per-token means, as in the authors'
            code.
        seed: of the resampling.
        ema: the moving average of MI-ZScore-EMA, which is updated; keep one over the steps. None: this matrix alone.

    Raises:
        ValueError: an array does not fit the others, a length is no whole number from 0 on, or a log-likelihood is
            above 0.
    """
    matrix, tokens = numbers("log_likelihood", log_likelihood), numbers("lengths", lengths)
    ids = None if prompt_id is None else labels("prompt_id", prompt_id)
    if (tokens < 0).any() or (tokens % 1 != 0).any():
        raise ValueError("`lengths` must hold whole numbers of tokens, 0 where a reasoning is missing")
    if matrix.shape[:-1] == tokens.shape:
        _require_log_likelihoods(matrix, tokens)
    if source is None:
        scores = scores_of_matrix(matrix, tokens, ids)
    else:
        scores = usable(matrix, tokens, numbers("source", source).astype(np.int64), prompt_id=ids)
    return measured(scores, compat=compat, seed=seed, ema=ema)


def measured(
    scores: Scores, *, compat: Compat = "paper", seed: int | Sequence[int] = 0, ema: EmaState | None = None
) -> MIResult:
    """The proxies of usable scores; arguments as of `mi`."""
    report = proxies_of_scores(scores, ema=EmaState() if ema is None else ema, compat=compat)
    own_seed = (seed, 0) if isinstance(seed, int) else seed
    return MIResult(report, uncertainty(scores, report, compat=compat, seed=own_seed))


def _require_log_likelihoods(matrix: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError if a reasoning would be more likely than certain."""
    above = matrix > ROUNDING * lengths[..., None]
    above &= np.isfinite(matrix) & (lengths[..., None] > 0)
    if above.any():
        place = tuple(int(index) for index in np.argwhere(above)[0])
        raise ValueError(
            f"`log_likelihood` is {matrix[place]:.6g} at {place}, and no log-likelihood of a sequence is above 0; give "
            "log p(z|x) in nats, summed over the tokens, and not -log p"
        )
