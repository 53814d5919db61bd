"""The settings by key: the page of all, and `squelch config --explain`."""

import pytest

from cluster.commands.config import explained
from cluster.config import RunConfig, flat, load
from cluster.errors import UserError
from cluster.settings import PAGE, of_environment, of_run, page
from envs.registry import ADAPTERS, environment_names

NAMES = [*environment_names(), *sorted(ADAPTERS)]


def test_the_page_is_the_one_of_the_present_settings() -> None:
    assert PAGE.read_text() == page(), "python -m cluster.settings writes it"


def test_every_setting_says_what_it_means_and_what_it_may_be() -> None:
    settings = [one for block in (*of_run(), *map(of_environment, NAMES)) for one in block.settings]
    assert [one.key for one in settings if not (one.meaning and one.values and one.default)] == []


def test_the_keys_are_those_of_a_run() -> None:
    tree = flat(RunConfig().model_dump(mode="json"))
    off = [key for key, value in tree.items() if value is None]
    found = {one.key for block in of_run() for one in block.settings}
    inside = {key for key in found if any(key.startswith(f"{block}.") for block in off)}
    assert {key.rpartition(".")[0] for key in inside} == {"learner.lora", "model.warmup", "model.warmup.quality"}
    mappings = found - tree.keys() - inside
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


def test_a_word_of_no_setting_is_named() -> None:
    with pytest.raises(UserError, match="--explain rhoo: no setting"):
        explained(load("frozenlake"), ["rho", "rhoo"])
