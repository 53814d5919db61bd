"""The private operator of torch that attention's backward pass calls on CPU, and its plain form.

In a torch without the operator, the plain form is used, with one warning that names the operator and the slower
computation (`kit.process.private_operators`).
"""

import torch
from torch import Tensor

from squelch.kit.process.private_operators import private_operator


def softmax_backward_(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient with respect to the scores, w (g - sum w g), where w = `weights` = softmax(scores) over the last
    dimension and g = `grad` is the gradient with respect to w. `grad` is overwritten with the result."""
    operator = private_operator("_softmax_backward_data", "attention's backward pass reads its scores three times")
    if operator is None:
        return grad.sub_((grad * weights).sum(-1, keepdim=True)).mul_(weights)
    return operator(grad, weights, -1, torch.float32, grad_input=grad)
