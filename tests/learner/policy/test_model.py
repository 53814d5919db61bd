"""FSDP2's options: each changes what it is for and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM

from squelch.learner.batching import collate, to_rows
from squelch.learner.config import LearnerConfig, OptimizerConfig
from squelch.learner.policy.model import Policy, shard
from squelch.learner.publish import gathered
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer, learning_rate
from tests.learner.models import load_model, make_config, make_groups

pytestmark = pytest.mark.usefixtures("alone")

CPU = torch.device("cpu")


def relative(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    one, other = (torch.cat([x[name].flatten() for name in wanted]) for x in (found, wanted))
    return float((one - other).norm() / other.norm())


def saved_numbers(action: Callable[[], object]) -> int:
    """Numbers kept for the backward pass."""
    sizes: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        sizes[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        action()
    return sum(sizes.values())


def test_activation_checkpointing_keeps_less_and_has_the_same_gradients(model_dir: Path) -> None:
    groups = make_groups()
    plain, checkpointed = (
        Trainer(model_dir, make_config(activation_checkpointing=on, token_budget=1000)) for on in (False, True)
    )
    wanted = plain.gradients(groups)
    assert relative(checkpointed.gradients(groups), wanted) < 1e-6
    inputs = inputs_of(collate(to_rows(groups, plain.config.objective)), CPU)
    kept = [saved_numbers(lambda t=t: t.policy(*inputs, 1.0, True)) for t in (plain, checkpointed)]
    assert kept[1] < 0.5 * kept[0]


def test_an_fp32_head_is_the_float32_product_of_the_rounded_layers_output(model_dir: Path) -> None:
    rows = to_rows(make_groups(2), make_config().objective)
    inputs = inputs_of(collate(rows), CPU)
    exact = Policy(load_model(model_dir))(*inputs, 1.0, False)[0].detach()
    errors = {}
    for fp32_head in (False, True):
        trainer = Trainer(model_dir, make_config(dtype="bfloat16", fp32_head=fp32_head))
        heads, layers = [], []
        head, layer = trainer.policy.model.get_input_embeddings(), trainer.policy.model.model.layers[0].self_attn.q_proj
        for part, seen in ((head, heads), (layer, layers)):
            part.register_forward_hook(lambda module, _, out, seen=seen: seen.append((module.weight.dtype, out.dtype)))
        errors[fp32_head] = float((trainer._scores(trainer.policy, [inputs])[0] - exact).abs().mean())
        assert heads == [(torch.float32 if fp32_head else torch.bfloat16,) * 2]
        assert layers == [(torch.bfloat16,) * 2]
        report = trainer.train_step(1, make_groups(2))
        assert report.updated and all(p.dtype == torch.float32 for p in trainer.policy.parameters())
    assert errors[True] < errors[False]


def test_offloaded_parameters_have_the_same_gradients(model_dir: Path) -> None:
    """On CPU nothing moves; that the policy goes through FSDP's offloading at all is what can be shown here."""
    inputs = inputs_of(collate(to_rows(make_groups(2), make_config().objective)), CPU)
    gradients = []
    for offload in (False, True):
        mesh, config = init_device_mesh("cpu", (1,)), make_config().model_copy(update={"cpu_offload": offload})
        policy = shard(Policy(load_model(model_dir)), mesh, config)
        policy(*inputs, 1.0, True)[0].sum().backward()
        gradients.append({name: p.grad.to_local() for name, p in policy.named_parameters()})
    assert relative(gradients[1], gradients[0]) < 1e-7


def test_adapters_alone_are_trained_and_merged_weights_are_published(model_dir: Path, tmp_path: Path) -> None:
    config = make_config(lora={"rank": 4, "alpha": 8}, optimizer={"learning_rate": 1e-2})
    trainer = Trainer(model_dir, config)
    names = [name for name, _ in AutoModelForCausalLM.from_pretrained(model_dir).named_parameters()]
    before = dict(gathered(trainer.policy))
    assert list(before) == names
    assert relative(before, dict(gathered(Trainer(model_dir, make_config()).policy))) == 0
    for step in range(3):
        assert trainer.train_step(step, make_groups()).updated
    after = dict(gathered(trainer.policy))
    moved = {name for name in names if not after[name].equal(before[name])}
    assert moved == {name for name in names if name.endswith("proj.weight")}
    trainer.export(tmp_path / "hf")
    inputs = inputs_of(collate(to_rows(make_groups(2), config.objective)), CPU)
    [own] = trainer._scores(trainer.policy, [inputs])
    exported = Policy(load_model(tmp_path / "hf"))(*inputs, 1.0, False)[0]
    assert torch.allclose(own, exported, atol=1e-4)


def test_adapters_survive_a_checkpoint(model_dir: Path, tmp_path: Path) -> None:
    config = make_config(lora={"rank": 2})
    trainer = Trainer(model_dir, config)
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {})
    again = Trainer(model_dir, config)
    again.load(tmp_path / "step-1")
    assert relative(dict(gathered(again.policy)), dict(gathered(trainer.policy))) == 0


def test_schedules_advance_and_end_where_they_should() -> None:
    for decay in ("linear", "cosine"):
        config = OptimizerConfig(learning_rate=1.0, warmup_steps=5, decay_steps=20, final_factor=0.1, decay=decay)
        rates = [learning_rate(config, taken) for taken in range(25)]
        assert rates[:5] == sorted(set(rates[:5])) and rates[5:19] == sorted(set(rates[5:19]), reverse=True)
        assert rates[20:] == pytest.approx([0.1] * 5)
        assert rates[10] == pytest.approx({"linear": 0.5, "cosine": 0.55}[decay])
    assert OptimizerConfig().betas == (0.9, 0.999)


def test_the_rate_of_a_step_is_the_schedules(model_dir: Path) -> None:
    settings = {"warmup_steps": 3, "decay_steps": 10, "decay": "cosine", "learning_rate": 1e-3}
    trainer = Trainer(model_dir, make_config(optimizer=settings, minibatches=2))
    for step in range(3):
        trainer.train_step(step, make_groups())
        assert trainer.optimizer.param_groups[0]["lr"] == learning_rate(trainer.config.optimizer, 2 * step + 1)


@pytest.mark.parametrize("change", [{"fp32_head": True}, {"cpu_offload": True}])
def test_an_option_that_would_do_nothing_is_refused(change: dict) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(change))} does nothing"):
        LearnerConfig(**change)
