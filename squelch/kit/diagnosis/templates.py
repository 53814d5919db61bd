"""Finds templates: reasonings that fit every prompt as well as their own.

A reasoning's gap is log p(z|own) - log mean of p(z|x) over the other prompts that it was scored under, nats per
sequence: by how much its own prompt explains it better than a random other prompt. A gap of 0 or below means that the
reasoning fits other prompts as well as its own. If Z is independent of X, the mean of exp(-gap) is 1, so single gaps
below 0 are expected; a text that occurs often with such a gap is a template.

Pure numpy; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Template:
    """One text. `gap`: nats per sequence, mean over its occurrences; `count`: number of occurrences; `num_prompts`:
    distinct prompts that it was sampled under; `num_tokens`: tokens of its first occurrence; `rows`: rows of all
    occurrences, ascending."""

    text: str
    gap: float
    count: int
    num_prompts: int
    num_tokens: int
    rows: tuple[int, ...]


def gaps(log_likelihood: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Gaps (num_samples,), nats per sequence, from likelihoods (num_samples, num_prompts) and the column of each
    sample's own prompt. A pair that was not scored is NaN and left out; the gap is NaN where the own prompt or every
    other was not, or a likelihood is infinite. Raises ValueError below two prompts."""
    if log_likelihood.shape[1] < 2:
        raise ValueError(f"log_likelihood has shape {log_likelihood.shape}; a gap needs two prompts or more")
    rows = np.arange(len(log_likelihood))
    own, others = log_likelihood[rows, source], np.where(np.isnan(log_likelihood), -np.inf, log_likelihood)
    others[rows, source] = -np.inf
    top, count = others.max(axis=1), (~np.isnan(log_likelihood)).sum(axis=1) - 1
    with np.errstate(invalid="ignore", divide="ignore"):  # rows without a finite number become NaN below
        mean = top + np.log(np.exp(others - top[:, None]).sum(axis=1)) - np.log(count)
    usable = ~np.isinf(log_likelihood).any(axis=1) & np.isfinite(own) & (count > 0)
    return np.where(usable, own - mean, np.nan)


def ranked(
    gap: np.ndarray, source: np.ndarray, texts: Sequence[str], lengths: np.ndarray, rows: np.ndarray
) -> list[Template]:
    """Distinct texts, sorted by gap and then by their first row; samples whose gap is NaN are excluded."""
    members: dict[str, list[int]] = {}
    for sample in np.flatnonzero(np.isfinite(gap)):
        members.setdefault(texts[sample], []).append(int(sample))
    found = [
        Template(
            text,
            float(gap[own].mean()),
            len(own),
            len(np.unique(source[own])),
            int(lengths[own[0]]),
            tuple(sorted(rows[own].tolist())),
        )
        for text, own in members.items()
    ]
    return sorted(found, key=lambda template: (template.gap, template.rows[0]))


def widest(texts: Iterable[tuple[Hashable, Hashable]]) -> tuple[Hashable, int]:
    """(text, number of prompts) of the text that was sampled under the most prompts, of equal ones the first. `texts`:
    (text, prompt) of each sample, at least one."""
    under: dict[Hashable, set[Hashable]] = {}
    for text, prompt in texts:
        under.setdefault(text, set()).add(prompt)
    found = max(under, key=lambda text: len(under[text]))
    return found, len(under[found])
