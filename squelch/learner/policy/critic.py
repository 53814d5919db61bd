"""The critic of `advantage: gae`: the expected return before each sampled token, and the training of that estimate.

Invariants:

- The critic has weights of its own: it starts from a copy of the policy's initial weights without the output head, and
  adds a value head that is initialised to 0, so that all first values are 0 and the first advantages are plain returns.
- The critic runs on the policy's packed micro-batches, under FSDP2 like the policy; gradients are summed over ranks.
- The critic's optimizer steps exactly when the policy's does; the caller undoes both steps together.
"""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from squelch.kit.packed.layout import Layout
from squelch.learner.config import LearnerConfig
from squelch.learner.objective.losses import value_loss
from squelch.learner.policy.loading import Unloaded
from squelch.learner.policy.model import equip, hidden_states, local, reshard, shard, storage
from squelch.learner.tensors import Batch, Inputs


class Critic(nn.Module):
    """V(state), the expected sum of discounted future rewards, at chosen positions of packed rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = cast("PreTrainedModel", model.base_model)
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Values after the tokens at `positions` (n,) of (1, num_tokens) packed ids, (n,) float32."""
        hidden = hidden_states(self.model, input_ids, layout)[positions]
        return self.head(hidden.to(self.head.weight.dtype)).sum(-1).float()


class ValueLearner:
    """The critic and its optimizer, on one rank. Every method but `step` is a collective or is called after one."""

    def __init__(self, model_dir: Path, config: LearnerConfig, mesh: DeviceMesh, resumes: bool = False) -> None:
        """`resumes`: as of `Unloaded`."""
        self.settings = config.critic
        unloaded = Unloaded(model_dir, config.kernels, resumes)
        critic = Critic(equip(unloaded.model, config))
        self.module = shard(critic, mesh, config.model_copy(update={"fp32_head": False}))
        unloaded.fill(self.module, storage(config))
        own = config.optimizer
        self.optimizer = torch.optim.AdamW(
            [p for p in self.module.parameters() if p.requires_grad],
            lr=config.critic.learning_rate,
            betas=own.betas,
            eps=own.epsilon,
            weight_decay=own.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def values(self, inputs: Inputs, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Values before each sampled token, (num_sampled,), and at the packed row ends `ends`, (num_rows,)."""
        input_ids, positions, _, layout = inputs
        found = self.module(input_ids, torch.cat([positions, ends]), layout)
        reshard(self.module)
        return found[: len(positions)], found[len(positions) :]

    def backward(self, batch: Batch) -> Tensor:
        """Adds the gradient of the micro-batch's value loss; returns the loss, float64, detached.

        Raises RuntimeError when the micro-batch has no values or no returns.
        """
        if batch.values is None or batch.returns is None:
            raise RuntimeError(f"a micro-batch of {len(batch.rows)} rows reached the critic without values and returns")
        input_ids, positions, _, layout = batch.inputs
        values = self.module(input_ids, positions, layout)
        loss = value_loss(values, batch.values, batch.returns, batch.tokens.weights, self.settings.clip)
        loss.backward()
        return loss.detach().double()

    def gradients(self) -> list[Tensor]:
        """This rank's shards of the critic's gradient."""
        return [local(p.grad) for p in self.module.parameters() if p.grad is not None]

    def step(self, norm: float) -> None:
        """One optimizer step with clipped gradients; `norm`: the norm of the whole gradient over all ranks."""
        if norm > self.settings.max_grad_norm:
            for gradient in self.gradients():
                gradient.mul_(self.settings.max_grad_norm / (norm + 1e-6))
        self.optimizer.step()
        self.optimizer.zero_grad()
