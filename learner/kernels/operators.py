"""The private operators of torch that the learner's CPU kernels call, each beside its plain form.

A torch without an operator gets the plain form, with one warning that names the operator and what is slower
(`actors.process.private_operators`). No other module of the learner calls a private operator of torch.
"""

from functools import cache

import torch
from torch import Tensor

from actors.process.private_operators import private_operator


@cache
def has_onednn_linear() -> bool:
    """Whether oneDNN's linear is in this torch, and faster than MKL's on this processor, which takes AVX-512."""
    fits = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    without = "MKL computes float32 matrix products on CPU, on some processors at half the speed"
    return fits and private_operator("ops.mkldnn._linear_pointwise", without) is not None


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b of (num_rows, inputs) and (outputs, inputs) by oneDNN; where `has_onednn_linear` is False, its callers
    take `torch.nn.functional.linear`."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def softmax_backward_(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient by the scores, in place of `grad`, the gradient by `weights` = softmax(scores) over the last
    dimension: w (g - sum w g)."""
    operator = private_operator("_softmax_backward_data", "attention's backward pass reads its scores three times")
    if operator is None:
        return grad.sub_((grad * weights).sum(-1, keepdim=True)).mul_(weights)
    return operator(grad, weights, -1, torch.float32, grad_input=grad)


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient by x from `grad`, the gradient by silu(x) = x sigmoid(x): g s (1 + x (1 - s)), s = sigmoid(x)."""
    operator = private_operator("ops.aten.silu_backward", "the gated block's backward pass reads its tiles five times")
    if operator is None:
        gate = x.sigmoid()
        return grad * gate * (1 + x * (1 - gate))
    return operator(grad, x)
