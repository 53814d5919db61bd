"""Algorithms as data: the settings of each algorithm, next to its equation (docs/guide/algorithms.md). Imports no
torch.

Invariants:

- An entry holds only settings, by their keys under `learner` and under `filter`; other code reads the settings and
  never an algorithm's name. Every entry sets every key of the objective in which algorithms differ.
- The user's own keys override `settings`; `differences` lists them. They never override `filter`: if the algorithm has
  a filter of its own and the user asks for another, the run is refused before anything starts.
- Clipping ranges and entropy bonus follow appendix B.2, which uses the same values for its four algorithms. The absence
  of a KL term follows the authors' scripts of Table 4: the paper's objective (section 2.1) has one, without a number.
  GSPO is not among the four; its clipping ranges are its authors', since sequence ratios have another scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from squelch.kit.base.dotted import nested

PAPER = {  # appendix B.2 and, for the KL term, the authors' scripts; the same for the paper's four algorithms
    "objective.ratio": "token",
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.28,
    "objective.entropy_coefficient": 0.001,
    "objective.kl.coefficient": 0.0,
    "objective.include_format_penalty": True,
}
GROUP = {"objective.reward": "episode", "objective.overlong.penalty": 0.0}


@dataclass(frozen=True)
class Algorithm:
    """One entry of the table."""

    source: str
    settings: Mapping[str, Any]
    """Values by dotted key under `learner`."""
    filter: Mapping[str, Any] = field(default_factory=dict)
    """Values by key under `filter`; empty unless the algorithm has a filter of its own."""


ALGORITHMS: dict[str, Algorithm] = {
    # A_i = (R_i - mean R) / std R;  J = 1/G sum_i 1/|o_i| sum_t min(r A, clip(r) A)
    "grpo": Algorithm(
        "Shao et al. 2024, DeepSeekMath, Eq. 3",
        {**PAPER, **GROUP, "objective.advantage": "grpo", "objective.aggregation": "sequence_mean"},
    ),
    # A_i = R_i - mean R;  J = 1/G sum_i 1/L sum_t min(r A, clip(r) A), L a constant
    "dr_grpo": Algorithm(
        "Liu et al. 2025, Understanding R1-Zero-Like Training, section 3.2",
        {**PAPER, **GROUP, "objective.advantage": "grpo_no_std", "objective.aggregation": "constant"},
    ),
    # A as GRPO, over groups with 0 < var R;  J = 1/(sum_i |o_i|) sum_i sum_t min(r A, clip(r) A);  R + R_length
    "dapo": Algorithm(
        "Yu et al. 2025, DAPO, Eq. 8 to 13",
        {
            **PAPER,
            **GROUP,
            "objective.advantage": "grpo",
            "objective.aggregation": "token_mean",
            "objective.overlong.penalty": 1.0,
        },
        filter={
            "statistic": "reward_variance",
            "rule": "top_p",
            "rho": 1.0,
            "include_zero": False,
            "refill": True,
            "compat": "paper",
            "window": "whole",
        },
    ),
    # s_i = (pi(y_i) / pi_old(y_i))^(1/|y_i|);  J = 1/G sum_i min(s_i A_i, clip(s_i) A_i);  A as GRPO
    "gspo": Algorithm(
        "Zheng et al. 2025, Group Sequence Policy Optimization, Eq. 5 to 7; clipping ranges: section 5.1",
        {
            **PAPER,
            **GROUP,
            "objective.advantage": "grpo",
            "objective.ratio": "sequence",
            "objective.aggregation": "sequence_mean",
            "objective.clip_low": 3e-4,
            "objective.clip_high": 4e-4,
        },
    ),
    # A_t = sum_l (gamma lambda)^l delta_{t+l}, whitened;  J = 1/T sum_t min(r A_t, clip(r) A_t)
    "ppo": Algorithm(
        "Schulman et al. 2017, Eq. 7, 11 and 12; GAE: Schulman et al. 2016, Eq. 16",
        {
            **PAPER,
            "objective.advantage": "gae",
            "objective.aggregation": "token_mean",
            "objective.reward": "turn",
            "objective.overlong.penalty": 0.0,
            "objective.gae.gamma": 1.0,
            "objective.gae.lam": 1.0,
            "objective.gae.whiten": True,
            "critic.learning_rate": 1e-5,
            "critic.clip": 0.2,
        },
    ),
}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` overridden by `over`; where both have a mapping under a key, the two are merged recursively."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def with_algorithm(given: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm's settings overridden by the user's `learner` block.

    An unknown algorithm adds nothing (validation refuses it later). A block that is already a settings model is used
    unchanged, because each of its keys already has a value.
    """
    algorithm = ALGORITHMS.get(str(given.get("algorithm", "grpo")))
    return merged(nested(algorithm.settings), given) if algorithm else dict(given)


def with_filter(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's `filter` block, completed by the algorithm's own filter settings.

    Raises ValueError, naming the keys, when the user's values contradict the algorithm's.
    """
    own = ALGORITHMS[name].filter if name in ALGORITHMS else {}
    clashing = [f"filter.{key}={given[key]}" for key, value in own.items() if key in given and given[key] != value]
    if clashing:
        wanted = ", ".join(f"{key}={as_written(value)}" for key, value in own.items())
        raise ValueError(
            f"learner.algorithm={name} has a filter of its own ({wanted}), which {', '.join(clashing)} contradicts: "
            "remove those keys or give them these values, or set learner.algorithm_filter=false to combine the rest of "
            "the algorithm with your filter"
        )
    return {**given, **own}


def differences(name: str, learner: Mapping[str, Any]) -> list[str]:
    """One line `learner.KEY: algorithm's value -> run's value` for each setting of a resolved `learner` block that
    differs from its algorithm."""
    return [
        f"learner.{key}: {as_written(theirs)} -> {as_written(ours)}" for key, theirs, ours in departures(name, learner)
    ]


def departures(name: str, learner: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key under `learner`, the algorithm's value, the run's) of each setting of a resolved `learner` block that
    departs from its algorithm."""
    found: list[tuple[str, Any, Any]] = []
    for key, value in ALGORITHMS[name].settings.items():
        node: Any = learner
        for part in key.split("."):
            node = node[part]
        if node != value:
            found.append((key, value, node))
    if ALGORITHMS[name].filter and not learner["algorithm_filter"]:
        found.append(("algorithm_filter", True, False))
    return found


def as_written(value: Any) -> str:
    """A setting's value as a user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
