"""The private operators of torch that the learner's CPU kernels call, each next to its plain form.

In a torch without the operator, the plain form is used, with one warning that names the operator and the slower
computation (`kit.process.private_operators`). No other module of the learner calls a private operator of torch.
"""

from functools import cache

import torch
from torch import Tensor

from squelch.kit.process.private_operators import private_operator


@cache
def has_onednn_linear() -> bool:
    """Whether this torch has oneDNN's linear operator, and the processor has AVX-512, with which it is faster than
    MKL."""
    fits = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    without = "MKL computes float32 matrix products on CPU, on some processors at half the speed"
    return fits and private_operator("ops.mkldnn._linear_pointwise", without) is not None


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b of (num_rows, inputs) and (outputs, inputs) by oneDNN. If `has_onednn_linear` is False, callers must
    use `torch.nn.functional.linear` instead."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient with respect to x, g s (1 + x (1 - s)), where s = sigmoid(x) and g = `grad` is the gradient with
    respect to silu(x) = x s."""
    operator = private_operator("ops.aten.silu_backward", "the gated block's backward pass reads its tiles five times")
    if operator is None:
        gate = x.sigmoid()
        return grad * gate * (1 + x * (1 - gate))
    return operator(grad, x)
