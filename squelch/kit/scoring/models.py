"""Which models the scorer takes, and how weights are loaded into one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel


def refuse_other_attention(config: PreTrainedConfig) -> None:
    """Raises ValueError for layers with a sliding window or a recurrent state: they do not keep the keys and values of
    the whole prompt, so these cannot be shared."""
    settings = config.get_text_config().to_dict()
    layers = set(settings.get("layer_types") or ()) - {"full_attention"}
    windowed = settings.get("sliding_window") is not None
    softcap = settings.get("final_logit_softcapping") is not None
    if layers or windowed or softcap:
        raise ValueError(
            f"model_type={config.model_type} cannot be cross-scored: it needs full attention in every layer and "
            f"plain logits, but has layer types {sorted(layers)}, sliding_window={settings.get('sliding_window')}, "
            f"final_logit_softcapping={settings.get('final_logit_softcapping')}; set scorer.enabled=false for it"
        )


def load_arrays(model: PreTrainedModel, arrays: Mapping[str, np.ndarray], bfloat16_names: frozenset[str]) -> None:
    """Copies named arrays into the model's parameters and buffers; bfloat16 arrays are passed as uint16.

    Raises RuntimeError, and copies nothing, if an array is missing, unknown or of another shape. An array that is tied
    to another parameter (the output head of a tied model) may be missing.
    """
    targets = model.state_dict()
    needed = dict(model.named_parameters())
    missing, unknown = sorted(needed.keys() - arrays.keys()), sorted(arrays.keys() - targets.keys())
    shapes = [name for name in arrays.keys() & targets.keys() if arrays[name].shape != tuple(targets[name].shape)]
    if missing or unknown or shapes:
        raise RuntimeError(
            f"weights do not fit the scorer's {model.config.model_type}: missing {missing[:3]} ({len(missing)}), "
            f"unknown {unknown[:3]} ({len(unknown)}), other shape {sorted(shapes)[:3]} ({len(shapes)})"
        )
    with torch.no_grad():
        for name, array in arrays.items():
            tensor = torch.from_numpy(np.array(array))
            targets[name].copy_(tensor.view(torch.bfloat16) if name in bfloat16_names else tensor)


def probe_ids(model: PreTrainedModel) -> np.ndarray:
    """(16,) int64: the ids on which the scorer is compared with the model's own forward."""
    return (np.arange(16, dtype=np.int64) * 7 + 3) % model.config.get_text_config().vocab_size


@torch.inference_mode()
def plain_log_probs(model: PreTrainedModel) -> torch.Tensor:
    """The model's own log-probabilities (15,) of the probe's tokens 1.., before its attention is replaced."""
    ids = torch.from_numpy(probe_ids(model)).to(next(model.parameters()).device)
    logits = model.eval()(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[1:].unsqueeze(1)).squeeze(1)
