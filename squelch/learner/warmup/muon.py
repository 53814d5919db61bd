"""Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/), in the type of its parameters.

PyTorch's own computes its products in bfloat16 whatever the parameters are. Processors without instructions for
bfloat16, such as many laptops', emulate it: with AVX2 alone products of 512 x 512 took 5 to 36 times as long as in
float32, and most of a tiny policy's warm-up went there (docs/research/results.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the odd polynomial a x + b x^3 + c x^5 that brings singular values in (0, 1] close to 1; PyTorch's
values."""
SMALLEST_NORM = 1e-7


def orthogonalized(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """`matrix` [rows, columns] with its singular values brought to between about 0.7 and 1.2 by `steps` Newton-Schulz
    iterations; those far below the largest need more steps, and a matrix of zeros stays one."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalized(matrix.T, steps).T
    a, b, c = COEFFICIENTS
    found = matrix / matrix.norm().clamp(min=SMALLEST_NORM)
    for _ in range(steps):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose every step is orthogonalized, with decoupled weight decay; for matrices only.

    The root mean square of a step is that of AdamW's (`adjust_lr_fn="match_rms_adamw"` of `torch.optim.Muon`).
    """

    def __init__(
        self, matrices: Iterable[torch.Tensor], *, lr: float, weight_decay: float, steps: int, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "steps": steps})

    @torch.no_grad()
    def step(self) -> None:
        """One step along every matrix's gradient, which must be set."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for matrix in group["params"]:
                state = self.state[matrix]
                if not state:
                    state["mean"] = torch.zeros_like(matrix)
                mean = state["mean"].lerp_(matrix.grad, 1 - momentum)
                update = orthogonalized(matrix.grad.lerp(mean, momentum), group["steps"])
                matrix.mul_(1 - rate * group["weight_decay"])
                matrix.add_(update, alpha=-rate * 0.2 * math.sqrt(max(matrix.shape)))
