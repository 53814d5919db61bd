"""Supervised learning on the learner's own path: packed rows, FSDP2 ranks, adapters, bfloat16, the same optimizer.

The loss of an optimizer step is the mean -log p, at temperature 1, of the tokens that its rows demonstrate; every token
has the same weight. Rows with a common prefix, such as the rules of an environment, share it as in a training step.

Invariants: both functions are collectives, with the same rows on every rank. A step whose loss or gradient is not
finite changes nothing. The result depends on rows, step, seed, settings and number of ranks alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from squelch.actors.messages import Imitation
from squelch.learner import batching
from squelch.learner.batching import OptimizerStep, Row
from squelch.learner.policy.model import passes, reshard
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Totals, Trainer

TEMPERATURE = 1.0


def imitate(trainer: Trainer, rows: Sequence[Row], step: int) -> Imitation:
    """One optimizer step on all rows. ValueError, on every rank, if its loss or gradient is not finite."""
    trainer.marks.begin()
    (part,) = trainer.plan(rows, 1, step)
    totals, loss = Totals.zeros(trainer.device), torch.zeros((), dtype=torch.float64, device=trainer.device)
    for log_probs in _log_probs(trainer, rows, part):
        term = -log_probs.sum() / part.num_tokens
        term.backward()
        loss += term.detach()
        trainer.marks.add()
    whole = loss.clone()
    dist.all_reduce(whole)
    if not trainer.apply(loss, totals):
        trainer.zero_grad()
        raise ValueError(f"supervised step {step}: loss {float(whole):g} or its gradient is not finite")
    return Imitation(float(whole), part.num_tokens, totals.grad_norms[-1])


@torch.no_grad()
def imitation_loss(trainer: Trainer, rows: Sequence[Row]) -> float:
    """Mean -log p of the tokens that the rows demonstrate, nats per token; the weights do not change."""
    trainer.marks.begin()
    (part,) = trainer.plan(rows, 1, 0)
    loss = torch.zeros((), dtype=torch.float64, device=trainer.device)
    for log_probs in _log_probs(trainer, rows, part):
        loss -= log_probs.double().sum() / part.num_tokens
        reshard(trainer.policy)
        trainer.marks.add()
    dist.all_reduce(loss)
    return float(loss)


def _log_probs(trainer: Trainer, rows: Sequence[Row], part: OptimizerStep) -> Iterator[Tensor]:
    """Log-probabilities of the demonstrated tokens of each of this rank's micro-batches, (num_tokens,)."""
    for chosen in passes(trainer.policy, part.micro_batches[trainer.rank], trainer.alone):
        micro = batching.collate([rows[i] for i in chosen], trainer.config.share_openings, trainer.vision)
        yield trainer.policy(*inputs_of(micro, trainer.device), TEMPERATURE, False)[0]
