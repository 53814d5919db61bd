"""docs/reference/memory.md is what `squelch plan` says of every recipe."""

import pytest

from docs.writers.memory import PAGE, _cell, page
from squelch.cluster.commands.plan_memory import DEVICES_GIB, RANK_RUNTIME_GIB, Need, needs_of
from squelch.cluster.config import load, recipe_names


@pytest.mark.slow
def test_the_page_says_what_the_plan_says_of_every_recipe() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run `python -m docs.writers.memory`"
    assert all(f"`{name}`" in written for name in recipe_names())


@pytest.mark.parametrize(
    ("advice", "cell"),
    [
        ("", "fits"),
        ("set learner.dtype=bfloat16 learner.ranks=4", "`learner.dtype=bfloat16` `learner.ranks=4`"),
        (
            "85 of 128 full sequences fit at once: set rollout.max_num_seqs=85, or raise rollout.count",
            "`rollout.max_num_seqs=85`",
        ),
        ("take a smaller model, or larger devices", "take a smaller model, or larger devices"),
    ],
)
def test_a_cell_holds_the_settings_of_an_advice(advice: str, cell: str) -> None:
    assert _cell(Need("rollout worker", 1, 20.0, 24.0, "", advice)) == cell


def test_a_rank_is_given_room_for_libraries_and_its_advice_keeps_it() -> None:
    config = load("qwen2.5-0.5b")
    rank = next(need for need in needs_of(config, DEVICES_GIB[:1]) if need.role == "learner rank")
    (tight,) = [need for need in needs_of(config, [rank.needs_gib - 0.5]) if need.role == "learner rank"]
    (enough,) = [need for need in needs_of(config, [rank.needs_gib + 0.01]) if need.role == "learner rank"]
    assert f"runtime {RANK_RUNTIME_GIB:.2f}" in rank.parts
    assert tight.advice.startswith("set learner.") and not enough.advice


def test_the_packaged_model_is_planned_by_its_short_name() -> None:
    needs = needs_of(load("countdown", ["model.path=smollm2"]), DEVICES_GIB)
    assert {need.role for need in needs} >= {"learner rank", "rollout worker"}
    assert all(need.device_gib is None and need.needs_gib > 1 for need in needs)
