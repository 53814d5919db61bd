"""The tables against the trainers' own packages: their keys, their defaults, and what their own code resolves."""

import json
import os
import subprocess
import sys
import warnings
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from squelch.cluster.config import RunConfig, read_recipe
from squelch.cluster.setting_keys import flat
from squelch.kit.importing.recipe import imported
from squelch.kit.importing.sources import read
from squelch.kit.importing.tables import RELEASES, Row, rows, rows_of
from tests.kit.trl.conftest import in_trl, trl_site  # noqa: F401  # a fixture

ROOT = Path(__file__).parents[3]
SITE = ROOT / ".cache" / "trainers"
PARSE = """
import argparse, ast, datetime, json, sys
tree = ast.parse(open(sys.argv[1]).read())
main = next(node for node in tree.body if isinstance(node, ast.If))
end = next(i for i, node in enumerate(main.body) if isinstance(node, ast.Assign) and "parse_args" in ast.unparse(node))
names = {"argparse": argparse, "datetime": datetime.datetime}
exec(compile(ast.Module(main.body[:end], []), sys.argv[1], "exec"), names)
flags = (action for action in names["parser"]._actions if action.dest != "help")
print(json.dumps({action.option_strings[-1][2:]: action.default for action in flags}, default=str))
"""
"""OpenRLHF's own statements that make its parser; importing the module would import DeepSpeed."""
TRL_DEFAULTS = """
import dataclasses, json, sys
sys.modules['vllm'] = None
from trl import GRPOConfig
missing = dataclasses.MISSING
found = {f.name: None if f.default is missing else f.default for f in dataclasses.fields(GRPOConfig)}
print(json.dumps(found, default=str))
"""
CHANGED = {
    "actor_rollout_ref.rollout.name": "vllm",
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 512,
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 128,
    "data.train_files": ["a.parquet", "b.parquet"],
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
    "trainer.total_training_steps": 60,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
}
"""What a user of verl sets in its configuration."""
NAMES = ("tests.kit.trl.work:reward", "tests.kit.trl.ready:short")
"""The reward functions of the trainer in `tests.kit.trl.ready`."""
OF_A_PROGRAM = {"verl": {"data.train_files", "data.val_files"}, "OpenRLHF": {"logger.wandb.run_name"}}
"""Keys whose defaults depend on the machine or the time."""


def printed(code: str, *words: str, site: Path = SITE) -> str:
    env = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def site() -> Path:
    if not (SITE / "squelch-setup.txt").is_file():
        warnings.warn(
            "verl and OpenRLHF are not there: their keys are NOT TESTED; run deploy/setup.sh trainers", stacklevel=2
        )
        pytest.skip("verl and OpenRLHF are not there: run deploy/setup.sh trainers")
    return SITE


@pytest.fixture(scope="module")
def written(site: Path) -> Path:
    """verl's configuration with every default, as its own script writes it for the release."""
    return site / "verl" / "trainer" / "config" / "_generated_ppo_trainer.yaml"


@pytest.fixture(scope="module")
def verl(written: Path) -> dict[str, Any]:
    return dict(read(written).values)


@pytest.fixture(scope="module")
def openrlhf(site: Path) -> dict[str, Any]:
    return json.loads(printed(PARSE, str(site / "openrlhf" / "cli" / "train_ppo_ray.py")))


@pytest.fixture(scope="module")
def trl(trl_site: Path) -> dict[str, Any]:  # noqa: F811
    return json.loads(printed(TRL_DEFAULTS, site=trl_site).splitlines()[-1])


@pytest.mark.parametrize("trainer", ["verl", "OpenRLHF", "TRL"])
def test_every_key_of_a_release_is_known_and_every_row_has_a_key_of_it(
    trainer: str, request: pytest.FixtureRequest
) -> None:
    theirs: dict[str, Any] = request.getfixturevalue(trainer.lower())
    assert [key for key in theirs if not rows_of(trainer, key)] == []
    extra = {
        "TRL": {
            "model",
            "train_dataset",
            "reward_funcs",
            "eval_dataset",
            "environment_factory",
            "tools",
            "rollout_func",
        }
    }
    named = {row.key for row in rows(trainer) if not row.pattern and row.key != "-"}
    gone = {key for key in named - theirs.keys() - extra.get(trainer, set()) if "peft_config" not in key}
    older = {"prompt_max_len", "algo.advantage.is_correction_enable", "use_kl_estimator_k3", "warmup_ratio"}
    assert gone <= {*older, "world_size"}, gone


@pytest.mark.parametrize("trainer", ["verl", "OpenRLHF", "TRL"])
def test_every_default_is_that_of_the_release(trainer: str, request: pytest.FixtureRequest) -> None:
    theirs: dict[str, Any] = request.getfixturevalue(trainer.lower())
    wrong = {
        row.key: (row.default_value, theirs[row.key])
        for row in rows(trainer)
        if row.key in theirs and row.key not in OF_A_PROGRAM.get(trainer, ()) and not _equal(row, theirs[row.key])
    }
    assert wrong == {}


def _equal(row: Row, value: Any) -> bool:
    """Ranges may be written as tuples, and a default that is no literal as its text."""
    own = row.default_value
    return own == value or (isinstance(value, list | tuple) and list(value) == own) or str(own) == str(value)


def test_what_verls_own_code_writes_becomes_a_recipe(written: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load(written.read_text())
    for key, value in CHANGED.items():
        *parents, leaf = key.split(".")
        reduce(getitem, parents, tree)[leaf] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    made = imported(read(tmp_path))
    made.require("{}=VALUE")
    wanted = {
        "loop.prompts": 512,
        "sampling.group_size": 8,
        "learner.minibatches": 4,
        "learner.optimizer.learning_rate": 1e-6,
        "model.path": "Qwen/Qwen2.5-7B-Instruct",
        "environment.options.data": ["a.parquet", "b.parquet"],
        "loop.steps": 60,
        "learner.ranks": 4,
    }
    assert {key: made.settings[key] for key in wanted} == wanted
    assert not any(one.default for one in made.taken.values()), "a resolved configuration has every value"
    assert [why for _, why in made.unknown if "no key of" in why] == []


@pytest.fixture(scope="module")
def ready(trl_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The folder of `tests.kit.trl.ready`."""
    folder = tmp_path_factory.mktemp("ready")
    in_trl(folder, "tests.kit.trl.ready")
    return folder


def test_a_trainer_of_trl_that_is_ready_to_train_becomes_a_recipe(ready: Path) -> None:
    found = flat(read_recipe(str(ready / "mine.yaml")))
    asked = json.loads((ready / "asked.json").read_text())
    assert (found["loop.prompts"], found["sampling.group_size"]) == (asked["prompts"], asked["group"])
    assert found["learner.optimizer.learning_rate"] == asked["rate"] and found["loop.steps"] == asked["steps"]
    assert found["learner.minibatches"] == asked["minibatches"] and found["model.path"] == asked["model"]
    rewards = {name: found[f"environment.options.reward.{name}"] for name in NAMES}
    assert rewards == {NAMES[0]: 0.5, NAMES[1]: 2.0}
    files = [Path(one) for one in found["environment.options.data"]]
    assert [one.name for one in files] == ["mine-train.parquet", "mine-validation.parquet"]
    assert [pq.read_table(one).num_rows for one in files] == [24, 3]
    made = RunConfig.model_validate(read_recipe(str(ready / "mine.yaml")))
    assert made.environment.name == "Prompts" and made.learner.algorithm == "grpo"
    assert "differences of meaning" in (ready / "log").read_text()


def test_data_that_the_user_gives_takes_the_place_of_a_trainers_data_sets_which_are_not_written(ready: Path) -> None:
    """The trainer evaluates on a mapping of data sets, of which no recipe can be made."""
    assert "several data sets" in json.loads((ready / "asked.json").read_text())["refused"]
    assert flat(read_recipe(str(ready / "given.yaml")))["environment.options.data"] == "own.jsonl"
    assert not list(ready.glob("given-*"))


def test_the_tables_name_the_releases_that_are_tested() -> None:
    pinned = (ROOT / "deploy" / "trainers.txt").read_text() + (ROOT / "deploy" / "trl.txt").read_text()
    for trainer in ("verl", "OpenRLHF", "TRL"):
        assert f"{trainer.lower()}=={RELEASES[trainer]}" in pinned
