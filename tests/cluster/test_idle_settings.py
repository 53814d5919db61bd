"""Settings that another setting switches off are reported, and only those."""

import json

import pytest

from squelch.cluster.config import load, recipe_names
from squelch.cluster.idle_settings import CASES, Case, idle_settings, notes_on_settings
from squelch.cluster.setting_keys import flat

PROMPTS = load("prompts").environment.options


@pytest.mark.parametrize("recipe", recipe_names())
def test_no_shipped_recipe_has_a_setting_that_does_nothing(recipe: str) -> None:
    assert idle_settings(load(recipe)) == []


@pytest.mark.parametrize(
    ("overrides", "reported"),
    [
        (["filter.rule=none", "filter.epsilon=0.1"], ["filter.epsilon=0.1 does nothing with filter.rule=none"]),
        (
            ["filter.rule=top_k", "filter.epsilon_unit=absolute"],
            ["filter.epsilon_unit=absolute does nothing with filter.rule=top_k"],
        ),
        (
            ["filter.rule=top_k", "filter.band=[0.1,0.5]"],
            ["filter.band=[0.1, 0.5] does nothing with filter.rule=top_k"],
        ),
        (["filter.rule=band", "filter.band=[0.1,0.5]"], []),
        (
            ["filter.rule=none", "filter.include_zero=true"],
            ["filter.include_zero=true does nothing with filter.rule=none"],
        ),
        (
            ["learner.optimizer.decay=cosine", "learner.optimizer.decay_steps=0"],
            ["learner.optimizer.decay=cosine does nothing with learner.optimizer.decay_steps=0"],
        ),
        (["learner.optimizer.decay=cosine", "learner.optimizer.decay_steps=9"], []),
        (
            ["learner.objective.normaliser_tokens=80", "learner.objective.aggregation=token_mean"],
            ["learner.objective.normaliser_tokens=80 does nothing with learner.objective.aggregation=token_mean"],
        ),
        (["learner.objective.aggregation=constant"], []),
        (["recorder.wandb_entity=us"], ["recorder.wandb_entity=us does nothing without wandb in recorder.loggers"]),
        (["upload.every_s=5"], ["upload.every_s=5.0 does nothing without a store"]),
        (["upload.every_s=5", "store=/mnt/runs"], []),
        (["rollout.tensor_parallel_size=2"], ["rollout.tensor_parallel_size=2 does nothing with rollout.num_gpus=0.0"]),
        (["rollout.num_gpus=1", "rollout.kv_cache_gib=2"], []),
        (
            ["environment.format.worked_turn=true"],
            ["environment.format.worked_turn=true does nothing with environment.prompt=tiny"],
        ),
        (["environment.format.response_length=9", "environment.prompt=natural"], []),
    ],
)
def test_a_setting_that_another_one_switches_off_is_reported_with_that_one(
    overrides: list[str], reported: list[str]
) -> None:
    assert idle_settings(load("frozenlake", overrides)) == reported


def test_a_format_penalty_is_none_where_the_environment_has_a_format_of_its_own() -> None:
    found = idle_settings(load("prompts", ["environment.format.format_penalty=-0.5"]))
    assert found == ["environment.format.format_penalty=-0.5 does nothing with environment.name=Prompts"]


@pytest.mark.parametrize("case", [case for case in CASES if case.switch.startswith("environment.")])
def test_a_setting_of_one_of_several_environments_is_reported_by_its_own_key(case: Case) -> None:
    """The third environment's are used, and the second's are not: neither speaks for the other."""
    used, unused = ({"name": "FrozenLake", "prompt": "natural"}, {"name": "Prompts", "options": PROMPTS})
    format_of = {"format": {"format_penalty": -0.5, "worked_turn": True, "response_length": 9}}
    if case.switch == "environment.prompt":
        unused = {"name": "FrozenLake", "prompt": "tiny"}
    entries = [{"name": "Sokoban", "label": "plain"}, unused | format_of | {"label": "b"}, used | format_of]
    config = load("frozenlake", ["environment=null", f"environments={json.dumps(entries)}"])
    found = [line for line in idle_settings(config) if case.of(config.mixture.entries[1]).switch in line]
    keys = [key.replace("environment.", "environments[1].") for key in case.keys]
    assert [line.partition("=")[0] for line in found] == keys
    assert not [line for line in idle_settings(config) if line.startswith(("environments[0]", "environments[2]"))]


def test_every_case_names_settings_that_exist() -> None:
    known = flat(load("frozenlake").model_dump(mode="json"))
    assert [key for case in CASES for key in case.keys if key not in known] == []


def test_a_run_says_at_its_start_which_settings_do_nothing() -> None:
    said = notes_on_settings(load("frozenlake", ["filter.window_size=9"]))
    assert said == ["setting without effect: filter.window_size=9 does nothing with filter.window=whole"]
