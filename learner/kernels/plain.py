"""Plain definitions of attention over packed rows and of the output head, in PyTorch's public operators.

The fast kernels compute the same results. `learner.kernels: plain` runs these definitions, with the model's own linear
layers and gated blocks. They are slower and need more memory: attention is computed separately for every row, so that
shared tokens are computed once per row, and the head computes all logits at once. The same tests cover both forms.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from squelch.learner.kernels.layout import Layout


def row_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, layout: Layout, window: int) -> Tensor:
    """Causal attention within every row, over the last `window` tokens if `window` is not 0.

    Query (1, num_heads, num_tokens, head_size), key and value with their own heads; returns (1, num_tokens, num_heads,
    value_size). A token that several rows share has the same result in each; the first row's result is used.
    """
    found = []
    for row in layout.rows:
        place = torch.from_numpy(row).to(query.device)
        found.append(_causal(query[:, :, place], key[:, :, place], value[:, :, place], scale, window))
    first = torch.from_numpy(np.unique(np.concatenate(layout.rows), return_index=True)[1]).to(query.device)
    return torch.cat(found, dim=2)[:, :, first].transpose(1, 2)


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int) -> Tensor:
    where = torch.arange(query.shape[2], device=query.device)
    back = where[:, None] - where
    seen = (back >= 0) & (back < window) if window else back >= 0
    return scaled_dot_product_attention(query, key, value, seen, scale=scale, enable_gqa=True)


def log_probabilities(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The same as `learner.kernels.head.log_probabilities`, computed from all logits at once."""
    logits = linear(hidden.to(weight.dtype), weight, bias).float() / temperature
    log_p = logits.log_softmax(-1)
    entropies = -(log_p.exp() * log_p).sum(-1)
    chosen = log_p.gather(-1, targets[:, None]).squeeze(-1)
    return chosen, entropies if entropy_gradient else entropies.detach()
