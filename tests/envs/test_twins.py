"""Twins: near variations of a task, which are tasks themselves, and mutual."""

import math
import random
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.envs.base import TwinnedEnv
from squelch.envs.config import FormatConfig
from squelch.envs.contract import Twinned, lacking
from squelch.envs.countdown.environment import operations
from squelch.envs.episode import Episode
from squelch.envs.grid_worlds.picture import rows_of
from squelch.envs.grid_worlds.sokoban import SokobanOptions, level_in, solvable_states
from squelch.envs.registry import environment_class, environment_names, has_twins, make
from squelch.kit.scoring.settings import PROBE_TWINS

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


class OfPart:
    """A generator whose first draw chooses the part `part` of `parts`."""

    def __init__(self, part: int, parts: int) -> None:
        self._first, self._rest = [(part + 0.5) / parts], random.Random(0)

    def random(self) -> float:
        return self._first.pop() if self._first else self._rest.random()


def chances(env: TwinnedEnv, content: str) -> Counter[frozenset[str]]:
    """Of how many parts of a puzzle each family, with the puzzle itself, is drawn."""
    env.start(content)
    parts = len(content.split()) - 2  # the numbers and the target
    return Counter(frozenset(env.twins(OfPart(part, parts), ALL)) | {content} for part in range(parts))


@pytest.mark.parametrize(
    "content",
    ["numbers 2 4 4\ntarget 32", "numbers 3 5 7\ntarget 22", "numbers 6 6 6\ntarget 42", "numbers 2 2 3 3\ntarget 10"],
)
def test_a_puzzles_family_is_drawn_with_the_same_probability_from_each_of_its_members(content: str) -> None:
    env = started("Countdown", 0, max_numbers=4)
    for family, drawn in chances(env, content).items():
        assert {chances(env, member)[family] for member in family} == {drawn}, sorted(family)
    assert len(chances(env, content)) > 1


def puzzle_weight(content: str) -> float:
    """How likely a default puzzle is to be generated, up to a factor."""
    *numbers, target = (int(word) for word in content.split() if word.isdigit())
    orders = math.factorial(len(numbers)) / math.prod(map(math.factorial, Counter(numbers).values()))
    return orders * result_chances(tuple(numbers))[target]


@cache
def result_chances(values: tuple[int, ...]) -> dict[int, float]:
    """How likely random operations on random pairs of the values are to have each result."""
    if len(values) == 1:
        return {values[0]: 1.0}
    found, pairs = Counter[int](), list(combinations(range(len(values)), 2))
    for i, j in pairs:
        rest = [value for place, value in enumerate(values) if place not in (i, j)]
        steps = operations(values[i], values[j])
        for step in steps:
            for result, chance in result_chances(tuple(sorted((*rest, step.result)))).items():
                found[result] += chance / len(pairs) / len(steps)
    return found


def level_weight(content: str) -> float:
    """How likely a default level is to be generated, up to a factor that the levels of a family share: the length of
    its solution is uniform, and so are the starts of that length in the room."""
    options = SokobanOptions()
    level = level_in(content, options)
    layers = solvable_states(level.room, options.max_solution)
    lengths = [length for length in range(options.min_solution, len(layers)) if layers[length]]
    return 1 / len(lengths) / len(layers[level.solution_length])


@pytest.mark.parametrize(
    ("name", "weight", "most"), [("Countdown", puzzle_weight, 0.11), ("Sokoban", level_weight, 0.08)]
)
def test_hard_negatives_exceed_an_information_by_at_most_what_the_guide_says(name, weight, most: float) -> None:
    """docs/guide/probe.md: the mean of log(m + 1) - H(w) over tasks and their clusters
    (`kit.diagnosis.hard_negatives`), here within 0.01 of `most`."""
    env, bounds = make(name), []
    for seed in range(600):
        env.reset(seed=seed, options={"noise_seed": 0})
        cluster = [env.content(), *env.twins(random.Random(seed), PROBE_TWINS)]
        w = np.array([weight(content) for content in cluster])
        w /= w.sum()
        bounds.append(math.log(len(w)) + float(w @ np.log(w)))
    assert most - 0.01 < np.mean(bounds) < most + 0.005


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
