"""Compiled layers: one graph each, with attention inside as on a GPU, whatever the lengths; and the same gradients.

FlexAttention's dense form stands for its kernel. The graphs are traced, also for their gradients, and run operator by
operator: generating code takes a minute of C++ compilation on a CPU, and is torch's to test."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.nn.attention import flex_attention as flex
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config

from squelch.kit.packed import attention
from squelch.learner.batching import collate, to_rows
from squelch.learner.policy.model import local
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer
from tests.learner.models import VOCABULARY, make_config, make_groups, make_model
from tests.learner.policy.test_model import relative

pytestmark = pytest.mark.usefixtures("alone")

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
CASES = {
    "recomputed, gathered one by one": (
        Qwen2Config(**SHAPE),
        {"activation_checkpointing": True, "min_num_params": 0},
    ),
    "a window, adapters": (MistralConfig(**SHAPE, sliding_window=12), {"lora": {"rank": 4, "alpha": 8}}),
}
LENGTHS = [(2, 4, 2), (3, 3, 4)]
"""Groups, members and turns: micro-batches of several tiles each. A second form would show at the second."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """The compiled graphs, each time one runs."""
    found: list[torch.fx.GraphModule] = []
    traced = lookup_backend("aot_eager")

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        run = traced(graph, inputs)
        return lambda *values: found.append(graph) or run(*values)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_by_flex", lambda device: True)
    monkeypatch.setattr(attention, "_flex", lambda: flex.flex_attention)
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)


def gradients(trainer: Trainer, groups: list[tuple[str, list]]) -> dict[str, torch.Tensor]:
    """Of all log-probabilities and entropies."""
    trainer.policy.zero_grad()
    inputs = inputs_of(collate(to_rows(groups, trainer.config.objective)), torch.device("cpu"))
    log_probs, entropies = trainer.policy(*inputs, 1.0, True)
    (log_probs.sum() + entropies.sum()).backward()
    return {name: local(p.grad).clone() for name, p in trainer.policy.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_layers_and_lengths_share_one_graph_that_holds_attention(
    name: str,
    tmp_path: Path,
    graphs: list[torch.fx.GraphModule],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    shape, settings = CASES[name]
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path)
    work = [make_groups(groups, size, turns=turns) for groups, size, turns in LENGTHS]
    torch.manual_seed(1)  # of adapters
    plain = Trainer(tmp_path, make_config(**settings))
    wanted = [gradients(plain, groups) for groups in work]
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True))  # a broken graph is an error
    torch.manual_seed(1)
    trainer = Trainer(tmp_path, make_config(compile=True, **settings))
    request.getfixturevalue("as_on_a_gpu")
    for groups, own in zip(work, wanted, strict=True):
        assert relative(gradients(trainer, groups), own) < 1e-5
    layers = shape.num_hidden_layers * (2 if trainer.config.activation_checkpointing else 1)
    assert len(graphs) == layers * len(LENGTHS)
    assert len(set(map(id, graphs))) == (2 if trainer.config.lora else 1)  # nothing before the first adapter is trained
    assert torch.ops.higher_order.flex_attention in {node.target for node in graphs[0].graph.nodes}


@pytest.mark.slow
def test_on_a_cpu_every_layer_is_compiled_by_the_same_code(tmp_path: Path, graphs: list[torch.fx.GraphModule]) -> None:
    """Torch compiles a function in eight forms at most, and layers beyond them not at all."""
    folder, layers = make_model(tmp_path, layers=9), 9
    plain, compiled = (Trainer(folder, make_config(compile=on)) for on in (False, True))
    for size in (2, 3):
        graphs.clear()
        groups = make_groups(size)
        assert relative(gradients(compiled, groups), gradients(plain, groups)) < 1e-5
        assert len(graphs) % layers == 0 and len(set(map(id, graphs))) == len(graphs) / layers
