"""The contract of an environment: four methods are enough to be played, and whatever else is needed is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from squelch.cluster.config import load
from squelch.cluster.loop.initial_policy import prepare_model
from squelch.envs.base import TextEnv
from squelch.envs.config import EnvironmentConfig, FormatConfig
from squelch.envs.contract import (
    ClosedVocabulary,
    Demonstrator,
    Environment,
    MissingCapabilityError,
    lacking,
    require,
)
from squelch.envs.episode import Episode
from squelch.envs.format import phrases, reads_words, well_formed
from squelch.envs.registry import ADAPTERS, ENVIRONMENTS, environment_class, make, plays_whole_turns, resolved
from squelch.envs.wording import Wording
from squelch.kit.base.errors import UserError
from squelch.kit.records.splits import split_of, task_key_of
from squelch.learner.warmup.tiny import build_tiny


class Doubling(Environment):
    """The least that can be played: the number is to be doubled."""

    max_turns = 2

    def rules(self) -> str:
        return "Double the number . The action is a number ."

    def read_action(self, text: str) -> str | None:
        said = text.strip()[:20]
        return said if said.isdecimal() and said.isascii() else None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = seed
        while split_of(key := task_key_of("Doubling", str(number))) != self.split:
            number += 1_000_000
        self._number = number
        return str(number), {"task_key": key, "task_kind": "even" if number % 2 == 0 else "odd"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = int(action) == 2 * self._number
        return "right" if right else str(self._number), float(right), right, False, {"success": right}


class Forgetful(Doubling):
    """It forgets what the contract asks `info` to hold."""

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {}


class Counting(Doubling):
    """Its kind of task is a number."""

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        shown, info = super().reset(seed=seed, options=options)
        return shown, info | {"task_kind": 3}


class Silent(Doubling):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {})


class Unplayable(Environment):
    """It has neither `step` nor `max_turns`."""

    def rules(self) -> str:
        return ""

    def read_action(self, text: str) -> str | None:
        return None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "", {}


NAME = f"{__name__}:Doubling"


def test_four_methods_and_a_number_of_turns_are_played_by_name() -> None:
    env = make(NAME)
    episode = Episode(env, 21, 0, FormatConfig())
    system, user = episode.start()
    number = int(user["content"].splitlines()[0])
    assert system["content"].startswith("Double the number . The action is a number . Always output")
    assert episode.task_key == task_key_of("Doubling", str(number)) and episode.task_kind == "odd"
    wrong = episode.act(well_formed("so", ["3"]))
    assert (wrong.reward, wrong.done) == (0.0, False)
    assert wrong.next_message["content"] == f"reward 0.0\n{number}\nactions left 1"
    right = episode.act(well_formed("so", [str(2 * number)]))
    assert (right.reward, right.success, right.done, right.truncated) == (1.0, True, True, False)
    own = resolved(EnvironmentConfig(name=NAME)).format
    assert (own.max_turns, own.max_actions_per_turn) == (2, 1)


def test_actions_are_the_same_if_they_are_spelt_alike_unless_the_environment_judges_otherwise() -> None:
    env = make(NAME)
    assert env.same_action("6", "6") and not env.same_action("6", "06")


def test_options_are_refused_where_an_environment_declares_none() -> None:
    with pytest.raises(ValueError, match=r"environment\.options\.size: .*:Doubling has no such option; known are none"):
        make(NAME, options={"size": 3})


def test_a_class_that_lacks_a_member_is_named_with_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="Unplayable is no environment: it lacks max_turns, step; derive it from envs"):
        make(f"{__name__}:Unplayable")
    with pytest.raises(
        ValueError,
        match=r"Path is no environment: it lacks Options, max_turns, .*, rules, ",
    ):
        make(f"{__name__}:Path")


class Unfinished(TextEnv):
    """Of a new environment, the first lines."""

    max_turns = 2

    def observation(self) -> str:
        return ""


class Undeclared(Unfinished):
    """All methods, and no words."""

    def task_key(self) -> str:
        return ""

    def _load(self, seed: int) -> dict[str, Any]:
        return {}

    def _move(self, action: str) -> float:
        return 0.0

    def _terminated(self) -> bool:
        return False

    def _succeeded(self) -> bool:
        return False


class Unbounded(Undeclared):
    name = "Unbounded"
    wordings: ClassVar = {"tiny": Wording("Speak .")}

    def read_action(self, text: str) -> str | None:
        return text or None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "Unfinished",
            r"Unfinished is no environment: it lacks _load, _move, _succeeded, _terminated, task_key; derive",
        ),
        ("Undeclared", r"Undeclared does not declare name, wordings, actions or read_action\(\) \(envs\.base"),
        ("Unbounded", r"Unbounded does not declare max_action_length \(envs\.base\.TextEnv\)"),
    ],
)
def test_an_unfinished_environment_is_refused_with_what_it_lacks(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(f"{__name__}:{name}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class A(\n", r"cannot be imported: SyntaxError: '\(' was never closed \(\w+\.py, line 1\)$"),
        ("\nx = unknown\n", r"cannot be imported: NameError: name 'unknown' is not defined \(\w+\.py, line 2\)$"),
        ("import no_such_module\n", r"cannot be imported: No module named 'no_such_module'$"),
    ],
)
def test_a_module_with_a_mistake_is_refused_with_the_mistake_and_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"mistaken_{task_key_of('module', text)}"
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(ValueError, match=says):
        make(f"{name}:Mine")


@pytest.mark.parametrize(("environment", "key"), [(Forgetful, "task_key"), (Silent, "success")])
def test_info_that_lacks_a_key_of_the_contract_is_named(environment: type[Environment], key: str) -> None:
    episode = Episode(environment(), 21, 0, FormatConfig())
    with pytest.raises(ValueError, match=rf"returned no info\['{key}'\] \(envs\.contract\.Environment\."):
        number = int(episode.start()[1]["content"].splitlines()[0])
        episode.act(well_formed("so", [str(2 * number)]))


def test_a_kind_of_task_that_is_no_text_is_refused_by_its_value() -> None:
    with pytest.raises(ValueError, match=r"reset\(\) returned info\['task_kind'\]=3, which must be text or None"):
        Episode(Counting(), 21, 0, FormatConfig()).start()


def test_turns_are_squelchs_unless_the_environment_or_its_option_says_otherwise() -> None:
    assert plays_whole_turns(EnvironmentConfig(name="Prompts")) and not plays_whole_turns(EnvironmentConfig(name=NAME))
    assert not plays_whole_turns(EnvironmentConfig(name="Prompts", options={"turns": "squelch"}))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environments_that_are_written_here_demonstrate(name: str) -> None:
    assert not lacking(environment_class(name), Environment) and not lacking(environment_class(name), Demonstrator)


def test_only_environments_of_a_closed_vocabulary_are_read_by_the_word() -> None:
    names = [name for name in (*ENVIRONMENTS, *ADAPTERS) if reads_words(environment_class(name))]
    assert sorted(names) == ["Countdown", "FrozenLake", "Sokoban"]
    assert lacking(make(NAME), ClosedVocabulary) == ["phrases", "step_rewards"]
    assert any("Always output" in text for text in phrases(environment_class(NAME), {}, FormatConfig()))


def test_an_optional_capability_that_is_needed_and_absent_is_named_with_the_environment(tmp_path: Path) -> None:
    says = rf"environment {NAME} has no demonstrate\(\) \(envs\.contract\.Demonstrator\), which .* needs"
    with pytest.raises(MissingCapabilityError, match=says):
        require(NAME, make(NAME), Demonstrator, "a demonstration")
    with pytest.raises(MissingCapabilityError, match=says):
        build_tiny(tmp_path / "policy", EnvironmentConfig(name=NAME))
    assert not (tmp_path / "policy").exists()


def test_a_run_with_the_tiny_policy_says_that_a_model_folder_is_needed(tmp_path: Path) -> None:
    overrides = [f"environment.name={NAME}", "environment.options={}", f"model.cache={tmp_path}"]
    with pytest.raises(UserError, match=rf"{NAME} has no demonstrate\(\).*model\.path"):
        prepare_model(load("countdown", overrides), lambda text: None)
