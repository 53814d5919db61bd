"""Lends the scorer a model that somebody else is training, and gives it back as it was.

Restored are the training mode of every module, the attention implementation of every configuration, and the random
states of the CPU and of the model's GPUs. Weights, their dtype, gradients and hooks are not touched. Autocast is off
meanwhile, so that the weights' own dtype is scored and no cast of them is left in its cache.

Wrappers are looked through: DistributedDataParallel, torch.compile, PEFT's adapters (which stay in effect), and the
autocast that accelerate puts around `forward`. FSDP and DeepSpeed ZeRO-3 are refused, because there a forward needs all
ranks and the scorer runs on one.

Not for two threads at once: meanwhile the model cannot be trained. Imports neither Ray nor vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

SHARDED = "a forward needs all ranks; save a checkpoint and score its samples with `squelch score`"
WRAPPED = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
"""The attribute that holds the model, by the class of its wrapper."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def inner_model(model: Any) -> PreTrainedModel:
    """The causal language model inside its wrappers.

    Raises ValueError for a model that is no causal language model of transformers, or whose parameters are sharded.
    """
    found = model
    while True:
        kind = type(found).__name__
        if kind == "FullyShardedDataParallel":
            raise ValueError(f"the model is wrapped by FSDP: {SHARDED}")
        if kind in WRAPPED:
            found = getattr(found, WRAPPED[kind])
        elif hasattr(found, "peft_config") and hasattr(found, "get_base_model"):
            found = found.get_base_model()
        else:
            break
    if not isinstance(found, PreTrainedModel) or found.get_output_embeddings() is None:
        raise ValueError(f"the model is a {kind}; a causal language model of transformers is needed")
    for name, parameter in found.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise ValueError(f"the model's parameters are partitioned by DeepSpeed ZeRO-3 ({name}): {SHARDED}")
        if type(parameter).__name__ == "DTensor":
            raise ValueError(f"the model's parameters are sharded by FSDP ({name}): {SHARDED}")
    if found.dtype not in DTYPES:
        raise ValueError(f"the model's weights are {found.dtype}; float32, bfloat16 or float16 is needed")
    if not isinstance(getattr(found.config.get_text_config(), "max_position_embeddings", None), int):
        raise ValueError("the model's configuration states no max_position_embeddings, the length of its context")
    return found


@contextmanager
def borrowed(model: Any) -> Iterator[PreTrainedModel]:
    """The model inside `model`'s wrappers, which `CrossScorer` may change; ValueError as of `inner_model`."""
    own = inner_model(model)
    training = [(module, module.training) for module in own.modules()]
    attention = _attention(own)
    own_forward = own.__dict__.pop("forward", None) if "_original_forward" in own.__dict__ else None
    device = next(own.parameters()).device
    gpus = sorted({p.device.index for p in own.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(gpus), torch.autocast(device.type, enabled=False):
            yield own
    finally:
        if own_forward is not None:
            own.__dict__["forward"] = own_forward
        for config, name in attention:
            config._attn_implementation_internal = name
        for module, mode in training:
            module.training = mode


def _attention(model: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """Every configuration of the model's modules, with its attention implementation."""
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
    for config in list(configs.values()):
        parts = (getattr(config, key, None) for key in config.sub_configs)
        configs |= {id(part): part for part in parts if part is not None}
    return [(config, config._attn_implementation_internal) for config in configs.values()]
