"""A policy with a vision tower is trained on what it was shown: packed rows give its own logits and gradients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.pictures.geometry import Vision
from squelch.kit.pictures.patches import patches
from squelch.kit.records.content import Picture as Placed
from squelch.kit.records.pictures import Picture
from squelch.kit.records.records import Trajectory, Turn
from squelch.learner.batching import collate, to_rows
from squelch.learner.config import ObjectiveConfig
from squelch.learner.policy.model import Policy
from squelch.learner.publish import Probe, gathered, log_probs_of
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer
from tests.learner.models import load_model, make_config
from tests.learner.ranks import run_ranks
from tests.seeing import END, PLACEHOLDER, SIDE, START, board

CPU = torch.device("cpu")
SYSTEM = list(range(2, 32))


def trajectory(index: int, boards: list[int], seed: int, reward: float) -> Trajectory:
    """One turn for each board (its seed), each with 5 to 9 sampled tokens; no boards: one turn of text."""
    rng = np.random.default_rng(seed)
    ids, mask, turns, shown = list(SYSTEM), [False] * len(SYSTEM), [], []
    for seen in boards or [None]:
        if seen is not None:
            picture = board(seen, rows=2 + seen % 2)
            number = (2 + seen % 2) * 3
            shown.append(Placed.of(len(ids) + 1, picture))
            ids += [START, *[PLACEHOLDER] * number, END]
        ids += [33, 34]
        sampled = int(rng.integers(5, 10))
        start, mask = len(ids), mask + [False] * (len(ids) - len(mask)) + [True] * sampled
        ids += rng.integers(35, 90, sampled).tolist()
        turns.append(Turn(start, len(ids), start, len(ids), reward, 0.0, True, False, 1, 0, 0))
    loss_mask = np.array(mask)
    log_probs = np.where(loss_mask, -4.0, 0).astype(np.float32)
    found = Trajectory(index, np.array(ids, np.int32), loss_mask, log_probs, turns, False, False)
    found.pictures = tuple(shown)
    return found


def groups() -> list[tuple[str, list[Trajectory]]]:
    """Two groups; members of a group share their first board, and see others later."""
    first = [trajectory(0, [1, 11], 1, 1.0), trajectory(1, [1, 12], 2, 0.0), trajectory(2, [1, 11, 13], 3, 1.0)]
    second = [trajectory(0, [2, 21], 4, 0.0), trajectory(1, [2], 5, 1.0)]
    return [("000001-000", first), ("000001-001", second)]


def own_log_probs(model: Any, row: Any, vision: Vision) -> Tensor:
    """Log-probabilities of a row's sampled tokens by transformers' own forward."""
    ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
    fed: dict[str, Any] = {}
    if row.pictures:
        rgb = [one.decoded("test").rgb for one in row.pictures]
        shown = torch.zeros_like(ids)
        for one, pixels in zip(row.pictures, rgb, strict=True):
            shown[0, one.position : one.position + vision.tokens(pixels.shape[1], pixels.shape[0])] = 1
        grids = [(1, *vision.grid(pixels.shape[1], pixels.shape[0])) for pixels in rgb]
        fed = {
            "pixel_values": torch.from_numpy(np.concatenate([patches(pixels, vision) for pixels in rgb])),
            "image_grid_thw": torch.tensor(grids),
            "mm_token_type_ids": shown,
        }
    logits = model(input_ids=ids, use_cache=False, **fed).logits[0, torch.from_numpy(row.positions)]
    return logits.log_softmax(-1).gather(1, torch.from_numpy(row.targets).long()[:, None])[:, 0]


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_packed_rows_with_pictures_have_the_models_own_log_probs_and_gradients(
    seeing_dir: Path, vision: Vision, kernels: str
) -> None:
    own = AutoModelForImageTextToText.from_pretrained(seeing_dir, dtype=torch.float32).eval()
    rows = to_rows(groups(), ObjectiveConfig())
    rows += to_rows([("000001-002", [trajectory(0, [], 9, 1.0)])], ObjectiveConfig())
    micro = collate(rows, True, vision)
    assert micro.pictures is not None and micro.forest.num_tokens < sum(row.length for row in rows)
    assert len(micro.pictures.grids) < sum(len(row.pictures) for row in rows), "the first group's board is fed once"
    policy = Policy(load_model(seeing_dir, kernels), kernels=kernels)
    packed = policy(*inputs_of(micro, CPU), 1.0, False)[0]
    plain = torch.cat([own_log_probs(own, row, vision) for row in rows])
    assert float((packed - plain).detach().abs().max()) < 1e-4
    weights = torch.linspace(-1, 1, len(plain))
    (packed @ weights).backward()
    (plain @ weights).backward()
    found = {name.removeprefix("model."): p.grad for name, p in policy.named_parameters()}
    for name, parameter in own.named_parameters():
        wanted = parameter.grad
        off = float((found[name] - wanted).abs().max() / (wanted.abs().max() + 1e-8))
        assert off < 1e-4, name
    assert float(found["model.visual.patch_embed.proj.weight"].abs().max()) > 0


def test_a_micro_batch_without_pictures_has_its_own_log_probs_and_gradients_of_zero_for_the_tower(
    seeing_dir: Path, vision: Vision
) -> None:
    own = AutoModelForImageTextToText.from_pretrained(seeing_dir, dtype=torch.float32).eval()
    rows = to_rows([("000001-000", [trajectory(0, [], 9, 1.0)])], ObjectiveConfig())
    policy = Policy(load_model(seeing_dir))
    found = policy(*inputs_of(collate(rows, True, vision), CPU), 1.0, False)[0]
    found.sum().backward()
    assert float((found - own_log_probs(own, rows[0], vision)).detach().abs().max()) < 1e-4
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, "a rank without pictures would leave the others waiting"
        assert "visual" not in name or not parameter.grad.any()


TOWER, DECODER = "model.visual.merger.mlp.0.weight", "model.language_model.layers.0.mlp.up_proj.weight"


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return dict(gathered(trainer.policy))


@pytest.mark.usefixtures("alone")
def test_a_rank_loads_the_bits_of_a_model_with_a_tower(seeing_dir: Path) -> None:
    found, whole = weights(Trainer(seeing_dir, make_config())), load_model_folder(seeing_dir, torch.float32)
    wanted = {name: tensor for name, tensor in whole.state_dict().items() if name != "lm_head.weight"}
    assert list(found) == list(wanted) and all(found[name].equal(tensor) for name, tensor in wanted.items())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("settings", [{}, {"freeze_vision": True}, {"lora": {"rank": 2}}, {"algorithm": "ppo"}])
def test_a_step_on_pictures_trains_the_tower_unless_it_is_frozen(seeing_dir: Path, settings: dict[str, Any]) -> None:
    kl = {"objective": {"kl": {"coefficient": 0.05}}}
    trainer = Trainer(seeing_dir, make_config(optimizer={"learning_rate": 1e-3}, **kl, **settings))
    before = weights(trainer)
    report = trainer.train_step(1, groups())
    assert report.updated and report.refused is None and np.isfinite(report.metrics["grad_norm"])
    after = weights(trainer)
    assert not after[DECODER].equal(before[DECODER])
    assert after[TOWER].equal(before[TOWER]) == bool(settings.keys() & {"freeze_vision", "lora"})
    assert not any("visual" in name and "lora" in name for name, _ in trainer.policy.named_parameters())


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_and_an_export_of_a_model_with_a_tower_load_again(seeing_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(seeing_dir, make_config(optimizer={"learning_rate": 1e-3}))
    trainer.train_step(1, groups())
    trainer.save(tmp_path / "step", {})
    trainer.export(tmp_path / "hf")
    wanted, again = weights(trainer), Trainer(seeing_dir, make_config())
    again.load(tmp_path / "step")
    exported = load_model_folder(tmp_path / "hf", torch.float32).state_dict()
    for name, tensor in weights(again).items():
        assert tensor.equal(wanted[name]) and exported[name].equal(wanted[name]), name


@pytest.mark.usefixtures("alone")
def test_a_tower_that_did_not_arrive_shows_in_the_probe(seeing_dir: Path, vision: Vision) -> None:
    trainer = Trainer(seeing_dir, make_config(optimizer={"learning_rate": 1e-2}))
    old = weights(trainer)
    trainer.train_step(1, groups())
    bundle = trainer.publish(1, lambda chunk: chunk)
    assert bundle is not None and len(bundle.probe_pictures) == 1
    assert [entry.name for entry in bundle.table] == list(old)
    position, picture = bundle.probe_pictures[0]
    number = vision.tokens(*picture.size)
    assert np.flatnonzero(bundle.probe_ids == PLACEHOLDER).tolist() == list(range(position, position + number))
    model = load_model(seeing_dir)
    weights_now = {name: tensor for chunk in bundle.chunks for name, tensor in chunk.items()}
    for missing, least in (("nothing", 0.0), ("model.visual", 0.01)):
        own = {name: torch.from_numpy(tensor) for name, tensor in weights_now.items() if not name.startswith(missing)}
        model.load_state_dict(
            {
                **load_model(seeing_dir).state_dict(),
                **own,
                "lm_head.weight": own["model.language_model.embed_tokens.weight"],
            }
        )
        found = log_probs_of(Policy(model), Probe.of(Policy(model), vision), CPU)
        off = float(np.abs(found - bundle.probe_log_probs).mean())
        assert off > least if least else off < 1e-5, missing


@pytest.mark.usefixtures("alone")
def test_other_pixels_of_one_cell_and_a_sampled_placeholder_count(seeing_dir: Path) -> None:
    trainer = Trainer(seeing_dir, make_config())

    def scores(change: Any) -> np.ndarray:
        own = trajectory(0, [1, 11], 1, 1.0)
        change(own)
        row = collate(to_rows([("000001-000", [own])], ObjectiveConfig()), True, trainer.vision)
        return trainer._scores(trainer.policy, [inputs_of(row, CPU)])[0].numpy()

    def other_pixels(own: Trajectory) -> None:
        rgb = np.array(own.pictures[0].decoded("test").rgb)
        rgb[:SIDE, :SIDE] = 255 - rgb[:SIDE, :SIDE]
        own.pictures = (Placed.of(own.pictures[0].position, Picture(rgb)), own.pictures[1])

    def placeholder(own: Trajectory) -> None:
        own.token_ids[own.turns[0].sample_start + 1] = PLACEHOLDER

    plain = scores(lambda own: None)
    assert np.abs(scores(other_pixels) - plain).max() > 1e-3
    sampled = scores(placeholder)
    assert np.isfinite(sampled).all() and sampled[0] == pytest.approx(plain[0], abs=1e-6)
    own = trajectory(0, [1], 1, 1.0), trajectory(1, [1], 2, 0.0)
    placeholder(own[0])
    assert trainer.train_step(1, [("000001-000", list(own))]).updated


def test_a_policy_without_a_tower_refuses_pictures_by_name() -> None:
    rows = to_rows(groups(), ObjectiveConfig())
    with pytest.raises(ValueError, match=r"group 000001-000, trajectory 0 shows 2 pictures.*vision tower"):
        inputs_of(collate(rows), CPU)


def test_pictures_that_do_not_fit_or_lack_their_bytes_are_refused_by_name(vision: Vision) -> None:
    rows = to_rows(groups()[:1], ObjectiveConfig())
    odd = Placed.of(rows[0].pictures[0].position, Picture(np.zeros((SIDE, SIDE + 1, 3), np.uint8)))
    for picture, words in (
        (odd, "multiples of 8"),
        (replace(odd, data=None), "without its bytes"),
        (replace(odd, data=b"no"), "no PNG"),
    ):
        with pytest.raises(ValueError, match=words):
            collate([replace(rows[0], pictures=(picture,))], True, vision)


def step_with_pictures_on_one_rank(trainer: Trainer, folder: Path) -> None:
    plain = [trajectory(index, [], 20 + index, float(index % 2)) for index in range(2)]
    seen = [trajectory(index, [1, 11 + index], index, float(index % 2)) for index in range(2)]
    both = [("000001-000", plain), ("000001-001", seen)]
    rows = to_rows(both, trainer.config.objective)
    (part,) = trainer.plan(rows, 1, 1)
    shown = [any(rows[i].pictures for own in micros for i in own) for micros in part.micro_batches]
    assert sum(shown) == 1
    assert trainer.train_step(1, both).updated
    found = weights(trainer)
    if trainer.rank == 0:
        torch.save({name: found[name] for name in (TOWER, DECODER)}, folder / f"weights-{trainer.world_size}.pt")


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_two_ranks_complete_a_step_with_pictures_on_one_of_them(seeing_dir: Path, tmp_path: Path) -> None:
    config = make_config(minibatches=1, min_num_params=0, optimizer={"learning_rate": 1e-3}, token_budget=160)
    run_ranks(2, seeing_dir, config, step_with_pictures_on_one_rank, tmp_path)
    step_with_pictures_on_one_rank(Trainer(seeing_dir, config), tmp_path)
    one, two = (torch.load(tmp_path / f"weights-{ranks}.pt") for ranks in (1, 2))
    for name in (TOWER, DECODER):
        assert float((one[name] - two[name]).abs().max()) < 1e-5
