"""The plain computation that packed rows are held to: rows padded on the right, a mask, transformers' own attention."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from squelch.learner.batching import Row
from squelch.learner.config import ObjectiveConfig
from squelch.learner.objective.components import StepSize
from squelch.learner.objective.losses import TokenBatch, policy_loss, sequences_of, token_weights


def plain_model(model_dir: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager").eval()


def plain_scores(model: torch.nn.Module, rows: Sequence[Row], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the sampled tokens, (num_sampled,), rows in order."""
    width = max(row.length for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : row.length], mask[i, : row.length] = torch.from_numpy(row.token_ids), 1
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    chosen = torch.cat([logits[i, torch.from_numpy(row.positions)] for i, row in enumerate(rows)]) / temperature
    targets = torch.cat([torch.from_numpy(row.targets).long() for row in rows])
    log_p = chosen.log_softmax(-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def plain_gradients(
    model: torch.nn.Module, rows: Sequence[Row], objective: ObjectiveConfig, temperature: float = 1.0
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by name of all rows as one optimizer step."""
    model.zero_grad()
    log_probs, entropies = plain_scores(model, rows, temperature)
    rollout = torch.cat([torch.from_numpy(row.log_probs).float() for row in rows])
    lengths = torch.tensor([row.num_sampled for row in rows])
    batch = TokenBatch(
        rollout=rollout,
        anchor=rollout,
        advantages=torch.cat([torch.full((row.num_sampled,), row.advantage) for row in rows]),
        weights=token_weights(lengths, objective.aggregation, StepSize(len(rows), int(lengths.sum()))),
        sequences=sequences_of(lengths),
    )
    loss = policy_loss(log_probs, entropies, batch, objective, 1.0).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}
