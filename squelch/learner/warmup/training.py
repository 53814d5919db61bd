"""The warm-up's training: supervised training of a small causal model on demonstrations, each used once.

Invariants:

- The loss covers demonstrated tokens only, and their context is exactly the ids that a rollout would be fed.
- The weights depend only on (model, demonstrations, recipe, seed), to the byte, for any number of torch threads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from squelch.actors.process.stage import OnStage, ignore_stage
from squelch.kit.packed.vision import decoder, tower
from squelch.kit.pictures.geometry import Vision
from squelch.kit.records.shared_prefix import common_length
from squelch.learner.warmup.demonstrations import Demonstration
from squelch.learner.warmup.inputs import inputs
from squelch.learner.warmup.muon import Muon
from squelch.learner.warmup.tiny_recipe import TinyRecipe

logger = logging.getLogger(__name__)

LOG_EVERY = 100
"""Optimizer steps between two lines of the log."""
SHARDS = 2
"""Parts of a batch that are computed in parallel. Fixed rather than the number of cores, because rounding makes the
weights depend on it."""
POOL_BATCHES = 24
"""Number of batches whose demonstrations are sorted by length together."""


def batches(
    demonstrations: list[Demonstration], batch_tokens: int, rng: np.random.Generator
) -> Iterator[list[Demonstration]]:
    """One pass over the demonstrations in random order, in batches of similar length.

    A batch holds at most `batch_tokens` tokens, padding included; a longer sequence forms a batch by itself.
    """
    order = rng.permutation(len(demonstrations))
    mean = sum(len(one.token_ids) for one in demonstrations) / len(demonstrations)
    pool_size = max(int(POOL_BATCHES * batch_tokens / mean), 1)
    for first in range(0, len(order), pool_size):
        pool = sorted((demonstrations[i] for i in order[first : first + pool_size]), key=lambda d: len(d.token_ids))
        cut: list[list[Demonstration]] = [[]]
        for one in pool:
            if (len(cut[-1]) + 1) * len(one.token_ids) > batch_tokens and cut[-1]:
                cut.append([])
            cut[-1].append(one)
        for index in rng.permutation(len(cut)):
            yield cut[index]


def shared_prefix(demonstrations: list[Demonstration]) -> int:
    """Number of leading fed tokens that all sequences have in common: the system message. Pictures of equal ids
    differ, so it ends before the first."""
    fed = int(demonstrations[0].loss_mask.argmax()) - 1
    pictures = [at for one in demonstrations for at, _ in one.pictures[:1]]
    return min([fed, common_length([one.token_ids for one in demonstrations]), *pictures])


def batch_loss(
    model: PreTrainedModel, batch: list[Demonstration], pad_id: int, prefix: int, vision: Vision | None = None
) -> torch.Tensor:
    """Mean negative log-likelihood (nats) of the batch's demonstrated tokens; a scalar. `vision`: of a model with a
    tower.

    The model processes the first `prefix` tokens, which are the same in every row, once for the whole batch. Padding is
    on the right, where causal attention does not read it, so no attention mask is needed.
    """
    width = max(len(one.token_ids) for one in batch)
    ids = np.full((len(batch), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(batch), width), dtype=bool)
    for row, one in enumerate(batch):
        ids[row, : len(one.token_ids)] = one.token_ids
        mask[row, : len(one.loss_mask)] = one.loss_mask
    tokens, wanted = torch.from_numpy(ids), torch.from_numpy(mask)[:, prefix + 1 :]
    fed, body = inputs(model, batch, tokens, vision), decoder(model)
    cache = DynamicCache(config=model.config.get_text_config())
    if prefix:
        body(**fed.part(slice(1), slice(prefix)), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(batch))
    rest = body(**fed.part(slice(None), slice(prefix, None)), past_key_values=cache, use_cache=True)
    hidden = rest.last_hidden_state[:, :-1]
    logits = model.get_submodule("lm_head")(hidden[wanted])  # at demonstrated tokens only: less than half of all
    return functional.cross_entropy(logits, tokens[:, prefix + 1 :][wanted])


def learning_rate_factor(progress: float, recipe: TinyRecipe) -> float:
    """Share of the peak learning rate after a share `progress` in [0, 1] of the tokens: linear rise, then half a
    cosine."""
    if progress < recipe.warmup_share:
        return progress / recipe.warmup_share
    fall = min((progress - recipe.warmup_share) / (1 - recipe.warmup_share), 1.0)
    low = recipe.final_learning_rate
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * fall))


class Optimizer:
    """Muon for the layers' matrices and AdamW for all other parameters, on one schedule.

    With Muon the policy learns to read coordinates off the board in half of the tokens that AdamW alone needs.
    """

    def __init__(self, model: PreTrainedModel, recipe: TinyRecipe) -> None:
        self._recipe = recipe
        matrices = [p for part in _matrix_parts(model) for p in part.parameters() if p.ndim == 2]
        chosen = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        decay, rate = recipe.weight_decay, recipe.matrix_learning_rate
        muon = Muon(matrices, lr=rate, weight_decay=decay, steps=4)
        adam = torch.optim.AdamW(rest, lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0)
        self._parts = ((muon, rate), (adam, recipe.learning_rate))
        self._parameters = [*matrices, *rest]

    def step(self, factor: float) -> None:
        """One clipped step at `factor` times the peak learning rates; clears the gradients."""
        torch.nn.utils.clip_grad_norm_(self._parameters, self._recipe.max_grad_norm)
        for part, peak in self._parts:
            for group in part.param_groups:
                group["lr"] = peak * factor
            part.step()
            part.zero_grad(set_to_none=True)


def _matrix_parts(model: PreTrainedModel) -> list[nn.Module]:
    """The modules whose matrices Muon steps."""
    seeing = tower(model)
    return [decoder(model).layers, *(() if seeing is None else (seeing.blocks, seeing.merger.mlp))]


class Gradients:
    """Gradients of one batch, computed in `SHARDS` parallel parts with one torch thread each.

    The parts and their order are fixed, so the weights are the same bytes on any number of cores. Parts do not wait for
    each other within an operation; torch's own threads do, and on busy cores that costs more than it saves.
    """

    def __init__(self, model: PreTrainedModel, pad_id: int, prefix: int, vision: Vision | None = None) -> None:
        self._model, self._pad_id, self._prefix, self._vision = model, pad_id, prefix, vision
        self._parameters = list(model.parameters())
        self._workers = ThreadPoolExecutor(SHARDS, initializer=torch.set_num_threads, initargs=(1,))

    def backward(self, batch: list[Demonstration]) -> float:
        """Set `.grad` of every parameter to the gradient of the batch's loss; returns the loss (nats)."""
        parts = [batch[shard::SHARDS] for shard in range(min(SHARDS, len(batch)))]
        counts = [int(sum(one.loss_mask.sum() for one in part)) for part in parts]
        shares = [count / sum(counts) for count in counts]
        losses, gradients = zip(*self._workers.map(self._part, parts, shares), strict=True)
        for parameter, *pieces in zip(self._parameters, *gradients, strict=True):
            parameter.grad = torch.stack(pieces).sum(0)
        return sum(losses)

    def _part(self, part: list[Demonstration], share: float) -> tuple[float, tuple[torch.Tensor, ...]]:
        loss = share * batch_loss(self._model, part, self._pad_id, self._prefix, self._vision)
        # A part without a picture leaves the tower's gradients at zero.
        return loss.item(), torch.autograd.grad(loss, self._parameters, materialize_grads=True)

    def close(self) -> None:
        """Ends the threads, after their present work."""
        self._workers.shutdown()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Sets the number of torch threads to 1 within this context and restores it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def warm_up(
    model: PreTrainedModel,
    demonstrations: list[Demonstration],
    recipe: TinyRecipe,
    seed: int,
    pad_id: int,
    on_stage: OnStage = ignore_stage,
    vision: Vision | None = None,
) -> tuple[list[float], int]:
    """Train on every demonstration once; returns (loss of each optimizer step, tokens seen). `vision`: of a model with
    a tower."""
    optimizer, rng = Optimizer(model, recipe), np.random.default_rng(seed)
    total = sum(len(one.token_ids) for one in demonstrations)
    losses: list[float] = []
    seen = 0
    model.train()
    with one_torch_thread(), closing(Gradients(model, pad_id, shared_prefix(demonstrations), vision)) as gradients:
        for batch in batches(demonstrations, recipe.batch_tokens, rng):
            losses.append(gradients.backward(batch))
            optimizer.step(learning_rate_factor(seen / total, recipe))
            seen += sum(len(one.token_ids) for one in batch)
            on_stage(f"learning from {len(demonstrations)} demonstrations, loss {losses[-1]:.3f}", seen / total)
            if len(losses) % LOG_EVERY == 0:
                logger.info("warm-up: %d of %d tokens, loss %.3f", seen, total, losses[-1])
    model.eval()
    return losses, seen
