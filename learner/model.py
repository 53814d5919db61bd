"""The policy: a local Hugging Face decoder-only causal LM under FSDP2.

Invariants:

- Weights come from safetensors in a local folder; nothing is downloaded and no code of the model folder is run.
- Masters are float32; forward and backward run in `learner.dtype`; log-probabilities and entropies are float32.
- Rows are padded on the right, and a causal model's outputs before the padding do not depend on it: no mask is built.
- Gradients are summed over ranks, not averaged: the loss's weights already hold the whole step's normaliser.
- The head runs at sampled positions only. That it is all the model does after its hidden states (no soft cap, no logit
  scale) is checked when the model is loaded; a model for which it is not is refused.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from learner.objectives import entropy

LOGIT_CHUNK = 1 << 25
"""Logits (tokens times vocabulary) above which the head runs in chunks that are recomputed in the backward pass."""


class Policy(nn.Module):
    """log pi(token | context) and exact entropy at chosen positions of a batch of rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        prefix_ids: Tensor,
        prefix_of: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies (nats, float32), each (num_sampled,), of softmax(logits / temperature).

        Row i is `prefix_ids[prefix_of[i]]` followed by `input_ids[i]`: `prefix_ids` (num_prefixes, prefix_length), the
        length possibly 0; `prefix_of` (num_rows,); `input_ids` (num_rows, width), padded on the right. `positions`:
        (num_sampled,) into the flattened inputs, of the token whose successor is predicted; `targets`: (num_sampled,)
        those successors. Without `entropy_gradient` the entropies are detached.
        """
        hidden = self._hidden(input_ids, prefix_ids, prefix_of)
        chosen = hidden.flatten(0, 1)[positions]
        head = self.model.get_output_embeddings()
        size = max(1, LOGIT_CHUNK // head.weight.shape[0])
        if len(chosen) <= size:
            return predict(head, chosen, targets, temperature, entropy_gradient)
        parts = [
            checkpoint(predict, head, part, goal, temperature, entropy_gradient, use_reentrant=False)
            for part, goal in zip(chosen.split(size), targets.split(size), strict=True)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _hidden(self, input_ids: Tensor, prefix_ids: Tensor, prefix_of: Tensor) -> Tensor:
        """Hidden states of the inputs, (num_rows, width, hidden_size)."""
        base = self.model.base_model
        if prefix_ids.shape[1] == 0:
            return base(input_ids=input_ids, use_cache=False).last_hidden_state
        cache = DynamicCache(config=self.model.config)
        opening = base(input_ids=prefix_ids, past_key_values=cache, use_cache=True).last_hidden_state
        cache.batch_select_indices(prefix_of)
        hidden = base(input_ids=input_ids, past_key_values=cache, use_cache=True).last_hidden_state
        # Of the prefix only keys and values are used, but FSDP gathers a layer for the backward pass when the gradient
        # of its output arrives: give each one.
        return hidden + 0 * opening.sum()


def can_share_openings(model: PreTrainedModel) -> bool:
    """Whether keys and values of a prefix stand in for it: all layers attend to everything before them."""
    kinds = vars(model.config).get("layer_types")
    return bool(kinds) and set(kinds) == {"full_attention"}


def predict(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The head at (num_tokens, width) hidden states: log-probability of each target and entropy, (num_tokens,)."""
    logits = head(hidden).float() / temperature
    log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1)
    return log_probs, entropy(logits if entropy_gradient else logits.detach())


def read_config(model_dir: Path) -> dict[str, Any]:
    """The folder's `config.json`. Raises ValueError, naming the folder, when it is no model that can be trained."""
    path = model_dir / "config.json"
    if not path.is_file():
        raise ValueError(f"model folder {model_dir}: no config.json; a local Hugging Face model folder is needed")
    config = json.loads(path.read_text())
    names = config.get("architectures") or ["(none named)"]
    if "auto_map" in config:
        raise ValueError(f"model folder {model_dir}: {names[0]} needs code of its own (auto_map); none is ever run")
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if names[0] not in causal or config.get("is_encoder_decoder") or not config.get("is_decoder", True):
        raise ValueError(
            f"model folder {model_dir}: {names[0]} is not a decoder-only causal language model; one like "
            "Qwen2ForCausalLM or LlamaForCausalLM is needed"
        )
    if not list(model_dir.glob("*.safetensors")):
        raise ValueError(f"model folder {model_dir}: no *.safetensors file; other weight formats are refused")
    return config


def load_model(model_dir: Path) -> PreTrainedModel:
    """The model in float32 on CPU, in evaluation mode (no dropout: the sampler had none)."""
    name = read_config(model_dir)["architectures"][0]
    config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    if vars(config).get("is_decoder") is False:
        raise ValueError(f"model folder {model_dir}: {name} attends to both sides; a decoder-only model is needed")
    model = AutoModelForCausalLM.from_pretrained(
        model_dir,
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        attn_implementation="sdpa",
    ).eval()
    _check_head(model, name)
    return model


@torch.no_grad()
def _check_head(model: PreTrainedModel, name: str) -> None:
    """Refuse a model whose logits are more than its head applied to its hidden states."""
    ids = torch.arange(min(4, model.config.vocab_size))[None]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    own = model(input_ids=ids, use_cache=False).logits
    difference = float((model.get_output_embeddings()(hidden) - own).abs().max())
    if not difference <= 1e-4 * max(1.0, float(own.abs().max())):
        raise ValueError(
            f"{name} changes its logits after the output head (by up to {difference:.3g} here, e.g. a soft cap); "
            "such models are not supported"
        )


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated blocks that FSDP shards one by one, as the model's own class names them."""
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(f"{type(model).__name__} names no decoder layers to shard; it is not supported")
    return layers


def shard(policy: Policy, mesh: DeviceMesh, dtype: str) -> Policy:
    """Apply FSDP2 in place: each decoder layer, then the rest (embedding, norm, head) as the root."""
    compute = torch.bfloat16 if dtype == "bfloat16" else None
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in decoder_layers(policy.model):
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=mesh.size() > 1)
    fully_shard(policy, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return policy


def reshard(policy: Policy) -> None:
    """Free gathered parameters; without a backward pass (which does it) those of the root would stay gathered."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
