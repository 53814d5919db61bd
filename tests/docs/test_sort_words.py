"""The template keeps every promise that a registered environment must keep, and can be trained as it stands."""

import itertools
import random
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from docs.examples.sort_words import SortWords
from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.registry import environment_class, environment_names, make
from squelch.kit.records.splits import split_of
from squelch.learner.warmup.demonstrations import encode, transcripts
from squelch.learner.warmup.tiny import build_tiny
from squelch.learner.warmup.tiny_recipe import TEXT_RECIPE, recipe_for
from tests.envs.hostile_text import hostile_texts

PATH = "docs.examples.sort_words:SortWords"
CONFIG = EnvironmentConfig(name=PATH)


def test_it_is_found_by_its_path_and_not_registered():
    assert environment_class(PATH) is SortWords
    assert "SortWords" not in environment_names()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("docs.examples.sort_word:SortWords", "'docs.examples.sort_word' cannot be imported: No module named"),
        ("docs.examples.sort_words:Sort", "'docs.examples.sort_words' defines no environment class 'Sort'"),
        ("docs.examples.sort_words:WORDS", "defines no environment class 'WORDS'"),
        (":SortWords", "not of the form package.module:Class"),
    ],
)
def test_a_path_that_leads_nowhere_says_so(name, message):
    with pytest.raises(ValueError, match=message):
        make(name)


def test_gymnasiums_checker_finds_nothing():
    spec = gymnasium.envs.registration.EnvSpec("tests/SortWords-v0", entry_point=PATH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(spec).unwrapped)


def test_tasks_follow_from_the_seed_and_stay_in_their_split():
    keys = {}
    for split in ("train", "validation"):
        env = make(PATH, split)
        for seed in range(400):
            observation, info = env.reset(seed=seed)
            assert env.observation_space.contains(observation) and info["num_words"] == 4
            assert split_of(env.task_key()) == split
            keys.setdefault(split, set()).add(env.task_key())
        assert env.reset(seed=3)[0] == env.reset(seed=3)[0]
    assert not keys["train"] & keys["validation"] and len(keys["train"]) > 350


def test_a_second_attempt_pays_half_and_the_episode_ends_at_the_right_answer():
    env = make(PATH)
    episode = Episode(env, 5, 0, CONFIG.format)
    assert "words" in episode.start()[1]["content"]
    right = env.solution()
    wrong = " ".join(reversed(right[0].split()))
    first = episode.act(well_formed("so", [wrong]))
    assert (first.reward, first.done, first.format_valid) == (0.0, False, True)
    second = episode.act(well_formed("so", right))
    assert (second.reward, second.done, second.success) == (0.5, True, True)
    assert env.solution() is None


def test_two_thousand_hostile_texts_neither_raise_nor_pay():
    env, words = make(PATH), ["apple", "fox", "é", "x" * 3000]
    for seed, text in enumerate(hostile_texts(random.Random(0), 2_000, words)):
        env.reset(seed=seed)
        read = env.read_action(text)
        assert read is None or env.read_action(read) == read
        assert env.step(text)[1] == 0.0


@pytest.mark.slow
def test_a_tiny_policy_of_bytes_is_built_for_it_and_reads_any_text(tmp_path: Path):
    assert recipe_for(PATH) == TEXT_RECIPE
    small = {"width": 32, "layers": 1, "heads": 2, "kv_heads": 1, "feed_forward": 64, "byte_tokens": 384}
    recipe = TEXT_RECIPE.model_copy(update={**small, "tokens": 8_000})
    build_tiny(tmp_path / "a", CONFIG, 0, recipe)
    codec = ChatCodec(tmp_path / "a")
    codec.check(["any é text → 😀 \x00 1234 <think> || ", "\ttabs\n\n and   spaces"])
    for transcript in itertools.islice(transcripts(CONFIG, recipe.quality, 9), 10):
        one = encode(codec, transcript)
        assert codec.text(one.token_ids[one.loss_mask]) == "".join(said for said, _ in transcript.turns)
    pieces = [codec.token_bytes(i).decode() for i in codec.encode(" 120 </think> <answer>")]
    assert pieces[:3] == [" 1", "2", "0"] and "".join(pieces[3:]) == " </think> <answer>"
    build_tiny(tmp_path / "b", CONFIG, 0, recipe)
    for name in ("tokenizer.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), (
            "the same seed, the same bytes"
        )
