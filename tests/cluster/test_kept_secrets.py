"""No file of a run holds a secret of its settings, and what plays with the settings has it, or asks for it by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from squelch.cluster import kept_secrets
from squelch.cluster.config import RunConfig, changes, dump, load, settings_of
from squelch.cluster.kept_secrets import VARIABLE, handed_on
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError
from squelch.kit.untrusted import secrets

SECRET = "sk-very-secret"
COMMAND = f"environment.options.command=[python, -c, pass, --api-key, {SECRET}]"
AGENT = ["environment.name=Agent", "environment.prompt=natural"]


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of what another test has given."""
    forget(monkeypatch)
    monkeypatch.delenv(VARIABLE, raising=False)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_secrets, "_known", [])
    monkeypatch.setattr(secrets, "_known", set())


def started(folder: Path) -> RunConfig:
    """The configuration of a run that has written its `config.yaml` into the folder."""
    config = load("prompts", [*AGENT, COMMAND, "environment.options.data=null", "environment.options.reward=null"])
    assert config.environment.options["command"][-1] == SECRET
    (folder / "config.yaml").write_text(dump(config))
    return config


def test_the_file_of_a_run_holds_no_secret_and_the_same_command_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = started(tmp_path)
    text = (tmp_path / "config.yaml").read_text()
    assert SECRET not in text and "--api-key" in text
    forget(monkeypatch)
    assert changes(settings_of(tmp_path / "config.yaml"), config) == []
    other = config.environment.model_copy(update={"options": {"command": ["true", "--token", SECRET]}})
    shown = changes(settings_of(tmp_path / "config.yaml"), config.model_copy(update={"environment": other}))
    assert shown and SECRET not in str(shown)


def test_what_reads_the_file_elsewhere_asks_for_the_setting_and_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = started(tmp_path)
    forget(monkeypatch)
    with pytest.raises(UserError, match=r"config.yaml: environment.options.command holds \*\*\* in the place"):
        RunFolder(tmp_path).config()
    with pytest.raises(UserError, match=r"give it again: environment\.options\.command="):
        load(str(tmp_path / "config.yaml"), ["environment.options.max_processes=3"])
    assert RunFolder(tmp_path).config([COMMAND]).environment.options["command"][-1] == SECRET
    assert RunFolder(tmp_path).config() == config, "this process was given it once"


def test_a_sweep_hands_its_secrets_to_its_cells_and_to_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = started(tmp_path)
    handed = handed_on()
    assert SECRET in handed[VARIABLE] and isinstance(json.loads(handed[VARIABLE]), list)
    forget(monkeypatch)
    monkeypatch.setenv(VARIABLE, handed[VARIABLE])
    assert load(str(tmp_path / "config.yaml"), []) == config
    assert VARIABLE not in os.environ


def test_settings_without_secrets_hand_on_nothing() -> None:
    load("frozenlake", [])
    assert handed_on() == {}


def test_an_environment_of_several_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = {"name": "Agent", "options": {"command": ["x", "--token", SECRET]}}
    tree = {"environments": [{"name": "FrozenLake"}, agent]}
    kept = kept_secrets.without_secrets(tree)
    assert SECRET not in str(kept) and kept_secrets.with_secrets(tree, "mine") == tree
    assert kept_secrets.with_secrets(kept, "mine") == tree
    forget(monkeypatch)
    with pytest.raises(UserError, match=r"again: environments\[1\].options.command="):
        kept_secrets.with_secrets(kept, "mine")


def test_an_environments_secret_stands_for_no_other_environments_of_the_same_settings() -> None:
    given, masked = ({"name": "Agent", "options": {"command": ["x", "--token", word]}} for word in (SECRET, "***"))
    with pytest.raises(UserError, match=r"again: environments\[1\].options.command="):
        kept_secrets.with_secrets({"environments": [given, masked]}, "mine")
