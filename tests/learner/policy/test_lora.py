"""Adapters on models of several architectures: what is trained, and what is published of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from squelch.learner import memory
from squelch.learner.config import LoraSettings
from squelch.learner.policy.lora import adapters_of, add_adapters, merged, published_name
from squelch.learner.publish import gathered
from squelch.learner.trainer import Trainer
from tests.actors.rollout.vllm_support import make_mixture
from tests.learner.models import load_model, make_config, make_groups

CONFIG = make_config(lora={"rank": 3}, optimizer={"learning_rate": 0.01})
ROUTERS = {
    "mixtral": {"mlp.gate.weight"},
    "qwen2_moe": {"mlp.gate.weight", "mlp.shared_expert_gate.weight"},
    "qwen3_moe": {"mlp.gate.weight"},
}


def log_probs(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Log-probabilities of all ids but the first, by plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        found = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0].log_softmax(-1)
    return found.numpy()[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", sorted(ROUTERS))
def test_every_layer_and_expert_but_the_router_is_trained_published_and_resumed(kind: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_mixture(kind, 0).save_pretrained(base)
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    trainer = Trainer(base, CONFIG)
    assert trainer.train_step(1, make_groups()).updated
    bundle = trainer.publish(1, lambda chunk: chunk)
    weights = {name: torch.from_numpy(array) for chunk in bundle.chunks for name, array in chunk.items()}
    still = {name for name, tensor in weights.items() if tensor.dim() > 1 and tensor.equal(before[name])}
    assert {name.split(".", 3)[-1] for name in still if ".layers." in name} == ROUTERS[kind]
    trainer.export(tmp_path / "export")
    found = log_probs(tmp_path / "export", bundle.probe_ids)
    np.testing.assert_allclose(found, bundle.probe_log_probs, atol=1e-4)
    assert np.abs(found - log_probs(base, bundle.probe_ids)).mean() > 0.01
    trainer.save(tmp_path / "checkpoint", {"at": 1})
    resumed = Trainer(base, CONFIG, resumes=True)
    assert resumed.load(tmp_path / "checkpoint") == {"at": 1}
    for one in (trainer, resumed):
        one.train_step(2, make_groups(seed=2))
    own, other = (dict(gathered(one.policy)) for one in (trainer, resumed))
    assert own.keys() == weights.keys() and all(own[name].equal(other[name]) for name in own)


@pytest.mark.parametrize("kind", sorted(ROUTERS))
def test_the_memory_estimate_counts_the_adapters_of_experts(kind: str) -> None:
    model = make_mixture(kind, 0)
    estimate = memory.estimate(model.config, CONFIG, 1)
    own = sum(parameter.numel() for parameter in model.parameters())
    add_adapters(model, LoraSettings(rank=3), 0)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert estimate.state == 4 * (own + 3 * trained)


def test_the_first_values_follow_the_seed_and_nothing_else(model_dir: Path) -> None:
    found = []
    for seed, elsewhere in ((3, 0), (3, 1), (4, 1)):
        model = load_model(model_dir)
        torch.manual_seed(elsewhere)
        state = torch.random.get_rng_state()
        add_adapters(model, LoraSettings(rank=2), seed)
        assert torch.random.get_rng_state().equal(state)
        found.append({name: tensor for name, tensor in model.state_dict().items() if published_name(name) is None})
    assert all(found[0][name].equal(found[1][name]) for name in found[0])
    assert not all(found[0][name].equal(found[2][name]) for name in found[0])


def test_a_model_whose_merged_weights_are_not_its_own_is_refused_by_name(model_dir: Path) -> None:
    model = load_model(model_dir)
    model.model.add_module("base_layer", torch.nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"Qwen2ForCausalLM.*model\.base_layer\.bias; train it without learner\.lora"):
        add_adapters(model, LoraSettings(rank=2), 0)


def test_a_layer_without_its_adapter_is_not_merged(model_dir: Path) -> None:
    model = load_model(model_dir)
    add_adapters(model, LoraSettings(rank=2), 0)
    tensors, adapters = model.state_dict(), adapters_of(model)
    name = next(iter(adapters))
    assert len(dict(merged(iter(tensors.items()), adapters))) == len([n for n in tensors if published_name(n)])
    without = {key: tensor for key, tensor in tensors.items() if key != adapters[name].up}
    with pytest.raises(RuntimeError, match=f"{name} came without the rest of its layer"):
        list(merged(iter(without.items()), adapters))
