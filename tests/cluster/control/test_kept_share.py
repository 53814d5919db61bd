"""What must hold of the kept share that sets itself: its confidence sequence, its moves and its bounds."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.control.kept_share import FEWEST, LENGTH, KeptShare, Sums, grid_of, half_width

GRID = (0.5, 0.7, 0.9, 1.0)
MEASUREMENT = st.lists(st.floats(-1, 1), min_size=len(GRID), max_size=len(GRID))


def evidence(values: list[float], mean: float) -> float:
    """E_n of the module's head."""
    n = len(values)
    v, k = n - 1, n + 1
    square = (np.mean(values) - mean) ** 2 * n / np.var(values, ddof=1)
    return k**-0.5 * ((1 + square / v) / (1 + square / (v * k))) ** ((v + 1) / 2)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=40), st.sampled_from([0.2, 0.05, 0.01]))
@settings(max_examples=60, deadline=None)
def test_the_interval_holds_the_means_against_which_the_evidence_is_small(values: list[float], level: float) -> None:
    sums = Sums()
    for value in values:
        sums.add(value)
    found = sums.interval(level)
    if np.ptp(values) < 1e-3:
        return
    if math.isfinite(found.high):
        assert evidence(values, found.high) == pytest.approx(1 / level, rel=1e-4)
        assert evidence(values, found.low) == pytest.approx(1 / level, rel=1e-4)
        assert evidence(values, found.mean) < 1
    else:
        assert evidence(values, found.mean + 1e6) < 1 / level


def test_values_that_do_not_vary_and_single_values_exclude_nothing() -> None:
    assert half_width(1, 1.0, 0.05) == half_width(50, 0.0, 0.05) == math.inf
    assert half_width(2, 1.0, 0.05) == math.inf and half_width(200, 1.0, 0.05) < 0.3


NOISES = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, size=shape),
    "student": lambda rng, shape: rng.standard_t(3, size=shape),
    "mostly zero": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.2),
}


@pytest.mark.parametrize("name", NOISES)
def test_under_pure_noise_rho_is_left_no_more_often_than_the_error_says(name: str) -> None:
    error, runs, steps = 0.1, 200, 100
    rng = np.random.default_rng(7)
    drawn, left = NOISES[name](rng, (runs, steps, len(GRID))), 0
    for series in drawn:
        controller = KeptShare(0.9, GRID, error)
        left += any(controller.observe(dict(zip(GRID, row.tolist(), strict=True))) for row in series)
    assert left <= error * runs + 2 * math.sqrt(error * (1 - error) * runs)


def test_the_evidence_of_a_move_and_of_a_whole_sequence_is_seen() -> None:
    """Found by a reviewer: the figures were read after the sums had begun anew."""
    rng, controller = np.random.default_rng(3), KeptShare(0.9, GRID, 0.05)
    for count in range(1, LENGTH + 1):
        move = controller.observe({rho: -abs(rho - 0.7) + 0.1 * rng.normal() for rho in GRID})
        assert controller.seen["lower"].count == count
        if move:
            break
    assert move is not None and controller.seen["lower"].low > 0 and controller.differences()["lower"].count == 0
    still = KeptShare(0.9, GRID, 0.05, moves=False)
    for _ in range(LENGTH):
        still.observe({rho: rng.normal() for rho in GRID})
    assert still.seen["higher"].count == LENGTH and still.differences()["higher"].count == 0


@pytest.mark.parametrize("best", GRID)
def test_the_best_of_the_grid_is_found_and_kept(best: float) -> None:
    rng, controller = np.random.default_rng(3), KeptShare(0.9, GRID, 0.05)
    for _ in range(400):
        controller.observe({rho: -abs(rho - best) + 0.1 * rng.normal() for rho in GRID})
    assert controller.rho == best


@given(st.lists(MEASUREMENT, max_size=60), st.floats(-1, 1))
@settings(max_examples=40, deadline=None)
def test_rho_stays_on_its_grid_moves_by_one_place_and_says_why(rows: list[list[float]], drift: float) -> None:
    controller = KeptShare(0.9, GRID, 0.5)
    since = 0
    for row in rows:
        before = controller.rho
        move = controller.observe({rho: value * 0.1 + drift * rho for rho, value in zip(GRID, row, strict=True)})
        since += 1
        assert controller.rho in GRID
        if move is None:
            assert controller.rho == before
            continue
        assert abs(GRID.index(move.after) - GRID.index(move.before)) == 1 and (move.before, move.after) == (
            before,
            controller.rho,
        )
        assert since >= FEWEST and f"q({move.after:g}) - q({move.before:g})" in move.reason
        since = 0


@given(st.lists(MEASUREMENT, max_size=LENGTH + 9), st.integers(0, LENGTH + 9))
@settings(max_examples=30, deadline=None)
def test_a_restored_controller_moves_as_the_uninterrupted_one(rows: list[list[float]], cut: int) -> None:
    whole, part = KeptShare(0.9, GRID, 0.3), KeptShare(0.9, GRID, 0.3)
    for number, row in enumerate(rows):
        if number == cut:
            state, part = part.state(), KeptShare(0.9, GRID, 0.3)
            part.restore(json.loads(json.dumps(state)))
        q = {rho: value + 0.2 * rho for rho, value in zip(GRID, row, strict=True)}
        assert whole.observe(q) == part.observe(q) and whole.differences() == part.differences()
    assert whole.state() == part.state()


def test_a_measurement_without_a_finite_value_is_left_out() -> None:
    controller = KeptShare(0.9, GRID, 0.05)
    assert controller.observe({0.5: 1.0, 0.7: math.nan, 0.9: 0.0, 1.0: 0.0}) is None
    assert controller.differences()["lower"].count == 0


def test_a_long_sequence_is_followed_by_a_stricter_one() -> None:
    controller = KeptShare(0.9, GRID, 0.05)
    levels = {controller.level}
    for number in range(3 * LENGTH):
        controller.observe(dict.fromkeys(GRID, 0.0) | {0.7: 0.01 * (-1) ** number})
        levels.add(controller.level)
    assert sum(2 * level for level in levels) < 0.05 and len(levels) == 4


def test_the_grid_has_the_bounds_and_the_start() -> None:
    assert grid_of(0.85, 0.55, 0.95, GRID) == (0.55, 0.7, 0.85, 0.9, 0.95)
    with pytest.raises(ValueError, match="not on this run's grid"):
        KeptShare(0.9, (0.7, 0.9), 0.05).restore({"rho": 0.5, "sequence": 1, "lower": {}, "higher": {}})
