"""Proxies of the mutual information between input and reasoning (paper, section 2.3, Eq. 1, Table 1, appendix F).

Pure numpy in float64; imports neither torch, Ray nor vLLM. L holds natural-log likelihoods summed over the tokens of a
reasoning: L[i, k, j] = log q(Z_ik | X_j). Invariants:

- Identical prompts are merged with their multiplicity: in the mixture each column keeps its weight; in retrieval they
  are one candidate, so that a hit on any of them is correct.
- A sample is either used for every metric or excluded from all of them; excluded samples are counted by reason.
- H(Z) = MI-Est + H(Z|X), per token, over the samples used.
- A reasoning's own prompt is a term of its mixture, so no reasoning has more information than -log of its own prompt's
  share. The bounds are means of that: the entropy of the drawn prompts, whatever their multiplicities.

`compat: paper` divides by |Z| after the mixture (Eq. 1); `ragen` mixes per-token means, as the authors' code does.
Sequence estimates and retrieval are the same under both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

Compat = Literal["paper", "ragen"]

RECALL_AT = (2, 4, 8)
EMPTY = "empty reasoning"
NON_FINITE = "non-finite log-likelihood"
METRIC_KEYS = (
    "retrieval_accuracy",
    "retrieval_chance",
    "mi_est",
    "mi_seq_est",
    "mi_zscore",
    "mi_zscore_ema",
    "conditional_entropy",
    "marginal_entropy",
    "upper_bound",
    "num_prompts",
    "num_excluded",
)


@dataclass
class EmaState:
    """sigma_EMA of Table 1: alpha * previous + (1 - alpha) * batch; starts at the first batch's std.

    Each turn scope has one. It is updated once for each matrix with at least one usable sample.
    """

    alpha: float = 0.9
    value: float | None = None

    def update(self, std: float) -> float:
        """Adds a batch's std of the marginals (nats per token) and returns the average."""
        self.value = std if self.value is None else self.alpha * self.value + (1 - self.alpha) * std
        return self.value

    def state(self) -> dict[str, float | None]:
        """For the checkpoint; plain JSON."""
        return {"alpha": self.alpha, "value": self.value}

    def restore(self, state: dict[str, float | None]) -> None:
        """Restores the average from a checkpoint; alpha stays as configured in this run."""
        self.value = state["value"]


@dataclass(frozen=True)
class Proxies:
    """Table 1 from one score matrix. Entropies and MI-Est are in nats per token, MI-Seq-Est in nats per sequence;
    values are None if no sample was usable."""

    num_prompts: int
    """Distinct prompts."""
    num_samples: int
    """Reasonings used."""
    num_excluded: int
    excluded: dict[str, int]
    """Number of excluded reasonings by reason."""
    compat: Compat
    retrieval_accuracy: float | None
    """[0, 1]; a tie of n prompts counts 1/n."""
    retrieval_chance: float
    """1 / number of distinct prompts."""
    recall: dict[int, float | None]
    """Recall at k by k, [0, 1]; a tie counts its expected value."""
    recall_chance: dict[int, float]
    mi_est: float | None = None
    mi_seq_est: float | None = None
    mi_zscore: float | None = None
    """MI-Est / (population std of the marginals + epsilon)."""
    mi_zscore_ema: float | None = None
    marginal_std: float | None = None
    """sigma_batch, nats per token."""
    conditional_entropy: float | None = None
    """H(Z|X)."""
    marginal_entropy: float | None = None
    """H(Z)."""
    upper_bound: float | None = None
    """Maximum of MI-Seq-Est: mean over samples of -log(share of their prompt in the mixture), the entropy of the drawn
    prompts; log N if none repeats."""
    upper_bound_per_token: float | None = None
    """Maximum of MI-Est under `paper`: the same mean, each term divided by |Z|."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """Flat keys of the metric registry, without the scope; values that are None are omitted."""
        values = self.as_dict()
        flat = {key: values[key] for key in METRIC_KEYS} | {f"recall@{k}": value for k, value in self.recall.items()}
        return {key: float(value) for key, value in flat.items() if value is not None}


@dataclass(frozen=True)
class Scores:
    """Usable part of a score matrix: `likelihood` (n, c), `lengths` (n,), `source` (n,) column of each sample,
    `weights` (c,) with sum 1, `prompt` (c,) index of each column's distinct prompt."""

    likelihood: np.ndarray
    lengths: np.ndarray
    source: np.ndarray
    weights: np.ndarray
    prompt: np.ndarray
    excluded: dict[str, int] = field(default_factory=dict)

    @property
    def num_prompts(self) -> int:
        """Number of distinct prompts."""
        return int(self.prompt.max()) + 1


def scores_of_matrix(log_likelihood: np.ndarray, lengths: np.ndarray, prompt_id: np.ndarray | None = None) -> Scores:
    """The usable scores of N prompts with K reasonings each.

    `log_likelihood`: (N, K, N), nats per sequence; `lengths`: (N, K), tokens; `prompt_id`: (N,), equal for identical
    prompts, default all distinct. Raises ValueError naming the array whose shape does not fit.
    """
    matrix, tokens = np.asarray(log_likelihood, np.float64), np.asarray(lengths, np.float64)
    if matrix.ndim != 3 or matrix.shape[0] != matrix.shape[2] or 0 in matrix.shape:
        raise ValueError(f"log_likelihood has shape {matrix.shape}; it must be (N, K, N), none of them 0")
    num_prompts, num_draws, _ = matrix.shape
    if tokens.shape != (num_prompts, num_draws):
        raise ValueError(f"lengths has shape {tokens.shape}; log_likelihood asks for {(num_prompts, num_draws)}")
    source = np.repeat(np.arange(num_prompts), num_draws)
    return usable(matrix.reshape(-1, num_prompts), tokens.ravel(), source, prompt_id=prompt_id)


def proxies_of_scores(
    scores: Scores, *, ema: EmaState | None = None, compat: Compat = "paper", epsilon: float = 1e-3
) -> Proxies:
    """Table 1 of usable scores. `ema` is updated in place."""
    num, empty = scores.num_prompts, not len(scores.lengths)
    hits = [None if empty else float(expected_hits(scores, k).mean()) for k in (1, *RECALL_AT)]
    report = {
        "num_prompts": num,
        "num_samples": len(scores.lengths),
        "num_excluded": sum(scores.excluded.values()),
        "excluded": scores.excluded,
        "compat": compat,
        "retrieval_accuracy": hits[0],
        "retrieval_chance": 1 / num,
        "recall": dict(zip(RECALL_AT, hits[1:], strict=True)),
        "recall_chance": {k: min(1.0, k / num) for k in RECALL_AT},
    }
    return Proxies(**report) if empty else Proxies(**report, **information(scores, ema, compat, epsilon))


def usable(
    log_likelihood: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    column_weights: np.ndarray | None = None,
    prompt_id: np.ndarray | None = None,
) -> Scores:
    """The usable scores of any number of samples per prompt: checks shapes, normalises weights, and excludes samples
    with no tokens or a NaN or infinite likelihood.

    `log_likelihood`: (num_samples, num_columns); `lengths`: (num_samples,); `source`: (num_samples,) column that each
    sample came from; `column_weights`: (num_columns,) multiplicity of each column in the mixture, default 1;
    `prompt_id`: (num_columns,). Raises ValueError naming the array that does not fit.
    """
    matrix = np.asarray(log_likelihood, np.float64)
    tokens, column = np.asarray(lengths, np.float64), np.asarray(source)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"log_likelihood has shape {matrix.shape}; it must be (num_samples, num_columns), neither 0")
    num_samples, num_columns = matrix.shape
    weights = np.ones(num_columns) if column_weights is None else np.asarray(column_weights, np.float64)
    prompt = np.arange(num_columns) if prompt_id is None else np.asarray(prompt_id)
    _check_shapes(num_samples, num_columns, tokens, column, weights, prompt)
    empty = ~(tokens > 0)
    broken = ~np.isfinite(matrix).all(axis=1) & ~empty
    excluded = {reason: int(mask.sum()) for reason, mask in ((EMPTY, empty), (NON_FINITE, broken)) if mask.any()}
    keep = ~(empty | broken)
    merged = np.unique(prompt, return_inverse=True)[1].reshape(-1)
    return Scores(matrix[keep], tokens[keep], column[keep], weights / weights.sum(), merged, excluded)


def _check_shapes(
    num_samples: int, num_columns: int, lengths: np.ndarray, source: np.ndarray, weights: np.ndarray, prompt: np.ndarray
) -> None:
    expected = {"lengths": (lengths, num_samples), "source": (source, num_samples)}
    expected |= {"column_weights": (weights, num_columns), "prompt_id": (prompt, num_columns)}
    for name, (array, size) in expected.items():
        if array.shape != (size,):
            raise ValueError(f"{name} has shape {array.shape}; log_likelihood asks for {(size,)}")
    if source.min() < 0 or source.max() >= num_columns:
        raise ValueError(f"source holds {source.min()} to {source.max()}; columns go from 0 to {num_columns - 1}")
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError("column_weights must be positive and finite")


def by_prompt(scores: Scores) -> np.ndarray:
    """(n, num_prompts) likelihood of each distinct prompt: the largest of its columns, which differ by rounding
    only."""
    best = np.full((len(scores.lengths), scores.num_prompts), -np.inf)
    for column, prompt in enumerate(scores.prompt):
        np.maximum(best[:, prompt], scores.likelihood[:, column], out=best[:, prompt])
    return best


def expected_hits(scores: Scores, k: int) -> np.ndarray:
    """(n,) probability that a sample's own prompt is among its k most likely prompts, with ties broken at random
    (Table 1, Retrieval-Acc at k = 1 and Recall@k)."""
    candidates = by_prompt(scores)
    own = candidates[np.arange(len(candidates)), scores.prompt[scores.source]][:, None]
    num_better = (candidates > own).sum(axis=1)
    num_tied = (candidates == own).sum(axis=1)
    return np.clip((k - num_better) / num_tied, 0.0, 1.0)


def log_mixture(likelihood: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n, c), (c,) -> (n,): log sum_j w_j exp(l_j), the mixture score of definition F.3, numerically stable."""
    shifted = likelihood + np.log(weights)
    top = shifted.max(axis=1)
    return top + np.log(np.exp(shifted - top[:, None]).sum(axis=1))


def information(scores: Scores, ema: EmaState | None, compat: Compat, epsilon: float) -> dict[str, float]:
    """The continuous proxies, entropies and bounds; needs at least one usable sample."""
    lengths = scores.lengths
    own = scores.likelihood[np.arange(len(lengths)), scores.source]
    mixture = log_mixture(scores.likelihood, scores.weights)
    matched = own / lengths
    marginal = mixture / lengths
    if compat == "ragen":
        marginal = log_mixture(scores.likelihood / lengths[:, None], scores.weights)
    mi_est, std = float((matched - marginal).mean()), float(marginal.std())
    smooth = std if ema is None else ema.update(std)
    most = information_bound(prompt_shares(scores), scores.source)
    return {
        "mi_est": mi_est,
        "mi_seq_est": float((own - mixture).mean()),
        "mi_zscore": mi_est / (std + epsilon),
        "mi_zscore_ema": mi_est / (smooth + epsilon),
        "marginal_std": std,
        "conditional_entropy": -float(matched.mean()),
        "marginal_entropy": -float(marginal.mean()),
        "upper_bound": float(most.mean()),
        "upper_bound_per_token": float((most / lengths).mean()),
    }


def information_bound(shares: np.ndarray, source: np.ndarray) -> np.ndarray:
    """(n,) upper bound of the information about its prompt, nats: -log of that prompt's share of the mixture.
    `shares`: (c,) share of each column's distinct prompt, sum 1 over prompts; `source`: (n,) column of each reasoning's
    own prompt."""
    return np.log(1 / shares[source])


def prompt_mass(scores: Scores) -> np.ndarray:
    """(num_prompts,) weight of each distinct prompt in the mixture, summed over its columns."""
    return np.bincount(scores.prompt, weights=scores.weights)


def prompt_shares(scores: Scores) -> np.ndarray:
    """(c,) weight of each column's distinct prompt in the mixture."""
    return prompt_mass(scores)[scores.prompt]
