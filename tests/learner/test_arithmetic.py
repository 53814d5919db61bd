"""The operations that MFU is measured by are those that PyTorch counts while a plain model computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AriaTextConfig,
    AutoModelForCausalLM,
    MixtralConfig,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from squelch.actors.gpus.records import GpuUse, Operations
from squelch.actors.messages import StepReport
from squelch.actors.model_counts import model_size
from squelch.cluster.control.calls import slowest
from squelch.learner.arithmetic import Arithmetic
from squelch.learner.batching import collate, to_rows
from squelch.learner.config import LoraSettings
from squelch.learner.policy.lora import adapters_of, add_adapters
from squelch.learner.trainer import Trainer
from tests.learner.models import VOCABULARY, make_config, make_groups, make_model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("frozen", [False, True])
def test_products_are_those_that_pytorch_counts(tmp_path: Path, tied: bool, frozen: bool) -> None:
    """Attention by matrix products, so that the counter sees all of them: two forward, four backward."""
    folder, length = make_model(tmp_path / "model", tied=tied), 24
    model = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    if frozen:
        model.model.layers.requires_grad_(False)
    arithmetic = Arithmetic.of(model, {})
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(length)[None]).logits.sum().backward()
    products, _ = arithmetic.trained(length, length, 0)
    _, attention = arithmetic.trained(0, 0, length * length)
    assert counter.get_total_flops() == products + attention * 6 / 7


SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2}
SPARSE: dict[str, Any] = {"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2}
MIXTURES = {
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=6, num_experts_per_tok=2),
    "qwen2_moe, a shared expert": Qwen2MoeConfig(**SHAPE, **SPARSE, shared_expert_intermediate_size=40),
    "qwen3_moe, a dense layer": Qwen3MoeConfig(**SHAPE, **SPARSE, head_dim=8, mlp_only_layers=[0]),
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("trained", ["all", "none", "adapters"])
def test_of_a_mixture_the_experts_count_that_a_token_is_fed_to(name: str, trained: str) -> None:
    """Each expert by itself, so that the counter sees the tokens that it is fed."""
    model = AutoModelForCausalLM.from_config(
        MIXTURES[name], attn_implementation="eager", experts_implementation="eager"
    )
    if trained == "none":
        model.model.layers.requires_grad_(False)
    if trained == "adapters":
        add_adapters(model, LoraSettings(rank=2), 0)
        model.enable_input_require_grads()  # the first layer's products for the gradient of its input count, too
    arithmetic = Arithmetic.of(model, adapters_of(model) if trained == "adapters" else {})
    size = model_size(model)

    def counted(length: int, backward: bool) -> tuple[int, float, float]:
        """What the counter sees, the products, and those of attention."""
        with FlopCounterMode(display=False) as counter:
            logits = model(input_ids=torch.arange(length)[None]).logits
            if backward:
                logits.sum().backward()
        products, _ = arithmetic.trained(length, length, 0)
        _, attention = arithmetic.trained(0, 0, length * length)
        return counter.get_total_flops(), products, attention

    for backward in (False, True):
        (more, products, much), (fewer, small, little) = counted(24, backward), counted(12, backward)
        wanted = products - small if backward else 12 * arithmetic.total((0, 0)).per_token
        assert more - fewer == wanted + (much - little) * (6 if backward else 2) / 7  # sums of adapters cancel
    if trained != "adapters":
        norms = sum(p.numel() for p in model.parameters() if p.dim() == 1)
        assert size.multiplied - norms == arithmetic.linear + arithmetic.head


def test_a_mixture_that_does_not_say_how_many_experts_a_token_is_fed_to_is_refused_by_name() -> None:
    config = AriaTextConfig(**SHAPE, pad_token_id=0, moe_num_experts=4)
    with pytest.raises(ValueError, match="aria_text states no num_experts_per_tok"):
        Arithmetic.of(AutoModelForCausalLM.from_config(config), {})


@pytest.mark.usefixtures("alone")
def test_a_step_counts_each_row_once_for_each_time_it_is_learned_from(model_dir: Path) -> None:
    groups = make_groups()
    trainer = Trainer(model_dir, make_config(minibatches=1, token_budget=4096))
    report, micro = trainer.train_step(1, groups), collate(to_rows(groups, trainer.config.objective))
    fed, sampled = micro.forest.num_tokens, len(micro.positions)
    wanted = trainer.arithmetic.trained(fed, sampled, micro.forest.pairs())
    done = report.operations
    assert done is not None and (done.products, done.attention) == wanted
    head = VOCABULARY * 32
    assert done.per_token == 2 * (trainer.arithmetic.linear + head)
    cut = Trainer(model_dir, make_config(minibatches=2)).train_step(1, groups).operations
    assert cut is not None and done.products < cut.products < 1.5 * done.products


@pytest.mark.usefixtures("alone")
def test_a_step_without_an_update_has_no_operations(model_dir: Path) -> None:
    assert Trainer(model_dir, make_config()).train_step(1, []).operations is None


def test_the_ranks_operations_are_added_and_their_gpus_kept() -> None:
    def report(rank: int) -> StepReport:
        gpu = GpuUse(f"learner-{rank}", str(rank), "NVIDIA H200", 989e12, 0.5, 1.0, 2.0, 1.0)
        seconds = {"forward_backward": 1.0 + rank}
        return StepReport(1, True, 1, 4, 9, {}, seconds, None, Operations(10.0, 1.0, 3.0), (gpu,))

    both = slowest([report(0), report(1)])
    assert both.operations == Operations(20.0, 2.0, 3.0) and both.seconds == {"forward_backward": 2.0}
    assert [gpu.actor for gpu in both.gpus] == ["learner-0", "learner-1"]
    assert slowest([StepReport(1, False, 0, 0, 0)]).operations is None
