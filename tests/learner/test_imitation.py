"""Supervised steps on the learner's own path: the loss that they say, the weights that they give."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.learner.batching import Row
from squelch.learner.imitation import imitate, imitation_loss
from squelch.learner.publish import gathered
from squelch.learner.trainer import Trainer
from tests.learner.models import VOCABULARY, load_model, make_config, make_model
from tests.learner.ranks import run_ranks

CONFIG = make_config(optimizer={"learning_rate": 1e-2})


def demonstrations(count: int = 6, seed: int = 0) -> list[Row]:
    """Rows that begin alike, with 3 to 9 demonstrated tokens each."""
    rng = np.random.default_rng(seed)
    opening = rng.integers(0, VOCABULARY, 12)
    rows = []
    for number in range(count):
        said = rng.integers(0, VOCABULARY, 3 + number)
        ids = np.concatenate([opening, rng.integers(0, VOCABULARY, 4), said]).astype(np.int32)
        places = np.arange(len(ids) - len(said) - 1, len(ids) - 1)
        zeros = np.zeros(len(said), np.float32)
        rows.append(Row(f"demonstration-{number}", 0, ids[:-1], places, ids[places + 1], zeros, 0.0))
    return rows


def plain_loss(model_dir: Path, rows: list[Row]) -> float:
    """The definition: the mean -log p over all demonstrated tokens, each row by itself."""
    model, found = load_model(model_dir, "plain"), []
    model.set_attn_implementation("sdpa")
    for row in rows:
        logits = model(input_ids=torch.from_numpy(row.token_ids)[None].long(), use_cache=False).logits[0]
        chosen = torch.log_softmax(logits, -1)[torch.from_numpy(row.positions)]
        found.append(-chosen.gather(1, torch.from_numpy(row.targets)[:, None].long()).detach())
    return float(torch.cat(found).mean())


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in gathered(trainer.policy)])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("budget", [40, 128])
def test_the_loss_is_the_mean_over_all_demonstrated_tokens(model_dir: Path, budget: int) -> None:
    rows = demonstrations()
    trainer = Trainer(model_dir, CONFIG.model_copy(update={"token_budget": budget}))
    wanted = plain_loss(model_dir, rows)
    assert imitation_loss(trainer, rows) == pytest.approx(wanted, rel=1e-5)
    done = imitate(trainer, rows, 1)
    assert done.loss == pytest.approx(wanted, rel=1e-5)
    assert done.num_tokens == sum(row.num_sampled for row in rows)


@pytest.mark.usefixtures("alone")
def test_measuring_the_loss_changes_nothing_and_learning_lowers_it(model_dir: Path) -> None:
    rows, trainer = demonstrations(), Trainer(model_dir, CONFIG)
    before = weights(trainer).clone()
    first = imitation_loss(trainer, rows)
    assert torch.equal(weights(trainer), before)
    for step in range(1, 4):
        imitate(trainer, rows, step)
    assert imitation_loss(trainer, rows) < first - 0.1
    assert trainer.optimizer_steps == 3


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "settings", [{"lora": {"rank": 4}}, {"dtype": "bfloat16"}, {"activation_checkpointing": True}], ids=str
)
def test_it_learns_with_what_training_can_use(model_dir: Path, settings: dict[str, object]) -> None:
    rows, trainer = demonstrations(), Trainer(model_dir, make_config(optimizer={"learning_rate": 1e-2}, **settings))
    first = imitate(trainer, rows, 1).loss
    for step in (2, 3, 4):
        imitate(trainer, rows, step)
    assert imitation_loss(trainer, rows) < first - 0.05


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 4}}], ids=["whole", "lora"])
def test_a_warm_up_that_continues_from_a_checkpoint_gives_the_same_weights(
    model_dir: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    """With the schedule and the optimizer's moments, bit for bit."""

    def begun() -> Trainer:
        torch.manual_seed(0)  # of the adapters; a rank's process begins with one seed
        return Trainer(model_dir, config)

    schedule = {"learning_rate": 1e-2, "warmup_steps": 2, "decay_steps": 4, "decay": "cosine"}
    config = make_config(optimizer=schedule, **settings)
    whole = begun()
    losses = [imitate(whole, demonstrations(seed=step), step).loss for step in (1, 2, 3, 4)]
    first = begun()
    found = [imitate(first, demonstrations(seed=step), step).loss for step in (1, 2)]
    first.save(tmp_path / "step-2", {"step": 2})
    second = Trainer(model_dir, config)
    assert second.load(tmp_path / "step-2") == {"step": 2}
    found += [imitate(second, demonstrations(seed=step), step).loss for step in (3, 4)]
    assert found == losses and torch.equal(weights(second), weights(whole))


@pytest.mark.usefixtures("alone")
def test_a_step_that_is_not_finite_is_refused_and_changes_nothing(model_dir: Path) -> None:
    rows, trainer = demonstrations(), Trainer(model_dir, CONFIG)
    with torch.no_grad():
        next(trainer.policy.parameters()).to_local()[3] = float("inf")
    before = weights(trainer).clone()
    with pytest.raises(ValueError, match=r"supervised step 7: loss .* is not finite"):
        imitate(trainer, [*rows, *demonstrations(20, seed=1)], 7)
    assert torch.equal(weights(trainer), before) and trainer.optimizer_steps == 0
    assert all(p.grad is None for p in trainer.policy.parameters()), "the next step does not begin with this gradient"


def three_steps(trainer: Trainer, folder: Path) -> None:
    losses = [imitate(trainer, demonstrations(seed=step), step).loss for step in (1, 2, 3)]
    losses.append(imitation_loss(trainer, demonstrations(seed=9)))
    if trainer.rank == 0:
        (folder / f"losses-{trainer.world_size}.json").write_text(json.dumps(losses))


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    for count in (1, 2):
        run_ranks(count, model, CONFIG, three_steps, tmp_path)
    one, two = (json.loads((tmp_path / f"losses-{count}.json").read_text()) for count in (1, 2))
    assert two == pytest.approx(one, rel=1e-5)
    assert one[0] - one[2] != 0
