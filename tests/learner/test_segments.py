"""Trajectories of several segments: each counts once in the loss, wherever its segments are fed.

The definition here is a loop over trajectories in float64, with a plain padded forward for each segment alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.archive.rows import from_table, to_table
from squelch.kit.archive.writer import Archive
from squelch.kit.records.records import Group, Segment, Task, Ticket, Trajectory
from squelch.learner.batching import Row, collate, plan, to_rows
from squelch.learner.clock import Clock
from squelch.learner.config import LearnerConfig, ObjectiveConfig
from squelch.learner.decomposition.decompose import group_parts
from squelch.learner.objective.components import AGGREGATIONS, RATIOS
from squelch.learner.objective.losses import policy_loss
from squelch.learner.refusal import SettingRefused
from squelch.learner.tensors import scored, to_batch
from squelch.learner.trainer import Trainer
from tests.kit.archive.small_groups import decided
from tests.learner.models import make_agents, make_config, make_groups
from tests.learner.plain import plain_model, plain_scores

Groups = Sequence[tuple[str, Sequence[Trajectory]]]
RULES = [(name, "token") for name in AGGREGATIONS] + [("sequence_mean", "sequence")]


def objective(aggregation: str, ratio: str, **changes: object) -> ObjectiveConfig:
    own = {"aggregation": aggregation, "ratio": ratio, "normaliser_tokens": 40, "entropy_coefficient": 0.0, **changes}
    return ObjectiveConfig.model_validate(own)


def cut_anywhere(groups: Groups, random: Random) -> list[tuple[str, list[Trajectory]]]:
    """The same sampled tokens, in other segments: each may begin at any token that was fed."""

    def cut(one: Trajectory) -> Trajectory:
        fed = np.flatnonzero(~one.loss_mask)[1:].tolist()
        starts = sorted(random.sample(fed, random.randint(0, min(4, len(fed)))))
        return replace(one, segments=tuple(Segment(start, "compaction") for start in starts))

    return [(group_id, [cut(one) for one in members]) for group_id, members in groups]


def advantages(members: Sequence[Trajectory]) -> np.ndarray:
    returns = np.array([one.episode_return for one in members])
    spread = returns.std(ddof=1) if len(returns) > 1 else 0.0
    return (returns - returns.mean()) / spread if spread else np.zeros(len(returns))


def by_definition(
    groups: Groups, own: ObjectiveConfig, learned: Mapping[tuple[str, int], torch.Tensor]
) -> torch.Tensor:
    """The loss, float64. `learned`: the learner's log-probabilities of each trajectory's sampled tokens."""
    everyone = [(gid, one, a) for gid, ts in groups for one, a in zip(ts, advantages(ts), strict=True)]
    tokens = sum(int(one.loss_mask.sum()) for _, one, _ in everyone)
    total = torch.zeros((), dtype=torch.float64)
    for group_id, one, advantage in everyone:
        gaps = learned[group_id, one.index].double() - torch.from_numpy(one.log_probs[one.loss_mask]).double()
        ratio = (gaps.mean() if own.ratio == "sequence" else gaps).exp()
        held = ratio.clamp(1 - own.clip_low, 1 + own.clip_high)
        terms = -torch.minimum(ratio * advantage, held * advantage).expand(len(gaps))
        weight = {
            "sequence_mean": 1 / (len(everyone) * len(gaps)),
            "token_mean": 1 / tokens,
            "constant": 1 / (len(everyone) * own.normaliser_tokens),
        }[own.aggregation]
        total = total + weight * terms.sum()
    return total


def learned_from(rollout: torch.Tensor) -> torch.Tensor:
    """Made-up log-probabilities, which depend on the token alone and not on where it is fed."""
    return rollout + 0.3 * torch.sin(1000 * rollout)


def in_micro_batches(
    groups: Groups, own: ObjectiveConfig, budget: int, world: int, share: bool
) -> tuple[float, Counter]:
    """The loss summed over micro-batches and ranks, and how often each sampled token is in one, by its rollout."""
    rows, seen, loss = to_rows(groups, own), Counter[float](), 0.0
    (part,) = plan(rows, 1, budget, world, seed=1, step=2, share=share, whole=own.needs_whole)
    for chosen in (chosen for hand in part.micro_batches for chosen in hand):
        micro = collate([rows[i] for i in chosen], share)
        assert micro.forest.num_tokens <= budget
        rollout = torch.from_numpy(micro.rollout)
        recomputed = rollout if own.max_mismatch else None
        batch = scored(to_batch(micro, part, own, torch.device("cpu")), own, recomputed, None)
        loss += float(policy_loss(learned_from(rollout), torch.zeros_like(rollout), batch.tokens, own, 1.0).loss)
        seen.update(rollout.tolist())
        assert micro.forest.token_ids[micro.positions].tolist() == [i for k in chosen for i in fed_before(rows[k])]
    return loss, seen


def fed_before(row: Row) -> list[int]:
    return row.token_ids[row.positions].tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.randoms(use_true_random=False),
    st.sampled_from([*RULES, ("sequence_mean", "mask")]),
    st.sampled_from([0, 0, 20, 300]),
    st.integers(1, 3),
    st.booleans(),
)
def test_however_the_sampled_tokens_are_segmented_the_loss_is_that_of_the_definition_and_counts_each_once(
    seed: int, random: Random, rules: tuple[str, str], extra: int, world: int, share: bool
) -> None:
    aggregation, ratio = rules
    own = objective(aggregation, "token", max_mismatch=9.0) if ratio == "mask" else objective(aggregation, ratio)
    groups = make_groups(3, 3, seed, turns=3)
    cut = cut_anywhere(groups, random)
    learned = {(g, t.index): learned_from(torch.from_numpy(t.log_probs[t.loss_mask])) for g, ts in groups for t in ts}
    wanted = float(by_definition(groups, own, learned))
    longest = max(sum(row.length + 16 for row in to_rows([(g, [t])], own)) for g, ts in cut for t in ts)
    budget = (longest if own.needs_whole else max(row.length for row in to_rows(cut, own))) + extra
    loss, seen = in_micro_batches(cut, own, budget, world, share)
    assert loss == pytest.approx(wanted, abs=1e-6)
    assert seen == Counter(p for _, ts in groups for t in ts for p in t.log_probs[t.loss_mask].tolist())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(60, 400), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.booleans())
def test_the_segments_of_a_trajectory_share_an_optimizer_step_and_where_they_fit_a_micro_batch(
    seed: int, budget: int, world: int, minibatches: int, share: bool, whole: bool
) -> None:
    rows = to_rows(make_agents(3, 5, seed), objective("sequence_mean", "token"))
    try:
        steps = plan(rows, minibatches, budget, world, 3, 4, share, "ratio=sequence" if whole else "")
    except SettingRefused as refused:
        assert "smaller than one trajectory" in str(refused)
        return
    places = Counter(int(i) for part in steps for hand in part.micro_batches for micro in hand for i in micro)
    assert places == Counter(range(len(rows)))
    of_step = [{rows[i].trajectory for hand in p.micro_batches for m in hand for i in m} for p in steps]
    assert sum(map(len, of_step)) == len(set().union(*of_step)) == 15, "each is in one optimizer step"
    assert [len(names) for names in of_step] == [part.num_sequences for part in steps]
    for part in steps:
        assert len({len(hand) for hand in part.micro_batches}) == 1
        micros = [[rows[i] for i in micro] for hand in part.micro_batches for micro in hand]
        assert all(collate(micro, share).forest.num_tokens <= budget for micro in micros)
        split = Counter(name for micro in micros for name in {row.trajectory for row in micro})
        for name in (name for name, count in split.items() if count > 1):
            together = [row for row in rows if row.trajectory == name]
            assert not whole and sum(row.length for row in together) > budget


def test_a_trajectory_that_must_stay_whole_and_does_not_fit_is_refused_by_name_with_the_budget_that_it_needs() -> None:
    rows = to_rows(make_agents(1, 5), objective("sequence_mean", "sequence"))
    whole = [[row for row in rows if row.index == i] for i in range(5)]
    worst = max(whole, key=lambda own: sum(row.length for row in own))
    budget = max(row.length for row in rows)
    with pytest.raises(
        SettingRefused, match=r"group 000001-000, trajectory \d has \d segments .* which ratio=x needs"
    ) as no:
        plan(rows, 1, budget, 1, 0, 0, False, "ratio=x")
    assert "set learner.token_budget to at least " in str(no.value)
    plan(rows, 1, sum(row.length for row in worst), 1, 0, 0, False, "ratio=x")
    plan(rows, 1, budget, 1, 0, 0, False)


def test_a_critic_refuses_segments_by_name_and_takes_one_segment() -> None:
    ppo = LearnerConfig.model_validate({"algorithm": "ppo"}).objective
    with pytest.raises(SettingRefused, match=r"advantage=gae .* group 000001-000, trajectory 1 has 2 segments.* grpo"):
        to_rows(make_agents(1), ppo)
    assert to_rows(make_groups(1), ppo)


def test_a_segment_without_a_sampled_token_teaches_nothing_and_one_that_begins_with_one_is_a_broken_invariant() -> None:
    (group_id, members), *_ = make_groups(1)
    end = len(members[0].token_ids)
    fed = replace(members[0], segments=(Segment(end - 2, "compaction"),))
    assert len(to_rows([(group_id, [fed])], ObjectiveConfig())) == 1
    broken = replace(members[0], segments=(Segment(int(np.flatnonzero(members[0].loss_mask)[0]), "compaction"),))
    with pytest.raises(RuntimeError, match="trajectory 0: the first token of its segment at 9 is sampled"):
        to_rows([(group_id, [broken])], ObjectiveConfig())


def plain_rows(one: Trajectory) -> list[Row]:
    """Each segment as a sequence of its own, made without the learner's code."""
    rows = []
    edges = [0, *(segment.start for segment in one.segments), len(one.token_ids)]
    for start, end in pairwise(edges):
        ids, mask, scores = (array[start:end] for array in (one.token_ids, one.loss_mask, one.log_probs))
        at = np.flatnonzero(mask)
        rows.append(Row("", 0, ids[: at[-1]], at - 1, ids[at], scores[at], 0.0))
    return rows


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("aggregation", "ratio"), RULES)
def test_the_trainers_gradient_is_that_of_the_definition_however_segments_are_packed(
    model_dir: Path, aggregation: str, ratio: str
) -> None:
    groups, model, own = make_agents(), plain_model(model_dir), objective(aggregation, ratio)
    with torch.no_grad():
        for _, members in groups:
            for one in members:
                near = plain_scores(model, plain_rows(one), 1.0)[0].numpy()
                one.log_probs[one.loss_mask] = near + 0.01 * np.sin(np.arange(len(near)))
    learned = {(g, t.index): plain_scores(model, plain_rows(t), 1.0)[0] for g, ts in groups for t in ts}
    by_definition(groups, own, learned).backward()
    wanted = torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters())])
    tight = 150 if own.needs_whole else 70  # some trajectories are longer
    for budget, share in ((2048, True), (2048, False), (tight, True), (tight, False)):
        trainer = Trainer(model_dir, make_config(token_budget=budget, share_openings=share, objective=own.model_dump()))
        found = trainer.gradients(groups)
        gradient = torch.cat([found[name].flatten() for name in sorted(found)])
        assert float((gradient - wanted).norm() / wanted.norm()) < 1e-4, (budget, share)


@pytest.mark.usefixtures("alone")
def test_a_kl_in_the_reward_is_charged_over_all_segments_of_a_trajectory(model_dir: Path) -> None:
    kl = {"coefficient": 0.5, "place": "reward"}
    trainer = Trainer(model_dir, make_config(token_budget=100, objective={"kl": kl, "advantage": "grpo_no_std"}))
    trainer.train_step(1, make_groups())
    groups, own = make_agents(1, 3), trainer.config.objective
    rows = to_rows(groups, own)
    steps, _ = trainer._prepare(rows, trainer.plan(rows, 1, 0), Clock(), own)
    assert len(steps[0]) > 1, "the trajectories are in several micro-batches"
    costs, found = np.zeros(3), dict[int, set[float]]()
    for batch in steps[0]:
        ends = np.cumsum([row.num_sampled for row in batch.rows])[:-1].tolist()
        gaps = batch.tokens.reference.double() - batch.tokens.rollout.double()
        charged = 0.5 * (gaps.clamp(-20, 20).exp() - 1 - gaps.clamp(-20, 20))
        per_row = zip(batch.rows, charged.tensor_split(ends), batch.tokens.advantages.tensor_split(ends), strict=True)
        for row, cost, advantage in per_row:
            costs[row.index] += float(cost.sum())
            found.setdefault(row.index, set()).update(advantage.tolist())
    shaped = np.array([one.episode_return for one in groups[0][1]]) - costs
    assert {i: list(values) for i, values in found.items()} == {
        i: [pytest.approx(value, rel=1e-4)] for i, value in enumerate(shaped - shaped.mean())
    }


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_task_gradient_of_the_decomposition_is_that_of_the_objective(model_dir: Path, aggregation: str) -> None:
    own = objective(aggregation, "token", advantage="grpo_no_std")
    trainer = Trainer(model_dir, make_config(token_budget=100, objective=own.model_dump()))
    [(group_id, members)], model = make_agents(1, 5), plain_model(model_dir)
    with torch.no_grad():
        for one in members:
            one.log_probs[one.loss_mask] = plain_scores(model, plain_rows(one), 1.0)[0].numpy()
    task = torch.cat([shard.flatten() for shard in group_parts(trainer, group_id, members).task])
    whole = torch.cat([shard.flatten() for shard in trainer.gradients([(group_id, members)]).values()])
    assert float(whole.norm()) > 1e-3 and float((task - whole).norm() / whole.norm()) < 1e-4


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_a_step_learned_again_from_its_archived_rows_gives_the_same_bits(
    model_dir: Path, tmp_path: Path, algorithm: str
) -> None:
    """As a recovery of lost ranks and a resume do it."""
    groups, archive = make_agents(), Archive(tmp_path)
    made = [Group(Ticket(name, 1, Task("A", 0), len(ts), 0), "key", list(ts)) for name, ts in groups]
    archive.write_groups(1, [to_table(one) for one in made], decided([name for name, _ in groups]))
    names = [name for name, _ in groups]
    again = [(name, from_table(table)) for name, table in zip(names, archive.groups(1, names), strict=True)]
    assert any(one.segments for _, members in again for one in members)
    found = []
    for rows in (groups, again):
        trainer = Trainer(model_dir, make_config(algorithm=algorithm, token_budget=256))
        metrics = trainer.train_step(1, rows).metrics
        found.append((metrics, torch.cat([p.to_local().detach().flatten() for p in trainer.policy.parameters()])))
    (metrics, weights), (other_metrics, other_weights) = found
    assert repr(metrics) == repr(other_metrics) and torch.equal(weights, other_weights)


@pytest.mark.usefixtures("alone")
def test_a_step_reports_trajectories_and_every_rule_takes_segments(model_dir: Path) -> None:
    trainer = Trainer(model_dir, make_config(minibatches=2))
    report = trainer.train_step(1, make_agents(3, 4))
    assert report.updated and report.num_trajectories == 12
    assert report.num_tokens == sum(int(one.loss_mask.sum()) for _, ts in make_agents(3, 4) for one in ts)
    assert set(RATIOS) == {"token", "sequence"}, "a new rule belongs into RULES"
