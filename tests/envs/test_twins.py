"""Twins: near variations of a task, which are tasks themselves, and mutual."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.envs.base import TwinnedEnv
from squelch.envs.config import FormatConfig
from squelch.envs.contract import Twinned, lacking
from squelch.envs.episode import Episode
from squelch.envs.grid_worlds.picture import rows_of
from squelch.envs.registry import environment_class, environment_names, has_twins, make

TWINNED = ["Countdown", "FrozenLake", "Sokoban"]
ALL = 10_000
PARTS = 8
"""More than a task of these has; so many draws of a part find each."""


def started(name: str, seed: int, **options: object) -> TwinnedEnv:
    env = make(name, "validation", options)
    assert isinstance(env, TwinnedEnv)
    env.reset(seed=seed, options={"noise_seed": 0})
    return env


def families(env: TwinnedEnv) -> set[frozenset[str]]:
    """The families of the present task that were drawn, each with the task."""
    drawn = (frozenset(env.twins(random.Random(draw), ALL)) for draw in range(12 * PARTS))
    return {family | {env.content()} for family in drawn}


def test_the_environments_with_twins_are_these() -> None:
    assert [name for name in environment_names() if has_twins(name)] == TWINNED
    assert lacking(environment_class("MetaMathQA"), Twinned) == ["content", "twins", "start", "best_answer"]


@pytest.mark.parametrize("name", TWINNED)
@given(seed=st.integers(0, 40), draw=st.integers(0, 1000))
def test_twins_are_mutual_and_differ_from_their_task(name: str, seed: int, draw: int) -> None:
    env = started(name, seed)
    own, rng = env.content(), random.Random(draw)
    twins = env.twins(rng, ALL)
    family = frozenset(twins) | {own}
    assert len(family) == len(twins) + 1, "no twin is the task, none is there twice"
    for twin in random.Random(draw).sample(twins, min(2, len(twins))):
        env.start(twin)
        assert family in families(env), f"{twin!r} has not the family of {own!r}"


@pytest.mark.parametrize("name", TWINNED)
def test_a_task_is_started_again_from_its_content(name: str) -> None:
    env = started(name, 3)
    observation, info = env.reset(seed=3, options={"noise_seed": 0})
    content, answer = env.content(), env.best_answer(2)
    twin = env.twins(random.Random(0), 1)[0]
    other, _ = env.start(twin)
    assert other != observation and env.content() == twin
    assert env.start(content) == (observation, info) and env.best_answer(2) == answer
    assert answer is not None and env.best_answer(1) == answer.split(" || ")[0]


@pytest.mark.parametrize("name", TWINNED)
@given(seed=st.integers(0, 1000), most=st.integers(0, 9))
def test_few_twins_are_some_of_the_family_and_depend_on_the_seed_alone(name: str, seed: int, most: int) -> None:
    env = started(name, seed % 10)
    few, every = env.twins(random.Random(seed), most), env.twins(random.Random(seed), ALL)
    assert len(few) == min(most, len(every)) and set(few) <= set(every)
    assert env.twins(random.Random(seed), most) == few


@pytest.mark.parametrize("name", TWINNED)
@pytest.mark.parametrize("content", ["", "P", "P G\n_ O", "numbers 3 3 3\ntarget 7", "X" * 40])
def test_what_is_no_task_is_refused(name: str, content: str) -> None:
    with pytest.raises(ValueError, match="within the limits"):
        started(name, 0).start(content)


def test_every_member_of_a_lakes_family_is_drawn_equally_often() -> None:
    env = started("FrozenLake", 5)
    (family, *_) = sorted(families(env), key=len, reverse=True)
    drawn = [twin for draw in range(4000) for twin in env.twins(random.Random(draw), 2) if twin in family]
    counts = [drawn.count(twin) for twin in family - {env.content()}]
    assert min(counts) > 0.6 * sum(counts) / len(counts)


def test_a_twin_is_played_as_a_task_of_its_own() -> None:
    env = started("FrozenLake", 1, slip_rate=0.0)
    episode = Episode(env, 1, 0, FormatConfig(max_turns=5))
    own = episode.start()
    key = episode.task_key
    messages = episode.start_twin(env, env.twins(random.Random(0), 1)[0])
    assert messages[0] == own[0] and messages[1] != own[1] and episode.task_key != key
    answer = env.best_answer(2)
    outcome = episode.act(f"go</think><answer>{answer}</answer>")
    assert outcome.format_valid and outcome.num_actions == len(answer.split("||"))


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban"])
def test_the_picture_of_a_twin_is_that_of_its_own_board(name: str) -> None:
    env = started(name, 3, observation_format="picture", cell_pixels=8)
    boards = []
    for content in (env.content(), *env.twins(random.Random(0), ALL)):
        shown, _ = env.start(content)
        (picture,) = shown.pictures
        assert "\n".join(" ".join(row) for row in rows_of(picture.rgb, env.legend)) == content
        boards.append(picture)
    assert len(set(boards)) == len(boards) > 1


def test_countdowns_reachable_results_are_those_of_its_solver() -> None:
    from squelch.envs.countdown.environment import reachable, solve

    for numbers in ((2, 3, 7), (1, 1, 5), (3, 4, 6, 9)):
        found = {target for target in range(1, 120) if solve(numbers, target, "exactly_once")}
        assert found == {value for value in reachable(numbers) if value < 120}


def test_a_published_puzzle_has_variations_and_is_started_again(tmp_path: Path) -> None:
    file = tmp_path / "puzzles.jsonl"
    file.write_text("".join(f'{{"nums": [{44 + row}, 19, 35], "target": {98 + row}}}\n' for row in range(40)))
    env = started("Countdown", 0, data=str(file))
    own, twins = env.content(), env.twins(random.Random(0), 7)
    assert twins and own not in twins
    for content in (*twins, own):
        env.start(content)
        assert env.content() == content
