"""The policy: a local Hugging Face decoder-only causal LM, perhaps with a vision tower, under FSDP2.

Invariants:

- The model comes from a local folder that passed `kit.models.model_folder`: safetensors only, nothing is downloaded,
  and no code of the folder is run.
- Master weights are float32; forward and backward run in `learner.dtype`; log-probabilities and entropies are float32.
- Rows are packed (`kit.packed.packing`), and every layer's attention is one of `kit.packed.attention`.
- The setting `learner.kernels` selects the fast kernels or their plain definitions (`learner.kernels.choice`).
- Gradients are summed over ranks, not averaged: the loss's weights already contain the whole step's normaliser.
- The output head runs at sampled positions only, on packed hidden states. This is correct only for a model without soft
  cap, without logit scale, and without layers that mix tokens other than by attention. When a model is loaded, the
  logits of a small copy on two packed rows are compared with the copy's own computation (`packed_check`); a model whose
  logits differ is refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from squelch.kit.packed.layout import Layout
from squelch.kit.packed.vision import tower
from squelch.kit.process.compiled import compiled
from squelch.learner.config import LearnerConfig, LoraSettings
from squelch.learner.kernels.choice import KERNELS
from squelch.learner.policy.lora import adapters_of, add_adapters
from squelch.learner.policy.packed_check import hidden_states

Sharded = TypeVar("Sharded", bound=nn.Module)
Work = TypeVar("Work")


class Policy(nn.Module):
    """log pi(token | context) and exact entropy at chosen positions of packed rows."""

    def __init__(self, model: PreTrainedModel, lora: LoraSettings | None = None, kernels: str = "fast") -> None:
        """`lora`: settings of the adapters in `model`, if it has any; `kernels`: the kernels it was loaded with."""
        super().__init__()
        self.model, self.lora, self.adapters = model, lora, adapters_of(model) if lora else {}
        self.log_probabilities = KERNELS[kernels].log_probabilities

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        layout: Layout,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies (nats, float32), each (num_sampled,), of softmax(logits / temperature).

        `input_ids`: (1, num_tokens), packed as `layout` describes; `positions`: (num_sampled,) positions of the tokens
        whose successors are predicted (a position repeats where rows branch); `targets`: (num_sampled,) those
        successors. Without `entropy_gradient` the entropies are detached.
        """
        hidden = hidden_states(self.model, input_ids, layout)[positions]
        head: Any = self.model.get_output_embeddings()
        return self.log_probabilities(hidden, head.weight, head.bias, targets, temperature, entropy_gradient)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated blocks that FSDP shards one by one (the model class lists them in `_no_split_modules`)."""
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(f"{type(model).__name__} names no decoder layers to shard; it is not supported")
    return layers


def equip(
    model: PreTrainedModel, config: LearnerConfig, lora: LoraSettings | None = None, seed: int = 0
) -> PreTrainedModel:
    """Freeze the tower, add adapters, activation checkpointing and compilation as configured, in place, before
    sharding. `seed`: of the adapters' first values.

    Layers of one class and kind share their compiled code. FSDP's hooks and the recomputation stay outside it. The
    blocks of a tower are not compiled: they split their input by the sizes of the pictures.
    """
    layers, seeing = decoder_layers(model), tower(model)
    if config.freeze_vision and seeing is not None:
        seeing.requires_grad_(False)
    if lora is not None:
        add_adapters(model, lora, seed)
    of_tower = set() if seeing is None else set(seeing.modules())
    for layer in layers:
        if config.compile and layer not in of_tower:
            layer.forward = compiled(layer.forward)
        if config.activation_checkpointing:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return model


def layers_apart(model: PreTrainedModel, config: LearnerConfig) -> list[nn.Module]:
    """The layers that FSDP gathers one by one; all other parameters belong to its root module.

    Layers of fewer than `min_num_params` parameters belong to the root too, unless the root computes in another dtype.
    """
    mixed = config.fp32_head and config.dtype == "bfloat16"
    least = 0 if mixed else config.min_num_params
    return [layer for layer in decoder_layers(model) if sum(p.numel() for p in layer.parameters()) >= least]


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a parameter or gradient of a sharded module, as a plain tensor."""
    assert isinstance(tensor, DTensor), "the module was not sharded"
    return tensor.to_local()


def shard(policy: Sharded, mesh: DeviceMesh, config: LearnerConfig) -> Sharded:
    """Apply FSDP2 in place: decoder layers one by one, then the rest (embedding, norm, head, small layers) as the root.

    With `fp32_head` the root computes in float32, and its output is rounded where it enters a layer.
    """
    compute = torch.bfloat16 if config.dtype == "bfloat16" else None
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if config.cpu_offload else OffloadPolicy()
    inner, outer = (
        MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32, cast_forward_inputs=cast)
        for kind, cast in ((compute, config.fp32_head), (None if config.fp32_head else compute, False))
    )
    several = mesh.size() > 1
    for layer in layers_apart(cast(PreTrainedModel, policy.model), config):
        fully_shard(layer, mesh=mesh, mp_policy=inner, reshard_after_forward=several, offload_policy=offload)
    fully_shard(policy, mesh=mesh, mp_policy=outer, reshard_after_forward=False, offload_policy=offload)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return policy


def storage(config: LearnerConfig) -> torch.device:
    """The device that holds a rank's shards."""
    return torch.device("cuda" if config.num_gpus > 0 and not config.cpu_offload else "cpu")


def passes(module: nn.Module, batches: Sequence[Work], alone: bool) -> Iterator[Work]:
    """The micro-batches of one optimizer step, for one forward and backward pass of `module` each.

    A rank that is `alone` gathers the parameters once, in the first pass, adds up the gradients in float32 where they
    are, and reduces them once, in the last pass. FSDP would copy all parameters and gradients in every pass. The sums
    are the same to the bit. All batches must be taken.
    """
    for k, batch in enumerate(batches):
        last = k + 1 == len(batches)
        if alone and isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(last)
            module.set_reshard_after_backward(last)
        yield batch


@contextmanager
def one_layer_at_a_time(policy: Policy) -> Iterator[None]:
    """Within this context, forward passes keep only FSDP's root and one layer gathered.

    With a single rank, FSDP would otherwise keep every layer gathered.
    """
    alone = dist.get_world_size() == 1
    layers = [m for m in policy.modules() if alone and isinstance(m, FSDPModule) and m is not policy]
    for layer in layers:
        layer.set_reshard_after_forward(True, recurse=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(False, recurse=False)
        reshard(policy)


def reshard(policy: nn.Module) -> None:
    """Free gathered parameters. A backward pass does so; without one, the root's parameters would stay gathered."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
