import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from squelch.learner import batching, process_group
from squelch.learner.config import MAX_GRADIENTS, LearnerConfig
from squelch.learner.decomposition.decompose import decompose, group_parts, inner, norm, score_objective
from squelch.learner.objective.components import ADVANTAGES, AGGREGATIONS
from squelch.learner.policy.model import local
from squelch.learner.publish import gathered
from squelch.learner.trainer import Trainer
from tests.learner.models import make_config, make_groups, make_model
from tests.learner.ranks import TIMEOUT_S, run_ranks

OBJECTIVE = {"kl": {"coefficient": 0.3, "estimator": "k3"}, "entropy_coefficient": 0.2, "advantage": "grpo_no_std"}


def config(**objective: object) -> LearnerConfig:
    return make_config(objective=OBJECTIVE | objective)


def away_from_reference(model_dir: Path, learner: LearnerConfig) -> Trainer:
    """A trainer two large steps from its reference, so that the KL term has a gradient."""
    trainer = Trainer(model_dir, learner)
    for step in (1, 2):
        trainer.train_step(step, make_groups(seed=5 + step))
    return trainer


def moved(model_dir: Path, learner: LearnerConfig) -> Trainer:
    """A trainer whose weights are not its reference's, without a training step."""
    trainer = Trainer(model_dir, learner)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainer.policy.parameters():
            parameter = local(parameter)
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return trainer


def sampled_by(trainer: Trainer, groups: list) -> list:
    """The groups as if the trainer's own weights had sampled them."""
    model = AutoModelForCausalLM.from_pretrained(trainer.model_dir)
    model.load_state_dict(dict(gathered(trainer.policy)), strict=False)
    for _, members in groups:
        for trajectory in members:
            row = batching.to_rows([("g", [trajectory])], trainer.config.objective)[0]
            trajectory.log_probs[trajectory.loss_mask] = log_probs(model, row)
    return groups


@torch.no_grad()
def log_probs(model: PreTrainedModel, row: batching.Row) -> np.ndarray:
    logits = model(input_ids=torch.from_numpy(row.token_ids.astype(np.int64))[None]).logits[0]
    chosen = logits.log_softmax(-1)[torch.from_numpy(row.positions)]
    return chosen.gather(1, torch.from_numpy(row.targets.astype(np.int64))[:, None]).squeeze(1).numpy()


def flat(shards: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([s.flatten() for s in shards]).double()


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("aggregation", "ratio"), [*((name, "token") for name in AGGREGATIONS), ("sequence_mean", "sequence")]
)
@pytest.mark.parametrize("advantage", [name for name, rule in ADVANTAGES.items() if not rule.needs_critic])
def test_task_kl_and_entropy_sum_to_the_gradient_of_the_objective(
    model_dir: Path, aggregation: str, ratio: str, advantage: str
) -> None:
    objective = {"aggregation": aggregation, "ratio": ratio, "advantage": advantage, "normaliser_tokens": 40}
    trainer = moved(model_dir, config(**objective))
    [(group_id, members)] = sampled_by(trainer, make_groups(1, size=5))
    parts = group_parts(trainer, group_id, members)
    whole = flat(list(trainer.gradients([(group_id, members)]).values()))
    scale = parts.scale if advantage == "grpo" else 1.0
    pieces = {"task": scale * flat(parts.task), **{n: flat(g) for n, g in parts.regularisers.items()}}
    assert set(pieces) == {"task", "kl", "entropy"}
    assert all(piece.norm() > 1e-3 * whole.norm() for piece in pieces.values())
    assert (sum(pieces.values()) - whole).norm() < 1e-5 * whole.norm()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("overlong", [{}, {"penalty": 1.0, "max_tokens": 4, "cache_tokens": 3}])
def test_the_task_gradient_has_every_penalty_in_it_that_the_advantage_has(model_dir: Path, overlong: dict) -> None:
    plain = {"kl": {"coefficient": 0.0}, "entropy_coefficient": 0.0}
    trainer = Trainer(model_dir, config(**plain, overlong=overlong))
    [(group_id, members)] = sampled_by(trainer, make_groups(1, size=5))
    members[0].turns[0].format_penalty = -0.1
    whole = flat(list(trainer.gradients([(group_id, members)]).values()))
    parts = group_parts(trainer, group_id, members)
    assert (flat(parts.task) - whole).norm() < 1e-5 * whole.norm()
    assert decompose(trainer, [(group_id, members), ("z", members)], 1).groups[0].tightness <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_metrics_are_those_of_the_parts_and_nothing_is_updated(model_dir: Path) -> None:
    trainer = away_from_reference(model_dir, config())
    before = [tensor for _, tensor in gathered(trainer.policy)]
    groups = sampled_by(trainer, make_groups(7, size=4))
    found = decompose(trainer, groups, num_buckets=3)
    assert [b.num_groups for b in found.buckets] == [3, 2, 2]
    variances = [g.reward_variance for g in found.groups]
    assert variances == sorted(variances)
    for group in found.groups:
        assert 0 < group.task <= group.bound and 0 < group.tightness <= 1
        assert 0 < group.dominance < 1 and group.total > 0
        whole = trainer.gradients([g for g in groups if g[0] == group.group_id])
        assert group.total == pytest.approx(float(flat(list(whole.values())).norm()), rel=1e-4)
    for bucket in found.buckets:
        assert bucket.mean_task <= bucket.task * (1 + 1e-6) and bucket.mean_regulariser <= bucket.regulariser * 1.0001
    assert all((a == b).all() for a, (_, b) in zip(before, gathered(trainer.policy), strict=True))
    assert trainer.optimizer_steps == 4
    assert set(found.flat()) >= {"gradients/q1/task", "gradients/q3/snr", "gradients/groups"}


@pytest.mark.usefixtures("alone")
def test_a_group_without_reward_variance_has_no_task_gradient_and_regularisers_all_the_same(model_dir: Path) -> None:
    trainer = away_from_reference(model_dir, config())
    groups = make_groups(2, size=4)
    for trajectory in groups[0][1]:
        trajectory.turns[-1].reward = 1.0
    found = {g.group_id: g for g in decompose(trainer, groups).groups}
    dull, lively = found["000001-000"], found["000001-001"]
    assert dull.task == dull.task_std == dull.signal_square == dull.noise_square == 0 and dull.dominance == 1
    assert dull.regulariser > 0 and dull.score_square > 0 and lively.task > 0


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("cap", [2.0, 0.0])
def test_age_is_corrected_for_by_truncated_importance_weights(model_dir: Path, cap: float) -> None:
    trainer = Trainer(model_dir, config(mismatch_cap=cap))
    [(group_id, members)] = sampled_by(trainer, make_groups(1, size=4))
    fresh = group_parts(trainer, group_id, members)
    for trajectory in members:
        trajectory.log_probs[trajectory.loss_mask] += np.log(2.0)  # the sampler found each token twice as likely
    halved = group_parts(trainer, group_id, members)
    assert norm(halved.task) == pytest.approx(norm(fresh.task) / 2, rel=1e-4)
    for trajectory in members:
        trajectory.log_probs[trajectory.loss_mask] -= np.log(8.0)
    capped = group_parts(trainer, group_id, members)
    assert norm(capped.task) == pytest.approx(norm(fresh.task) * 2, rel=1e-4)


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_decomposed_is_refused(model_dir: Path) -> None:
    trainer = Trainer(model_dir, config())
    with pytest.raises(ValueError, match="1 of 1 groups have two trajectories to compare"):
        decompose(trainer, make_groups(1, size=4))
    broken = make_groups(2)
    broken[1][1][0].turns[0].reward = float("nan")
    with pytest.raises(ValueError, match="non-finite reward in group 000001-001"):
        decompose(trainer, broken)


def work(trainer: Trainer, folder: Path) -> None:
    found = decompose(trainer, make_groups(3, size=4), num_buckets=2)
    torch.save(found.as_data(), folder / f"{trainer.world_size}-{trainer.rank}.pt")


@pytest.mark.slow
def test_two_ranks_find_what_one_finds(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    process_group.start(0, 1, "127.0.0.1", 0, TIMEOUT_S, "cpu")
    work(Trainer(model, config()), tmp_path)
    process_group.stop()
    run_ranks(2, model, config(), work, tmp_path)
    one, *two = (torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    for rank in two:
        for ours, theirs in zip(one["buckets"], rank["buckets"], strict=True):
            known = {name: value for name, value in ours.items() if value is not None}
            assert {n: theirs[n] for n in known} == {n: pytest.approx(v, rel=1e-3, abs=1e-7) for n, v in known.items()}


@pytest.mark.usefixtures("alone")
def test_under_a_critic_the_groups_own_mean_is_the_baseline_all_the_same(model_dir: Path) -> None:
    plain = {"kl": {"coefficient": 0.0}, "entropy_coefficient": 0.1, "aggregation": "token_mean"}
    ppo = make_config(objective={**plain, "advantage": "gae", "reward": "turn"})
    grpo = make_config(objective={**plain, "advantage": "grpo_no_std"})
    groups = make_groups(3, size=4)
    one, other = (decompose(Trainer(model_dir, learner), groups, 2).as_data() for learner in (ppo, grpo))
    assert one == other


@pytest.mark.usefixtures("alone")
def test_no_more_gradients_are_held_than_the_estimate_of_memory_counts(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(model_dir, config())
    own = [local(p) for p in trainer.policy.parameters()]
    shapes, size = {p.shape for p in own}, sum(p.numel() for p in own)

    def gradients() -> float:
        """Tensors of the parameters' shapes in memory, in units of a whole gradient."""
        found = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.is_floating_point()]
        numbers = {x.data_ptr(): x.numel() for x in found if not x.requires_grad and x.shape in shapes}
        return sum(numbers.values()) / size

    before, held = gradients(), []

    def counted(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
        held.append(gradients() - before)
        return inner(one, other)

    monkeypatch.setattr("squelch.learner.decomposition.decompose.inner", counted)
    decompose(trainer, make_groups(2), num_buckets=1)
    assert MAX_GRADIENTS - 1 < max(held) < MAX_GRADIENTS + 0.5


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_score_of_a_trajectory_has_its_weight_in_the_groups_mean(model_dir: Path, aggregation: str) -> None:
    trainer = Trainer(model_dir, config(aggregation=aggregation, normaliser_tokens=40))
    [(group_id, members)] = sampled_by(trainer, make_groups(1))
    rows = batching.to_rows([(group_id, members)], trainer.config.objective)
    squares = []
    for k in range(len(rows)):
        alone = [replace(row, advantage=float(i == k)) for i, row in enumerate(rows)]
        gradient = flat(trainer.row_gradients(alone, score_objective(trainer.config.objective)))
        squares.append(len(rows) ** 2 * float(gradient @ gradient))
    parts = group_parts(trainer, group_id, members)
    assert parts.score_square == pytest.approx(np.mean(squares), rel=1e-4)
