"""Private operators of torch: each computes what its plain form does, and a torch without it goes on and says so."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from squelch.kit.packed import attention
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.operators import softmax_backward_
from squelch.kit.packed.packing import pack
from squelch.kit.process.private_operators import private_operator
from squelch.learner.kernels.linear import product, serves
from squelch.learner.kernels.operators import has_onednn_linear, silu_backward
from squelch.learner.policy.model import Policy
from squelch.learner.tensors import inputs_of
from tests.learner.models import load_model, make_groups

Take = Callable[[str], None]


class Without:
    """A namespace that lacks one name."""

    def __init__(self, whole: object, name: str) -> None:
        self._whole, self._name = whole, name

    def __getattr__(self, name: str) -> object:
        if name == self._name:
            raise AttributeError(f"no {name} here")
        return getattr(self._whole, name)


def forget() -> None:
    private_operator.cache_clear()
    has_onednn_linear.cache_clear()
    attention._flex.cache_clear()


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """Takes an operator away from torch, by its dotted path, for the test's time."""

    def away(path: str) -> None:
        *parents, name = path.split(".")
        if parents:
            _, namespace = parents
            monkeypatch.setattr(torch.ops, namespace, Without(getattr(torch.ops, namespace), name))
        else:
            monkeypatch.delattr(torch, name)
        forget()

    forget()
    yield away
    monkeypatch.undo()
    forget()


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("there", [True, False])
def test_the_gradient_of_a_softmax_is_autograds(there: bool, take: Take, caplog: pytest.LogCaptureFixture) -> None:
    scores, grad = torch.randn(3, 5, 7, requires_grad=True), torch.randn(3, 5, 7)
    weights = scores.softmax(-1)
    (wanted,) = torch.autograd.grad(weights, scores, grad)
    if not there:
        take("_softmax_backward_data")
    found = [softmax_backward_(grad.clone(), weights.detach()) for _ in range(2)]
    assert torch.allclose(found[0], wanted, atol=1e-6) and found[0].equal(found[1])
    assert len(warnings(caplog)) == (not there), "the lack is said once"
    assert there or "has no torch._softmax_backward_data: attention's backward pass" in warnings(caplog)[0]


@pytest.mark.parametrize("there", [True, False])
def test_the_gradient_of_silu_is_autograds(there: bool, take: Take, caplog: pytest.LogCaptureFixture) -> None:
    x, grad = torch.randn(9, 4, requires_grad=True), torch.randn(9, 4)
    (wanted,) = torch.autograd.grad(functional.silu(x), x, grad)
    if not there:
        take("ops.aten.silu_backward")
    assert torch.allclose(silu_backward(grad, x.detach()), wanted, atol=1e-6)
    assert [("torch.ops.aten.silu_backward" in text) for text in warnings(caplog)] == [True] * (not there)


def test_without_onednns_linear_products_are_pytorchs_own(take: Take, caplog: pytest.LogCaptureFixture) -> None:
    x, weight, bias = torch.randn(20, 6), torch.randn(5, 6), torch.randn(5)
    had_it = has_onednn_linear()
    take("ops.mkldnn._linear_pointwise")
    assert not serves(x, weight) and product(x, weight, bias).equal(functional.linear(x, weight, bias))
    assert [("torch.ops.mkldnn._linear_pointwise" in text) for text in warnings(caplog)] == [True] * had_it


def test_without_flex_attention_cuda_attends_row_by_row(
    take: Take, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.nn.attention.flex_attention", None)
    layout = Layout.of(pack([np.array([*range(40), 50 + i]) for i in range(4)]), torch.device("cpu"))
    q, k, v = (torch.randn(1, n, len(layout.ends), 16) for n in (4, 2, 2))
    found, wanted = (way(q, k, v, 0.3, layout, 0) for way in (attention._on_cuda, attention._on_cpu))
    assert torch.allclose(found, wanted, atol=1e-5)
    assert "flex_attention: attention on CUDA is computed row by row" in warnings(caplog)[0]


def test_a_policy_without_any_of_them_has_the_same_gradients(model_dir: Path, take: Take) -> None:
    from squelch.learner.batching import collate, to_rows
    from squelch.learner.config import ObjectiveConfig

    inputs = inputs_of(collate(to_rows(make_groups(2, turns=3), ObjectiveConfig())), torch.device("cpu"))

    def gradient() -> torch.Tensor:
        policy = Policy(load_model(model_dir))
        log_probs, entropies = policy(*inputs, 1.0, True)
        (log_probs.sum() + entropies.square().sum()).backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters()])

    wanted = gradient()
    for path in ("_softmax_backward_data", "ops.aten.silu_backward", "ops.mkldnn._linear_pointwise"):
        take(path)
    assert float((gradient() - wanted).norm() / wanted.norm()) < 1e-5
