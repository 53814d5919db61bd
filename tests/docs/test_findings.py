"""The page of findings is what the catalogue says, and every remedy can be applied."""

from __future__ import annotations

import pytest

from docs.writers.findings import OTHERS, PAGE, page
from squelch.cluster.config import load
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.setting_keys import flat
from squelch.kit.findings.catalogue import catalogue
from squelch.kit.findings.words import next_settings
from tests.docs.test_pages import ROOT, anchors

RECIPES = ("frozenlake", "frozenlake-ppo", "smollm2-countdown")
SPECIAL = {"filter: stricter", "prompt: natural"}


def test_the_page_is_what_the_catalogue_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m docs.writers.findings"


def test_every_detector_of_two_others_has_a_row_and_names_findings_that_exist() -> None:
    assert len({name for name, *_ in OTHERS}) == 23
    for name, ours, note in OTHERS:
        assert set(filter(None, ours.split(", "))) <= set(catalogue()) and (ours or note), name


@pytest.mark.parametrize("name", catalogue())
def test_every_page_that_a_finding_names_exists(name: str) -> None:
    entry = catalogue()[name]
    for place in (entry.page, entry.tried, entry.source):
        if place.startswith("docs/"):
            path, _, anchor = place.partition("#")
            assert (ROOT / path).is_file() and (not anchor or anchor in anchors(ROOT / path)), place


@pytest.mark.parametrize("name", catalogue())
def test_evidence_and_examples_are_metrics_of_a_run(name: str) -> None:
    entry = catalogue()[name]
    for key in filter(None, (*entry.evidence, entry.examples.replace("trajectories_failed", ""))):
        assert REGISTRY.series_of(key), key
    earlier = list(catalogue())[: list(catalogue()).index(name)]
    assert set(entry.unless) <= set(earlier), "what explains it is judged before it in a step"


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_change_of_settings_can_be_made_and_changes_something(recipe: str) -> None:
    config = load(recipe, [])
    present = flat(config.model_dump(mode="json"))
    unused = set() if "ppo" in recipe else {"critic_explains_nothing"}
    for name in set(catalogue()) - unused:
        entry = catalogue()[name]
        for alternative in entry.settings:
            plain = {key: value for key, value in alternative.items() if f"{key}: {value}" not in SPECIAL}
            assert set(plain) <= set(present) | {"prompt", "filter"}, name
            for key, value in next_settings([plain], present).items():
                assert load(recipe, [f"{key}={value}"]) != config, (name, key, value)
