"""The gated feed-forward block, down(silu(gate(x)) * up(x)), as one function in float32 on CPU.

It replaces the model's own four modules and computes the same result. Gate and up are a single matrix product in each
pass. Only their results are kept for the backward pass, two numbers per token and inner dimension instead of five. The
elementwise operations between the products run on `TILE` tokens at a time, while the data are in the cache.
"""

from collections.abc import Callable, Iterator
from copy import copy
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init
from transformers.activations import SiLUActivation

from squelch.learner.kernels.linear import Linear, outer, product, serves
from squelch.learner.kernels.operators import has_onednn_linear, silu_backward

TILE = 2048
WIDTH = 32
"""Width of the block on which a class of blocks is checked."""
NAMES = ("gate_proj", "up_proj", "down_proj")


def use_gated_blocks(model: nn.Module) -> None:
    """Replace the forward function of every gated block of the model, in place; names and parameters stay the same.
    The class is replaced, not each block's function, so that all compiled layers share their code.

    Call it after `learner.kernels.linear.use_fast_products`. A module counts as a gated block if it has the submodules
    of Llama's and Qwen's blocks, and if, for one module of its class, this function gives the module's own result on a
    few tokens. Without oneDNN's products nothing is replaced.
    """
    if not has_onednn_linear():
        return
    blocks = [module for module in model.modules() if _has_the_parts(module)]
    same = {kind: _gives_the_same(block) for kind, block in {type(block): block for block in blocks}.items()}
    for block in blocks:
        if same[type(block)]:
            block.__class__ = _replaced(type(block))


def _has_the_parts(module: nn.Module) -> bool:
    children = dict(module.named_children())
    act = children.pop("act_fn", None)
    return children.keys() == set(NAMES) and isinstance(act, nn.SiLU | SiLUActivation)


@torch.no_grad()
def _gives_the_same(block: nn.Module) -> bool:
    """Checked on a narrow copy, because the block itself may be on the meta device."""
    small = copy(block)
    small._modules = dict(block._modules)
    for name, (inputs, outputs) in zip(
        NAMES, ((WIDTH, 2 * WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)), strict=True
    ):
        own: Any = getattr(block, name)
        layer = skip_init(type(own), inputs, outputs, bias=own.bias is not None)
        for k, parameter in enumerate(layer.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).add(len(name) + k).sin().view_as(parameter) / WIDTH**0.5)
        setattr(small, name, layer)
    x = torch.linspace(-1, 1, 16 * WIDTH).sin().unflatten(0, (16, -1))
    return torch.allclose(_forward(small, small.forward, x), small(x), rtol=1e-4, atol=1e-5)


@cache
def _replaced(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of blocks with the function of this module."""

    def forward(block: Any, x: Tensor) -> Tensor:
        return _forward(block, partial(kind.forward, block), x)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _forward(block: nn.Module, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    layers = [getattr(block, name) for name in NAMES]
    plain = all(type(layer) is Linear and layer.bias is None for layer in layers)  # layers with adapters are not
    if torch.compiler.is_compiling() or not plain or not serves(x, layers[0].weight):
        return own(x)
    return _Gated.apply(x.flatten(0, -2), *(layer.weight for layer in layers)).unflatten(0, x.shape[:-1])


class _Gated(torch.autograd.Function):
    """x (num_tokens, width), gate and up (inner, width), down (width, inner) -> (num_tokens, width)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        both, inner = torch.cat([gate, up]), len(gate)
        out, kept = torch.empty_like(x), []
        for span in _tiles(len(x)):
            kept.append(product(x[span], both))
            of_gate, of_up = kept[-1].split(inner, 1)
            out[span] = product(functional.silu(of_gate).mul_(of_up), down)
        ctx.save_for_backward(x, gate, up, down, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, gate, up, down, *kept = ctx.saved_tensors
        both = torch.cat([gate, up])
        d_x, d_both, d_down = torch.empty_like(x), torch.zeros_like(both), torch.zeros_like(down)
        for span, results in zip(_tiles(len(x)), kept, strict=True):
            d_results, gated = _through(results, product(grad[span], down.t()))
            d_down += outer(grad[span], gated)
            d_both += outer(d_results, x[span])
            d_x[span] = product(d_results, both.t())
        return d_x, *d_both.split(len(gate)), d_down


def _through(results: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient with respect to (gate, up), and silu(gate) * up. `grad`, the gradient with respect to
    silu(gate) * up, is overwritten."""
    of_gate, of_up = results.split(grad.shape[1], 1)
    found = torch.empty_like(results)
    d_gate, d_up = found.split(grad.shape[1], 1)
    gated = functional.silu(of_gate)
    torch.mul(grad, gated, out=d_up)
    d_gate.copy_(silu_backward(grad.mul_(of_up), of_gate))
    return found, gated.mul_(of_up)


def _tiles(size: int) -> Iterator[slice]:
    return (slice(start, start + TILE) for start in range(0, size, TILE))
