"""The settings by key: blocks of which a part is given, the pages of all, and `squelch config --explain`."""

import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.writers.settings import FOLDER, INDEX, pages
from squelch.cluster.cli import main
from squelch.cluster.commands.config import explained
from squelch.cluster.config import RunConfig, load
from squelch.cluster.setting_keys import flat
from squelch.cluster.settings_reference import of_environment, of_run
from squelch.envs.registry import ADAPTERS, environment_names
from squelch.kit.base.settings import Settings

NAMES = [*environment_names(), *sorted(ADAPTERS)]


def test_the_pages_are_those_of_the_present_settings() -> None:
    written = {file: file.read_text() for file in (INDEX, *FOLDER.glob("*.md"))}
    assert written == pages(), "python -m docs.writers.settings writes them"


def test_a_page_that_a_setting_names_is_a_link() -> None:
    assert not [file for file, text in pages().items() if "(docs/" in text]
    assert "([stores.md](../../guide/stores.md))" in pages()[FOLDER / "upload.md"]


def test_every_setting_says_what_it_means_and_what_it_may_be() -> None:
    settings = [one for block in (*of_run(), *map(of_environment, NAMES)) for one in block.settings]
    assert [one.key for one in settings if not (one.meaning and one.values and one.default)] == []


def test_the_keys_are_those_of_a_run() -> None:
    tree = flat(RunConfig().model_dump(mode="json"))
    off = [key for key, value in tree.items() if value is None]
    found = {one.key for block in of_run() for one in block.settings}
    inside = {key for key in found if any(key.startswith(f"{block}.") for block in off)}
    assert {key.rpartition(".")[0] for key in inside} == {"learner.lora", "model.warmup", "model.warmup.quality"}
    listed = {key for key in found if key.startswith("environments")}  # of runs of several
    mappings = found - tree.keys() - inside - listed
    assert {key.rpartition(".")[2] for key in mappings} == {"options", "label_selector"}, "empty ones have no leaf"
    assert tree.keys() - found == {"learner.lora", "model.warmup"}


def test_a_setting_is_explained_with_its_value_in_the_recipe() -> None:
    config = load("sokoban", ["filter.rho=0.5", "environment.options.max_walls=4"])
    rho, walls = explained(config, ["filter.rho", "max_walls"])
    assert rho.splitlines()[:2] == ["filter.rho = 0.5", "    number, above 0, at most 1; default 0.9"]
    assert walls.splitlines()[:2] == ["environment.options.max_walls = 4", "    whole number, at least 0; default 5"]


def test_a_block_that_is_off_is_explained_as_off() -> None:
    rank, _ = explained(load("frozenlake"), ["learner.lora"])
    assert rank.startswith("learner.lora.rank = off, because learner.lora is unset; 16 if")
    rank, _ = explained(load("frozenlake", ["learner.lora.alpha=8"]), ["learner.lora"])
    assert rank.startswith("learner.lora.rank = 16\n")


LISTED = (
    "environments=[{name: FrozenLake, format: {max_turns: 3}, options: {size: 5}}, "
    "{name: Sokoban, label: boxes, weight: 2, options: {max_walls: 4}}, {name: FrozenLake, label: b}]"
)


def test_a_setting_of_several_environments_is_explained_with_the_value_of_each() -> None:
    config = load("frozenlake", ["environment=null", LISTED])

    def explanation(word: str, key: str) -> str:
        return next(one for one in explained(config, [word]) if one.startswith(f"{key} = "))

    turns = explanation("format.max_turns", "environments[0].format.max_turns")
    assert turns.splitlines()[:3] == [
        "environments[0].format.max_turns = 3 (FrozenLake)",
        "environments[1].format.max_turns = 5 (boxes)",
        "environments[2].format.max_turns = 5 (b)",
    ]
    weight = explanation("environments[1].weight", "environments[0].weight")
    assert "environments[1].weight = 2.0 (boxes)\nenvironments[2].weight = 1.0 (b)\n    number, above 0" in weight
    size = explanation("environment.options.size", "environments[0].options.size")
    assert size.startswith("environments[0].options.size = 5 (FrozenLake)\nenvironments[2].options.size = ")
    walls = explanation("max_walls", "environments[1].options.max_walls")
    assert walls.splitlines()[0].endswith(" = 4 (boxes)") and "[0]" not in walls
    assert explanation("environments", "environments").startswith('environments = ["FrozenLake", "boxes", "b"]')


class Foreign:
    """An environment of somebody else, whose options have types of their own."""

    class Options(Settings):
        """Where its tasks are."""

        folder: Path = Path("tasks")
        """Folder of the tasks."""


def test_an_option_of_a_type_that_no_setting_has_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squelch.cluster.settings_reference.environment_class", lambda name: Foreign)
    (one,) = of_environment("their.module:Foreign").settings
    assert (one.default, one.values, one.meaning) == ('"tasks"', "Path", "Folder of the tasks.")


def test_words_that_are_known_are_explained_and_those_of_no_setting_are_named_with_the_nearest(capsys) -> None:
    assert main(["config", "--explain", "filter.rho", "rhoo", "learner.optimizer.learning_rat3", "zzzz"]) == 2
    said = capsys.readouterr()
    assert "filter.rho = 0.9" in said.out
    assert "--explain 'rhoo': no setting has this in its key or meaning. Did you mean 'rho'?" in said.err
    assert "Did you mean 'learner.optimizer.learning_rate'?" in said.err and "--explain 'zzzz': no setting" in said.err


def test_one_key_of_a_warm_ups_quality_leaves_the_others() -> None:
    """Found by a reviewer: the others went back to the quality of another warm-up."""
    whole = load("smollm2-frozenlake").model.warmup
    part = load("smollm2-frozenlake", ["model.warmup.quality.random_plan=0"]).model.warmup
    assert whole is not None and part is not None
    assert part.quality == whole.quality.model_copy(update={"random_plan": 0.0})


def blocks(model: type[Settings], place: str = "") -> Iterator[tuple[str, Settings]]:
    """The default of every block of settings in the tree of `model`, by its place."""
    for name, field in model.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            yield f"{place}{name}", default
        for kind in {type(default), field.annotation, *typing.get_args(field.annotation)}:
            if isinstance(kind, type) and issubclass(kind, Settings):
                yield from blocks(kind, f"{place}{name}.")


def test_the_default_of_a_block_is_that_of_its_class() -> None:
    """Otherwise a block of which one key is given would begin from other values than one of which none is."""
    found = dict(blocks(RunConfig))
    assert {"learner.objective.kl", "scorer.probe", "model.warmup.quality"} <= set(found)
    assert [place for place, default in found.items() if default != type(default)()] == []
