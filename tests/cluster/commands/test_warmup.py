"""`squelch warmup`: its command line becomes settings, whatever the recipe holds."""

from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.commands.warmup import NATURAL, prompts_of
from squelch.cluster.config import RunConfig, read_recipe, validated
from squelch.cluster.loop import initial_policy


def configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: str, *words: str
) -> tuple[int, list[RunConfig]]:
    """The exit code, and the settings with which a model would be looked for."""
    found: list[RunConfig] = []

    def check(config: RunConfig, _: object) -> None:
        found.append(config)
        raise ValueError("enough")

    monkeypatch.setattr(initial_policy, "check_source", check)
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe)
    try:
        return main(["warmup", "some/model", str(tmp_path / "out"), "--recipe", str(path), *words]), found
    except ValueError:
        return 0, found


@pytest.mark.parametrize(
    "recipe",
    [
        "model:\nenvironment: {name: Countdown}\n",
        "model: {warmup: null}\nenvironment: {name: Countdown}\n",
        "environment: {name: Countdown}\n",
        "model: {path: elsewhere, warmup: {epochs: 7}}\nenvironment:\n",
    ],
)
def test_the_command_line_completes_a_recipe_whose_blocks_are_empty(monkeypatch, tmp_path, recipe: str) -> None:
    """Found by a reviewer: an empty `model:` or `environment:` was a traceback."""
    code, (config,) = configured(monkeypatch, tmp_path, recipe, "--env", "FrozenLake")
    assert code == 0 and config.model.path == "some/model" and config.environment.name == "FrozenLake"
    assert config.model.warmup is not None
    assert config.model.warmup.epochs == (7 if "epochs: 7" in recipe else type(config.model.warmup)().epochs)


def test_the_options_of_a_recipe_for_another_environment_are_left_out(monkeypatch, tmp_path) -> None:
    recipe = "environment: {name: Countdown, options: {max_numbers: 4}}\n"
    for name, options in (("FrozenLake", {}), ("Countdown", {"max_numbers": 4})):
        code, (config,) = configured(monkeypatch, tmp_path, recipe, "--env", name)
        assert code == 0 and config.environment.options == options
    unnamed = "environment: {options: {slip_rate: 0.5}}\n"
    code, (config,) = configured(monkeypatch, tmp_path, unnamed, "--env", "FrozenLake")
    assert code == 0 and config.environment.options == {"slip_rate": 0.5}
    code, (config,) = configured(
        monkeypatch, tmp_path, recipe, "--env", "FrozenLake", "environment.options={slip_rate: 0.5}"
    )
    assert code == 0 and config.environment.options == {"slip_rate": 0.5}


def test_without_a_recipe_the_environment_speaks_natural_english_unless_another_style_is_asked_for(
    monkeypatch, tmp_path
) -> None:
    found: list[str] = []
    monkeypatch.setattr(initial_policy, "check_source", lambda config, _: found.append(config.environment.prompt))
    monkeypatch.setattr(initial_policy, "find_model", lambda *_: raise_enough())
    for words in ([], ["environment.prompt=tiny"]):
        with pytest.raises(RuntimeError, match="enough"):
            main(["warmup", "some/model", str(tmp_path / "out"), "--env", "FrozenLake", *words])
    assert found == ["natural", "tiny"]


@pytest.mark.parametrize(
    "name", ["FrozenLake", "Sokoban", "Countdown", "MetaMathQA", "SearchQA", "WebShop", "DeepCoder"]
)
def test_without_a_recipe_the_limits_hold_the_demonstrations_of_every_environment(name: str) -> None:
    """Found by a reviewer: with the defaults of a run, five of six environments were refused."""
    config = validated({}, ["model.path=some/model", f"environment.name={name}", *NATURAL], "of the warm-up")
    assert config.sampling.max_tokens_per_turn >= 129 and config.rollout.max_model_len >= 1195


def raise_enough() -> None:
    raise RuntimeError("enough")


def test_a_warm_up_that_is_switched_off_is_refused(monkeypatch, tmp_path, capsys) -> None:
    code, found = configured(monkeypatch, tmp_path, "model: {warmup: {}}\n", "--env", "FrozenLake", "model.warmup=null")
    assert code == 2 and not found and "model.warmup=null" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "key"),
    [("model: 3\n", "model"), ("model: {warmup: 3}\n", "warmup"), ("environment: 3\n", "environment")],
)
@pytest.mark.parametrize("data", [False, True])
def test_a_block_of_a_recipe_that_is_none_is_refused_by_name(
    monkeypatch, tmp_path, capsys, recipe: str, key: str, data: bool
) -> None:
    words = ["--data", str(tmp_path / "chats.jsonl")] if data else []
    code, found = configured(monkeypatch, tmp_path, recipe, "--env", "FrozenLake", *words)
    assert code == 2 and not found
    assert key in capsys.readouterr().err


def test_a_setting_below_a_block_that_is_off_turns_it_on() -> None:
    """Found by a reviewer: the output of `squelch config` could not take `learner.lora.rank`."""
    tree = read_recipe("frozenlake") | {"learner": {"lora": None}}
    assert validated(tree, ["learner.lora.rank=8"], "it").learner.lora.rank == 8


@pytest.mark.parametrize("share", ["format_validity", "true_reasonings"])
def test_a_share_to_stop_at_is_refused_where_nothing_is_played(tmp_path, capsys, share: str) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text("{}\n")
    words = ("some/model", str(tmp_path / "out"), "--data", str(data), f"model.warmup.{share}=0.8")
    assert main(["warmup", *words]) == 2
    assert "give --env NAME too" in capsys.readouterr().err


def test_the_warmed_up_model_is_trained_on_the_prompts_of_its_demonstrations(tmp_path: Path) -> None:
    words = ["model.path=some/model", "environment.name=FrozenLake", *NATURAL, "model.warmup={}"]
    assert prompts_of(validated({}, words, "it")) == ["environment.format.worked_turn=true"]
    assert prompts_of(validated({}, [*words, "environment.format.worked_turn=false"], "it")) == []
    assert prompts_of(validated({}, [*words, "model.warmup.data=chats.jsonl"], "it")) == []
