"""The learner on a GPU gives what it gives on a CPU. Imports little, so that it runs where little is installed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from benchmarks.gpu.common import QWEN, SMOLLM, alone, shape_of
from benchmarks.learner.random_work import random_groups
from squelch.actors.messages import StepTerms
from squelch.kit.packed import attention as attention_kernel
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import pack
from squelch.learner import process_group
from squelch.learner.batching import to_rows
from squelch.learner.config import LearnerConfig, ObjectiveConfig
from squelch.learner.trainer import Trainer
from tests.learner.models import make_groups, make_model

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.usefixtures("both_devices"),
]
DEVICE = "cuda"
DEVICES = {"cpu": 0.0, DEVICE: 1.0}
BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 2e-2}
"""Largest accepted difference, relative to the largest value. CUDA may multiply float32 in TF32."""


@pytest.fixture
def both_devices() -> Iterator[None]:
    """This process as the only rank, for tensors on both devices."""
    alone(DEVICE)
    yield
    process_group.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def config(device: str, **others: object) -> LearnerConfig:
    base = {"num_gpus": DEVICES[device], "minibatches": 2, "token_budget": 128}
    return LearnerConfig.model_validate(base | ({"max_memory_gib": 8.0} if device == "cpu" else {}) | others)


def weights(trainer: Trainer) -> np.ndarray:
    """All published weights as one vector."""
    bundle = trainer.publish(1, lambda chunk: chunk)
    return np.concatenate([array.ravel() for chunk in bundle.chunks for array in chunk.values()])


def moved(folder: Path, device: str, **others: object) -> np.ndarray:
    """The movement of the weights in two training steps."""
    trainer = Trainer(folder, config(device, **others))
    before = weights(trainer)
    for step in range(2):
        assert trainer.train_step(step, make_groups()).updated
    return weights(trainer) - before


def differences(name: str, dtype: torch.dtype, window: int) -> dict[str, float]:
    """Largest differences of output and gradients from the dense form, relative to the dense form's largest value."""
    rows = to_rows(random_groups(2, 16, 300, 45, 500), ObjectiveConfig())
    forest = pack([row.token_ids for row in rows])
    layout = Layout.of(forest, torch.device(DEVICE))
    inputs = heads(name, forest.num_tokens, dtype)
    own = attention_kernel._on_cuda(*inputs, scale=0.2, layout=layout, window=window).transpose(1, 2)
    exact = [x.detach().float().requires_grad_() for x in inputs]
    wanted = dense(*exact, scale=0.2, mask=seen(layout, window))
    up = torch.randn_like(wanted).to(dtype)
    gradients = torch.autograd.grad(own, inputs, up)
    wanted_gradients = torch.autograd.grad(wanted, exact, up.float())
    names = ("output", "d query", "d key", "d value")
    pairs = zip(names, (own, *gradients), (wanted, *wanted_gradients), strict=True)
    return {name: float((one - right).detach().abs().max() / right.abs().max()) for name, one, right in pairs}


def heads(name: str, tokens: int, dtype: torch.dtype) -> list[Tensor]:
    """Random queries, keys and values, each (1, heads, tokens, head size)."""
    config: Any = shape_of(name, False)
    generator = torch.Generator().manual_seed(0)
    size = config.hidden_size // config.num_attention_heads
    counts = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    made = [torch.randn(1, count, tokens, size, generator=generator) for count in counts]
    return [x.to(DEVICE, dtype).requires_grad_() for x in made]


def seen(layout: Layout, window: int) -> Tensor:
    """(tokens, tokens) bool: whether the query of the row attends to the key of the column."""
    index = torch.arange(len(layout.ends), device=layout.ends.device)
    return layout.sees(index[:, None], index[None], window)


def dense(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor) -> Tensor:
    """Softmax attention over all pairs that the mask allows."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = (query @ key.transpose(2, 3)) * scale
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("window", [0, 96])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", [QWEN, SMOLLM])
def test_the_kernel_gives_what_the_dense_form_gives(name: str, dtype: torch.dtype, window: int) -> None:
    found = differences(name, dtype, window)
    assert all(value < BOUNDS[dtype] for value in found.values()), found


@pytest.mark.parametrize(("heads", "size"), [((16, 2), 128), ((4, 2), 8)], ids=str)
def test_the_kernel_takes_few_tokens_and_small_heads(heads: tuple[int, int], size: int) -> None:
    layout = Layout.of(pack([np.arange(90), np.arange(31)]), torch.device(DEVICE))
    query, key, value = (torch.randn(1, n, len(layout.ends), size, device=DEVICE) for n in (*heads, heads[1]))
    own = attention_kernel._on_cuda(query, key, value, 0.2, layout, 0).transpose(1, 2)
    wanted = dense(query, key, value, 0.2, seen(layout, 0))
    assert float((own - wanted).abs().max() / wanted.abs().max()) < BOUNDS[torch.float32]


@pytest.mark.parametrize(
    "others",
    [{}, {"activation_checkpointing": True}, {"kernels": "plain"}, {"algorithm": "ppo"}, {"share_openings": False}],
    ids=str,
)
def test_two_steps_move_the_weights_as_on_a_cpu(folder: Path, others: dict[str, object]) -> None:
    own, wanted = moved(folder, DEVICE, **others), moved(folder, "cpu", **others)
    assert np.linalg.norm(own - wanted) < 0.02 * np.linalg.norm(wanted)


@pytest.mark.parametrize("others", [{"dtype": "bfloat16"}, {"dtype": "bfloat16", "fp32_head": True}], ids=str)
def test_bfloat16_moves_them_much_the_same_way(folder: Path, others: dict[str, object]) -> None:
    own, wanted = moved(folder, DEVICE, **others), moved(folder, "cpu")
    assert own @ wanted > 0.8 * np.linalg.norm(own) * np.linalg.norm(wanted)


@pytest.mark.parametrize("others", [{}, {"activation_checkpointing": True}], ids=str)
def test_compiled_layers_are_whole_and_change_nothing(folder: Path, others: dict[str, object]) -> None:
    wanted = moved(folder, DEVICE, **others)
    torch._dynamo.reset()
    counters.clear()
    own = moved(folder, DEVICE, compile=True, **others)
    assert np.linalg.norm(own - wanted) < 0.02 * np.linalg.norm(wanted)
    assert not counters["graph_break"]


def test_state_on_the_host_changes_nothing(folder: Path) -> None:
    own, wanted = moved(folder, DEVICE, cpu_offload=True), moved(folder, DEVICE)
    assert np.linalg.norm(own - wanted) < 0.02 * np.linalg.norm(wanted)


def test_published_bits_and_probe_are_those_of_a_cpu(folder: Path) -> None:
    bundles = [Trainer(folder, config(device)).publish(1, lambda chunk: chunk) for device in DEVICES]
    assert len({bundle.checksum for bundle in bundles}) == 1
    assert np.abs(bundles[0].probe_log_probs - bundles[-1].probe_log_probs).max() < 1e-4


def test_a_refused_step_leaves_the_weights(folder: Path) -> None:
    trainer = Trainer(folder, config(DEVICE))
    assert trainer.train_step(0, make_groups()).updated
    before = weights(trainer)
    assert trainer.train_step(1, make_groups(), StepTerms(float("inf"))).refused
    assert np.array_equal(weights(trainer), before)


def test_a_checkpoint_from_a_gpu_goes_on_there_and_on_a_cpu(folder: Path, tmp_path: Path) -> None:
    trainer = Trainer(folder, config(DEVICE))
    trainer.train_step(0, make_groups())
    trainer.save(tmp_path / "step-1", {})
    trained = weights(trainer)
    trainer.train_step(1, make_groups(seed=1))
    wanted = weights(trainer) - trained
    for device in DEVICES:
        other = Trainer(folder, config(device))
        other.load(tmp_path / "step-1")
        assert np.array_equal(weights(other), trained)
        other.train_step(1, make_groups(seed=1))
        assert np.linalg.norm(weights(other) - trained - wanted) < 0.02 * np.linalg.norm(wanted)
