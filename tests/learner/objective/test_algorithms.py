"""The table of algorithms: what a name sets, what the user may change, and each objective by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from squelch.cluster.config import RunConfig, load
from squelch.kit.base.dotted import nested
from squelch.kit.base.errors import UserError
from squelch.kit.filter.selection import select
from squelch.kit.records.records import Trajectory, Turn
from squelch.learner.batching import Row, to_rows
from squelch.learner.config import CriticConfig, LearnerConfig, ObjectiveConfig
from squelch.learner.objective.algorithms import ALGORITHMS, differences
from squelch.learner.objective.components import StepSize
from squelch.learner.objective.credit import assign
from squelch.learner.objective.losses import TokenBatch, policy_loss, sequences_of, token_weights


def of(name: str, **objective: object) -> ObjectiveConfig:
    return LearnerConfig.model_validate({"algorithm": name, "objective": objective}).objective


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_entry_sets_what_it_says_and_departs_from_itself_nowhere(name: str) -> None:
    config = LearnerConfig(algorithm=name)
    assert differences(name, config.model_dump(mode="json")) == []
    assert LearnerConfig.model_validate(config.model_dump()) == config


def test_grpo_is_what_the_defaults_are() -> None:
    assert LearnerConfig(algorithm="grpo") == LearnerConfig()
    assert (
        nested(ALGORITHMS["grpo"].settings)["objective"].items()
        <= {
            **ObjectiveConfig().model_dump(),
            "kl": {"coefficient": 0.0},
            "overlong": {"penalty": 0.0},
        }.items()
    )


def test_the_users_keys_win_and_are_reported() -> None:
    config = LearnerConfig.model_validate({"algorithm": "ppo", "objective": {"clip_high": 0.2, "gae": {"lam": 0.95}}})
    assert (config.objective.clip_high, config.objective.gae.lam, config.objective.advantage) == (0.2, 0.95, "gae")
    assert differences("ppo", config.model_dump(mode="json")) == [
        "learner.objective.clip_high: 0.28 -> 0.2",
        "learner.objective.gae.lam: 1.0 -> 0.95",
    ]


def test_a_run_knows_its_departures_and_reads_them_back() -> None:
    config = load("frozenlake", ["learner.algorithm=dr_grpo"])
    assert config.algorithm_differences == ["learner.objective.aggregation: constant -> token_mean"]
    assert RunConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["learner.algorithm=dapo"], ["filter of its own", "filter.rho=0.9 contradicts", "algorithm_filter=false"]),
        (["learner.algorithm=dapo", "filter.rho=1.0", "filter.rule=top_k"], ["filter.rule=top_k contradicts"]),
        (["learner.algorithm=dapo", "filter.rho=1.0", "filter.refill=false"], ["filter.refill=False contradicts"]),
        (["learner.algorithm=ppO"], ["learner.algorithm", "'ppo'"]),
        (["learner.algorithm_filter=false"], ["does nothing", "grpo has no filter"]),
        (["learner.critic.clip=0.3"], ["learner.critic does nothing", "learner.algorithm=ppo"]),
        (["learner.objective.reward=turn"], ["reward=turn needs advantage=gae"]),
        (["learner.objective.gae.lam=0.9"], ["gae settings do nothing"]),
        (["learner.algorithm=ppo", "learner.objective.ratio=sequence"], ["ratio=sequence needs one advantage"]),
        (["learner.objective.ratio=sequences"], ["learner.objective.ratio", "'sequence'"]),
        (["learner.objective.overlong={penalty: 1, max_tokens: 4, cache_tokens: 5}"], ["cache_tokens=5 exceeds"]),
        (
            ["learner.objective.overlong={penalty: 1, cache_tokens: 49}"],
            ["overlong.cache_tokens=49 exceeds sampling.max_tokens_per_turn=48", "lower it"],
        ),
    ],
)
def test_a_contradiction_is_refused_and_says_what_would_be_right(overrides: list[str], says: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load("frozenlake", overrides)
    for part in says:
        assert part in str(caught.value)


def test_dapo_brings_its_filter_or_leaves_it_to_the_user_by_name() -> None:
    own = load("frozenlake-dapo").filter
    assert (own.rule, own.rho, own.include_zero, own.refill) == ("top_p", 1.0, False, True)
    users = load("frozenlake", ["learner.algorithm=dapo", "learner.algorithm_filter=false"])
    assert (users.filter.rho, users.filter.refill) == (0.9, False)
    assert users.algorithm_differences[-1] == "learner.algorithm_filter: true -> false"


def test_lengths_come_from_the_run_where_they_are_left_open() -> None:
    constant = load("frozenlake-dr-grpo").learner.objective.normaliser_tokens
    assert constant == 5 * 48  # the lake's turns times the demo's tokens a turn
    overlong = load("frozenlake-dapo").learner.objective.overlong
    assert (overlong.max_tokens, overlong.cache_tokens) == (48, 9)
    assert (
        load("frozenlake-dr-grpo", ["learner.objective.normaliser_tokens=7"]).learner.objective.normaliser_tokens == 7
    )


# --- objectives by hand: one group, returns 1, 0, 0 of 2, 1 and 3 sampled tokens, everything on policy ---


def trajectory(index: int, lengths: list[int], rewards: list[float], cut: bool = False) -> Trajectory:
    ids, mask, turns = [5], [False], []
    for sampled, reward in zip(lengths, rewards, strict=True):
        ids, mask = [*ids, 7, 8], [*mask, False, False]
        start = len(ids)
        ids, mask = ids + [9] * sampled, mask + [True] * sampled
        turns.append(Turn(start, len(ids), start, start, reward, -0.1 * (index == 2), True, False, 1, 0, 0))
    loss_mask = np.array(mask)
    log_probs = np.where(loss_mask, -1.0, 0.0).astype(np.float32)
    tokens = np.array(ids, dtype=np.int32)
    return Trajectory(index, tokens, loss_mask, log_probs, turns, False, cut, bootstrap_last_state=cut)


GROUP = [("g", [trajectory(0, [2], [1.0]), trajectory(1, [1], [0.0]), trajectory(2, [3], [0.0])])]


def loss_of(config: ObjectiveConfig, rows: list[Row], ratio: float = 1.0) -> float:
    """The loss of `rows` as one optimizer step, every token at `ratio` and without entropy."""
    lengths = torch.tensor([row.num_sampled for row in rows])
    total = int(lengths.sum())
    weights = token_weights(lengths, config.aggregation, StepSize(len(rows), total, config.normaliser_tokens)).double()
    advantages = torch.cat([torch.full((row.num_sampled,), row.advantage, dtype=torch.float64) for row in rows])
    anchor = torch.full((total,), -1.0, dtype=torch.float64)
    batch = TokenBatch(anchor, anchor, advantages, weights, sequences_of(lengths))
    return float(policy_loss(anchor + math.log(ratio), torch.zeros(total), batch, config, 1.0).loss)


def test_grpo_by_hand() -> None:
    config = of("grpo", include_format_penalty=False)
    rows = to_rows(GROUP, config)
    a = [2 / 3 / math.sqrt(1 / 3), -1 / 3 / math.sqrt(1 / 3)]
    assert [row.advantage for row in rows] == pytest.approx([a[0], a[1], a[1]])
    assert loss_of(config, rows) == pytest.approx(0.0, abs=1e-6)  # every sequence weighs alike
    # at ratio 1.5 the positive one is clipped at 1.28, the negative ones are not
    assert loss_of(config, rows, 1.5) == pytest.approx(-(1.28 * a[0] + 1.5 * 2 * a[1]) / 3, rel=1e-6)


def test_dr_grpo_by_hand() -> None:
    config = of("dr_grpo", include_format_penalty=False, normaliser_tokens=10)
    rows = to_rows(GROUP, config)
    assert [row.advantage for row in rows] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert loss_of(config, rows) == pytest.approx(-(2 * 2 / 3 - 4 / 3) / (3 * 10), abs=1e-8)
    assert loss_of(config, rows, 1.5) == pytest.approx(-(1.28 * 2 * 2 / 3 - 1.5 * 4 / 3) / 30, rel=1e-6)


def test_dapo_by_hand() -> None:
    # L_max 3, L_cache 2: one token is free, two cost 0.5, three cost 1
    config = of("dapo", include_format_penalty=False, overlong={"max_tokens": 3, "cache_tokens": 2})
    rows = to_rows(GROUP, config)
    paid = np.array([1 - 0.5, 0.0, -1.0])
    wanted = (paid - paid.mean()) / paid.std(ddof=1)
    assert [row.advantage for row in rows] == pytest.approx(wanted.tolist())
    assert [row.rewards.sum() for row in rows] == pytest.approx(paid.tolist())
    tokens = np.repeat(wanted, [2, 1, 3])
    assert loss_of(config, rows) == pytest.approx(-tokens.mean(), rel=1e-6)
    assert loss_of(config, rows, 0.5) == pytest.approx(-np.where(tokens > 0, 0.5, 0.8) @ tokens / 6, rel=1e-6)


def test_ppo_pays_a_turn_on_its_last_sampled_token_and_an_episode_on_its_own() -> None:
    group = [("g", [trajectory(2, [2, 3], [0.25, 1.0])])]
    (row,) = to_rows(group, of("ppo"))
    assert row.rewards == pytest.approx([0, 0.15, 0, 0, 0.9])  # each turn's penalty stands with its reward
    (row,) = to_rows(group, of("ppo", include_format_penalty=False, reward="episode"))
    assert row.rewards == pytest.approx([0, 0, 0, 0, 1.25])


def test_what_was_fed_is_no_step_and_a_cut_episode_needs_its_last_state() -> None:
    ended, cut = (to_rows([("g", [trajectory(0, [2, 3], [0, 1], cut)])], of("ppo"))[0] for cut in (False, True))
    assert ended.num_sampled == cut.num_sampled == 5
    assert (ended.bootstrap, cut.bootstrap) == (False, True) and cut.length == ended.length + 1
    grouped = to_rows([("g", [trajectory(0, [2, 3], [0, 1], True)])], of("grpo"))[0]
    assert not grouped.bootstrap and grouped.length == ended.length


def test_gspo_by_hand() -> None:
    config = of("gspo", include_format_penalty=False)
    rows = to_rows(GROUP, config)
    a = [2 / 3 / math.sqrt(1 / 3), -1 / 3 / math.sqrt(1 / 3)]
    assert [row.advantage for row in rows] == pytest.approx([a[0], a[1], a[1]])
    # a sequence whose every token is at ratio 1.5 is at 1.5 itself: the positive one is clipped at 1.0004
    assert loss_of(config, rows, 1.5) == pytest.approx(-(1.0004 * a[0] + 1.5 * 2 * a[1]) / 3, rel=1e-6)
    assert loss_of(config, rows, 0.5) == pytest.approx(-(0.5 * a[0] + 0.9997 * 2 * a[1]) / 3, rel=1e-6)


def test_gspos_recipe_is_the_demo_with_its_algorithm() -> None:
    gspo, grpo = load("frozenlake-gspo"), load("frozenlake")
    own = gspo.learner.objective
    assert (own.ratio, own.clip_low, own.clip_high) == ("sequence", 3e-4, 4e-4)
    assert gspo.algorithm_differences == []
    assert gspo.model_dump(exclude={"name", "learner"}) == grpo.model_dump(exclude={"name", "learner"})


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo"])
def test_the_order_of_a_groups_members_does_not_matter(name: str) -> None:
    config = of(name)
    members = GROUP[0][1]
    one = {row.index: row.advantage for row in to_rows(GROUP, config)}
    other = {row.index: row.advantage for row in to_rows([("g", members[::-1])], config)}
    assert one == other


def test_without_a_critic_or_a_kl_in_the_reward_nothing_waits_for_other_ranks() -> None:
    found = assign([], [[]], ObjectiveConfig(), torch.device("cpu"))  # no process group here: a collective would raise
    assert found.steps == [[]] and found.metrics == {}


def test_settings_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="critic does nothing"):
        LearnerConfig(critic=CriticConfig(clip=0.0))
    with pytest.raises(ValidationError, match="k2 or k3"):
        of("grpo", kl={"coefficient": 0.1, "estimator": "k1"})
    assert of("grpo", kl={"coefficient": 0.1, "estimator": "k1", "place": "reward"}).kl_in_loss == 0


@pytest.mark.parametrize("quarter", [1, 2, 3, 4])
def test_the_quartile_recipes_differ_in_their_band_alone(quarter: int) -> None:
    config = load(f"quartile-{quarter}")
    assert (config.filter.rule, config.filter.band) == ("band", ((quarter - 1) / 4, quarter / 4))
    first = load("quartile-1").model_dump() | {"name": config.name}
    assert first | {"filter": config.filter.model_dump()} == config.model_dump()


QUARTILES = [load(f"quartile-{quarter}").filter for quarter in (1, 2, 3, 4)]


@given(st.lists(st.floats(0.001, 1), min_size=8, max_size=8, unique_by=lambda x: round(x, 6)))
def test_the_quartiles_of_a_step_are_its_quarters(variances: list[float]) -> None:
    kept = [list(select(np.array(variances), None, config).kept) for config in QUARTILES]
    assert [len(positions) for positions in kept] == [2, 2, 2, 2]
    assert {k for positions in kept for k in positions} == set(range(8))
    ranked = [value for positions in kept for value in sorted(variances[k] for k in positions)]
    assert ranked == sorted(variances)
