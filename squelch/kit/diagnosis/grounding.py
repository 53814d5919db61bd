"""Judge of grounding: does a reasoning make claims about its input, and are they true?

The proxies are log-likelihoods under a model; the judge reads the text. Each environment that can be judged declares
how its state and the claims about it are read (`envs.contract.Judged`): the grid worlds read where things are
(`squelch/envs/grid_worlds/claims.py`), Countdown reads sums and numbers (`squelch/envs/countdown/claims.py`).

Pure: imports neither torch, Ray nor vLLM, and needs no tokens. No text raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.kit.records.judge import Judge

if TYPE_CHECKING:
    from squelch.kit.records.pictures import Picture

JUDGED = ("names", "right", "right_elsewhere")


def shares(
    judge: Judge,
    prompts: Sequence[str],
    reasonings: Sequence[str],
    source: Sequence[int],
    pictures: Sequence[Sequence[Picture]] = (),
) -> dict[str, float]:
    """Shares of the reasonings, each in [0, 1]: `names`: with at least one claim; `right`: with at least one claim, all
    of them true; `right_elsewhere`: as `right`, but judged by the state of another prompt, mean over the other prompts.
    A template scores the same on `right` and `right_elsewhere`.

    `source`: index of each reasoning's own prompt; `pictures`: those of each prompt, if any are shown.
    A share is NaN if no reasoning, or no other prompt, has a state.
    """
    seen = pictures or [()] * len(prompts)
    facts = [facts_of(judge, prompt, shown) for prompt, shown in zip(prompts, seen, strict=True)]
    claims = [judge.claims(text) for text in reasonings]
    shown = [s for s, own in enumerate(source) if facts[own] is not None]
    elsewhere = [
        float(
            np.mean(
                [
                    right(judge, claims[s], other)
                    for j, other in enumerate(facts)
                    if j != source[s] and other is not None
                ]
            )
        )
        for s in (shown if sum(f is not None for f in facts) > 1 else [])
    ]
    return {
        "names": _mean([bool(claims[s]) for s in shown]),
        "right": _mean([right(judge, claims[s], facts[source[s]]) for s in shown]),
        "right_elsewhere": _mean(elsewhere),
    }


def facts_of(judge: Judge, prompt: str, pictures: Sequence[Picture]) -> Any | None:
    """As `Judge.facts`; a judge of text alone need not know of pictures."""
    return judge.facts(prompt, pictures) if pictures else judge.facts(prompt)


def right(judge: Judge, claims: Sequence[Any], facts: Any | None) -> bool:
    """Whether there is at least one claim and all claims are true of the facts."""
    return bool(claims) and facts is not None and all(judge.holds(claim, facts) for claim in claims)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation in [-1, 1] with ties at their mean rank; NaN below 3 pairs or if one side is constant."""
    a, b = ranks(np.asarray(first, np.float64)), ranks(np.asarray(second, np.float64))
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """(n,) ranks from 0; equal values get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def correlations(lines: Sequence[Mapping[str, float | None]], keys: Sequence[str]) -> dict[str, float]:
    """Spearman's correlation of each flat key with `judge/right`, over the lines of a run's `metrics.jsonl`."""
    found = {}
    for key in keys:
        known = [(line.get(key), line.get("judge/right")) for line in lines]
        pairs = [(value, right) for value, right in known if value is not None and right is not None]
        found[key] = spearman([value for value, _ in pairs], [right for _, right in pairs])
    return found
