"""The commands with one change: of a run that pauses at an alarm, and of a finding."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from squelch.cluster.config import RunConfig, changes, dump, load, read_recipe, recipe_names
from squelch.cluster.runs.next_run import remedy, ways_on
from squelch.cluster.setting_keys import flat
from squelch.kit.filter.selection import select
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.findings.finder import Finding
from tests.fakes.run import settings

SCORES = np.append(np.linspace(0.8, 1.0, 7), 0.0)
"""Of a step's eight groups: one without signal, the others near enough for every rule to keep several."""


def recipes_by_filter() -> list[str]:
    """The first recipe of each filter and algorithm."""
    found: dict[str, str] = {}
    for name in recipe_names():
        tree = read_recipe(name)
        found.setdefault(f"{tree.get('filter')} {tree.get('learner', {}).get('algorithm')}", name)
    return list(found.values())


def next_run(config: RunConfig) -> tuple[str, RunConfig]:
    """The words before the command, and the configuration that the command trains."""
    path = config.run_dir / "config.yaml"
    words, command = ways_on(config, None).split(": ", 1)
    program, what, recipe, *overrides = shlex.split(command)
    assert (program, what, recipe) == ("squelch", "train", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump(config))
    return words.removeprefix("Go on with --resume, or from "), load(recipe, overrides)


def what_changes(config: RunConfig, following: RunConfig) -> list[str]:
    """The settings that differ, but for the run's name."""
    before = flat(config.model_dump(mode="json"))
    return [line for line in changes(before, following) if not line.startswith("name:")]


def positions_kept(config: FilterConfig) -> set[int]:
    return set(select(SCORES, None, config).kept)


@pytest.mark.parametrize(
    ("overrides", "change"),
    [
        ((), ["filter.rho: 0.9 -> 0.45"]),
        (("filter.rho=0.15",), ["learner.objective.entropy_coefficient: 0.001 -> 0.0005"]),
        (("filter.rule=top_p_softmax",), ["filter.rho: 0.9 -> 0.45"]),
        (("filter.rule=top_k", "filter.rho=0.5", "loop.prompts=8"), ["filter.rho: 0.5 -> 0.25"]),
        (("filter.rule=top_k", "filter.rho=0.5"), ["learner.objective.entropy_coefficient: 0.001 -> 0.0005"]),
        (("filter.rule=min_p", "filter.rho=0.2"), ["filter.rho: 0.2 -> 0.6"]),
        (("filter.rule=min_p", "filter.rho=0.95"), ["learner.objective.entropy_coefficient: 0.001 -> 0.0005"]),
        (("filter.rule=band",), ["filter.band: [0.0, 1.0] -> [0.5, 1.0]"]),
        (("filter.rule=none", "filter.rho=0.5"), ["filter.rho: 0.5 -> 0.9", "filter.rule: 'none' -> 'top_p'"]),
        (
            ("filter.rule=none", "filter.statistic=reward_sum", "filter.epsilon=3"),
            [
                *("filter.epsilon: 3.0 -> 0.01", "filter.rule: 'none' -> 'top_p'"),
                "filter.statistic: 'reward_sum' -> 'reward_variance'",
            ],
        ),
        (
            ("filter.rule=none", "sampling.group_size=1"),
            ["learner.objective.entropy_coefficient: 0.001 -> 0.0005"],
        ),
        (("filter.target=regulariser",), ["filter.rho: 0.9 -> 0.45"]),
        (("filter.target=task",), ["learner.objective.entropy_coefficient: 0.001 -> 0.0005"]),
        (("filter.keep=smallest",), ["learner.objective.entropy_coefficient: 0.001 -> 0.0005"]),
        (
            ("filter.keep=smallest", "learner.objective.entropy_coefficient=0"),
            ["learner.optimizer.learning_rate: 0.0002 -> 0.0001"],
        ),
    ],
)
def test_the_change_is_one_that_acts_under_the_runs_filter(
    tmp_path: Path, overrides: tuple[str, ...], change: list[str]
) -> None:
    config = settings(tmp_path, *overrides)
    words, following = next_run(config)
    assert what_changes(config, following) == change
    named = {"filter": "filter", "learner.objective": "entropy bonus", "learner.optimizer": "learning rate"}
    assert any(change[0].startswith(key) and words.endswith(text) for key, text in named.items())


def test_an_algorithm_with_a_filter_of_its_own_leaves_it_for_a_stricter_one(tmp_path: Path) -> None:
    config = load("frozenlake-dapo", [f"runs_dir={tmp_path}"])
    _, following = next_run(config)
    assert what_changes(config, following) == ["filter.rho: 1.0 -> 0.5", "learner.algorithm_filter: True -> False"]


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        *((name, []) for name in recipes_by_filter()),
        *((name, ["preset=published"]) for name in ("frozenlake-dapo", "sokoban")),
    ],
)
def test_after_the_filter_of_any_recipe_the_command_changes_the_run_and_keeps_no_more_groups(
    tmp_path: Path, recipe: str, overrides: list[str]
) -> None:
    config = load(recipe, [f"runs_dir={tmp_path}", *overrides])
    words, following = next_run(config)
    before, after = (positions_kept(one.filter) for one in (config, following))
    assert what_changes(config, following) and after and after <= before
    assert words.endswith("a stricter filter") == (after < before)


def test_the_command_names_the_checkpoint_and_the_tasks_of_each_environment(tmp_path: Path) -> None:
    listed = "environments=[{name: FrozenLake}, {name: Sokoban}]"
    said = ways_on(settings(tmp_path, "environment=null", listed), 4)
    assert "'environments[0].train_seed=100000' 'environments[1].train_seed=100000'" in said
    assert " environment.train_seed" not in said and "checkpoints/step-4/hf model.warmup=null" in said


def test_where_environments_are_ranked_alone_the_smallest_keeps_a_group(tmp_path: Path) -> None:
    listed = "environments=[{name: FrozenLake, weight: 3}, {name: Sokoban}]"
    several = ("environment=null", listed, "loop.prompts=8", "filter.rule=top_k", "filter.rho=0.5")
    config = settings(tmp_path, *several, "filter.scope=environment")
    assert what_changes(config, next_run(config)[1])[0].startswith("learner.objective.entropy_coefficient")
    config = settings(tmp_path, *several)
    assert what_changes(config, next_run(config)[1]) == ["filter.rho: 0.5 -> 0.25"]


@pytest.mark.parametrize(
    ("name", "overrides", "wanted"),
    [
        ("turns_cut", (), "sampling.max_tokens_per_turn=96"),
        ("entropy_falls", ("learner.objective.entropy_coefficient=0",), "learner.objective.clip_high=0.392"),
        ("format_invalid", ("model.path=somewhere",), "environment.prompt=natural"),
        ("none_solved", (), "sampling.group_size=8"),
        ("kl_high", (), "learner.optimizer.learning_rate=0.0001"),
        ("validation_falls", (), "learner.optimizer.learning_rate=0.0001"),
        ("trajectories_fail", (), ""),
        ("reward_hacked", (), ""),
    ],
)
def test_a_findings_command_changes_the_first_setting_that_can_be(
    tmp_path: Path, name: str, overrides: tuple[str, ...], wanted: str
) -> None:
    config = settings(tmp_path, *overrides)
    command = shlex.split(remedy(config, Finding(name, "warning", 1, 1, "")))
    if not wanted:
        assert command == ["squelch", "inspect", str(config.run_dir)]
        return
    assert command[:2] == ["squelch", "train"] and command[-1] == wanted and command[3] == "name=run-again"
