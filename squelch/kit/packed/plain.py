"""The plain definition of attention over packed rows, in PyTorch's public operators.

The fast kernels compute the same results. This form is slower, because attention is computed separately for every row,
so that tokens that rows share are computed once per row. The same tests cover both forms.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from squelch.kit.packed.layout import Layout


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
