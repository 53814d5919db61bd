"""Compiled layers: one graph each, with attention inside as on a GPU, whatever the lengths; and the same gradients.

FlexAttention's dense form stands for its kernel. The graphs are traced, also for their gradients, and run operator by
operator: generating code takes a minute of C++ compilation on a CPU, and is torch's to test."""

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.nn.attention import flex_attention as flex
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config

from squelch.actors.packed import attention
from squelch.learner.trainer import Trainer
from tests.learner.models import VOCABULARY, make_config, make_groups
from tests.learner.policy.test_model import relative

pytestmark = pytest.mark.usefixtures("alone")

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
QWEN = Qwen2Config(**SHAPE, tie_word_embeddings=True)
CASES = {
    "qwen2": (QWEN, {}),
    "llama, recomputed": (LlamaConfig(**SHAPE), {"activation_checkpointing": True}),
    "layers gathered one by one": (QWEN, {"min_num_params": 0}),
    "adapters": (QWEN, {"lora": {"rank": 4, "alpha": 8}}),
    "a window": (MistralConfig(**SHAPE, sliding_window=12), {}),
}
LENGTHS = [(2, 4, 2), (3, 4, 2), (4, 4, 2), (5, 3, 2), (4, 4, 3), (3, 4, 3), (6, 3, 2), (2, 5, 3), (4, 3, 4), (5, 4, 2)]
"""Groups, members and turns: ten micro-batches of several tiles each."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """The graphs that run, each of which must be its function's only one."""
    found: list[torch.fx.GraphModule] = []
    traced = lookup_backend("aot_eager")

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        own, run = copy(graph), traced(graph, inputs)  # torch empties a graph that it will not keep
        return lambda *values: found.append(own) or run(*values)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend, fullgraph=True))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_by_flex", lambda device: True)
    monkeypatch.setattr(attention, "_flex", lambda: flex.flex_attention)
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)


def folder_of(config: PreTrainedConfig, folder: Path) -> Path:
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_layers_and_lengths_share_one_graph_that_holds_attention(
    name: str, tmp_path: Path, graphs: list[torch.fx.GraphModule], request: pytest.FixtureRequest
) -> None:
    shape, settings = CASES[name]
    folder, others = folder_of(shape, tmp_path), {"minibatches": 1, "token_budget": 4000} | settings
    work = [make_groups(groups, size, turns=turns) for groups, size, turns in LENGTHS]
    plain = Trainer(folder, make_config(**others))
    wanted = [plain.gradients(groups) for groups in work]
    trainer = Trainer(folder, make_config(compile=True, **others))
    request.getfixturevalue("as_on_a_gpu")
    for groups, own in zip(work, wanted, strict=True):
        assert relative(trainer.gradients(groups), own) < 1e-5
    layers = shape.num_hidden_layers * (2 if trainer.config.activation_checkpointing else 1)
    assert len(graphs) == layers * len(LENGTHS)
    assert len(set(map(id, graphs))) == 1
    assert torch.ops.higher_order.flex_attention in {node.target for node in graphs[0].graph.nodes}
