"""The worked example of docs/guide/algorithms.md: each printed number is what the filter and the objective compute."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.kit.filter.measure import GroupStatistics, measure
from squelch.kit.filter.selection import Selection, select
from squelch.kit.filter.settings import FilterConfig
from squelch.learner.config import LearnerConfig
from squelch.learner.objective.advantages import group_advantages
from squelch.learner.objective.components import StepSize, clipped_surrogate
from squelch.learner.objective.losses import (
    SUM_NAMES,
    LossTerms,
    TokenBatch,
    policy_loss,
    sequences_of,
    token_weights,
)

PAGE = Path(__file__).parents[3] / "docs/guide/algorithms.md"
SECTION = PAGE.read_text(encoding="utf-8").split("## A worked example")[1].split("\n## ")[0]
FILTER = FilterConfig()
OBJECTIVE = LearnerConfig(algorithm="grpo").objective
ENTROPY = 1.2
"""Nats at every token of the example."""

Rows = list[dict[str, str]]


def tables() -> list[Rows]:
    """The section's tables, each as rows by column title."""
    found: list[Rows] = []
    for block in re.findall(r"(?:^\|.*\n)+", SECTION, flags=re.MULTILINE):
        head, _, *body = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        found.append([dict(zip(head, row, strict=True)) for row in body])
    return found


GROUPS, TRAJECTORIES, TOKENS, RESULT = tables()


def column(rows: Rows, name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def returns(row: dict[str, str]) -> np.ndarray:
    return np.array([float(value) for value in row["returns"].split(",")])


def selection() -> tuple[np.ndarray, Selection]:
    rows = [GroupStatistics.from_row(row["group"], 1, returns(row)) for row in GROUPS]
    scores = measure(rows, FILTER.statistic).scores
    return scores, select(scores, None, FILTER)


def test_the_filter_decides_as_the_example_says() -> None:
    scores, chosen = selection()
    assert column(GROUPS, "reward variance") == pytest.approx(scores, abs=1e-6)
    reported = [row["decision"].removeprefix("dropped: ").replace("kept", "selected") for row in GROUPS]
    assert reported == list(chosen.codes)
    assert f"- {FILTER.epsilon:g} · {scores.max():g} = {chosen.threshold:.4f}." in SECTION
    assert f"{scores.sum():.6f}" in SECTION and f"= {chosen.kept_mass:.3f};" in SECTION
    assert chosen.kept_fraction == pytest.approx(1 / 3) and "kept fraction is 1/3" in SECTION


def test_the_advantages_are_those_of_the_kept_group() -> None:
    (kept,) = (row for row in GROUPS if row["decision"] == "kept")
    assert column(TRAJECTORIES, "return").tolist() == returns(kept).tolist()
    found = group_advantages(returns(kept), OBJECTIVE.advantage)
    assert column(TRAJECTORIES, "advantage") == pytest.approx(found)
    counts = np.bincount(column(TOKENS, "trajectory").astype(int), minlength=5)[1:]
    assert column(TRAJECTORIES, "sampled tokens").tolist() == counts.tolist()


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def batch(aggregation: str) -> TokenBatch:
    lengths = torch.tensor(column(TRAJECTORIES, "sampled tokens").astype(int))
    owner = column(TOKENS, "trajectory").astype(int) - 1
    rollout = tensor(np.log(column(TOKENS, "p sampled")))
    weights = token_weights(lengths, aggregation, StepSize(len(lengths), int(lengths.sum())))
    return TokenBatch(
        rollout, rollout, tensor(column(TRAJECTORIES, "advantage")[owner]), weights, sequences_of(lengths)
    )


def test_every_token_has_the_ratio_the_term_and_the_weight_that_are_printed() -> None:
    tokens = batch(OBJECTIVE.aggregation)
    ratio = tensor(column(TOKENS, "p learner") / column(TOKENS, "p sampled"))
    clipped = ratio.clamp(1 - OBJECTIVE.clip_low, 1 + OBJECTIVE.clip_high)
    term = clipped_surrogate(ratio, tokens.advantages, OBJECTIVE.clip_low, OBJECTIVE.clip_high)
    printed: dict[str, torch.Tensor] = {
        "ratio": ratio,
        "clipped ratio": clipped,
        "term": term,
        "weight": tokens.weights,
        "weight · term": tokens.weights * term,
    }
    for name, values in printed.items():
        assert column(TOKENS, name) == pytest.approx(values.numpy(), abs=1e-6), name


def loss_terms(aggregation: str, scale: float) -> tuple[LossTerms, torch.Tensor]:
    """The loss, and the learner's log-probabilities (num_tokens,) that it can be differentiated by."""
    log_probs = tensor(np.log(column(TOKENS, "p learner"))).requires_grad_()
    return policy_loss(log_probs, torch.full_like(log_probs, ENTROPY), batch(aggregation), OBJECTIVE, scale), log_probs


def losses(aggregation: str, scale: float) -> dict[str, float]:
    whole, plain = (loss_terms(aggregation, factor)[0] for factor in (scale, 1.0))
    policy, before = plain.sums[SUM_NAMES.index("policy_loss")].item(), plain.loss.item()
    bonus = before - policy
    return {"policy term": policy, "entropy bonus": bonus, "loss before scaling": before, "loss": whole.loss.item()}


def test_the_loss_is_the_last_number() -> None:
    printed = {row["quantity"]: float(row["value"]) for row in RESULT}
    assert printed.pop("loss scale") == FILTER.rho and OBJECTIVE.loss_scale == "rho"
    for name, value in losses(OBJECTIVE.aggregation, FILTER.rho).items():
        assert printed.pop(name) == pytest.approx(value, abs=1e-6), name
    assert not printed
    token_mean = losses("token_mean", 1.0)["policy term"]
    assert f"the policy term would be {token_mean:.3f}" in SECTION


def test_clipping_stops_the_gradient_of_the_tokens_that_are_named() -> None:
    terms, log_probs = loss_terms(OBJECTIVE.aggregation, 1.0)
    (gradient,) = torch.autograd.grad(terms.loss, log_probs)
    stopped = [number + 1 for number in range(len(gradient)) if gradient[number] == 0]
    assert stopped == [1, 4] and "Clipping removes the gradient of tokens 1 and 4" in SECTION
    assert gradient[5] > 0, "descent lowers the probability of token 6"
