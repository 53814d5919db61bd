"""What must hold of the half gradients: their parts, and how faithful their sketches are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.learner import batching, process_group
from squelch.learner.decomposition.decompose import group_parts, regulariser_objectives
from squelch.learner.decomposition.halves import half_gram, trained_scale
from squelch.learner.decomposition.sketches import Sketcher
from squelch.learner.decomposition.statistics import split_halves
from squelch.learner.publish import gathered
from squelch.learner.trainer import Trainer
from tests.learner.decomposition.test_decompose import away_from_reference, config, flat, sampled_by
from tests.learner.models import make_groups, make_model
from tests.learner.ranks import TIMEOUT_S, run_ranks

WIDE = 2**18
"""Buckets enough for sketches of the tiny model to be nearly exact: few of its parameters share one."""


@pytest.mark.usefixtures("alone")
def test_sketches_estimate_inner_products_without_bias_and_as_closely_as_they_say() -> None:
    rng, size, width, errors = np.random.default_rng(0), 20_000, 4096, []
    for number in range(40):
        x, y = (torch.from_numpy(rng.normal(size=size)) for _ in range(2))
        y += 0.3 * x
        sketch = Sketcher([size // 2, size // 2], number, torch.device("cpu"), width)
        one, other = (sketch(list(v.split(size // 2))) for v in (x, y))
        scale = float(x.norm() * y.norm())
        errors.append(float(one @ other - x @ y) / scale)
    bound = (1 + 0.3**2 / 1.09) ** 0.5 / width**0.5
    assert abs(np.mean(errors)) < 3 * bound / 40**0.5 and np.std(errors) < 1.5 * bound


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_the_two_halves_are_the_decompositions_and_nothing_is_updated(model_dir: Path) -> None:
    trainer = away_from_reference(model_dir, config())
    before = [tensor for _, tensor in gathered(trainer.policy)]
    groups = sampled_by(trainer, make_groups(3, size=6))
    found = half_gram(trainer, groups, WIDE)
    assert found.group_ids == tuple(sorted(gid for gid, _ in groups)) and found.gram.shape == (12, 12)
    for place, (group_id, members) in enumerate(batching.survivors(groups)):
        parts = group_parts(trainer, group_id, members)
        assert parts.halves is not None
        one, other = (flat(half) for half in parts.halves)
        own, theirs = found.gram[place], found.gram[3 + place]
        scale = float(one.norm() * other.norm())
        assert own[place] == pytest.approx(float(one @ one), rel=2e-2)
        assert theirs[3 + place] == pytest.approx(float(other @ other), rel=2e-2)
        assert own[3 + place] == pytest.approx(float(one @ other), abs=2e-2 * scale)
        _check_regulariser(trainer, group_id, members, found.gram[6 + place, 6 + place])
    assert all((a == b).all() for a, (_, b) in zip(before, gathered(trainer.policy), strict=True))


def _check_regulariser(trainer: Trainer, group_id: str, members: list, square: float) -> None:
    """The squared norm of half a's regularisers is that of the two terms together."""
    first = split_halves(group_id, len(members))
    half = [t for t, inside in zip(members, first, strict=True) if inside]
    rows = batching.to_rows([(group_id, half)], trainer.config.objective)
    terms = regulariser_objectives(trainer.config.objective)
    flats = [flat(trainer.row_gradients([_silent(row) for row in rows], term)) for term in terms.values()]
    assert square == pytest.approx(float(sum(flats).square().sum()), rel=2e-2)


def _silent(row: batching.Row) -> batching.Row:
    return replace(row, advantage=0.0)


@pytest.mark.usefixtures("alone")
def test_the_scaled_half_is_the_gradient_that_is_trained_on(model_dir: Path) -> None:
    plain = {"kl": {"coefficient": 0.0}, "entropy_coefficient": 0.0, "advantage": "grpo"}
    trainer = Trainer(model_dir, config(**plain))
    [(group_id, members)] = sampled_by(trainer, make_groups(1, size=8))
    first = split_halves(group_id, len(members))
    assert first is not None
    half = [t for t, inside in zip(members, first, strict=True) if inside]
    whole = flat(list(trainer.gradients([(group_id, half)]).values()))
    found = half_gram(trainer, [(group_id, members)], WIDE)
    assert found.scales[0, 0] ** 2 * found.gram[0, 0] == pytest.approx(float(whole @ whole), rel=2e-2)


@pytest.mark.usefixtures("alone")
def test_a_half_without_variance_and_a_group_too_small_to_split_take_no_pass(model_dir: Path) -> None:
    trainer = Trainer(model_dir, config(kl={"coefficient": 0.0}, entropy_coefficient=0.0))
    groups = [*make_groups(1, size=6), ("small", make_groups(1, size=3)[0][1])]
    for trajectory in groups[0][1]:
        trajectory.turns[-1].reward = 1.0
    found = half_gram(trainer, groups)
    assert found.group_ids == (groups[0][0],) and not found.gram.any() and not found.scales.any()
    assert trained_scale(np.array([0.0, 1.0]), trainer.config.objective) == pytest.approx(0.5)


@pytest.mark.usefixtures("alone")
def test_groups_that_are_not_finite_are_refused(model_dir: Path) -> None:
    broken = make_groups(2)
    broken[1][1][0].turns[0].reward = float("nan")
    with pytest.raises(ValueError, match="non-finite reward in group 000001-001"):
        half_gram(Trainer(model_dir, config()), broken)


def work(trainer: Trainer, folder: Path) -> None:
    found = half_gram(trainer, make_groups(3, size=6), WIDE)
    np.save(folder / f"{trainer.world_size}-{trainer.rank}.npy", found.gram)


@pytest.mark.slow
def test_two_ranks_find_the_same_and_what_one_finds(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    process_group.start(0, 1, "127.0.0.1", 0, TIMEOUT_S, "cpu")
    work(Trainer(model, config()), tmp_path)
    process_group.stop()
    run_ranks(2, model, config(), work, tmp_path)
    one, first, second = (np.load(tmp_path / f"{name}.npy") for name in ("1-0", "2-0", "2-1"))
    assert np.array_equal(first, second)
    scale = np.sqrt(np.outer(np.diag(one), np.diag(one)))
    assert np.abs(first - one).max() <= 2e-2 * scale.max() and (scale > 0).any()
