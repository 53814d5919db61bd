"""What holds of every environment."""

import random
import re
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from squelch.envs.base import TextEnv
from squelch.envs.config import EnvironmentConfig, FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.format import parse, phrases, reads_words, well_formed
from squelch.envs.registry import environment_class, environment_names, make, resolved
from squelch.envs.text import printable
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.records.splits import split_of
from tests.envs.hostile_text import hostile_actions

NAMES = environment_names()
GRIDS = ["FrozenLake", "Sokoban"]
WORD_READERS = [name for name in NAMES if reads_words(environment_class(name))]
QUICK = {"FrozenLake", "Sokoban", "Countdown"}
"""Environments that play thousands of tasks a second; of the others fewer tasks are drawn."""
ODD_TEXTS = (
    *("", " ", "Jump", "\ud800", "\x00", "||", "{}", "%s", "((((", "1 +", "İ"),
    *("search[", "click[]", "```", "\\frac{"),
)
GOLDEN = [  # a change here means that every recorded seed now names another task
    ("Countdown", "train", "ad59aaa2341549df3de93964e463db30"),
    ("Countdown", "validation", "57176bc8912c99834289007f18c0ddd2"),
    ("FrozenLake", "train", "af984759049724cd2297b7319aabf24a"),
    ("FrozenLake", "validation", "35d439783e5d994b84e426179c145cbb"),
    ("SearchQA", "train", "3f74b9f60bd8776c760476899eb8cc1c"),
    ("SearchQA", "validation", "27a60c70f0aac706d49bb176319844d0"),
    ("Sokoban", "train", "cafc04dfc557d4a9a91c042376e8afb5"),
    ("Sokoban", "validation", "74738168600ad52c542842cc3b44ed89"),
    ("WebShop", "train", "0c0943623da8c9d1756564d989c70a8f"),
    ("WebShop", "validation", "9a0887f07b0af57e1f9e431a535f9d60"),
]
PIECE = re.compile(r" ?\S+|\s")  # a word with the space before it, as a word-level tokenizer sees it


def actions_for(env: TextEnv, rng: random.Random) -> list[str]:
    """What a policy may say here: what a demonstrator says, or one of the closed words."""
    return list(env.actions) or env.demonstrate(rng)[1]


@pytest.mark.parametrize("name", NAMES)
def test_gymnasiums_checker_finds_nothing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(f"squelch/{name}-v0", split="validation").unwrapped)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_observations_lie_in_the_declared_space(name):
    env, rng = make(name), random.Random(0)
    for seed in range(200 if name in QUICK else 20):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        for _ in range(6):
            action = rng.choice(actions_for(env, rng))
            assert env.action_space.contains(action) and env.read_action(action) is not None
            assert env.observation_space.contains(env.step(action)[0])
    assert all(env.action_space.contains(action) for action in env.actions)


@pytest.mark.parametrize("name", NAMES)
def test_reading_an_action_twice_changes_nothing(name):
    env, rng = make(name), random.Random(1)
    for seed in range(20):
        env.reset(seed=seed)
        for text in (*actions_for(env, rng), *ODD_TEXTS):
            read = env.read_action(text)
            assert read is None or env.read_action(read) == read


@pytest.mark.parametrize("name", NAMES)
def test_the_format_takes_the_environments_own_numbers_unless_it_is_given_some(name):
    env = make(name)
    own = resolved(EnvironmentConfig(name=name)).format
    assert (own.max_turns, own.max_actions_per_turn) == (env.max_turns, env.max_actions_per_turn)
    given = resolved(EnvironmentConfig(name=name, format=FormatConfig(max_turns=9))).format
    assert (given.max_turns, given.max_actions_per_turn) == (9, env.max_actions_per_turn)


def test_text_becomes_printable_and_is_cut():
    assert printable("a\tb\x00\ud800é→😀c", 8) == "a b??é→?"
    assert printable("line\nnext", 99) == "line\nnext"
    published = "1 ≤ n ≤ 10⁹, a₁, ⌊n/2⌋, f′(x), ½, Nguyễn Phú Trọng, Пушкин"
    assert printable(published, 99) == published


@pytest.mark.parametrize("name", NAMES)
def test_no_task_is_in_both_splits(name):
    keys = {}
    for split in ("train", "validation"):
        env = make(name, split)
        for seed in range(1500 if name in QUICK else 200):  # the same seeds in both
            env.reset(seed=seed)
            keys.setdefault(split, set()).add(env.task_key())
        assert name not in QUICK or all(split_of(key) == split for key in keys[split])
        assert len(keys[split]) > (300 if name in QUICK else 15)
    assert not keys["train"] & keys["validation"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_key_names_the_content_and_nothing_else(name):
    env = make(name)
    keys, boards = {}, {}
    for seed in range(300 if name in QUICK else 40):
        board, _ = env.reset(seed=seed, options={"noise_seed": 1})
        key = env.task_key()
        assert keys.setdefault(board, key) == key
        assert boards.setdefault(key, board) == board
        env.step(actions_for(env, random.Random(seed))[0])
        env.reset(seed=seed, options={"noise_seed": 2})
        assert env.task_key() == key


@pytest.mark.parametrize("name", NAMES)
def test_seed_and_noise_seed_determine_the_episode(name):
    def play(seed, noise_seed):
        env, rng = make(name), random.Random(5)
        history = [env.reset(seed=seed, options={"noise_seed": noise_seed})]
        return history + [env.step(rng.choice(actions_for(env, rng))) for _ in range(8)]

    count = 50 if name in QUICK else 10
    assert all(play(seed, 3) == play(seed, 3) for seed in range(count))
    assert len({play(seed, 3)[0][0] for seed in range(count)}) > 0.7 * count


# DeepCoder's actions are programs (tests/envs/sandbox); MetaMathQA has a property test of its own.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("DeepCoder", "MetaMathQA")])
def test_two_thousand_hostile_actions_neither_raise_nor_lead_out_of_the_spaces(name):
    env, rng = make(name), random.Random(0)
    env.reset(seed=0)
    known, valid = actions_for(env, rng), 0
    for index, text in enumerate(hostile_actions(rng, 2_000, known)):
        if index % 20 == 0:
            env.reset(seed=index, options={"noise_seed": 0})
            known[:] = actions_for(env, rng)
        read = env.read_action(text)
        assert read is None or (env.read_action(read) == read and len(read) <= env.action_space.max_length)
        observation, reward, _, _, info = env.step(text)
        assert info["action_valid"] == (read is not None)
        assert env.observation_space.contains(observation) and -1.2 <= reward <= 11
        valid += read is not None
    assert valid > (1 if env.actions else 20), "some must reach the reward"


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_without_seeds_goes_on_from_the_last_seed_whether_noise_was_seeded_or_not(name):
    env, seen = make(name), []
    for options in (None, {"noise_seed": 5}, {"noise_seed": 6}):
        env.reset(seed=4, options=options)
        seen.append(float(env.np_random.random()) if options else None)
        env.reset()
        seen.append(env.task_seed)
    fully_seeded = seen[2:]
    assert fully_seeded[:2] == fully_seeded[2:], "it follows from the seed alone"


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_action_moves_nothing_and_says_so(name):
    env = make(name)
    before, _ = env.reset(seed=1)
    unknown = [text for text in ODD_TEXTS if env.read_action(text) is None]
    assert "" in unknown
    for action in unknown:
        observation, reward, terminated, truncated, info = env.step(action)
        assert (observation, reward, terminated, truncated) == (before, 0.0, False, False)
        assert info["action_valid"] is False and info["success"] is False


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_of_one_action_is_never_split(name):
    env = make(name)
    if env.max_actions_per_turn > 1:
        assert "separated by ||" in str(Episode(env, 0, 0, FormatConfig()).start())
        return
    env.reset(seed=0)
    seen = []
    parse("</think> <answer> a || b </answer>", env.max_actions_per_turn, lambda text: seen.append(text))
    assert seen == [" a || b "]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_moves_after_the_end(name):
    env = make(name)
    env.reset(seed=1)
    while env.solution():
        board, _, _, _, info = env.step(env.solution()[0])
    assert info["success"]
    again = env.actions or actions_for(env, random.Random(0))
    assert all(env.step(action)[:3] == (board, 0.0, True) for action in again)


@pytest.mark.parametrize("name", NAMES)
def test_an_environment_that_was_not_reset_says_so(name):
    with pytest.raises(RuntimeError, match=f"{name} was used before reset"):
        make(name).step("Left")


def test_errors_name_the_nearest_valid_name_and_option():
    with pytest.raises(ValueError, match=r"environment\.name is 'FrozenLak'.*did you mean 'FrozenLake'"):
        make("FrozenLak")
    with pytest.raises(ValueError, match=r"known are .*FrozenLake.*Sokoban"):
        make("Chess")
    with pytest.raises(ValueError, match=r"environment\.options\.slip_rat: .*did you mean 'slip_rate'"):
        make("FrozenLake", options={"slip_rat": 0.1})
    with pytest.raises(ValueError, match=r"environment\.options\.split: FrozenLake has no such option"):
        make("FrozenLake", options={"split": "validation"})
    with pytest.raises(ValueError, match="must be one of train, validation"):
        make("FrozenLake", split="test")
    with pytest.raises(ValueError, match="'noise_sed' is unknown; the only one is 'noise_seed'"):
        make("FrozenLake").reset(seed=0, options={"noise_sed": 1})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Countdown", {"min_numbers": 2}, r"environment\.options\.min_numbers: .*greater than or equal to 3"),
        ("Countdown", {"max_numbers": 7}, r"environment\.options\.max_numbers: .*less than or equal to 6"),
        ("Countdown", {"min_numbers": 5, "max_numbers": 4}, "min_numbers=5 is above max_numbers=4"),
        ("Countdown", {"rule": "twice"}, r"environment\.options\.rule: .*'at_most_once' or 'exactly_once'"),
        ("FrozenLake", {"slip_rate": 1.5}, r"environment\.options\.slip_rate: .*less than or equal to 1"),
        ("FrozenLake", {"slip": "sideways"}, r"environment\.options\.slip: .*'perpendicular' or 'uniform'"),
        ("FrozenLake", {"size": "four"}, r"environment\.options\.size: .*integer"),
        ("FrozenLake", {"max_holes": 15}, "max_holes <= 14 on a lake of size 4"),
        ("FrozenLake", {"min_distance": 5, "max_distance": 4}, "min_distance=5 is above max_distance=4"),
        (
            "Sokoban",
            {"boxes": 4},
            r"environment\.options: max_walls=5 and boxes=4 do not fit the 16 inner cells of size=6",
        ),
        ("Sokoban", {"min_walls": 6}, "min_walls=6 is above max_walls=5"),
        ("Sokoban", {"min_solution": 9}, "min_solution=9 is above max_solution=8"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(name, options, message):
    with pytest.raises(ValueError, match=message):
        make(name, options=options)


def test_options_that_admit_no_task_are_refused_at_the_first_task(monkeypatch):
    monkeypatch.setattr("squelch.envs.grid_worlds.frozen_lake.MAX_DRAWS", 200)
    env = make("FrozenLake", options={"size": 3, "min_distance": 30, "max_distance": 40, "min_holes": 0})
    with pytest.raises(ValueError, match=r"FrozenLake found no task in .* draws .*loosen the limits"):
        env.reset(seed=0)


@pytest.mark.parametrize("name", WORD_READERS)
def test_the_vocabulary_covers_every_word_of_demonstrated_episodes(name):
    env, rng = make(name), random.Random(0)
    config = FormatConfig().resolved(env)
    known = {piece for text in phrases(type(env), {}, config) for piece in PIECE.findall(text)}
    for seed in range(400):
        episode = Episode(env, seed, seed, config)
        texts = [message["content"] for message in episode.start()]
        outcome = None
        while outcome is None or outcome.next_message is not None:
            texts.append(well_formed(*env.demonstrate(rng)))
            outcome = episode.act(texts[-1])
            texts += [outcome.next_message["content"]] if outcome.next_message else []
        assert {piece for text in texts for piece in PIECE.findall(text)} <= known
        assert not any("  " in text for text in texts)
    assert len({piece.strip() for piece in known if not piece.strip().isdigit()}) < 200


@pytest.mark.parametrize("name", GRIDS)
def test_a_perfect_demonstration_names_the_player_and_plays_the_solution(name):
    env, rng = make(name, options={"slip_rate": 0.0} if name == "FrozenLake" else {}), random.Random(0)
    quality = DemonstrationQuality(grounded=1, wrong_coordinates=0, random_plan=0)
    for seed in range(100):
        board, _ = env.reset(seed=seed)
        reasoning, actions = env.demonstrate(rng, quality)
        cell = board.split().index("P") if "P" in board else board.split().index("S")
        assert " {} {} ".format(*divmod(cell, env.side)) in f" {reasoning} "
        assert 9 <= len(reasoning.split()) <= 24
        assert 1 <= len(actions) <= 2
        remaining = len(env.solution())
        for action in actions:
            info = env.step(action)[4]
        assert info["success"] if len(actions) == remaining else len(env.solution()) == remaining - len(actions)


@pytest.mark.parametrize("name", GRIDS)
def test_demonstrations_are_unfinished_at_the_stated_rates(name):
    env, rng = make(name), random.Random(0)
    quality = DemonstrationQuality()
    env.reset(seed=3)
    samples = [env.demonstrate(rng, quality) for _ in range(4000)]
    grounded = [reasoning for reasoning, _ in samples if any(word.isdigit() for word in reasoning.split())]
    assert abs(len(grounded) / len(samples) - quality.grounded) < 0.03
    assert len(set(grounded)) > 1000  # varied wording of one state


@pytest.mark.parametrize("name", GRIDS)
def test_wrong_coordinates_misplace_something_and_leave_the_plan(name):
    env, rng = make(name), random.Random(0)
    board, _ = env.reset(seed=3)
    player = " {} {} ".format(*divmod(board.split().index("P"), env.side))

    def demonstrate(wrong: float) -> tuple[float, set[str]]:
        quality = DemonstrationQuality(grounded=1, wrong_coordinates=wrong, random_plan=0)
        samples = [env.demonstrate(rng, quality) for _ in range(500)]
        named = sum(player in f" {reasoning} " for reasoning, _ in samples) / len(samples)
        return named, {" ".join(actions) for _, actions in samples}

    (always, plans), (sometimes, same_plans) = demonstrate(0.0), demonstrate(1.0)
    assert always == 1 and 0.3 < sometimes < 0.9
    assert plans == same_plans


@pytest.mark.parametrize(("name", "split", "key"), GOLDEN)
def test_a_seed_means_the_same_task_in_every_version(name, split, key):
    env = make(name, split)
    env.reset(seed=12345)
    assert env.task_key() == key
