"""PPO on the learner: the critic, and what becomes of its values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.learner.batching import NO_TERMS, collate, to_rows
from squelch.learner.clock import Clock
from squelch.learner.objective.gae import gae
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer
from tests.learner.models import load_model, make_config, make_groups, poison
from tests.learner.ranks import run_ranks
from tests.learner.test_trainer import on_policy

pytestmark = pytest.mark.usefixtures("alone")
METRICS = ("value_loss", "critic_grad_norm", "explained_variance", "value_mean")


def ppo(**changes: object) -> object:
    return make_config(algorithm="ppo", **{"critic": {"learning_rate": 1e-3}, **changes})


def critic_weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.to_local().detach().flatten().clone() for p in trainer.critic.module.parameters()])


def test_a_new_critic_expects_nothing_and_is_the_policys_body(model_dir: Path) -> None:
    trainer = Trainer(model_dir, ppo())
    rows = to_rows(make_groups(), trainer.config.objective)
    micro = collate(rows)
    values, ends = trainer.critic.values(inputs_of(micro, trainer.device), torch.from_numpy(micro.ends))
    assert not values.any() and not ends.any() and len(values) == sum(row.num_sampled for row in rows)
    assert len(ends) == len(rows)
    own = dict(trainer.critic.module.model.named_parameters())
    for name, theirs in load_model(model_dir).base_model.named_parameters():
        assert torch.equal(own[name].to_local(), theirs), name


def test_values_of_packed_rows_are_those_of_rows_by_themselves(model_dir: Path) -> None:
    trainer = Trainer(model_dir, ppo())
    with torch.no_grad():
        trainer.critic.module.head.weight.to_local().normal_()
    groups = make_groups()
    for _, members in groups:
        members[0].bootstrap_last_state = True
    rows = to_rows(groups, trainer.config.objective)
    assert sum(row.bootstrap for row in rows) == len(groups)

    def values(some: list) -> tuple[np.ndarray, np.ndarray]:
        micro = collate(some)
        found = trainer.critic.values(inputs_of(micro, trainer.device), torch.from_numpy(micro.ends))
        return found[0].numpy(), found[1].numpy()

    packed, after = values(rows)
    alone = [values([row]) for row in rows]
    assert np.allclose(packed, np.concatenate([v for v, _ in alone]), atol=1e-5)
    assert np.allclose(after, np.concatenate([e for _, e in alone]), atol=1e-5)
    assert packed.std() > 0.1


def test_a_row_that_was_cut_off_is_worth_the_critics_value_of_the_state_after_it(model_dir: Path) -> None:
    trainer = Trainer(model_dir, ppo())
    with torch.no_grad():
        trainer.critic.module.head.bias.to_local().fill_(3.0)
    groups = make_groups(1, 2)
    groups[0][1][0].bootstrap_last_state = True
    rows = to_rows(groups, trainer.config.objective)
    assert [row.bootstrap for row in rows] == [True, False]
    whole = groups[0][1][0].token_ids
    last = int(np.flatnonzero(groups[0][1][0].loss_mask)[-1])
    assert rows[0].token_ids.tolist() == whole[: last + 1].tolist()
    steps, _ = trainer._prepare(rows, trainer.plan(rows, 1, 0), Clock(), trainer.config.objective)
    ends = torch.cat([batch.ends for batch in steps[0]])
    by_row = dict(zip([row.index for batch in steps[0] for row in batch.rows], ends.tolist(), strict=True))
    assert by_row == {0: 3.0, 1: 0.0}


@pytest.mark.parametrize("budget", [64, 1000])
def test_advantages_are_gae_of_each_row_whitened_over_all(model_dir: Path, budget: int) -> None:
    trainer = Trainer(model_dir, ppo(token_budget=budget, objective={"gae": {"gamma": 0.9, "lam": 0.8}}))
    with torch.no_grad():
        trainer.critic.module.head.weight.to_local().normal_(std=0.3)
    rows = to_rows(make_groups(), trainer.config.objective)
    steps, metrics = trainer._prepare(rows, trainer.plan(rows, 2, 0), Clock(), trainer.config.objective)
    found, plain, batches = [], [], [batch for part in steps for batch in part]
    for batch in batches:
        found.append(batch.tokens.advantages.numpy())
        ends = np.cumsum([row.num_sampled for row in batch.rows])[:-1]
        for row, values in zip(batch.rows, np.split(batch.values.numpy(), ends), strict=True):
            plain.append(gae(row.rewards, values, np.array([row.num_sampled]), np.zeros(1), 0.9, 0.8)[0])
    wanted = np.concatenate(plain)
    assert np.allclose(np.concatenate(found), (wanted - wanted.mean()) / wanted.std(), atol=1e-5)
    assert metrics["explained_variance"] < 1
    assert metrics["value_mean"] == pytest.approx(np.concatenate([b.values.numpy() for b in batches]).mean(), rel=1e-5)


def test_whitening_looks_only_at_what_is_learned_from(model_dir: Path) -> None:
    trainer = Trainer(model_dir, ppo(objective={"max_mismatch": 0.5}))
    groups = on_policy(trainer, make_groups())
    masked = groups[0][1][1]
    masked.turns[-1].reward = 50.0
    masked.log_probs[masked.loss_mask] -= 1.0
    rows = to_rows(groups, trainer.config.objective)
    steps, _ = trainer._prepare(rows, trainer.plan(rows, 2, 0), Clock(), trainer.config.objective)
    tokens = [batch.tokens for part in steps for batch in part]
    kept = torch.cat([t.advantages[t.weights > 0] for t in tokens])
    assert len(kept) == sum(row.num_sampled for row in rows) - masked.loss_mask.sum()
    assert abs(float(kept.mean())) < 1e-5 and float(kept.std(correction=0)) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_the_critic_learns_what_comes_and_explains_it(model_dir: Path) -> None:
    trainer = Trainer(model_dir, ppo(critic={"learning_rate": 1e-2, "clip": 0.0}))
    before = critic_weights(trainer)
    groups = make_groups(2)
    reports = [trainer.train_step(step, groups) for step in range(10)]
    assert all(np.isfinite(reports[-1].metrics[name]) for name in METRICS)
    assert reports[0].metrics["explained_variance"] == pytest.approx(0, abs=1e-9)
    assert reports[-1].metrics["explained_variance"] > 0.5
    assert reports[-1].metrics["value_loss"] < 0.5 * reports[0].metrics["value_loss"]
    assert (critic_weights(trainer) != before).any()


@pytest.mark.slow
def test_the_gradient_does_not_depend_on_how_rows_are_packed(model_dir: Path) -> None:
    groups = make_groups()
    gradients = []
    for budget, share in ((64, True), (1000, True), (1000, False)):
        trainer = Trainer(model_dir, ppo(token_budget=budget, share_openings=share))
        with torch.no_grad():
            trainer.critic.module.head.weight.to_local().fill_(0.1)
        trainer._backward(to_rows(groups, trainer.config.objective), trainer.config.objective, NO_TERMS)
        rows = to_rows(groups, trainer.config.objective)
        batches, _ = trainer._prepare(rows, trainer.plan(rows, 1, 0), Clock(), trainer.config.objective)
        for batch in batches[0]:
            trainer.critic.backward(batch)
        gradients.append(torch.cat([g.flatten() for g in trainer._gradients() + trainer.critic.gradients()]))
    for other in gradients[1:]:
        assert float((other - gradients[0]).norm() / gradients[0].norm()) < 1e-5


def test_a_non_finite_value_refuses_the_step_and_leaves_the_critic_as_it_was(model_dir: Path) -> None:
    trainer = Trainer(model_dir, ppo(minibatches=4, objective={"gae": {"whiten": False}}))
    trainer.train_step(0, make_groups())
    before = critic_weights(trainer)
    groups = poison(make_groups(), 2)
    for step in range(1, 5):  # its row is in the first or in a later one of the step's four optimizer steps
        report = trainer.train_step(step, groups)
        assert report.refused in ("non-finite loss in group 000001-002", "non-finite gradient in group 000001-002")
        assert not report.updated and (critic_weights(trainer) == before).all()
    with torch.no_grad():
        trainer.critic.module.head.bias.to_local().fill_(float("nan"))
    assert trainer.train_step(2, make_groups()).refused == "non-finite KL or value in group 000001-000"


@pytest.mark.slow
def test_a_run_repeats_bit_for_bit(model_dir: Path) -> None:
    def run() -> torch.Tensor:
        trainer = Trainer(model_dir, ppo())
        for step in range(2):
            trainer.train_step(step, make_groups(seed=step))
        return critic_weights(trainer)

    assert (run() == run()).all()


def test_kl_in_the_reward_lowers_what_a_token_was_paid(model_dir: Path) -> None:
    kl = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}
    trainer = Trainer(model_dir, ppo(objective={"kl": kl, "gae": {"whiten": False}}))
    rows = to_rows(make_groups(), trainer.config.objective)
    steps, _ = trainer._prepare(rows, trainer.plan(rows, 1, 0), Clock(), trainer.config.objective)
    batch = steps[0][0]
    costs = 0.5 * (batch.tokens.rollout - batch.tokens.reference).double().numpy()
    ends = np.cumsum([row.num_sampled for row in batch.rows])[:-1]
    for row, cost, advantages in zip(
        batch.rows, np.split(costs, ends), np.split(batch.tokens.advantages.numpy(), ends), strict=True
    ):
        assert np.allclose(advantages, np.cumsum((row.rewards - cost)[::-1])[::-1], atol=1e-4)


@pytest.mark.parametrize("others", [{}, {"anchor": "recomputed"}, {"max_mismatch": 1e3}], ids=str)
def test_kl_in_the_reward_enters_a_groups_returns_as_the_sum_over_its_tokens(model_dir: Path, others: dict) -> None:
    kl = {"coefficient": 0.5, "estimator": "k3", "place": "reward"}
    trainer = Trainer(model_dir, make_config(objective={"kl": kl, "advantage": "grpo_no_std"} | others))
    rows = to_rows(make_groups(), trainer.config.objective)
    steps, _ = trainer._prepare(rows, trainer.plan(rows, 2, 0), Clock(), trainer.config.objective)
    paid, given = {}, {}
    for batch in [batch for part in steps for batch in part]:
        policy = batch.recomputed if others else batch.tokens.rollout  # the learner's own at step start, if it has them
        d = (batch.tokens.reference - policy).double()
        ends = np.cumsum([row.num_sampled for row in batch.rows])[:-1]
        costs = np.split((0.5 * (d.exp() - 1 - d)).numpy(), ends)
        for row, cost, advantages in zip(
            batch.rows, costs, np.split(batch.tokens.advantages.numpy(), ends), strict=True
        ):
            paid.setdefault(row.group_id, {})[row.index] = row.rewards.sum() - cost.sum()
            given.setdefault(row.group_id, {})[row.index] = set(advantages.tolist())
    for group_id, returns in paid.items():
        mean = np.mean(list(returns.values()))
        for index, value in returns.items():
            (advantage,) = given[group_id][index]
            assert advantage == pytest.approx(value - mean, abs=1e-4)


@pytest.mark.parametrize("advantage", ["grpo", "grpo_no_std"])
def test_kl_in_the_reward_of_a_group_without_signal_counts_by_its_coefficient(model_dir: Path, advantage: str) -> None:
    def given(coefficient: float) -> np.ndarray:
        kl = {"coefficient": coefficient, "estimator": "k3", "place": "reward"}
        trainer = Trainer(model_dir, make_config(objective={"kl": kl, "advantage": advantage}))
        rows = [
            replace(row, rewards=np.zeros_like(row.rewards)) for row in to_rows(make_groups(), trainer.config.objective)
        ]
        steps, _ = trainer._prepare(rows, trainer.plan(rows, 1, 0), Clock(), trainer.config.objective)
        return steps[0][0].tokens.advantages.numpy()

    small, large = given(0.01), given(0.1)
    assert np.abs(large).max() > 0
    assert np.allclose(large, 10 * small, rtol=1e-3, atol=1e-7)


def test_a_lone_row_of_a_group_still_trains_the_critic(model_dir: Path) -> None:
    groups = make_groups(1, 1)
    assert Trainer(model_dir, ppo()).train_step(0, groups).updated


@pytest.mark.slow
def test_a_checkpoint_holds_the_critic_and_its_optimizer(model_dir: Path, tmp_path: Path) -> None:
    whole, first, second = (Trainer(model_dir, ppo()) for _ in range(3))
    for trainer in (whole, first):
        trainer.train_step(0, make_groups())
    first.save(tmp_path / "step-1", {})
    second.load(tmp_path / "step-1")
    for trainer in (whole, second):
        trainer.train_step(1, make_groups(seed=1))
    assert (critic_weights(whole) == critic_weights(second)).all()


def test_a_checkpoint_of_another_algorithm_is_refused(model_dir: Path, tmp_path: Path) -> None:
    Trainer(model_dir, make_config()).save(tmp_path / "step-1", {})
    with pytest.raises(ValueError, match="algorithm"):
        Trainer(model_dir, ppo()).load(tmp_path / "step-1")


KL_IN_REWARD = {"coefficient": 0.1, "estimator": "k1", "place": "reward"}
SHARED = {"minibatches": 1, "objective": {"kl": KL_IN_REWARD, "gae": {"gamma": 0.95, "lam": 0.9}}}


def learn(trainer: Trainer, folder: Path) -> None:
    """Three steps; what they reported and where the weights ended."""
    reports = [trainer.train_step(step, cut_short(make_groups(3 + step, seed=step))) for step in range(3)]
    parts = [p.full_tensor().flatten() for p in (*trainer.policy.parameters(), *trainer.critic.module.parameters())]
    found = {"metrics": [report.metrics for report in reports], "weights": torch.cat(parts)}
    torch.save(found, folder / f"{trainer.world_size}-{trainer.rank}.pt")


def cut_short(groups: list) -> list:
    for _, members in groups:
        members[1].bootstrap_last_state = True
    return groups


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"dtype": "bfloat16"}, {"activation_checkpointing": True}, {"lora": {"rank": 2}}],
    ids=["bfloat16", "activation_checkpointing", "lora"],
)
def test_the_critic_goes_with_every_way_of_training_the_policy(model_dir: Path, options: dict) -> None:
    trainer = Trainer(model_dir, ppo(**options))
    before = critic_weights(trainer)
    first, second = (trainer.train_step(step, make_groups()) for step in range(2))
    plain = Trainer(model_dir, ppo()).train_step(0, make_groups())
    assert first.updated and second.updated and (critic_weights(trainer) != before).any()
    assert first.metrics["value_loss"] == pytest.approx(plain.metrics["value_loss"], rel=0.05)


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(model_dir: Path, tmp_path: Path) -> None:
    learn(Trainer(model_dir, ppo(**SHARED)), tmp_path)
    run_ranks(2, model_dir, ppo(**SHARED), learn, tmp_path)
    one, *two = (torch.load(tmp_path / f"{name}.pt", weights_only=False) for name in ("1-0", "2-0", "2-1"))
    for other in two:
        assert float((other["weights"] - one["weights"]).detach().norm() / one["weights"].detach().norm()) < 1e-5
        for mine, theirs in zip(one["metrics"], other["metrics"], strict=True):
            assert theirs == {name: pytest.approx(value, rel=1e-3, abs=1e-5) for name, value in mine.items()}
