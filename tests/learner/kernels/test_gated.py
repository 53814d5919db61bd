"""The gated block as one function is the model's own, and where it could not be it is left alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

from squelch.learner.kernels import gated
from squelch.learner.kernels.choice import KERNELS
from squelch.learner.kernels.gated import use_gated_blocks
from squelch.learner.kernels.linear import outer, use_fast_products
from squelch.learner.kernels.operators import has_onednn_linear
from squelch.learner.trainer import Trainer
from tests.learner.models import make_config

needs_onednn = pytest.mark.skipif(not has_onednn_linear(), reason="the block is the model's own on this processor")


def block(kind: type[nn.Module] = Qwen2MLP) -> nn.Module:
    torch.manual_seed(0)
    made = kind(Qwen2Config(hidden_size=32, intermediate_size=80))
    use_fast_products(made)
    return made


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output, and of a loss that is not linear in it the gradients by the inputs."""
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("tokens", [9, 32, 75])
def test_output_and_every_gradient_are_those_of_down_silu_gate_times_up(tokens, kernels, monkeypatch):
    monkeypatch.setattr(gated, "TILE", 32)
    torch.manual_seed(0)
    module, x = Qwen2MLP(Qwen2Config(hidden_size=32, intermediate_size=80)), torch.randn(1, tokens, 32).requires_grad_()
    KERNELS[kernels].replace_layers(module)
    assert (type(module) is not Qwen2MLP) == (kernels == "fast" and has_onednn_linear())
    gate, up, down = (layer.weight for layer in (module.gate_proj, module.up_proj, module.down_proj))
    inputs = [x, gate, up, down]
    wanted = (functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    for found, own in zip(gradients(module(x), inputs), gradients(wanted, inputs), strict=True):
        assert (found - own).norm().item() < 1e-5 * own.norm().item()


@needs_onednn
def test_two_numbers_a_token_and_inner_width_are_kept_between_the_passes():
    module, kept = block(), []
    use_gated_blocks(module)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        module(torch.randn(64, 32))
    weights = sum(p.numel() for p in module.parameters())
    assert sum(x.numel() for x in kept) - weights == 64 * (32 + 2 * 80)


class Scaled(Qwen2MLP):
    """The same parts, put together otherwise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(2 * self.gate_proj(x)) * self.up_proj(x))


def test_a_block_that_computes_something_else_is_left_alone():
    module = block(Scaled)
    use_gated_blocks(module)
    assert type(module) is Scaled


def test_without_onednn_every_block_is_left_alone(monkeypatch):
    monkeypatch.setattr(gated, "has_onednn_linear", lambda: False)
    module = block()
    use_gated_blocks(module)
    assert type(module) is Qwen2MLP


@needs_onednn
def test_a_block_with_an_adapter_is_the_models_own():
    module, x = block(), torch.randn(16, 32)
    use_gated_blocks(module)
    module.up_proj = nn.Sequential(module.up_proj, nn.Linear(80, 80))
    assert torch.equal(module(x), Qwen2MLP.forward(module, x))


@pytest.mark.parametrize(("outputs", "inputs"), [(48, 16), (16, 48), (16, 16)])
def test_a_weights_gradient_is_the_plain_product_whichever_side_is_longer(outputs, inputs):
    grad, x = torch.randn(1500, outputs), torch.randn(1500, inputs)
    assert torch.allclose(outer(grad, x), grad.t() @ x, rtol=1e-4, atol=1e-3)


@needs_onednn
@pytest.mark.usefixtures("alone")
def test_a_trainer_whose_model_is_loaded_shard_by_shard_has_gated_blocks(model_dir: Path) -> None:
    blocks: Any = Trainer(model_dir, make_config()).policy.model.base_model.layers
    assert all(type(layer.mlp) is not Qwen2MLP for layer in blocks)
