"""RMS norms on CPU, by kernels that vLLM's CPU build holds and does not use.

On CPU vLLM 0.32 leaves norms to torch's compiler. Without the compiler (`rollout.enforce_eager`, the default) a norm is
eight operators of torch, which take four to twelve times as long as the kernel: a fifth of the generation of a model
of 135 million parameters (docs/research/results.md). `register` makes the kernels known as implementations of vLLM's
own operators, and `PRIORITY` puts them first. They compute each row by itself, so a token's log-probability still does
not depend on its batch. On processors with AVX2 alone they cut bfloat16 off instead of rounding it, which makes every
sum too small; torch's own operators serve there.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

PROVIDER = "squelch_cpu"
PRIORITY = {name: [PROVIDER, "native"] for name in ("rms_norm", "fused_add_rms_norm")}
"""vLLM's `ir_op_priority`: torch's own operators wherever a kernel does not fit."""
LANES = 8
"""The kernels refuse rows whose length is not a multiple of their vectors'."""


def norm_fits(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """Whether `norm` takes these arguments: whole, contiguous rows, with weights of the rows' type, which the kernels
    round to the nearest."""
    weighted = weight is not None and weight.dtype == x.dtype
    whole = variance_size is None and x.is_contiguous() and x.shape[-1] % LANES == 0
    return weighted and whole and rounds(x.dtype)


def add_norm_fits(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    """Whether `add_norm` takes these arguments."""
    return norm_fits(x, weight, epsilon, variance_size) and x_residual.is_contiguous()


@cache
def rounds(dtype: torch.dtype) -> bool:
    """Whether the kernels of this processor round to the nearest number of this type: found out on a sum that lies
    closer to the next number than to the one below."""
    one, more = torch.ones(1, LANES, dtype=dtype), torch.full((1, LANES), 0.75 * torch.finfo(dtype).eps, dtype=dtype)
    _, kept = add_norm(one.clone(), more.clone(), one[0], 1e-5)
    return torch.equal(kept, one + more)


def norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """`vllm.ir.ops.rms_norm` by the kernel. (..., hidden) to the same shape and type."""
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, epsilon)
    return out


def add_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`vllm.ir.ops.fused_add_rms_norm` by the kernel, which overwrites both inputs with what it returns: the norm
    of their sum, and the sum."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def register() -> None:
    """Makes the kernels known in this process; vLLM's plugins may be called more than once."""
    if PROVIDER in ir.ops.rms_norm.impls:
        return
    current_platform.import_kernels()
    held = current_platform.is_cpu() and hasattr(torch.ops._C, "fused_add_rms_norm")
    plain, adding = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
    plain.register_impl(PROVIDER, supported=held, supports_args=norm_fits)(norm)
    adding.register_impl(PROVIDER, supported=held, supports_args=add_norm_fits, inplace=True)(add_norm)
