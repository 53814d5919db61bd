"""What must hold of the tiny policy: its tokenizer, its demonstrations, its folder and its sampler.

A miniature recipe stands for the shipped ones; what those reach is measured by `benchmarks/tiny.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import tiny_play
from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig, EnvironmentEntry, FormatConfig
from squelch.envs.format import reads_words
from squelch.envs.mixture import Mixture
from squelch.envs.registry import environment_class, environment_names, resolved
from squelch.learner.warmup import tiny, tiny_model, training
from squelch.learner.warmup.demonstrations import encode, mixed, transcripts
from squelch.learner.warmup.tiny import build_tiny
from squelch.learner.warmup.tiny_recipe import TinyRecipe, qualities_of, recipe_for, recipe_of
from squelch.learner.warmup.tiny_tokenizer import CONTROL_TOKENS, make_tokenizer, vocabulary
from squelch.learner.warmup.training import batch_loss
from tests.learner.warmup.small import LAKE, SMALL, demonstrations

WORD_READERS = [name for name in environment_names() if reads_words(environment_class(name))]


# --- several environments ---


def test_a_vocabulary_covers_all_environments_and_demonstrations_have_the_ratio_of_the_weights(tmp_path: Path) -> None:
    entries = [EnvironmentEntry(name="FrozenLake", weight=3), EnvironmentEntry(name="Sokoban")]
    mixture, recipe = Mixture.several(entries), recipe_of(Mixture.several(entries))
    assert recipe.tokens == sum(recipe_for(one.name).tokens for one in entries)
    assert recipe_of(mixture, 100_000) == recipe.model_copy(update={"tokens": 100_000})
    codec = tiny.write_tokenizer(tmp_path, mixture, 0, recipe)
    texts = [one.texts() for one in itertools.islice(mixed(mixture, qualities_of(mixture, recipe), 50), 40)]
    codec.check([text for one in texts for text in one])
    assert ["Sokoban" if "box" in one[0] else "FrozenLake" for one in texts].count("Sokoban") == 10
    assert tiny.build_digest(mixture, 0, recipe) != tiny.build_digest(LAKE, 0, recipe)


def test_the_digest_of_one_environment_is_that_from_before_there_could_be_several() -> None:
    lake = EnvironmentConfig(options={"size": 5}, train_seed=3)
    assert tiny.build_digest(lake, 0, TinyRecipe()) == "f599f43452862649", "or change TinyRecipe.version, and this"


# --- the tokenizer ---


@pytest.mark.parametrize("name", WORD_READERS)
def test_every_text_of_an_environment_encodes_word_by_word_and_comes_back(name: str, tmp_path: Path) -> None:
    """Also on tasks, and with wordings, that the vocabulary was not collected from."""
    environment = EnvironmentConfig(name=name)
    codec = tiny.write_tokenizer(tmp_path, environment, 0, SMALL)
    unseen = itertools.islice(transcripts(environment, SMALL.quality, 5), 150)
    texts = {text for one in unseen for text in one.texts()}
    codec.check(sorted(texts))
    for text in sorted(texts)[:50]:
        assert len(codec.encode(text)) == len(text.replace("\n", " \n ").split(" ")) - text.startswith(" ")


@pytest.mark.slow
def test_markers_cells_and_numbers_are_one_token_each(codec: ChatCodec) -> None:
    pieces = [codec.token_bytes(i).decode() for i in codec.encode(" up </think> <answer> Up || Left </answer>")]
    assert pieces == [" up", " </think>", " <answer>", " Up", " ||", " Left", " </answer>"]
    pieces = [codec.token_bytes(i).decode() for i in codec.encode("reward 0.0\n_ P\nG O\nactions left 10")]
    assert pieces == ["reward", " 0.0", "\n", "_", " P", "\n", "G", " O", "\n", "actions", " left", " 10"]


def test_vocabulary_follows_from_the_texts_and_not_from_their_order() -> None:
    texts = ["go up", " go down then up", "P _\nG O"]
    shuffled = random.Random(1).sample(texts * 2, 6)
    assert vocabulary(texts) == vocabulary(shuffled)
    assert vocabulary(texts) != vocabulary(texts[:2])
    tokenizer = make_tokenizer(vocabulary(texts), multiple=64)
    assert tokenizer.get_vocab_size() == 64
    assert [tokenizer.token_to_id(name) for name in CONTROL_TOKENS] == list(range(len(CONTROL_TOKENS)))


# --- demonstrations ---


def test_a_demonstration_is_the_sequence_that_its_rollout_would_leave(codec: ChatCodec) -> None:
    for transcript in itertools.islice(transcripts(LAKE, SMALL.quality, 40), 20):
        one = encode(codec, transcript)
        starts = np.flatnonzero(np.diff(one.loss_mask.astype(int)) == 1) + 1
        ends = [*(np.flatnonzero(np.diff(one.loss_mask.astype(int)) == -1) + 1), len(one.token_ids)]
        assert len(starts) == len(transcript.turns)
        assert one.token_ids[: starts[0]].tolist() == codec.first_turn(transcript.opening).tolist()
        for turn, (said, message) in enumerate(transcript.turns):
            sampled = one.token_ids[starts[turn] : ends[turn]]
            assert codec.text(sampled) == said and sampled[-1] == codec.stop_ids[0]
            assert codec.text(one.token_ids[: starts[turn]]).endswith("<think>")
            if message is not None:
                fed = one.token_ids[ends[turn] : starts[turn + 1]]
                assert fed.tolist() == codec.next_turn(message, closed=True).tolist()


def test_demonstrations_follow_from_the_seed() -> None:
    first, again, other = (
        [one.texts() for one in itertools.islice(transcripts(LAKE, SMALL.quality, seed), 5)] for seed in (7, 7, 8)
    )
    assert first == again and first[1:] == other[:-1] and first != other


def test_reasoning_is_grounded_in_part_only(codec: ChatCodec) -> None:
    """Input dependence is there to be lost: most reasonings name coordinates, some fit any state."""
    some = list(itertools.islice(transcripts(LAKE, SMALL.quality, 0), 200))
    said = [text.split("</think>")[0] for one in some for text, _ in one.turns]
    grounded = sum(any(char.isdigit() for char in text) for text in said) / len(said)
    assert 0.5 < grounded < 0.8
    assert len(set(said)) > 0.5 * len(said)


# --- the folder ---


def test_the_folder_is_a_plain_hugging_face_folder_and_the_warm_up_taught_something(
    folder: Path, codec: ChatCodec
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    assert model.config.model_type == "qwen2" and model.config.vocab_size == codec.vocab_size
    assert model.config.vocab_size % SMALL.vocabulary_multiple == 0
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not list(folder.glob("*.bin")) and not list(folder.parent.glob(".*building*"))
    report = json.loads((folder / tiny.STAMP).read_text())["report"]
    fresh = batch_loss(tiny_model.new_model(codec, SMALL, 3), demonstrations(codec, 8), codec.pad_id, 0).item()
    assert report["loss"] < fresh - 1 and report["tokens"] >= SMALL.tokens


@pytest.mark.slow
def test_the_same_build_is_reused_and_a_changed_recipe_seed_or_environment_rebuilds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = SMALL.model_copy(update={"tokens": 1_000})
    path = tmp_path / "a"
    build_tiny(path, LAKE, seed=1, recipe=recipe)
    weights = (path / "model.safetensors").read_bytes()
    with monkeypatch.context() as frozen:
        frozen.setattr(tiny, "_build", lambda *_: pytest.fail("an unchanged build must be reused"))
        assert build_tiny(path, LAKE, seed=1, recipe=recipe).reused
    for environment, seed, changed in (
        (LAKE, 1, recipe.model_copy(update={"learning_rate": 1e-3})),
        (LAKE, 2, recipe),
        (EnvironmentConfig(options={"slip_rate": 0.5}), 1, recipe),
        (EnvironmentConfig(format=FormatConfig(max_turns=3)), 1, recipe),
    ):
        assert not build_tiny(path, environment, seed, changed).reused
        assert (path / "model.safetensors").read_bytes() != weights
    build_tiny(path, LAKE, seed=1, recipe=recipe)
    assert (path / "model.safetensors").read_bytes() == weights, "the same seed gives the same bytes"


def test_settings_that_change_no_task_do_not_rebuild() -> None:
    """Where the run's own task seeds begin is no matter of the policy's."""
    moved = EnvironmentConfig(train_seed=5, validation_seed=6)
    assert tiny.build_digest(moved, 0, SMALL) == tiny.build_digest(LAKE, 0, SMALL)


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"squelch_tiny\.json") as error:
        build_tiny(tmp_path, LAKE, recipe=SMALL)
    assert str(tmp_path) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_build_that_fails_leaves_nothing_behind_and_the_old_policy_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, told = SMALL.model_copy(update={"tokens": 1_000}), list[tuple[str, float | None]]()
    build_tiny(tmp_path / "a", LAKE, recipe=recipe, on_stage=lambda *stage: told.append(stage))
    shares = [share or 0.0 for _, share in told]
    assert shares == sorted(shares) and shares[-1] == 1 and "demonstrations, loss" in told[-1][0]
    before = (tmp_path / "a" / tiny.STAMP).read_text()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(training, "warm_up", fail)
    with pytest.raises(OSError, match="disk full"):
        build_tiny(tmp_path / "a", LAKE, seed=1, recipe=recipe)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a" / tiny.STAMP).read_text() == before


def test_the_next_build_removes_what_killed_ones_left_and_nothing_of_those_that_go_on(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    target, other = tmp_path / "a", tmp_path / "b"
    abandoned = [tiny.building_path(path, ended.pid) for path in (target, other)]
    abandoned.append(tiny.building_path(target, os.getpid()))  # a killed process's number, given out again
    going_on = [tiny.building_path(other, os.getppid()), tmp_path / f".b.building-elsewhere-{ended.pid}"]
    for path in (*abandoned, *going_on):
        (path / "part").mkdir(parents=True)
    build_tiny(target, LAKE, recipe=SMALL.model_copy(update={"tokens": 1_000}))
    assert sorted(tmp_path.iterdir()) == sorted([target, *going_on])


def test_a_build_of_a_machine_whose_name_begins_like_this_ones_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(tiny.socket, "gethostname", lambda: "node")
    here, there = (tmp_path / f".a.building-{host}-{ended.pid}" for host in ("node", "node-1"))
    for path in (here, there):
        path.mkdir()
    tiny.remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [there]


def test_a_build_that_comes_second_leaves_the_first_ones_folder_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, recipe, build = tmp_path / "a", SMALL.model_copy(update={"tokens": 1_000}), tiny._build

    def overtaken(building: Path, *rest: object) -> tiny.TinyReport:
        report = build(building, *rest)
        shutil.copytree(building, target)
        return report

    monkeypatch.setattr(tiny, "_build", overtaken)
    monkeypatch.setattr(tiny.shutil, "rmtree", lambda path, **_: pytest.fail("removed") if path == target else None)
    assert build_tiny(target, LAKE, recipe=recipe).reused


# --- the sampler ---


def test_sampled_log_probabilities_are_those_of_a_plain_forward(folder: Path) -> None:
    """Whatever the padding beside a prompt, at the temperature that was sampled at."""
    model, codec = tiny_play.load(folder)
    prompts = [one.token_ids[: int(one.loss_mask.argmax())] for one in demonstrations(codec, 3)]
    prompts[1] = demonstrations(codec, 1, first_seed=9)[0].token_ids[:-5]
    turns = tiny_play.sample_turn(model, prompts, codec, 0.7, 12, torch.Generator().manual_seed(0))
    for prompt, (ids, log_probs) in zip(prompts, turns, strict=True):
        whole = torch.from_numpy(np.concatenate([prompt, ids]).astype(np.int64))
        with torch.inference_mode():
            scores = torch.log_softmax(model(whole[None]).logits[0] / 0.7, dim=-1)
        rows = scores[len(prompt) - 1 : -1].gather(1, whole[len(prompt) :, None])[:, 0]
        np.testing.assert_allclose(log_probs, rows.numpy(), atol=1e-4)
        inner = [i for i in ids[:-1].tolist() if i in codec.stop_ids]
        assert not inner and (len(ids) == 12 or ids[-1] in codec.stop_ids)


def test_play_follows_from_its_seed_and_groups_stay_together(folder: Path) -> None:
    model, codec = tiny_play.load(folder)
    first, again, other = (
        tiny_play.play_tasks(model, codec, LAKE, range(3), group_size=2, temperature=1.0, max_tokens=8, seed=seed)
        for seed in (0, 0, 1)
    )
    assert [one.seed for one in first] == [0, 0, 1, 1, 2, 2]
    assert [one.token_ids.tolist() for one in first] == [one.token_ids.tolist() for one in again]
    assert [one.token_ids.tolist() for one in first] != [one.token_ids.tolist() for one in other]


@pytest.mark.parametrize("name", WORD_READERS)
def test_the_shipped_recipe_holds_the_longest_episode_of_its_environment(name: str, tmp_path: Path) -> None:
    """A turn that is cut after 48 sampled tokens (the default), in every turn, still fits the positions."""
    environment, recipe = resolved(EnvironmentConfig(name=name)), recipe_for(name)
    codec = tiny.write_tokenizer(tmp_path, environment, 0, recipe)
    some, turns = itertools.islice(transcripts(environment, recipe.quality, 0), 20), environment.format.max_turns
    turn = max(len(codec.next_turn(m, False)) for one in some for _, m in one.turns if m) if turns > 1 else 0
    opening = next(transcripts(environment, recipe.quality, 0)).opening
    assert len(codec.first_turn(opening)) + turns * (48 + turn) <= recipe.max_position


@pytest.mark.parametrize("stamp", ["[]", "{}", '{"report": 3}', '{"report": {"digest": "x"}}', "[" * 5_000, "\x00"])
def test_a_stamp_that_describes_no_build_is_named(tmp_path: Path, stamp: str) -> None:
    (tmp_path / tiny.STAMP).write_text(stamp)
    with pytest.raises(ValueError, match=f"{tmp_path / tiny.STAMP}"):
        build_tiny(tmp_path, EnvironmentConfig(), 0)
