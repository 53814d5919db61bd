"""Everything that reads a run's settings by dotted key reads those of each shipped recipe, and of a run that plays
several environments, whose keys begin with `environments[0]` and not with `environment`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from squelch.cluster.commands.config import explained
from squelch.cluster.config import RunConfig, changes, dump, load, read_recipe, recipe_names
from squelch.cluster.idle_settings import notes_on_settings
from squelch.cluster.loop.exit_code import nothing_left
from squelch.cluster.loop.persistence.state import require_same_schedule
from squelch.cluster.presets import from_preset, preset_names
from squelch.cluster.report.figures import FIGURES
from squelch.cluster.report.outcomes import noise
from squelch.cluster.report.page import arm_rows
from squelch.cluster.report.runs import find_runs, study_of
from squelch.cluster.report.tables import table_4, table_5, table_of_savings
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.setting_keys import environment_name, flat, labels_of, of_each, weights_of
from squelch.cluster.settings_reference import every_setting
from squelch.cluster.sweep.plan import Arm, make_plan
from squelch.cluster.sweep.table import arm_metrics
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Entry
from tests.cluster.report.synthetic import Made, lines

MIXED = """extends: frozenlake
environment: null
environments:
  - {name: FrozenLake, weight: 3, options: {slip_rate: 0.2}}
  - {name: Sokoban, label: boxes, format: {max_turns: 4, format_penalty: -0.2}, max_tokens_per_turn: 40}
filter: {scope: environment}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    (file := tmp_path_factory.mktemp("recipe") / "mixed.yaml").write_text(MIXED)
    return str(file)


@pytest.fixture(scope="module", params=[*recipe_names(), "mixed"])
def recipe(request: pytest.FixtureRequest, mixed: str) -> tuple[str, RunConfig]:
    """A recipe and what it resolves to; some build a search index or a sandbox, so each is resolved once."""
    name = mixed if request.param == "mixed" else request.param
    return name, load(name)


def placed(config: RunConfig, folder: Path, name: str = "it", seed: int = 0) -> RunConfig:
    return config.model_copy(update={"runs_dir": str(folder), "name": name, "seed": seed})


def written(config: RunConfig, steps: int = 1) -> Path:
    """The folder of a run of this configuration."""
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.yaml").write_text(dump(config))
    made = lines(Made(config.name, seed=config.seed, steps=steps))
    (config.run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in made))
    return config.run_dir


def test_what_a_run_says_and_keeps_of_its_settings_is_said_and_kept(recipe, tmp_path: Path) -> None:
    config = placed(recipe[1], tmp_path)
    settings = flat(config.model_dump(mode="json"))
    assert notes_on_settings(config) == []
    assert environment_name(settings) == config.mixture.name
    assert labels_of(settings) == config.mixture.labels and len(weights_of(settings)) == len(config.mixture.labels)
    assert of_each(settings, "environment.prompt") == [one.environment.prompt for one in config.mixture.entries]
    folder = written(config)
    assert RunFolder(folder).settings() == settings and changes(settings, config) == []
    require_same_schedule(settings, config.mixture, folder)


def test_each_setting_is_explained_with_its_value(recipe) -> None:
    config = recipe[1]
    assert all(" = " in one for one in explained(config, [""]))
    assert {key for one in every_setting(config) for key in one.keys} >= {
        f"{entry.key}.{name}" for entry in config.mixture.entries for name in ("name", "prompt", "format.max_turns")
    }


def test_a_presets_settings_are_listed(recipe) -> None:
    for preset in preset_names():
        name, settings = from_preset(read_recipe(recipe[0]), [f"preset={preset}"])
        assert name == preset and settings


def test_a_run_that_its_own_rules_ended_goes_on_with_another_prompt(recipe, tmp_path: Path) -> None:
    config = placed(recipe[1], tmp_path)
    folder = written(config)
    ended = {"finished": False, "end_cause": "early_stop", "stopped": "early stop: success fell", "steps": 1}
    (folder / "summary.json").write_text(json.dumps({"schema": 1, "ledger": {"balanced": True}} | ended))
    assert nothing_left(config) is not None
    entry = config.mixture.entries[0]
    other = "tiny" if entry.environment.prompt == "natural" else "natural"
    changed = entry.environment.model_copy(update={"prompt": other})
    assert nothing_left(config.with_each(lambda one: changed if one.key == entry.key else one.environment)) is None


def slipping(level: float, one: Entry) -> EnvironmentConfig:
    chosen = one.environment.options
    return one.environment.model_copy(update={"options": chosen | {k: level for k in chosen if k == "slip_rate"}})


def test_runs_are_compared_also_by_the_noise_of_their_environments(recipe, tmp_path: Path) -> None:
    config, levels = recipe[1], (0.25, 0.75)
    runs = (
        placed(config, tmp_path, f"run-{seed}", seed).with_each(partial(slipping, level))
        for seed, level in enumerate(levels)
    )
    study = study_of(find_runs([written(one, steps=10) for one in runs]))
    slips = any("slip_rate" in one.environment.options for one in config.mixture.entries)
    assert list(study.environments) == [config.mixture.name] and len(study.arms) == (2 if slips else 1)
    assert {row["noise"] for row in noise(study)} == (set(levels) if slips else set())
    assert all(len(table(study)) == 1 + len(study.arms) for table in (table_4, table_5, table_of_savings))
    assert len([figure.rows(study) for figure in FIGURES]) == len(FIGURES)


def test_a_report_has_rows_for_each_of_several_environments(mixed: str, tmp_path: Path) -> None:
    study = study_of(find_runs([written(placed(load(mixed), tmp_path), steps=10)]))
    assert {row["environment"] for row in arm_rows(study)} >= {"FrozenLake + boxes", "FrozenLake + boxes: boxes"}


def test_a_sweep_of_several_environments_is_planned_and_its_arms_are_compared(mixed: str, tmp_path: Path) -> None:
    arms = [Arm("all", {"filter.rule": "none"}), Arm("half", {"filter.rho": 0.5})]
    plan = make_plan(mixed, [f"runs_dir={tmp_path}"], arms, [0, 1])
    seeds = [[entry.environment.train_seed for entry in cell.config.mixture.entries] for cell in plan.cells]
    assert seeds[0] == seeds[1] and not set(seeds[0]) & set(seeds[2])
    assert [bool(one["minus_no_filter"]) for one in arm_metrics(plan, {})] == [False, True]
