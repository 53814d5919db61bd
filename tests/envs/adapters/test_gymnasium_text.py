"""Gymnasium's own environments, played as text."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, Text

from squelch.envs.config import FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.registry import make
from squelch.kit.records.splits import split_of

TAXI = {"id": "Taxi-v4", "actions": ["South", "North", "East", "West", "Pickup", "Dropoff"]}
LAKE = {"id": "FrozenLake-v1", "kwargs": {"map_name": "4x4"}, "hold_out": False}
CLIFF = {"id": "CliffWalking-v1", "actions": ["Up", "Right", "Down", "Left"], "success_reward": -1, "hold_out": False}


class Echo(gymnasium.Env[str, str]):
    """Text in, text out: the right action is the observation read backwards."""

    observation_space = Text(4, min_length=4, charset="abc")
    action_space = Text(4, charset="abc")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._word = "".join(self.np_random.choice(list("abc"), size=4))
        return self._word, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == self._word[::-1]
        return self._word, float(right), True, False, {"is_success": right}


gymnasium.register("squelch-tests/Echo-v0", entry_point=Echo)
ECHO = {"id": "squelch-tests/Echo-v0", "render": False}


def started(options: dict[str, Any], seed: int = 0, split: str = "train", noise: int = 1) -> tuple[Any, str, str]:
    env = make("Gymnasium", split, options)
    shown, info = env.reset(seed=seed, options={"noise_seed": noise})
    return env, shown, info["task_key"]


def test_the_cliff_is_walked_to_its_end_by_words() -> None:
    episode = Episode(make("Gymnasium", "train", CLIFF), 0, 0, FormatConfig())
    assert "Play the game . Actions Up Right Down Left . Always" in episode.start()[0]["content"]
    outcomes = [episode.act(well_formed("go", [word])) for word in ("up", *["Right"] * 11, "DOWN")]
    assert [outcome.reward for outcome in outcomes] == [-1.0] * 13
    assert [outcome.done for outcome in outcomes] == [False] * 12 + [True]
    assert outcomes[-1].success and not outcomes[-1].truncated


def test_words_mean_the_actions_that_gymnasium_numbers() -> None:
    env, _, _ = started(TAXI, seed=4)
    twin = gymnasium.make("Taxi-v4", render_mode="ansi")
    twin.reset(seed=0)
    twin.unwrapped.s = env._env.unwrapped.s
    for number, word in enumerate(TAXI["actions"]):
        assert env.read_action(f" {word.upper()} ") == word
        _, reward, terminated, _, info = env.step(word)
        assert (reward, terminated) == twin.step(number)[1:3] and info["success"] is False
        assert env._env.unwrapped.s == twin.unwrapped.s
    assert env.read_action("Fly") is None and env.read_action("0") is None


def test_colours_are_shown_as_words_and_no_control_code_is_left() -> None:
    _, shown, _ = started(TAXI)
    assert "[blue " in shown and "[magenta " in shown and ("[yellow]" in shown or "[yellow " in shown)
    assert "\x1b" not in shown and "0m" not in shown


@pytest.mark.parametrize(
    ("passenger", "destination", "says"),
    [(0, 1, "|[blue [yellow R]]:"), (4, 0, "|[magenta [green R]]:"), (1, 0, "|[magenta [yellow R]]:")],
)
def test_a_taxi_at_a_landmark_is_shown_with_both_colours(passenger: int, destination: int, says: str) -> None:
    """Otherwise the taxi is lost where a landmark has a colour of its own, as after each pick-up."""
    env, *_ = started(TAXI)
    env._env.unwrapped.s = env._env.unwrapped.encode(0, 0, passenger, destination)
    shown = env._shown(None)
    assert says in shown and "?" not in shown and "0m" not in shown


def test_a_seed_is_a_task_of_its_split_and_the_noise_has_its_own_seed() -> None:
    keys: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        env, twin = (make("Gymnasium", split, TAXI) for _ in range(2))
        for seed in range(40):
            shown, info = env.reset(seed=seed, options={"noise_seed": 1})
            again, twins = twin.reset(seed=seed, options={"noise_seed": 2})
            assert (shown, info["task_key"]) == (again, twins["task_key"]) and split_of(info["task_key"]) == split
            keys.setdefault(split, set()).add(info["task_key"])
    assert not keys["train"] & keys["validation"] and len(keys["train"]) > 25

    def walk(noise: int) -> list[str]:
        env, _, _ = started(LAKE, seed=3, noise=noise)
        return [env.step("2")[0] for _ in range(3)]

    assert walk(1) == walk(1) and len({tuple(walk(noise)) for noise in range(20)}) > 3


def test_text_in_and_out_is_played_as_it_is() -> None:
    env, word, _ = started(ECHO)
    assert "The action is text ." in env.rules()
    assert env.read_action(f" {word} ") == word and env.read_action("xyz") is None and env.read_action("") is None
    assert env.step(word[::-1])[1:3] == (1.0, True) and env.step(word[::-1])[4]["success"] is True


def test_one_start_cannot_be_split_and_the_error_says_what_to_set() -> None:
    failed = []
    for split in ("train", "validation"):
        try:
            started({**CLIFF, "hold_out": True}, split=split)
        except ValueError as error:
            failed.append(str(error))
    (text,) = failed
    assert "CliffWalking-v1" in text and "hold_out=True" in text and "found no task in 1000 draws" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, r"environment\.options\.id: Field required"),
        ({"id": "Taxi-v99"}, r"environment\.options\.id: 'Taxi-v99' cannot be made"),
        ({"id": "Taxi-v4", "actions": ["Go"]}, r"environment\.options\.actions: 1 names for 6 actions"),
        (
            {"id": "FrozenLake-v1", "actions": ["Left", "Down", "left", "Up"]},
            r"options\.actions: two of Left, Down, left, Up are",
        ),
        ({"id": "CartPole-v1"}, r"environment\.options\.render: there is no ansi rendering"),
        ({"id": "Taxi-v4", "render": False}, r"environment\.options\.render: observations must be Text"),
        ({"id": "Pendulum-v1", "render": False}, r"environment\.options\.id: actions must be Discrete or Text"),
        ({"id": "Taxi-v4", "kwargs": {"colour": 1}}, r"'Taxi-v4' cannot be made: .*colour"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_option_to_change(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make("Gymnasium", options=options)


def test_numbers_name_the_actions_where_no_names_are_given() -> None:
    env, _, _ = started({"id": "Taxi-v4"})
    assert [env.read_action(str(number)) for number in range(7)] == ["0", "1", "2", "3", "4", "5", None]
    assert isinstance(env._env.action_space, Discrete) and np.isclose(env.step("0")[1], -1)


@pytest.mark.parametrize(("walk", "solved"), [((2, 1), False), ((1, 1, 2, 1, 2, 2), True)])
def test_an_end_that_pays_nothing_solves_nothing_unless_the_option_says_so(walk: tuple[int, ...], solved: bool) -> None:
    """Found by a reviewer: walking into a hole of FrozenLake-v1 was a success."""
    options = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "hold_out": False}
    env, *_ = started(options)
    found = [env.step(str(action)) for action in walk]
    assert found[-1][2] and found[-1][4]["success"] is solved
    env, *_ = started({**options, "success_reward": 0.0})
    assert [env.step(str(action)) for action in walk][-1][4]["success"] is True


class Lamp(gymnasium.Env[int, int]):
    """Shows a lamp in one of 200 colours; the right action says whether it is bright."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    observation_space, action_space = Discrete(1), Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self._canvas = render_mode, np.zeros((4, 4, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._canvas[:] = self.np_random.integers(200)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        right = action == int(self._canvas[0, 0, 0] > 99)
        self._canvas[:] = 0
        return 0, float(right), True, False, {}

    def render(self) -> np.ndarray:
        return self._canvas


gymnasium.register("squelch-tests/Lamp-v0", entry_point=Lamp)
LAMP = {"id": "squelch-tests/Lamp-v0", "pictures": True, "actions": ["Dark", "Bright"]}


def test_a_rendered_picture_is_shown_and_tells_tasks_and_splits_apart() -> None:
    keys = {}
    for split in ("train", "validation"):
        env = make("Gymnasium", split, LAMP)
        assert env.shows_pictures
        for seed in range(10):
            shown, info = env.reset(seed=seed, options={"noise_seed": 1})
            [picture] = shown.pictures
            assert picture.size == (4, 4) and split_of(info["task_key"]) == split
            assert keys.setdefault(info["task_key"], picture) == picture
    assert len(keys) > 10


def test_the_picture_of_a_turn_stays_when_the_environment_draws_the_next() -> None:
    episode = Episode(make("Gymnasium", "train", LAMP), 0, 0, FormatConfig())
    [picture] = episode.start()[1]["content"].pictures
    value = int(picture.rgb[0, 0, 0])
    assert episode.act(well_formed("look", ["Bright" if value > 99 else "Dark"])).success
    assert int(picture.rgb[0, 0, 0]) == value
