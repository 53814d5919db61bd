"""The scorer feeds pictures to a model with a tower: each entry is what the model itself gives the pair."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from squelch.kit.diagnosis.modality import read_part
from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.pictures.geometry import Vision
from squelch.kit.pictures.patches import patches
from squelch.kit.records.content import Picture
from squelch.kit.scoring.cross_scoring import CrossScorer, Ways
from squelch.kit.scoring.drawing import Draw
from squelch.kit.scoring.modality_scoring import modality_metrics
from squelch.kit.scoring.token_trees import Path as Continuation
from tests.kit.scoring.test_cross_scoring import qwen2
from tests.seeing import END, PLACEHOLDER, START, board

Prompt = tuple[np.ndarray, tuple[Picture, ...]]


def prompt(*boards: int) -> Prompt:
    """A system message of 25 ids, and each board with some ids after it."""
    ids, shown = list(range(2, 27)), []
    for seed in boards:
        rows = 2 + seed % 2
        ids.append(START)
        shown.append(Picture.of(len(ids), board(seed, rows)))
        ids += [*[PLACEHOLDER] * (3 * rows), END, 30 + len(shown), 31]
    return np.array(ids), tuple(shown)


PROMPTS = [*(prompt(k) for k in (2, 4, 6, 8)), prompt(2, 7), prompt(2, 9), prompt(), prompt(4)]
REASONINGS = [np.random.default_rng(50 + k).integers(35, 89, 3 + k) for k in range(5)]


@torch.no_grad()
def plainly(model: Any, vision: Vision, own: Prompt, ids: np.ndarray, start: int = 0) -> float:
    """log p of `ids` from `start` on after the prompt, by transformers' own forward."""
    (before, shown), fed = own, dict[str, Any]()
    row = torch.from_numpy(np.concatenate([before, ids]).astype(np.int64))[None]
    if shown:
        rgb = [one.decoded("test").rgb for one in shown]
        grids = [(1, *vision.grid(one.shape[1], one.shape[0])) for one in rgb]
        fed["pixel_values"] = torch.from_numpy(np.concatenate([patches(one, vision) for one in rgb]))
        fed["image_grid_thw"], fed["mm_token_type_ids"] = torch.tensor(grids), (row == PLACEHOLDER).long()
    logits = model(input_ids=row, use_cache=False, **fed).logits[0, len(before) - 1 : -1].log_softmax(-1)
    return float(logits[torch.arange(len(ids)), torch.from_numpy(ids)][start:].sum())


@pytest.mark.parametrize(("columns", "kernels"), [("one", "fast"), ("one", "plain"), ("packed", "fast")])
def test_a_matrix_with_pictures_is_one_plain_forward_a_pair(
    seeing_dir: Path, vision: Vision, columns: Ways, kernels: str
) -> None:
    own = load_model_folder(seeing_dir, torch.float32)
    wanted = np.array([[plainly(own, vision, x, z) for x in PROMPTS] for z in REASONINGS])
    scorer = CrossScorer(load_model_folder(seeing_dir, torch.float32), 1024, 1.0, kernels, columns, vision)
    prompts, pictures = [ids for ids, _ in PROMPTS], [shown for _, shown in PROMPTS]
    found = scorer.matrix(prompts, REASONINGS, None, pictures)
    lengths = np.array([len(z) for z in REASONINGS])[:, None]
    assert np.abs((found - wanted) / lengths).max() < 1e-4
    assert (found[:, 1] == found[:, 7]).all(), "one column: the same ids and the same picture"
    assert np.abs(found[:, 0] - found[:, 1]).min() > 1e-3, "the same ids, another picture"


@pytest.mark.parametrize("columns", ["one", "packed"])
def test_continuations_of_prompts_with_pictures_are_scored_as_plain_forwards(
    seeing_dir: Path, vision: Vision, columns: Ways
) -> None:
    own = load_model_folder(seeing_dir, torch.float32)
    scorer = CrossScorer(load_model_folder(seeing_dir, torch.float32), 1024, columns=columns, vision=vision)
    z, answer = REASONINGS[0], REASONINGS[2]
    rows = [[Continuation(z), Continuation(np.concatenate([z, answer]), len(z))]]
    prompts = PROMPTS[:2]
    found = scorer.path_sums([ids for ids, _ in prompts], [rows] * 2, [shown for _, shown in prompts])
    for each, x in zip(found, prompts, strict=True):
        both = plainly(own, vision, x, z), plainly(own, vision, x, np.concatenate([z, answer]), len(z))
        assert np.allclose(each[0], both, atol=1e-3)


def test_mi_by_modality_of_trajectories_is_that_of_plain_forwards_with_all_pictures_swapped(
    seeing_dir: Path, vision: Vision
) -> None:
    own = load_model_folder(seeing_dir, torch.float32)
    scorer = CrossScorer(load_model_folder(seeing_dir, torch.float32), 1024, vision=vision)
    shown = [prompt(2 * k, 20 + 2 * k) for k in range(5)]
    said = [(np.append(ids, 40 + k), pictures) for k, (ids, pictures) in enumerate(shown)]
    prompts, pictures = [ids for ids, _ in said], [each for _, each in said]
    source, none = np.arange(5), np.zeros(5, np.int64)
    draw = Draw(prompts, pictures, np.ones(5), REASONINGS, source, np.zeros((5, 2)), {}, none, none, none)
    found = modality_metrics(scorer, draw, scorer.matrix(prompts, REASONINGS, None, pictures), (1,), 4, blank=False)
    seen = [
        [plainly(own, vision, (x, other), z) for other in pictures] for x, z in zip(prompts, REASONINGS, strict=True)
    ]
    read = [
        [plainly(own, vision, (other, v), z) for other in prompts] for v, z in zip(pictures, REASONINGS, strict=True)
    ]
    for name, swapped in (("picture", seen), ("text", read)):
        plain = read_part(np.array(swapped), source, source, (1,))
        assert plain is not None and found[name] == pytest.approx(plain.value, abs=1e-3)
        assert found[f"{name}_low"] == pytest.approx(plain.interval.low, abs=1e-2)


@pytest.mark.parametrize("columns", ["one", "packed"])
def test_ids_of_pictures_that_the_policy_sampled_are_text(seeing_dir: Path, vision: Vision, columns: Ways) -> None:
    model = load_model_folder(seeing_dir, torch.float32)
    named, plain = [START, PLACEHOLDER, PLACEHOLDER, END], [60, 61, 61, 62]
    with torch.no_grad():
        words = model.get_input_embeddings().weight  # also those of the output
        words[plain] = words[named]
    scorer = CrossScorer(model, 1024, columns=columns, vision=vision)
    (ids, shown), (_, others) = PROMPTS[:2]
    prompts = [np.concatenate([ids, said, [70]]) for said in (named, plain)] * 2
    reasonings = [np.array([*said, 71]) for said in (named, plain)]
    found = scorer.matrix(prompts, reasonings, None, [shown, shown, others, others])
    assert np.abs(found[:, :2] - found[0, 0]).max() < 1e-4 and np.abs(found[:, 2:] - found[0, 2]).max() < 1e-4
    assert abs(found[0, 0] - found[0, 2]) > 1e-3, "the picture counts"


def test_a_picture_is_encoded_once_a_matrix_and_again_with_other_weights(seeing_dir: Path, vision: Vision) -> None:
    scorer = CrossScorer(load_model_folder(seeing_dir, torch.float32), 1024, vision=vision)
    prompts, pictures = [ids for ids, _ in PROMPTS], [shown for _, shown in PROMPTS]
    encoded: list[int] = []
    model: Any = scorer.model
    model.model.visual.register_forward_hook(
        lambda _, args, kwargs, out: encoded.append(len(kwargs["grid_thw"])), with_kwargs=True
    )
    before = scorer.matrix(prompts, REASONINGS, None, pictures)
    assert sum(encoded) == 6, "six boards in eight prompts"
    with torch.no_grad():
        model.model.visual.merger.mlp[0].weight.mul_(0.5)
    after = scorer.matrix(prompts, REASONINGS, None, pictures)
    assert np.abs(after - before)[:, :6].min() > 1e-4 and np.allclose(after[:, 6], before[:, 6], atol=1e-5)


def test_a_model_without_a_tower_is_not_fed_pictures() -> None:
    with pytest.raises(ValueError, match=r"no vision tower; set scorer\.enabled=false"):
        CrossScorer(qwen2(), 64).matrix([np.arange(5)], [np.arange(3)], None, [(Picture.of(1, board(1)),)])


def test_the_probes_picture_gives_the_log_probs_of_a_plain_forward(seeing_dir: Path, vision: Vision) -> None:
    own, ids = load_model_folder(seeing_dir, torch.float32), PROMPTS[0][0]
    scorer = CrossScorer(load_model_folder(seeing_dir, torch.float32), 1024, vision=vision)
    picture = board(2, 2)
    found = scorer.token_log_probs(ids[:1], ids[1:], 1.0, ((26, picture),))
    assert found.sum() == pytest.approx(of_all(own, vision, Picture.of(26, picture), ids), abs=1e-3)


@torch.no_grad()
def of_all(model: Any, vision: Vision, picture: Picture, ids: np.ndarray) -> float:
    row = torch.from_numpy(ids)[None]
    rgb = picture.decoded("test").rgb
    fed = {
        "pixel_values": torch.from_numpy(patches(rgb, vision)),
        "image_grid_thw": torch.tensor([(1, *vision.grid(rgb.shape[1], rgb.shape[0]))]),
        "mm_token_type_ids": (row == PLACEHOLDER).long(),
    }
    logits = model(input_ids=row, use_cache=False, **fed).logits[0, :-1].log_softmax(-1)
    return float(logits.gather(1, row[0, 1:, None]).sum())
