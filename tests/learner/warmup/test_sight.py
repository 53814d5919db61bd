"""A tiny policy that is shown pictures: what it is fed, what it learns from first, and that blindness is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Mixture
from squelch.envs.registry import resolved
from squelch.kit.pictures.patches import patches
from squelch.learner.warmup.corpus import Corpus, Limits, make_corpus
from squelch.learner.warmup.demonstrations import Demonstration, encode, transcripts
from squelch.learner.warmup.settings import WarmupConfig
from squelch.learner.warmup.sight import primer, reasonings, true_claims
from squelch.learner.warmup.tiny import build_tiny, write_tokenizer
from squelch.learner.warmup.tiny_model import new_model, write_configs
from squelch.learner.warmup.tiny_recipe import TinyRecipe, TinyTower, recipe_of
from squelch.learner.warmup.training import Gradients, batch_loss, shared_prefix

OPTIONS = {"observation_format": "picture", "cell_pixels": 8}
LAKE = resolved(EnvironmentConfig(name="FrozenLake", options=OPTIONS))
TOWER = TinyTower(width=32, layers=1, heads=1, rope_sections=(0, 2, 2), primer_tokens=2_000)
SMALL = TinyRecipe(width=32, layers=1, feed_forward=64, tokens=4_000, batch_tokens=1024, tower=TOWER)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatCodec:
    folder = tmp_path_factory.mktemp("seeing")
    found = write_tokenizer(folder, LAKE, 0, SMALL)
    write_configs(new_model(found, SMALL, 0), folder)
    return ChatCodec(folder)


def demonstrations(codec: ChatCodec, count: int) -> list[Demonstration]:
    source = transcripts(LAKE, SMALL.quality, 50)
    return [encode(codec, next(source)) for _ in range(count)]


def test_the_loss_is_that_of_the_models_own_forward(codec: ChatCodec) -> None:
    model, some = new_model(codec, SMALL, 1), demonstrations(codec, 5)
    prefix = shared_prefix(some)
    assert 0 < prefix <= min(at for one in some for at, _ in one.pictures), "pictures of equal ids differ"
    losses, count = 0.0, 0
    for one in some:
        grids = [codec.vision.grid(*picture.size) for _, picture in one.pictures]
        ids = torch.from_numpy(one.token_ids.astype(np.int64))[None]
        logits = model(
            input_ids=ids,
            pixel_values=torch.from_numpy(np.concatenate([patches(p.rgb, codec.vision) for _, p in one.pictures])),
            image_grid_thw=torch.tensor([(1, grid.rows, grid.columns) for grid in grids]),
            mm_token_type_ids=(ids == codec.vision.picture_id).int(),
        ).logits[0]
        said = np.flatnonzero(one.loss_mask)
        losses += functional.cross_entropy(logits[said - 1], ids[0, said], reduction="sum").item()
        count += len(said)
    for start in (0, prefix):
        assert batch_loss(model, some, codec.pad_id, start, codec.vision).item() == pytest.approx(losses / count, 1e-5)


def test_a_sampled_placeholder_is_text_and_a_batch_without_pictures_leaves_the_tower_as_it_is(codec: ChatCodec) -> None:
    model, (one,) = new_model(codec, SMALL, 1), demonstrations(codec, 1)
    ids = one.token_ids.copy()
    ids[np.flatnonzero(one.loss_mask)[0]] = codec.vision.picture_id
    plain = replace(one, token_ids=ids)
    assert torch.isfinite(batch_loss(model, [plain], codec.pad_id, 0, codec.vision))
    gradients = Gradients(model, codec.pad_id, 0, codec.vision)
    gradients.backward([replace(plain, pictures=())])
    gradients.close()
    assert all(not p.grad.any() for name, p in model.named_parameters() if "visual" in name)


def test_the_primer_shows_pictures_alone_with_what_is_said_of_them(codec: ChatCodec) -> None:
    mixture = Mixture.of(LAKE)
    rows = primer(codec, mixture, SMALL.quality, 7, 2_000)
    assert sum(len(one.token_ids) for one in rows) >= 2_000
    for one in rows:
        fed = one.token_ids[~one.loss_mask]
        ((at, picture),) = one.pictures
        assert (fed == codec.vision.picture_id).sum() == 16 and at < len(fed) and picture.size == (32, 32)
        assert codec.text(one.token_ids[one.loss_mask]).count("</think>") == 1


def test_reasonings_of_equal_weights_are_equal_and_judged_by_the_picture(codec: ChatCodec) -> None:
    model = new_model(codec, SMALL, 1)
    fed = [codec.first_fed(next(transcripts(LAKE, SMALL.quality, seed)).opening) for seed in range(3)]
    assert reasonings(model, codec, fed) == reasonings(model, codec, fed)
    assert true_claims(model, codec, Mixture.of(LAKE), 7) <= 0.5, "nothing was learned"


def test_a_policy_that_does_not_read_its_pictures_is_refused_and_none_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"FrozenLake does not read its pictures: .* after [89]\d\d\d tokens, and 80%"):
        build_tiny(tmp_path / "blind", LAKE, 0, SMALL)
    assert not list(tmp_path.iterdir())


def test_an_environment_that_shows_pictures_gets_a_tower_and_others_none() -> None:
    assert recipe_of(Mixture.of(LAKE)).tower == TinyTower()
    assert recipe_of(Mixture.of(resolved(EnvironmentConfig(name="FrozenLake")))).tower is None


def test_a_row_of_a_warm_up_has_its_pictures_and_the_digest_tells_them_apart(codec: ChatCodec) -> None:
    config, limits = WarmupConfig(demonstrations=3, held_out=1), Limits(1024, "rollout.max_model_len", 48)
    found = make_corpus(codec, LAKE, config, limits)
    for row in (*found.trained, *found.held_out):
        places = np.flatnonzero(row.token_ids == codec.vision.start_id) + 1
        assert [picture.position for picture in row.pictures] == places.tolist()
        assert row.pictures[0].decoded("here").size == (32, 32)
    first = found.trained[0]
    other = replace(first, pictures=(replace(first.pictures[0], digest="f" * 32), *first.pictures[1:]))
    assert Corpus((other, *found.trained[1:]), found.held_out).digest() != found.digest()
