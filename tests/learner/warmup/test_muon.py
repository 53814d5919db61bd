"""Muon: PyTorch's, but in the type of its parameters."""

import pytest
import torch

from squelch.learner.warmup.muon import Muon, orthogonalized


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_singular_values_come_close_to_one_and_directions_stay(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    matrix = left @ torch.diag(values.clamp(min=values.max() / 10)) @ right
    turned = left.T @ orthogonalized(matrix, steps=5) @ right.T
    assert turned.diagonal().min() > 0.6
    assert turned.diagonal().max() < 1.3
    assert (turned - torch.diag(turned.diagonal())).abs().max() < 1e-4


def test_a_gradient_of_zeros_moves_nothing() -> None:
    matrix = torch.nn.Parameter(torch.ones(3, 4))
    matrix.grad = torch.zeros(3, 4)
    Muon([matrix], lr=0.1, weight_decay=0.0, steps=5).step()
    assert torch.equal(matrix, torch.ones(3, 4))


def test_steps_are_those_of_pytorchs_muon_up_to_its_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (
        [torch.nn.Parameter(torch.full(shape, 0.1)) for shape in ((16, 48), (48, 16), (16, 16))] for _ in range(2)
    )
    own = Muon(ours, lr=0.02, weight_decay=0.1, steps=4)
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, ns_steps=4, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        own.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        moved = (other - 0.1).norm()
        assert (one - other).norm() < 0.03 * moved
    assert all(one.dtype == torch.float32 and own.state[one]["mean"].dtype == torch.float32 for one in ours)
