"""Matrix products of float32 tensors on CPU by oneDNN, everything else by PyTorch's own choice.

PyTorch's own choice for float32 on CPU is MKL, which on processors of other makers keeps to AVX2: on an AVX-512 AMD
EPYC it reached 105 GFLOP/s a core where oneDNN, which comes with the same PyTorch, reached 240. Both compute in
float32; `python -m benchmarks.learner` prints both rates.
"""

from typing import Any

import torch
from torch import Tensor, nn

from learner.kernels.operators import has_onednn_linear, onednn_linear

DEPTH = 1024
"""Tokens of which a weight's gradient is summed up at a time: what oneDNN is fastest at."""
MIN_ROWS = 8
"""Fewer rows than this do not pay for the detour."""


def serves(*tensors: Tensor) -> bool:
    """Whether oneDNN takes these."""
    fits = all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in tensors)
    return fits and has_onednn_linear()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b of (num_rows, inputs) and (outputs, inputs), transposed views included. Records no gradient."""
    if len(x) >= MIN_ROWS and serves(x, weight):
        return onednn_linear(_dense(x), _dense(weight), bias)
    return nn.functional.linear(x, weight, bias)


def _dense(x: Tensor) -> Tensor:
    """A matrix without gaps, plain or transposed: oneDNN takes any other, and is a thousand times slower on it."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


def outer(grad: Tensor, x: Tensor) -> Tensor:
    """grad^T x of (num_rows, outputs) and (num_rows, inputs): a weight's gradient.

    oneDNN shares out the columns of a product's result among threads and lanes: the longer side goes there, and the
    result is a transposed view where that was the outputs.
    """
    if not serves(grad, x):
        return grad.t() @ x
    if grad.shape[1] > x.shape[1]:
        return outer(x, grad).t()
    total = product(grad[:DEPTH].t(), x[:DEPTH].t())
    for start in range(DEPTH, len(x), DEPTH):
        span = slice(start, start + DEPTH)
        total += product(grad[span].t(), x[span].t())
    return total


class Linear(nn.Linear):
    """`nn.Linear` by `product`."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not serves(input, self.weight):
            return super().forward(input)
        return _Linear.apply(input.flatten(0, -2), self.weight, self.bias).unflatten(0, input.shape[:-1])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            product(grad, weight.t()) if wanted[0] else None,
            outer(grad, x) if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
        )


def use_fast_products(model: nn.Module) -> None:
    """Make every plain linear layer of the model one of these, in place; names and parameters stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
