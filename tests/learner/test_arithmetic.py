"""The operations that MFU is measured by are those that PyTorch counts while a plain model computes."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2ForCausalLM

from squelch.actors.cards.records import CardUse, Operations
from squelch.actors.messages import StepReport
from squelch.cluster.control.calls import slowest
from squelch.learner.arithmetic import Arithmetic
from squelch.learner.batching import collate, to_rows
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
    arithmetic = Arithmetic.of(model)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(length)[None]).logits.sum().backward()
    products, _ = arithmetic.trained(length, length, 0)
    _, attention = arithmetic.trained(0, 0, length * length)
    assert counter.get_total_flops() == products + attention * 6 / 7


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


def test_the_ranks_operations_are_added_and_their_cards_kept() -> None:
    def report(rank: int) -> StepReport:
        card = CardUse(f"learner-{rank}", str(rank), "NVIDIA H200", 989e12, 0.5, 1.0, 2.0, 1.0)
        seconds = {"forward_backward": 1.0 + rank}
        return StepReport(1, True, 1, 4, 9, {}, seconds, None, Operations(10.0, 1.0, 3.0), (card,))

    both = slowest([report(0), report(1)])
    assert both.operations == Operations(20.0, 2.0, 3.0) and both.seconds == {"forward_backward": 2.0}
    assert [card.actor for card in both.cards] == ["learner-0", "learner-1"]
    assert slowest([StepReport(1, False, 0, 0, 0)]).operations is None
