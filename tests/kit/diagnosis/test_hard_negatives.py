"""Hard negatives: the bound, what is estimated, and that the intervals hold, on channels of known truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.channels.clusters import clustered, draw_hard, part_channel
from squelch.kit.diagnosis.fixed_probe import SATURATED_NATS
from squelch.kit.diagnosis.hard_negatives import read_hard


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * (np.log(p) - np.log(q))).sum())


@given(
    own=st.lists(st.floats(-300, 0), min_size=1, max_size=6),
    gap=st.floats(-50, 50),
    twins=st.integers(1, 9),
)
def test_the_estimate_never_exceeds_the_log_of_the_clusters_size(own: list[float], gap: float, twins: int) -> None:
    mine = np.array(own)
    found = read_hard(mine, np.tile(mine[:, None] + gap, (1, twins)), np.zeros(len(own), dtype=int), 1)
    assert found.mi.value <= math.log(twins + 1) + 1e-9
    assert found.ceiling == pytest.approx(math.log(twins + 1))


def test_a_template_has_none_and_reasoning_that_fits_its_own_prompt_only_reaches_the_ceiling() -> None:
    own, task = np.full(8, -20.0), np.repeat(np.arange(4), 2)
    template = read_hard(own, np.tile(own[:, None], (1, 7)), task, 4)
    named = read_hard(own, np.tile(own[:, None] - 90, (1, 7)), task, 4)
    assert template.mi.value == pytest.approx(0, abs=1e-12) and named.mi.value == pytest.approx(math.log(8))
    assert template.metrics()["tasks"] == 4.0


def test_a_task_with_fewer_twins_has_a_lower_ceiling() -> None:
    others = np.array([[-90.0, -90.0, -90.0], [-90.0, np.nan, np.nan]])
    found = read_hard(np.zeros(2), others, np.arange(2), 2)
    assert found.ceiling == pytest.approx((math.log(4) + math.log(2)) / 2) == pytest.approx(found.mi.value)


def test_a_reasoning_without_another_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="another prompt"):
        read_hard(np.zeros(1), np.full((1, 3), np.nan), np.zeros(1, dtype=int), 1)


@given(seed=st.integers(0, 10**6), size=st.integers(2, 8), weights=st.lists(st.floats(0.01, 1), min_size=8, max_size=8))
def test_what_exceeds_the_information_within_a_cluster_is_the_divergence_of_its_mixtures(
    seed: int, size: int, weights: list[float]
) -> None:
    p = np.random.default_rng(seed).dirichlet(np.ones(12), size=size) + 1e-9
    p /= p.sum(axis=1, keepdims=True)
    w = np.array(weights[:size]) / sum(weights[:size])
    expected = sum(w[j] * kl(p[j], p.mean(axis=0)) for j in range(size))
    information = sum(w[j] * kl(p[j], w @ p) for j in range(size))
    excess = kl(w @ p, p.mean(axis=0))
    assert expected == pytest.approx(information + excess, abs=1e-9)
    assert excess + 1e-12 >= 0 and excess <= math.log(size) + float((w * np.log(w)).sum()) + 1e-9


@given(seed=st.integers(0, 10**6), strength=st.floats(0, 6))
def test_with_mutual_twins_it_is_the_information_within_and_a_lower_bound_of_the_whole(
    seed: int, strength: float
) -> None:
    channel = part_channel((4, 6), (strength, 1.0), seed)
    assert channel.hard() == pytest.approx(channel.within(), abs=1e-9)
    assert channel.hard() <= channel.information() + 1e-9


def test_it_moves_where_the_probes_estimate_stands_at_its_ceiling() -> None:
    """Both reasonings tell the 32 tasks apart; one of them says nothing about the second part of a task."""
    channels = [part_channel((256, 8), (9.0, second), 1, strings=1500) for second in (9.0, 0.0)]
    both, first = (draw_hard(clustered(channel, 32, 1), 4, 3) for channel in channels)
    for _, probe in (both, first):
        assert probe.ceiling - probe.mi.value < SATURATED_NATS
    assert both[0].mi.interval().low > first[0].mi.interval().high + 0.5


@pytest.mark.parametrize("strengths", [(1.0, 0.5), (3.0, 0.0)])
def test_the_intervals_hold_on_channels_of_known_truth(strengths: tuple[float, float]) -> None:
    drawn = clustered(part_channel((16, 8), strengths, 2), 16, 0)
    found = [draw_hard(drawn, 4, seed)[0].mi.interval() for seed in range(200)]
    assert 0.88 <= np.mean([one.low <= drawn.hard() <= one.high for one in found]) <= 0.99
