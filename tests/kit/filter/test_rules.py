"""What must hold of the filter's statistics and rules."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from squelch.kit.filter.measure import GroupStatistics, measure, score
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.selection import select
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.statistics import STATISTICS

SCORES = st.lists(st.sampled_from([0.0, 0.0, 0.0625, 0.125, 0.1875, 0.25, 0.25, 1.0, 3.5]), min_size=1, max_size=12)


def config(rule: str = "top_p", **changes: object) -> FilterConfig:
    return FilterConfig(rule=rule, **changes)


def group(rewards: list[float], **columns: list[float] | list[list[float]]) -> GroupStatistics:
    arrays = {key: np.array(value) for key, value in columns.items()}
    return GroupStatistics.from_row("g", 0, np.array(rewards), **arrays)


def kept(scores: list[float], cfg: FilterConfig, order: list[int] | None = None) -> tuple[int, ...]:
    return select(np.array(scores), None if order is None else np.array(order), cfg).kept


def ragen_scores(rewards: np.ndarray) -> list[float]:
    """Scores of groups, (num_groups, group_size), as the authors' code computes them."""
    return measure([group(list(row)) for row in rewards], "reward_variance", "ragen").scores.tolist()


def naive_top_p(scores: list[float], rho: float, epsilon: float) -> tuple[int, ...]:
    """Section 3.3 in plain Python; `epsilon` is absolute."""
    ranked = sorted((i for i, s in enumerate(scores) if s > 1e-10), key=lambda i: (-scores[i], i))
    threshold = rho * sum(scores) - epsilon
    taken: list[int] = []
    for i in ranked if threshold > 0 else []:
        if math.fsum(scores[j] for j in taken) >= threshold * (1 - 1e-12):
            break
        taken.append(i)
    return tuple(sorted(taken))


# Statistics


def test_reward_variance_is_a_sample_variance_without_the_format_penalty() -> None:
    found = group([1, 0, 0, 1], penalties=[-0.1, 0, 0, -0.3])
    assert score("reward_variance", found) == pytest.approx(1 / 3)
    assert score("reward_std", found) == pytest.approx(math.sqrt(1 / 3))


def test_ragen_scores_the_standard_deviation_with_penalties_inside() -> None:
    found = group([1, 1, 1, 1], penalties=[-0.1, 0, 0, -0.1])
    assert score("reward_variance", found) == pytest.approx(0, abs=1e-20)
    assert score("reward_variance", found, "ragen") == pytest.approx(np.std([0.9, 1, 1, 0.9], ddof=1))


@pytest.mark.parametrize(
    ("statistic", "value"),
    [("reward_sum", 2.5), ("reward_mean", 1.25), ("entropy", 0.75), ("entropy_variance", 0.125), ("length", 15)],
)
def test_the_other_statistics(statistic: str, value: float) -> None:
    found = group([1, 1.5], lengths=[10, 20], surprisals=[0.5, 1.0])
    assert score(statistic, found) == pytest.approx(value)


def test_a_statistic_without_its_column_names_what_is_missing() -> None:
    with pytest.raises(ValueError, match="`lengths`"):
        score("length", group([1, 0]))
    with pytest.raises(ValueError, match="`surprisals`"):
        score("entropy", group([1, 0]))


def test_failed_trajectories_leave_the_survivors_to_count() -> None:
    found = group([1, math.nan, 0, math.nan], lengths=[5, 99, 7, 99])
    assert found.group_size - len(found.indices) == 2
    assert score("reward_variance", found) == pytest.approx(0.5)
    assert score("length", found) == 6


def test_refused_groups_say_why() -> None:
    rows = [[1, math.nan, math.nan], [math.nan] * 3, [0, 1, math.inf], [0, 1, 1]]
    groups = [group(row) for row in rows]
    found = measure(groups, "reward_variance")
    assert found.refusals == [
        "1 survivor of 3, needs 2",
        "0 survivors of 3, needs 2",
        "non-finite reward in trajectory 2",
        None,
    ]
    assert np.isnan(found.scores).tolist() == [True, True, True, False]


def test_a_trajectory_is_named_by_its_index_in_the_group_not_among_survivors() -> None:
    assert measure([group([math.nan, 0, 1, -math.inf])], "reward_mean").refusals[0].endswith("trajectory 3")


def test_a_group_of_one_is_valid_only_without_a_rule_that_needs_variance() -> None:
    alone = group([1.0], lengths=[4])
    assert measure([alone], "reward_variance", rule="none").refusals == [None]
    assert measure([alone], "length", rule="top_k").refusals == [None]
    assert measure([alone], "reward_variance", rule="top_k").refusals == ["1 survivor of 1, needs 2"]


def test_groups_of_unequal_size_score_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    groups = [group(list(rng.normal(size=size))) for size in (2, 5, 3, 5, 2, 7)]
    together = measure(groups, "reward_variance").scores
    assert together.tolist() == [score("reward_variance", one) for one in groups]


def test_rewards_too_large_to_square_are_refused() -> None:
    found = measure([group([1e200, -1e200])], "reward_variance")
    assert "too large" in found.refusals[0]


@pytest.mark.parametrize("name", [name for name, entry in STATISTICS.items() if not entry.may_be_negative])
@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 99), st.floats(0, 9)), min_size=3, max_size=6))
def test_a_statistic_that_says_so_is_never_negative(name: str, rows: list[tuple[float, int, float]]) -> None:
    rewards, lengths, surprisals = map(list, zip(*rows, strict=True))
    assert score(name, group(rewards, lengths=lengths, surprisals=surprisals)) >= 0


@pytest.mark.parametrize("name", [name for name, entry in STATISTICS.items() if entry.may_be_negative])
def test_a_statistic_that_says_so_may_be_negative(name: str) -> None:
    assert score(name, group([-1, -2], lengths=[1, 1], surprisals=[1, 1])) < 0


@pytest.mark.parametrize("name", sorted(STATISTICS))
def test_a_statistic_refuses_a_lone_survivor_exactly_where_it_needs_more(name: str) -> None:
    alone = group([1.0], lengths=[1], surprisals=[1])
    assert (measure([alone], name, rule="top_k").refusals[0] is not None) == (STATISTICS[name].needs > 1)


def test_an_unknown_statistic_or_rule_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean `reward_variance`"):
        measure([], "reward_varianse")
    with pytest.raises(ValueError, match="did you mean `top_p`"):
        measure([], "reward_variance", rule="top_q")


# Rules, by hand


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_reads_settings_of_the_filter_and_says_them(name: str) -> None:
    assert set(RULES[name].settings) <= set(FilterConfig.model_fields)
    said = {part.split("=")[0] for part in config(name).describe().split()}
    assert said >= {name, *RULES[name].settings}
    assert not said & ({"rho", "epsilon", "band"} - {name, *RULES[name].settings})


def test_top_p_takes_the_shortest_prefix_that_reaches_the_mass() -> None:
    assert kept([0.2, 0.1, 0.4, 0.3], config(rho=0.9, epsilon=0.0)) == (0, 2, 3)
    assert kept([0.2, 0.1, 0.4, 0.3], config(rho=0.7, epsilon=0.0)) == (2, 3)


def test_top_p_epsilon_is_a_share_of_the_largest_score() -> None:
    assert kept([0.5, 0.4, 0.005], config(rho=0.999)) == (0, 1)
    assert kept([0.5, 0.4, 0.006], config(rho=0.999)) == (0, 1, 2)
    smallest = {"rho": 0.95, "epsilon": 0.2, "keep": "smallest"}
    assert kept([0.1, 0.1, 0.2, 1.0], config(**smallest)) == (0, 1, 2, 3)
    assert kept([0.4, 0.4, 0.6, 0.6], config(**smallest)) == (0, 1, 2, 3)
    assert kept([0.0, 0.3, 0.3, 0.3], config(**smallest, include_zero=True)) == (0, 1, 2, 3)


def test_an_absolute_epsilon_does_not_scale() -> None:
    assert kept([0.5, 0.4, 0.01], config(rho=0.999, epsilon_unit="absolute")) == (0, 1)
    assert kept([50, 40, 1], config(rho=0.999, epsilon_unit="absolute")) == (0, 1, 2)


@pytest.mark.parametrize(
    "rewards",
    [
        [[1 / 6, 0] * 8, [0.0] * 16],  # 6 tests of a program, one more passed by half
        [[0.25, *[0.0] * 15], [0.0] * 16],  # a right answer at the third attempt
        [[0.1, *[0.0] * 7], [0.1, 0.1, *[0.0] * 6]],
    ],
)
def test_top_p_keeps_the_best_group_of_a_window_of_small_rewards(rewards: list[list[float]]) -> None:
    scores = measure([group(row) for row in rewards], "reward_variance").scores.tolist()
    assert scores.index(max(scores)) in kept(scores, config())
    absolute = select(np.array(scores), None, config(epsilon_unit="absolute"))
    assert absolute.kept == () and "no_signal" in absolute.codes


def test_ragen_takes_epsilon_as_absolute_and_refuses_a_relative_one() -> None:
    scores = [0.006, 0.004]
    assert kept(scores, config(compat="ragen", statistic="reward_std")) == ()
    assert kept(scores, config(statistic="reward_std")) == (0, 1)
    with pytest.raises(ValidationError, match="epsilon_unit=relative is not in the authors' code"):
        config(compat="ragen", epsilon_unit="relative")


def test_a_share_of_the_largest_score_is_at_most_all_of_it() -> None:
    with pytest.raises(ValidationError, match="epsilon_unit=absolute"):
        config(epsilon=2.0)
    assert config("top_k", epsilon=2.0).epsilon == config(epsilon=2.0, epsilon_unit="absolute").epsilon


@pytest.mark.parametrize(
    ("scores", "changes", "why"),
    [
        (
            [0.004, 0.004],
            {"epsilon_unit": "absolute"},
            "rho * sum of the scores is 0.0072, which is not above the absolute filter.epsilon=0.01; filter.epsilon "
            "below 0.0072, or filter.epsilon_unit=relative, would keep groups",
        ),
        (
            [0.004, 0.004],
            {"compat": "ragen"},
            "rho * sum of the scores is 0.0072, which is not above the absolute filter.epsilon=0.01; filter.epsilon "
            "below 0.0072 would keep groups",
        ),
        (
            [0.0, 0.4],
            {"compat": "ragen", "include_zero": True, "keep": "smallest"},
            "compat=ragen selects nothing after a smallest score of 0; filter.include_zero=false would keep groups",
        ),
        (
            [1.0, 2.0, 3.0],
            {"rule": "top_k", "rho": 0.3},
            "filter.rho=0.3 of 3 groups is less than one group; filter.rho of at least 1/3 would keep groups",
        ),
        (
            [1.0, 2.0, 3.0],
            {"rule": "band", "band": (0.6, 0.9)},
            "no score lies in filter.band=0.6..0.9; a wider band would keep groups",
        ),
        (
            [0.0, 0.0, math.nan],
            {},
            "every score is zero; only filter.rule=none or filter.on_no_signal=passthrough would keep groups (1 of 3 "
            "groups were refused)",
        ),
        ([math.nan, math.nan], {}, "2 of 2 groups were refused"),
        ([0.0, 1.0], {}, ""),
    ],
)
def test_a_rejected_window_says_what_rejected_it_and_which_setting_would_not(
    scores: list[float], changes: dict[str, object], why: str
) -> None:
    found = select(np.array(scores), None, FilterConfig(**changes))
    assert found.rejection == why and bool(found.kept) == (not why)


def test_every_rule_that_may_select_nothing_says_why() -> None:
    assert {name for name, rule in RULES.items() if rule.why_nothing is None} == {"none", "top_p_softmax", "min_p"}


def test_an_absolute_epsilon_rejects_a_weak_window() -> None:
    found = select(np.array([0.004, 0.004]), None, config(rho=0.9, epsilon_unit="absolute"))
    assert found.kept == ()
    assert found.threshold == pytest.approx(0.9 * 0.008 - 0.01)
    assert set(found.codes) == {"no_signal"}


def test_top_p_at_one_keeps_all_that_are_left() -> None:
    assert kept([0.0, 0.001, 3, 0], config(rho=1.0)) == (1, 2)
    assert kept([0.0, 0.001, 3, 0], config(rho=1.0, include_zero=True)) == (0, 1, 2, 3)


def test_top_p_does_not_lose_an_exact_tie_with_its_threshold_to_rounding() -> None:
    assert 0.07 * 100 > 7  # in floating point
    assert len(kept([1.0] * 100, config(rho=0.07, epsilon=0.0))) == 7


def test_reverse_top_p_takes_the_smallest_first() -> None:
    smallest = config(rho=0.3, epsilon=0.0, keep="smallest")
    assert kept([0.1, 0.2, 0.3, 0.4], smallest) == (0, 1)
    with_zero = config(rho=0.3, epsilon=0.0, keep="smallest", include_zero=True)
    assert kept([0.1, 0.2, 0.3, 0.4, 0.0], with_zero) == (0, 1, 4)


def test_ragen_reverse_top_p_with_a_zero_returns_nothing() -> None:
    reverse = config(rho=0.3, keep="smallest", include_zero=True, compat="ragen")
    assert kept([0.1, 0.2, 0.3, 0.4, 0.0], reverse) == ()


def test_top_k_is_a_share_of_all_groups_by_floor() -> None:
    scores = [float(i + 1) for i in range(100)]
    assert len(kept(scores, config("top_k", rho=0.29))) == 29
    assert len(kept(scores, config("top_k", rho=0.29, compat="ragen"))) == 28
    assert kept([3.0, 0, 0, 0], config("top_k", rho=0.5)) == (0,)
    assert kept([3.0, 1.0, 0, math.nan], config("top_k", rho=0.5)) == (0, 1)


def test_top_k_of_less_than_one_group_selects_nothing_but_one_under_ragen() -> None:
    assert kept([1.0, 2.0, 3.0], config("top_k", rho=0.3)) == ()
    assert kept([1.0, 2.0, 3.0], config("top_k", rho=0.3, compat="ragen")) == (2,)


def test_min_p_keeps_a_share_of_the_largest() -> None:
    assert kept([0.1, 0.05, 0.04, 0.0], config("min_p", rho=0.5)) == (0, 1)
    assert kept([0.1, 0.2, 0.21], config("min_p", rho=0.5, keep="smallest")) == (0, 1)


def test_min_p_on_std_is_its_square_on_variance() -> None:
    rng = np.random.default_rng(1)
    variances = rng.random(30)
    on_std = kept(list(np.sqrt(variances)), config("min_p", rho=0.6, statistic="reward_std"))
    assert on_std == kept(list(variances), config("min_p", rho=0.36))


def test_band_keeps_between_two_quantiles_and_counts_from_the_top_for_the_smallest() -> None:
    scores = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert kept(scores, config("band", band=(0.25, 0.75))) == (1, 2, 3)
    assert kept(scores, config("band", band=(0.0, 0.25))) == (0, 1)
    assert kept(scores, config("band", band=(0.0, 0.25), keep="smallest")) == (3, 4)
    many = [0.001 * (score + 1) for score in range(51)]  # 50 * 0.58 is 28.999999999999996
    assert len(kept(many, config("band", band=(0.0, 0.58)))) == 30
    assert len(kept(many, config("band", band=(0.0, 0.42), keep="smallest"))) == 22


def test_softmax_depends_on_the_reward_scale_and_linear_does_not() -> None:
    scores = [0.1, 0.2, 0.3, 0.4]
    soft, linear = config("top_p_softmax", rho=0.6), config(rho=0.6, epsilon=0.0)
    weights = np.exp(scores)[::-1] / np.exp(scores).sum()
    assert len(kept(scores, soft)) == int(np.searchsorted(np.cumsum(weights), 0.6)) + 1 == 3
    assert kept([s * 64 for s in scores], soft) == (3,)
    assert kept([s * 64 for s in scores], linear) == kept(scores, linear)


def test_under_ragen_softmax_hardly_filters_zeros_and_ones_and_is_sharper_than_linear_on_sokobans_rewards() -> None:
    """The authors' code keeps 7.35 of 8 groups on average; on Sokoban's rewards 3.6, and 4.9 by linear top-p."""
    draws, sizes = np.random.default_rng(0), []
    soft, linear = (config(rule, compat="ragen", include_zero=True) for rule in ("top_p_softmax", "top_p"))
    for _ in range(300):
        solved = draws.random((8, 16)) < draws.beta(0.35, 0.35, (8, 1))  # most groups nearly always or never succeed
        returns = np.where(solved, 11 - 0.1 * draws.integers(2, 9, (8, 16)), -1.0)
        binary, sokoban = (ragen_scores(rewards) for rewards in (1.0 * solved, returns))
        sizes.append([len(kept(*window)) for window in ((binary, soft), (sokoban, soft), (sokoban, linear))])
    assert np.mean(sizes, axis=0) == pytest.approx([7.35, 3.6, 4.9], abs=0.2)


def test_top_p_over_std_and_over_variance_keeps_one_set_in_half_of_all_windows_and_top_k_always() -> None:
    draws, same = np.random.default_rng(0), []
    for _ in range(300):
        stds = np.array(ragen_scores(draws.random((8, 16))))
        variances = list(stds**2)
        linear, top_k = config(epsilon_unit="absolute"), config("top_k", rho=0.5)
        same.append([kept(list(stds), rule) == kept(variances, rule) for rule in (linear, top_k)])
    assert np.mean(same, axis=0) == pytest.approx([0.5, 1.0], abs=0.1)


def test_top_p_over_std_and_over_variance_may_keep_different_sets() -> None:
    variances = np.array([0.25, 0.0625, 0.0625])
    assert kept(list(variances), config(rho=0.66, epsilon=0.0)) == (0,)
    assert kept(list(np.sqrt(variances)), config(rho=0.66, epsilon=0.0)) == (0, 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("include_zero", [False, True])
@pytest.mark.parametrize("keep", ["largest", "smallest"])
def test_an_all_zero_window_selects_nothing_under_every_rule_but_none(rule: str, include_zero: bool, keep: str) -> None:
    found = kept([0.0, 1e-11, 0.0], config(rule, include_zero=include_zero, keep=keep, rho=1.0))
    assert found == ((0, 1, 2) if rule == "none" else ())


def test_ragen_keeps_an_all_zero_window_when_zeros_are_included() -> None:
    ragen = {"compat": "ragen", "include_zero": True}
    assert kept([0.0, 0.0], config("top_k", rho=0.5, **ragen)) == (0,)
    assert kept([0.0, 0.0], config("top_p", rho=0.9, **ragen)) == ()
    assert kept([0.0, 0.0], config("top_p", rho=1.0, **ragen)) == (0, 1)


def test_a_mass_rule_refuses_a_negative_statistic_and_names_it() -> None:
    with pytest.raises(ValueError, match=r"statistic=reward_sum.*-2"):
        select(np.array([1.0, -2.0]), None, config(statistic="reward_sum"))
    with pytest.raises(ValueError, match=r"rule=min_p compares scores by their ratio .*statistic=reward_mean.*-1"):
        select(np.array([-1.0, -0.5, -0.8]), None, config("min_p", rho=0.9, statistic="reward_mean"))
    assert kept([1.0, -2.0], config("top_k", rho=0.5, statistic="reward_sum")) == (0,)


def test_kept_mass_is_of_the_reward_variance_whatever_the_statistic() -> None:
    lengths, variances = np.array([10.0, 30.0]), np.array([0.3, 0.1])
    found = select(lengths, None, config("top_k", rho=0.5, statistic="length"), variances=variances)
    assert found.kept == (1,)
    assert found.kept_mass == pytest.approx(0.25)


def test_kept_mass_is_null_when_there_is_no_variance() -> None:
    found = select(np.array([0.0, 0.0, math.nan]), None, config())
    assert found.kept_mass is None
    assert (found.num_zero, found.kept_fraction) == (2, 0.0)
    assert found.codes == ("zero", "zero", "refused")


def test_reasons_tell_the_numbers() -> None:
    found = select(np.array([1.0, 0.05, 0.0]), None, config(rho=0.9), refusals=[None, None, None])
    assert found.codes == ("selected", "below_threshold", "zero")
    assert found.reasons[1] == "below top_p cut 1: score 0.05, threshold 0.935"
    assert found.reasons[2] == "zero variance"


@pytest.mark.parametrize(
    "bad", [{"rho": 0}, {"rho": 1.5}, {"band": (0.7, 0.2)}, {"band": (0.0, 1.2)}, {"rule": "top_q"}, {"rhoo": 0.5}]
)
def test_settings_outside_their_range_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FilterConfig(**bad)


def test_the_description_holds_every_setting_that_decides() -> None:
    assert config().describe() == (
        "top_p statistic=reward_variance keep=largest include_zero=false rho=0.9 epsilon=0.01 "
        "epsilon_unit=relative window=whole compat=paper"
    )
    assert "epsilon_unit=absolute" in config(compat="ragen").describe()


# Rules, as properties


@given(SCORES, st.sampled_from([0.1, 0.5, 0.9, 0.99]), st.sampled_from([0.0, 0.01]))
def test_top_p_equals_a_plain_reading_of_the_paper(scores: list[float], rho: float, epsilon: float) -> None:
    assert kept(scores, config(rho=rho, epsilon=epsilon, epsilon_unit="absolute")) == naive_top_p(scores, rho, epsilon)
    if (best := max(scores)) > 0:
        assert kept(scores, config(rho=rho, epsilon=epsilon)) == naive_top_p(scores, rho, epsilon * best)


@given(SCORES, st.floats(0.01, 0.999))
def test_top_p_reaches_its_mass_and_no_shorter_prefix_does(scores: list[float], rho: float) -> None:
    chosen = kept(scores, config(rho=rho, epsilon=0.0))
    assume(sum(scores) > 0)
    mass = [scores[i] for i in chosen]
    assert sum(mass) >= rho * sum(scores) * (1 - 1e-9)
    assert sum(mass) - min(mass) < rho * sum(scores)


@given(SCORES, st.sampled_from(sorted(RULES)), st.sampled_from(["largest", "smallest"]), st.booleans(), st.randoms())
@settings(max_examples=200)
def test_the_kept_set_does_not_depend_on_the_order_of_arrival(
    scores: list[float], rule: str, keep: str, include_zero: bool, random: object
) -> None:
    cfg = config(rule, keep=keep, include_zero=include_zero, rho=0.5, band=(0.2, 0.8))
    order = list(range(len(scores)))
    random.shuffle(order)
    shuffled = kept([scores[i] for i in order], cfg, order)
    assert {order[i] for i in shuffled} == set(kept(scores, cfg))


REWARDS = st.sampled_from([0.0, 0.0, 0.1, 0.25, 1 / 6, 0.5, 1.0, 3.0])


@given(
    st.lists(st.lists(REWARDS, min_size=4, max_size=4), min_size=1, max_size=8),
    st.sampled_from(["top_p", "top_k", "min_p", "band"]),
    st.sampled_from(["largest", "smallest"]),
    st.sampled_from([0.1, 0.7, 0.9, 0.99]),
    st.integers(-40, 40),
)
def test_scaling_all_rewards_changes_nothing(
    rows: list[list[float]], rule: str, keep: str, rho: float, power: int
) -> None:
    cfg = config(rule, rho=rho, keep=keep)
    scores = measure([group(row) for row in rows], "reward_variance").scores
    scaled = measure([group([r * 2.0**power for r in row]) for row in rows], "reward_variance").scores
    assume(((scores <= 1e-10) == (scaled <= 1e-10)).all())
    assert kept(scaled, cfg) == kept(scores, cfg)


@given(SCORES, st.floats(0.01, 1), st.floats(0, 1), st.sampled_from(["largest", "smallest"]))
def test_top_p_keeps_the_best_group_of_every_window_but_one_of_zeros(
    scores: list[float], rho: float, epsilon: float, keep: str
) -> None:
    chosen = kept(scores, config(rho=rho, epsilon=epsilon, keep=keep))
    best = (max if keep == "largest" else min)((s for s in scores if s > 0), default=None)
    assert (best is None and chosen == ()) or best in {scores[i] for i in chosen}


@given(SCORES, st.sampled_from(sorted(RULES)), st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_larger_rho_never_keeps_less_but_under_min_p_never_more(
    scores: list[float], rule: str, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    small, large = set(kept(scores, config(rule, rho=low))), set(kept(scores, config(rule, rho=high)))
    assert (large <= small) if rule == "min_p" else (small <= large)


@given(SCORES, st.sampled_from(["top_p", "top_p_softmax", "top_k", "min_p"]), st.floats(0.05, 1))
def test_what_is_kept_outranks_what_is_not(scores: list[float], rule: str, rho: float) -> None:
    chosen = kept(scores, config(rule, rho=rho))
    left = [scores[i] for i in range(len(scores)) if i not in chosen]
    assert not chosen or not left or min(scores[i] for i in chosen) >= max(left)


@given(st.integers(1, 12), st.integers(1, 20))
def test_ties_go_to_the_earlier_ticket(count: int, tenths: int) -> None:
    chosen = kept([0.25] * count, config("top_k", rho=min(1.0, tenths / 20)))
    assert chosen == tuple(range(len(chosen)))


def test_equal_variances_of_unequal_groups_tie_though_their_sums_were_rounded() -> None:
    scores = [score("reward_variance", group(row)) for row in ([1, 1, 0, 0], [1, 0, 1])]
    assert scores[0] != scores[1]  # both are 1/3
    assert kept(scores, config("top_k", rho=0.5)) == (0,)
    assert kept(scores[::-1], config("top_k", rho=0.5)) == (0,)
    assert kept(scores, config("min_p", rho=1.0)) == (0, 1)


@pytest.mark.parametrize("bits", range(20, 50))
def test_scores_that_differ_in_their_last_bits_tie_wherever_they_lie(bits: int) -> None:
    middle = 1 + 2.0**-bits
    scores = [math.nextafter(middle, 2), middle, math.nextafter(middle, 1)]
    for window in (scores, scores[::-1]):
        assert kept(window, config("top_k", rho=0.4)) == (0,)
        assert kept(window, config("min_p", rho=1.0)) == (0, 1, 2)
        assert kept([2 * window[0], *window], config("min_p", rho=0.5)) == (0, 1, 2, 3)


@given(SCORES, st.sampled_from(sorted(RULES)), st.booleans())
def test_every_group_has_one_code_and_reason(scores: list[float], rule: str, include_zero: bool) -> None:
    holed = [*scores, math.nan]
    found = select(np.array(holed), None, config(rule, include_zero=include_zero, rho=0.5))
    assert len(found.codes) == len(found.reasons) == len(holed)
    assert all(found.reasons)
    assert [i for i, code in enumerate(found.codes) if code == "selected"] == list(found.kept)
    assert found.codes[-1] == "refused"
