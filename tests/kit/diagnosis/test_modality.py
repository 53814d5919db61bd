"""MI by modality: what it estimates on channels of known truth, what it leaves out, and when there is none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.diagnosis.modality import read_part, text_alone
from tests.kit.diagnosis.modal_channel import modal_channel


@pytest.mark.parametrize("source", ["text", "picture", "both"])
def test_each_part_has_what_the_reasoning_was_read_from_it(source: str) -> None:
    channel = modal_channel(source, seed=1)
    found = channel.draw(num_tasks=48, samples=4, seed=2)
    for name, truth in (("picture", channel.picture()), ("text", channel.text())):
        one = found[name]
        assert one.depends == (source in (name, "both")) == (truth > 0.5)
        assert one.value >= truth - 1e-9  # where a part says nearly all, the mixture misses those that are like the own


def test_parts_that_say_the_same_are_redundant_and_not_blind() -> None:
    channel = modal_channel("either", seed=1)
    found = channel.draw(num_tasks=48, samples=4, seed=2)
    assert channel.information() > 2.0
    assert max(channel.picture(), channel.text()) <= math.log(2)
    assert max(found["picture"].value, found["text"].value) <= math.log(2) < channel.information() / 2


@pytest.mark.parametrize("strength", [1.0, 1.5, 2.0, 3.0])
def test_parts_that_say_the_same_depend_on_neither_by_the_same_floors_or_on_both(strength: float) -> None:
    """The text's share alone may be significant where the pictures' is below its floor."""
    for seed in range(4):
        found = modal_channel("either", seed, strength=strength).draw(num_tasks=32, samples=2, seed=seed)
        assert text_alone(found["picture"], found["text"]) is False


def test_a_part_that_is_not_known_decides_nothing() -> None:
    one = read_part(np.where(np.eye(8, dtype=bool), -10.0, -12.0), np.arange(8), np.arange(8))
    flat = read_part(np.full((8, 8), -10.0), np.arange(8), np.arange(8))
    assert text_alone(flat, one) is True and text_alone(one, flat) is False
    assert text_alone(None, one) is None and text_alone(flat, None) is None


@pytest.mark.parametrize("source", ["picture", "both"])
def test_the_intervals_hold_on_channels_of_known_truth(source: str) -> None:
    channel = modal_channel(source, seed=3, strings=60, strength=1.5)
    found = [channel.draw(32, 4, seed)["picture"].interval for seed in range(60)]
    assert np.mean([one.low <= channel.picture() <= one.high for one in found]) >= 0.88


def test_without_dependence_the_null_is_rejected_as_often_as_it_says() -> None:
    noisy = np.random.default_rng(0).normal(size=(100, 32, 16))
    p_values = [read_part(one, np.repeat(np.arange(16), 2), np.arange(16), (3,)).null.p_value for one in noisy]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.1


def test_reasonings_of_a_task_that_are_likely_under_the_same_parts_reject_the_null_no_more_often() -> None:
    task = np.repeat(np.arange(16), 8)
    noisy = np.random.default_rng(0).normal(size=(100, 16, 16))[:, task]
    p_values = [read_part(one, task, np.arange(16), (3,)).null.p_value for one in noisy]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.1


def test_a_reasoning_that_its_part_alone_makes_likely_depends_on_it_and_one_that_no_part_moves_does_not() -> None:
    task = np.repeat(np.arange(8), 2)
    named = np.where(task[:, None] == np.arange(8), -10.0, -90.0)
    found = read_part(named, task, np.arange(8))
    assert found.depends and found.value > 60
    same = read_part(np.full((16, 8), -10.0), task, np.arange(8))
    assert same.value == pytest.approx(0, abs=1e-12) and same.depends is False


def test_pictures_of_another_layout_are_in_no_mixture_and_four_tasks_of_one_are_needed() -> None:
    task = np.arange(8)
    layout = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    values = np.where(layout[:, None] == layout, np.where(np.eye(8, dtype=bool), -10.0, -12.0), np.nan)
    found = read_part(values, task, task)
    assert found.tasks == 5 and found.value == pytest.approx(2.0)
    three = np.where(np.isin(task, [5, 6, 7])[:, None] & (layout == 1), values, np.nan)
    assert read_part(np.where(np.eye(8, dtype=bool), -10.0, three), task, task) is None


def test_equal_parts_are_never_another_part_and_where_all_are_equal_there_is_no_evaluation() -> None:
    task, part = np.arange(8), np.arange(8) // 2
    values = np.where(part[:, None] == part, -10.0, -12.0)
    assert read_part(values, task, part).value == pytest.approx(2.0)
    assert read_part(values, task, np.zeros(8)) is None


@given(seed=st.integers(0, 10**6), offset=st.floats(-900, 900))
def test_it_does_not_depend_on_how_likely_a_reasoning_is_in_all(seed: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    values, task = rng.normal(size=(12, 6)) - 20, np.repeat(np.arange(6), 2)
    first = read_part(values, task, np.arange(6), nulls=False)
    second = read_part(values + offset, task, np.arange(6), nulls=False)
    assert second.value == pytest.approx(first.value, abs=1e-9) and second.depends is None
    assert second.interval.low == pytest.approx(first.interval.low, abs=1e-9)


def test_a_reasoning_that_was_not_scored_at_its_own_task_is_refused() -> None:
    values = np.zeros((4, 4))
    values[2, 2] = np.nan
    with pytest.raises(ValueError, match="1 of 4"):
        read_part(values, np.arange(4), np.arange(4))


def test_the_metrics_have_the_verdict_and_its_grounds() -> None:
    found = read_part(np.where(np.eye(8, dtype=bool), -10.0, -12.0), np.arange(8), np.arange(8))
    flat = found.metrics("picture")
    assert flat["picture"] == pytest.approx(2.0) and flat["picture_depends"] == 1.0
    assert {"picture_low", "picture_high", "picture_surprise", "picture_p_value"} <= set(flat)
