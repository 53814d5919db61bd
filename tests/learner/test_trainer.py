import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.actors.messages import StepTerms
from squelch.kit.records.records import VersionSpan
from squelch.learner.batching import collate, to_rows
from squelch.learner.config import ObjectiveConfig, OptimizerConfig
from squelch.learner.kernels.choice import KERNELS
from squelch.learner.policy.loading import Unloaded
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer, learning_rate
from tests.learner.models import make_config, make_groups, make_model, poison

pytestmark = pytest.mark.usefixtures("alone")

METRICS = {
    *("loss", "policy_loss", "entropy", "kl", "ratio_mean", "ratio_max", "clip_fraction_low", "clip_fraction_high"),
    *("grad_norm", "learning_rate", "mismatch_abs", "mismatch_k3", "advantage_std", "zero_advantage_share"),
    *("mismatch_outside", "mismatch_on_policy", "effective_sample_size", "masked_share", "clamped_share"),
}


def weights(trainer: Trainer) -> torch.Tensor:
    """All parameters as one vector, a copy."""
    return torch.cat([p.to_local().detach().flatten().clone() for p in trainer.policy.parameters()])


def on_policy(trainer: Trainer, groups: list) -> list:
    """The groups with the trainer's own log-probabilities as the rollout's."""
    for group in groups:
        for trajectory in group[1]:
            (row,) = to_rows([(group[0], [trajectory])], trainer.config.objective)
            own = trainer._scores(trainer.policy, [inputs_of(collate([row]), trainer.device)])[0]
            trajectory.log_probs[trajectory.loss_mask] = own.numpy()
    return groups


@pytest.mark.parametrize(
    ("objective", "passes"), [({}, 0), ({"kl": {"coefficient": 0.1}}, 1), ({"max_mismatch": 9.0}, 1)]
)
def test_marks_of_progress_are_micro_batches_and_passes_and_not_what_is_only_laid_out(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, objective: dict, passes: int
) -> None:
    trainer, marked = Trainer(model_dir, make_config(objective=objective)), list[int]()
    plain = trainer._optimize

    def optimize(prepared: list, *rest: object) -> str | None:
        marked.extend([trainer.marks.seen().marks, sum(map(len, prepared))])
        return plain(prepared, *rest)

    monkeypatch.setattr(trainer, "_optimize", optimize)
    trainer.train_step(1, make_groups())
    before, micro_batches = marked
    assert micro_batches > 1 and before == passes * micro_batches
    assert trainer.marks.seen().marks == before + micro_batches


@pytest.mark.slow
@pytest.mark.parametrize("budget", [64, 100, 300])
@pytest.mark.parametrize(
    ("aggregation", "ratio"), [("sequence_mean", "token"), ("token_mean", "token"), ("sequence_mean", "sequence")]
)
def test_any_micro_batching_has_the_gradient_of_one_batch(
    model_dir: Path, budget: int, aggregation: str, ratio: str
) -> None:
    groups = make_groups()
    objective = {"aggregation": aggregation, "ratio": ratio, "kl": {"coefficient": 0.1}, "anchor": "recomputed"}
    whole = Trainer(model_dir, make_config(token_budget=100_000, objective=objective)).gradients(groups, StepTerms(0.9))
    split = Trainer(model_dir, make_config(token_budget=budget, objective=objective)).gradients(groups, StepTerms(0.9))
    flat = {key: torch.cat([g.flatten() for g in part.values()]) for key, part in (("w", whole), ("s", split))}
    assert float((flat["s"] - flat["w"]).norm() / flat["w"].norm()) < 1e-6
    for name, gradient in whole.items():
        assert float(gradient.norm()) > 0, name
        assert float((split[name] - gradient).norm() / gradient.norm()) < 1e-5, name


def test_a_step_reports_every_metric_and_counts_optimizer_steps(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(minibatches=3))
    report = trainer.train_step(1, make_groups())
    assert report.updated and report.refused is None
    assert (report.optimizer_steps, trainer.optimizer_steps) == (3, 3)
    assert set(report.metrics) == METRICS
    assert {name for name, value in report.metrics.items() if not np.isfinite(value)} == {"kl"}, "it is off"
    assert report.num_trajectories == 18
    assert report.num_tokens == sum(int(t.loss_mask.sum()) for _, ts in make_groups() for t in ts)


def test_loss_and_gradient_norm_are_means_over_the_optimizer_steps(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, found = Trainer(model_dir, make_config(minibatches=3)), []
    monkeypatch.setattr(trainer, "_norm", lambda loss, own=trainer._norm: found.append(own(loss)) or found[-1])
    metrics = trainer.train_step(1, make_groups()).metrics
    norms, losses, _ = np.array(found).T
    assert len(set(norms)) == len(set(losses)) == 3
    assert metrics["grad_norm"] == pytest.approx(norms.mean()) and metrics["loss"] == pytest.approx(losses.mean())


def test_on_policy_the_ratio_is_one_and_the_mismatch_none(model_dir: Path) -> None:
    for anchor in ("rollout", "recomputed"):
        trainer = Trainer(model_dir, make_config(minibatches=1, objective={"anchor": anchor}))
        metrics = trainer.train_step(1, on_policy(trainer, make_groups())).metrics
        assert abs(metrics["ratio_mean"] - 1) < 1e-5 and abs(metrics["ratio_max"] - 1) < 1e-4
        assert metrics["mismatch_abs"] < 1e-5 and metrics["clip_fraction_low"] == metrics["clip_fraction_high"] == 0


@pytest.mark.parametrize("anchor", ["rollout", "recomputed"])
def test_drift_between_versions_is_no_mismatch_of_the_tokens_that_the_present_version_sampled(
    model_dir: Path, anchor: str
) -> None:
    trainer = Trainer(model_dir, make_config(minibatches=1, objective={"anchor": anchor}))
    trainer.publish(3, lambda chunk: chunk)
    groups = on_policy(trainer, make_groups())
    for _, members in groups:
        for one in members:
            sampled = np.flatnonzero(one.loss_mask)
            one.turns[:] = [replace(turn, version_min=2, version_max=3) for turn in one.turns]
            middle = int(sampled[len(sampled) // 2])
            one.version_spans = (VersionSpan(0, middle, 2), VersionSpan(middle, len(one.token_ids), 3))
            one.log_probs[:middle] -= 0.5  # version 2 was less sure of them
    metrics = trainer.train_step(1, groups).metrics
    assert metrics["mismatch_on_policy"] < 1e-5 and metrics["mismatch_abs"] > 0.1
    trainer.publish(4, lambda chunk: chunk)
    assert math.isnan(trainer.train_step(2, groups).metrics["mismatch_on_policy"]), "no token is of version 4"


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_plain_kernels_take_the_step_that_the_fast_ones_take(model_dir: Path, algorithm: str) -> None:
    found = []
    for kernels in KERNELS:
        trainer = Trainer(model_dir, make_config(algorithm=algorithm, kernels=kernels))
        before = weights(trainer)
        report = trainer.train_step(1, make_groups())
        found.append((weights(trainer) - before, report.metrics["loss"]))
    (fast, loss), (plain, other) = found
    assert float((fast - plain).norm() / plain.norm()) < 1e-3 and loss == pytest.approx(other, abs=1e-5)


def test_learning_raises_what_was_rewarded(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(optimizer={"learning_rate": 1e-3}))
    groups = on_policy(trainer, make_groups())

    def gap() -> float:
        rows = to_rows(groups, trainer.config.objective)
        scores = [
            float(trainer._scores(trainer.policy, [inputs_of(collate([r]), trainer.device)])[0].mean()) for r in rows
        ]
        return float(np.dot(scores, [row.advantage for row in rows]))

    before = gap()
    for step in range(5):
        trainer.train_step(step, groups)
    assert gap() > before + 0.1


def test_temperature_is_that_of_the_log_probabilities(model_dir: Path) -> None:
    groups = on_policy(Trainer(model_dir, make_config(), temperature=0.5), make_groups())
    trainer = Trainer(model_dir, make_config(minibatches=1), temperature=0.5)
    assert trainer.train_step(1, groups).metrics["mismatch_abs"] < 1e-5


def test_a_group_without_variance_teaches_only_through_regularisers(model_dir: Path) -> None:
    groups = make_groups(1)
    for t in groups[0][1]:
        t.turns[-1].reward = 1.0
    silent = Trainer(model_dir, make_config(objective={"entropy_coefficient": 0})).gradients(groups)
    assert not any(g.any() for g in silent.values())
    entropic = Trainer(model_dir, make_config(objective={"entropy_coefficient": 0.1})).gradients(groups)
    assert all(g.any() for g in entropic.values())


def test_the_loss_scale_scales_the_whole_gradient(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(objective={"entropy_coefficient": 0.1}))
    whole, half = trainer.gradients(make_groups()), trainer.gradients(make_groups(), StepTerms(0.5))
    assert all(torch.allclose(half[name], 0.5 * whole[name], rtol=1e-4, atol=1e-8) for name in whole)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_a_spared_group_lacks_one_term_and_counts_in_the_mean_of_both(model_dir: Path, aggregation: str) -> None:
    """The gradient without a term is that of an objective without it, over all groups and over the spared ones."""
    groups = make_groups(4)
    terms = {"advantage": "grpo_no_std", "aggregation": aggregation, "entropy_coefficient": 0.1}
    whole = Trainer(model_dir, make_config(objective=terms))
    task = Trainer(model_dir, make_config(objective=terms | {"entropy_coefficient": 0.0}))
    spared = tuple(group_id for group_id, _ in groups[:2])
    share = Trainer(model_dir, make_config(objective=terms))

    def part(trainer: Trainer, kept: Sequence) -> dict[str, torch.Tensor]:
        """The gradient of these groups' tokens, as shares of all groups' mean."""
        rows = sum(int(t.loss_mask.sum()) if aggregation == "token_mean" else 1 for _, ts in kept for t in ts)
        total = sum(int(t.loss_mask.sum()) if aggregation == "token_mean" else 1 for _, ts in groups for t in ts)
        return {name: gradient * rows / total for name, gradient in trainer.gradients(kept).items()}

    task_of = {kind: part(task, chosen) for kind, chosen in (("spared", groups[:2]), ("kept", groups[2:]))}
    both_of = {kind: part(whole, chosen) for kind, chosen in (("spared", groups[:2]), ("kept", groups[2:]))}
    without_task = share.gradients(groups, StepTerms(spared=spared, without="task"))
    without_rest = share.gradients(groups, StepTerms(spared=spared, without="regulariser"))
    for name, found in without_task.items():
        wanted = both_of["kept"][name] + both_of["spared"][name] - task_of["spared"][name]
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)
        wanted = both_of["kept"][name] + task_of["spared"][name]
        torch.testing.assert_close(without_rest[name], wanted, rtol=1e-3, atol=1e-6)
    assert any(not torch.allclose(without_task[name], without_rest[name], atol=1e-6) for name in without_task)


def test_nothing_spared_is_the_plain_step_to_the_bit(model_dir: Path) -> None:
    reports = [
        Trainer(model_dir, make_config()).train_step(1, make_groups(), terms).metrics
        for terms in (
            StepTerms(),
            StepTerms(without="regulariser"),
            StepTerms(spared=("other",)),
            StepTerms(window_std=3.0),
        )
    ]
    assert all(report == reports[0] for report in reports)


def test_a_windows_divisor_divides_every_group_by_the_same(model_dir: Path) -> None:
    groups = make_groups()
    rows = [
        to_rows(groups, ObjectiveConfig(advantage=name, divisor=divisor), StepTerms(window_std=0.5))
        for name, divisor in (("grpo_no_std", "group"), ("grpo", "window"))
    ]
    assert [row.advantage * 2 for row in rows[0]] == [row.advantage for row in rows[1]]
    variances = [np.var([t.episode_return for t in ts], ddof=1) for _, ts in groups]
    own = to_rows(groups, ObjectiveConfig(divisor="window"))
    expected = [row.advantage / np.sqrt(np.mean(variances)) for row in rows[0]]
    np.testing.assert_allclose([row.advantage for row in own], expected)
    with pytest.raises(ValueError, match="divisor=window does nothing with advantage=grpo_no_std"):
        ObjectiveConfig(advantage="grpo_no_std", divisor="window")


UNSCALED = {"advantage": "grpo_no_std"}


def poisoned(kind: str) -> list:
    groups = make_groups()
    trajectory = groups[2][1][1]
    if kind == "reward":
        trajectory.turns[0].reward = float("inf")
    elif kind == "log-probability":
        trajectory.log_probs[trajectory.loss_mask] = np.nan
    else:
        return poison(groups, 2, kind)
    return groups


@pytest.mark.parametrize("kind", ["reward", "log-probability", "gradient"])
def test_anything_non_finite_refuses_the_step_as_a_whole_and_names_the_group(model_dir: Path, kind: str) -> None:
    trainer, twin = (Trainer(model_dir, make_config(minibatches=4, objective=UNSCALED)) for _ in range(2))
    for learner in (trainer, twin):
        learner.train_step(0, make_groups())
    before = weights(trainer)
    report = trainer.train_step(1, poisoned(kind))
    assert report.refused == f"non-finite {kind} in group 000001-002"
    assert not report.updated and report.optimizer_steps == 0
    assert (weights(trainer) == before).all() and trainer.optimizer_steps == 4
    for learner in (trainer, twin):  # the optimizer's moments are untouched as well
        learner.train_step(2, make_groups(seed=2))
    assert (weights(trainer) == weights(twin)).all()


def test_an_infinite_loss_is_refused_before_any_step_was_ever_taken(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(objective=UNSCALED))
    before = weights(trainer)
    kinds = set()
    for step in range(1, 5):  # its row is in the first or in the second of the step's two optimizer steps
        report = trainer.train_step(step, poisoned("loss"))
        assert report.refused.endswith("in group 000001-002")
        kinds.add(report.refused.split()[1])
        assert (weights(trainer) == before).all() and not trainer.optimizer.state
    assert "loss" in kinds  # else the gradient of the group's other rows overflows, in the first optimizer step


@pytest.mark.parametrize("place", [0, 31, 63])
def test_the_search_for_a_non_finite_group_repeats_one_step_and_halves_one_micro_batch(
    model_dir: Path, place: int
) -> None:
    trainer = Trainer(model_dir, make_config(minibatches=1, token_budget=1024, objective=UNSCALED))
    size = trainer.train_step(0, make_groups(64)) and trainer.marks.seen().marks
    assert size > 3
    assert (
        trainer.train_step(1, poison(make_groups(64), place)).refused
        == f"non-finite gradient in group 000001-{place:03d}"
    )
    assert trainer.marks.seen().marks - size <= size + (size + 7)  # the step, then the search


def test_a_search_without_time_names_the_groups_that_are_left(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(minibatches=1, objective=UNSCALED, step_timeout_s=1e-6))
    refused = trainer.train_step(1, poisoned("gradient")).refused
    names = ", ".join(f"000001-00{k}" for k in range(4))
    assert refused == f"non-finite value in one of the groups {names}: the search for it ran out of time"


def test_a_token_far_above_its_anchor_is_clipped_and_counted(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(minibatches=1))
    groups = make_groups()
    trajectory = groups[2][1][1]
    trajectory.log_probs[trajectory.loss_mask] = -200  # its ratio would overflow; its advantage is positive
    report = trainer.train_step(1, groups)
    tokens = sum(int(t.loss_mask.sum()) for _, ts in groups for t in ts)
    assert report.updated and report.metrics["clamped_share"] == pytest.approx(trajectory.loss_mask.sum() / tokens)


def test_nothing_kept_is_no_update(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    report = trainer.train_step(1, [])
    assert not report.updated and report.refused is None and trainer.optimizer_steps == 0


def test_the_reference_is_loaded_only_with_kl_on(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(
        "squelch.learner.trainer.Unloaded", lambda path, *rest: loaded.append(path) or Unloaded(path, *rest)
    )
    assert Trainer(model_dir, make_config()).reference is None and len(loaded) == 1
    trainer = Trainer(model_dir, make_config(objective={"kl": {"coefficient": 0.1}}))
    assert trainer.reference is not None and len(loaded) == 3
    first, second = (trainer.train_step(step, make_groups()).metrics for step in (1, 2))
    assert 0 <= first["kl"] < second["kl"]


def test_the_warm_up_advances_with_optimizer_steps(model_dir: Path) -> None:
    settings = OptimizerConfig(learning_rate=1e-3, warmup_steps=4)
    rates = [learning_rate(settings, taken) for taken in range(6)]
    assert np.allclose(rates, [2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    trainer = Trainer(model_dir, make_config(minibatches=2, optimizer=settings.model_dump()))
    seen = [trainer.train_step(step, make_groups()).metrics["learning_rate"] for step in range(3)]
    assert np.allclose(seen, [5e-4, 1e-3, 1e-3])


def test_the_gradient_is_clipped_by_its_global_norm(model_dir: Path) -> None:
    moved = {}
    for bound in (1e9, 1e-3):
        options = {"max_grad_norm": bound, "betas": (0.0, 0.0), "epsilon": 1.0, "learning_rate": 1.0}
        trainer = Trainer(model_dir, make_config(minibatches=1, optimizer=options))
        before = weights(trainer)
        norm = trainer.train_step(1, make_groups()).metrics["grad_norm"]
        moved[bound] = float((weights(trainer) - before).norm())
    assert norm > 0.1  # reported before clipping
    assert moved[1e-3] < 1.01e-3 < moved[1e9]


@pytest.mark.slow
def test_a_run_repeats_bit_for_bit_and_follows_its_seed(model_dir: Path) -> None:
    def run(seed: int) -> torch.Tensor:
        trainer = Trainer(model_dir, make_config(), seed=seed)
        for step in range(2):
            trainer.train_step(step, make_groups(seed=step))
        return weights(trainer)

    assert (run(1) == run(1)).all()
    assert (run(1) != run(2)).any()


def test_bfloat16_keeps_float32_masters(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(dtype="bfloat16"))
    report = trainer.train_step(1, make_groups())
    assert report.updated and all(p.dtype == torch.float32 for p in trainer.policy.parameters())
    exact = Trainer(model_dir, make_config()).train_step(1, make_groups()).metrics["loss"]
    assert abs(report.metrics["loss"] - exact) < 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "no config.json"),
        (lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"), "no .*safetensors"),
        (lambda d: rewrite(d, "Qwen2ForCausalLM", "T5ForConditionalGeneration"), "T5ForConditionalGeneration is not"),
        (lambda d: rewrite(d, '"architectures"', '"auto_map": {}, "architectures"'), "needs code of its own"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path: Path, change: object, message: str) -> None:
    folder = make_model(tmp_path / "model")
    change(folder)
    with pytest.raises(ValueError, match=message):
        Unloaded(folder)


def rewrite(folder: Path, old: str, new: str) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace(old, new))


def test_models_that_change_logits_after_the_head_or_look_ahead_are_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertLMHeadModel, Gemma2Config, Gemma2ForCausalLM

    small = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    gemma = Gemma2Config(
        **small, num_attention_heads=2, num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.01
    )
    for softcap, message in ((50.0, "Gemma2Attention asks for softcap"), (None, "Gemma2ForCausalLM: logits of packed")):
        gemma.attn_logit_softcapping = softcap
        Gemma2ForCausalLM(gemma).save_pretrained(tmp_path / "gemma")
        with pytest.raises(ValueError, match=message):
            Unloaded(tmp_path / "gemma")
    BertLMHeadModel(BertConfig(**small, num_attention_heads=2)).save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="BertLMHeadModel"):
        Unloaded(tmp_path / "bert")


def test_all_advantages_zero_and_no_regulariser_is_no_update(model_dir: Path) -> None:
    groups = make_groups()
    for _, members in groups:
        for t in members:
            t.turns[-1].reward = 1.0
    trainer = Trainer(model_dir, make_config(objective={"entropy_coefficient": 0.0}))
    trainer.train_step(0, make_groups())  # so that Adam has moments that would still move the weights
    before = weights(trainer)
    report = trainer.train_step(1, groups)
    assert not report.updated and report.refused is None and (weights(trainer) == before).all()
    assert trainer.optimizer_steps == 2
    assert report.metrics == {"zero_advantage_share": 1.0, "masked_share": 0.0}
    regularised = Trainer(model_dir, make_config()).train_step(0, groups)
    assert regularised.updated and regularised.metrics["zero_advantage_share"] == 1


def equalised(groups: list, chosen: Sequence[str]) -> list:
    """The groups, with the same return for all trajectories of those `chosen`."""
    for group_id, members in groups:
        for t in members if group_id in chosen else ():
            for turn in t.turns:
                turn.reward = turn.format_penalty = 0.0
    return groups


@pytest.mark.parametrize(
    ("objective", "without", "updates"),
    [
        ({"entropy_coefficient": 0.0}, "task", False),
        ({"entropy_coefficient": 0.0}, "regulariser", True),
        ({}, "task", True),
    ],
)
def test_advantages_of_spared_groups_alone_are_an_update_only_where_the_loss_has_them(
    model_dir: Path, objective: dict, without: str, updates: bool
) -> None:
    trainer = Trainer(model_dir, make_config(objective=objective))
    trainer.train_step(0, make_groups())
    before, groups = weights(trainer), make_groups()
    (kept, _), *spared = groups
    report = trainer.train_step(1, equalised(groups, [kept]), StepTerms(spared=tuple(dict(spared)), without=without))
    assert report.updated == updates and report.refused is None
    assert (weights(trainer) == before).all() != updates
    assert 0 < report.metrics["zero_advantage_share"] < 1


def test_an_optimizer_step_without_advantages_is_left_out_of_a_training_step(model_dir: Path) -> None:
    groups = make_groups(2)
    equalised(groups, [groups[0][0]])
    config = make_config(minibatches=2, objective={"entropy_coefficient": 0.0})
    whole, alone = Trainer(model_dir, config), Trainer(model_dir, config.model_copy(update={"minibatches": 1}))
    found, expected = whole.train_step(1, groups), alone.train_step(1, groups[1:])
    assert (found.optimizer_steps, whole.optimizer_steps) == (1, 1)
    assert (weights(whole) == weights(alone)).all()
    share = expected.num_tokens / found.num_tokens
    assert found.metrics["zero_advantage_share"] == pytest.approx(1 - share)
    same = found.metrics.keys() - {"zero_advantage_share"}
    assert all(found.metrics[name] == pytest.approx(expected.metrics[name], nan_ok=True) for name in same)


def test_sequences_beyond_the_mismatch_bound_teach_nothing_and_are_counted(model_dir: Path) -> None:
    objective = {"entropy_coefficient": 0.0, "max_mismatch": 0.5}
    trainer = Trainer(model_dir, make_config(objective=objective))
    groups = on_policy(trainer, make_groups())
    group_id, members = groups[2]
    stale = members[1]
    whole = trainer.gradients(groups)
    only = trainer.gradients([(group_id, members)])
    stale.log_probs[stale.loss_mask] -= 1.0
    masked = trainer.gradients([(group_id, members)])
    assert any(not torch.allclose(masked[name], only[name]) for name in only)
    stale.log_probs[stale.loss_mask] += 1.0
    assert all(torch.equal(gradient, whole[name]) for name, gradient in trainer.gradients(groups).items())
    stale.log_probs[stale.loss_mask] -= 1.0
    metrics = trainer.train_step(1, groups).metrics
    tokens = sum(int(t.loss_mask.sum()) for _, ts in groups for t in ts)
    assert metrics["masked_share"] == pytest.approx(stale.loss_mask.sum() / tokens)
    assert metrics["mismatch_outside"] == pytest.approx(metrics["masked_share"])
    assert metrics["effective_sample_size"] < 1


@pytest.mark.parametrize("entropy", [0.0, 0.01])
def test_a_step_with_every_sequence_beyond_the_mismatch_bound_is_no_update(model_dir: Path, entropy: float) -> None:
    trainer = Trainer(model_dir, make_config(objective={"entropy_coefficient": entropy, "max_mismatch": 0.5}))
    groups = on_policy(trainer, make_groups())
    assert trainer.train_step(0, groups).updated  # so that Adam has moments that would still move the weights
    before = weights(trainer)
    for _, members in groups:
        for t in members:
            t.log_probs[t.loss_mask] -= 5.0
    report = trainer.train_step(1, groups)
    assert not report.updated and report.refused is None and report.metrics["masked_share"] == 1
    assert (weights(trainer) == before).all()


def test_a_masked_sequence_may_overflow_where_others_are_learned_from(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(objective={"max_mismatch": 0.5}))
    groups = on_policy(trainer, make_groups())
    stale = groups[1][1][0]
    stale.log_probs[stale.loss_mask] = -300.0
    report = trainer.train_step(0, groups)
    assert report.updated and report.refused is None
    assert 0 < report.metrics["masked_share"] < 1
    assert all(math.isfinite(value) for name, value in report.metrics.items() if name != "kl")
