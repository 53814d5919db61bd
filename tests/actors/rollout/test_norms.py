from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.config import RolloutConfig
from squelch.actors.rollout.engine_args import engine_arguments

pytestmark = pytest.mark.ray
TYPES = {torch.float32: 1e-6, torch.bfloat16: 2**-7}
"""Largest relative difference from torch's operators: rounding."""


@pytest.fixture(scope="module", autouse=True)
def chosen() -> Iterator[None]:
    from vllm import ir

    from squelch.actors.rollout import norms

    norms.register()
    norms.register()
    with ExitStack() as stack:
        for name, priority in norms.PRIORITY.items():
            stack.enter_context(getattr(ir.ops, name).set_priority(priority))
        yield


def rows(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=2),
    st.sampled_from((7, 8, 20, 64, 96, 100, 128, 576)),
    st.sampled_from(list(TYPES)),
    st.integers(0, 9),
)
def test_norms_are_those_of_torch_and_each_row_is_computed_by_itself(
    outer: list[int], hidden: int, dtype: torch.dtype, seed: int
) -> None:
    from vllm import ir

    x, residual = (rows(seed + k, (*outer, hidden), dtype) for k in range(2))
    weight, near = rows(seed + 2, (hidden,), dtype), {"rtol": TYPES[dtype], "atol": TYPES[dtype]}
    wanted = ir.ops.rms_norm.impls["native"].impl_fn(x, weight, 1e-5)
    found = ir.ops.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(found, wanted, **near)
    assert torch.equal(ir.ops.rms_norm(x[-1:], weight, 1e-5), found[-1:])

    wanted_norm, wanted_sum = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, 1e-5)
    kept = x.clone(), residual.clone()
    found_norm, found_sum = ir.ops.fused_add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(found_sum, wanted_sum)
    torch.testing.assert_close(found_norm, wanted_norm, rtol=2 * TYPES[dtype], atol=2 * TYPES[dtype])
    assert torch.equal(x, kept[0]) and torch.equal(residual, kept[1]), "only the variant in place may overwrite"
    alone, _ = ir.ops.fused_add_rms_norm(x[-1:], residual[-1:], weight, 1e-5)
    assert torch.equal(alone, found_norm[-1:])


def test_norms_that_the_kernels_do_not_compute_are_left_to_torch() -> None:
    from vllm import ir

    from squelch.actors.rollout.norms import PROVIDER

    x, weight = rows(0, (4, 16), torch.float32), rows(1, (16,), torch.float32)

    def provider(*arguments: object) -> str:
        return ir.ops.rms_norm.dispatch(*arguments).provider

    assert provider(x, weight, 1e-5) == PROVIDER
    others = {
        "rows of another length": (x[:, :12].contiguous(), weight[:12], 1e-5),
        "parts of rows": (x[:, :8], weight[:8], 1e-5),
        "weights of another type": (x, weight.bfloat16(), 1e-5),
        "no weights": (x, None, 1e-5),
        "the variance of a part": (x, weight, 1e-5, 8),
    }
    for name, other in others.items():
        assert provider(*other) == "native", name
        ir.ops.rms_norm(*other)


def test_kernels_that_cut_off_instead_of_rounding_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from squelch.actors.rollout import norms

    def rounding(x: torch.Tensor, residual: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x + residual

    def cutting(x: torch.Tensor, residual: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        bits = (x.float() + residual.float()).view(torch.int32) & -(1 << 16)
        return x, bits.view(torch.float32).to(x.dtype)

    x = rows(0, (4, 16), torch.bfloat16)
    monkeypatch.setattr(norms, "rounds", norms.rounds.__wrapped__)
    for kernel, fits in ((rounding, True), (cutting, False)):
        monkeypatch.setattr(norms, "add_norm", kernel)
        assert norms.norm_fits(x, x[0], 1e-5) == fits


def test_only_engines_on_cpu_that_compile_nothing_ask_for_the_kernels() -> None:
    from squelch.actors.rollout.norms import PRIORITY

    assert engine_arguments("model", RolloutConfig())["ir_op_priority"] == PRIORITY
    for other in (RolloutConfig(enforce_eager=False), RolloutConfig(num_gpus=1)):
        assert "ir_op_priority" not in engine_arguments("model", other)
