"""Matrix products: oneDNN computes those of float32 tensors on CPU, and PyTorch's default library all others.

PyTorch's default for float32 on CPU is MKL, which uses only AVX2 on processors that are not made by Intel: on an
AVX-512 AMD EPYC it reached 105 GFLOP/s per core, and oneDNN, which is part of the same PyTorch, reached 240. Both
compute in float32; `python -m benchmarks.learner` prints both rates.
"""

from typing import Any

import torch
from torch import Tensor, nn

from squelch.learner.kernels.operators import has_onednn_linear, onednn_linear

DEPTH = 1024
"""Number of tokens per product in the gradient of a weight; oneDNN is fastest at this size."""
MIN_ROWS = 8
"""With fewer rows than this, oneDNN's call overhead exceeds what it saves."""


def serves(*tensors: Tensor) -> bool:
    """Whether oneDNN computes products of these tensors: float32 on CPU, not empty, and oneDNN is available."""
    fits = all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in tensors)
    return fits and has_onednn_linear()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b of (num_rows, inputs) and (outputs, inputs), which may be transposed views. Not for autograd: with
    oneDNN no gradient is recorded."""
    if len(x) >= MIN_ROWS and serves(x, weight):
        return onednn_linear(_dense(x), _dense(weight), bias)
    return nn.functional.linear(x, weight, bias)


def _dense(x: Tensor) -> Tensor:
    """The matrix, contiguous in rows or in columns. oneDNN accepts other layouts but is a thousand times slower."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


def outer(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of a weight, grad^T x, of (num_rows, outputs) and (num_rows, inputs).

    oneDNN distributes the columns of a product's result over threads and vector lanes. The longer side is therefore
    used as columns; if that is the outputs, the result is a transposed view.
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
    """`nn.Linear` whose products are computed by `product` and `outer`."""

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
    """Turn every plain `nn.Linear` of the model into `Linear`, in place; names and parameters stay the same."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
