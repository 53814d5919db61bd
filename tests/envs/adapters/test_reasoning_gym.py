"""The data sets of reasoning-gym, made and scored by the package in a process of its own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from squelch.envs.adapters.evaluated_text import evaluates_text
from squelch.envs.adapters.reasoning_gym import MAX_ANSWER, PAID_ANYHOW, Question
from squelch.envs.registry import make
from squelch.kit.records.splits import split_of

reasoning_gym = pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
NOISE = {"noise_seed": 5}
SUMS: dict[str, Any] = {"datasets": {"chain_sum": {"min_terms": 2, "max_terms": 3}}}
LEVELS: dict[str, Any] = {"datasets": {"chain_sum": {}}, "level": 0, "last_level": 2, "raise_every": 10}


def kinds_of(env: Question, seeds: range) -> list[str]:
    return [env.reset(seed=seed, options=NOISE)[1]["task_kind"] for seed in seeds]


def test_the_own_answer_is_paid_in_full_and_a_wrong_one_is_not() -> None:
    env = Question("train", **SUMS)
    for seed in range(20):
        env.reset(seed=seed, options=NOISE)
        assert env.step(env._entry["answer"])[1:] == (1.0, True, False, {"success": True})
        assert env.step("squelch")[4] == {"success": False}


def test_a_task_is_its_seed_in_every_process_and_belongs_to_its_split() -> None:
    isolated, here = make("ReasoningGym", "train", {**SUMS, "timeout_s": 60}), Question("train", **SUMS)
    keys: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        env, again = Question(split, **SUMS), Question(split, **SUMS)
        for seed in reversed(range(60)):
            shown, info = env.reset(seed=seed, options=NOISE)
            assert split_of(info["task_key"]) == split
            keys.setdefault(split, set()).add(info["task_key"])
        assert again.reset(seed=0, options={"noise_seed": 6}) == (shown, info)
    assert not keys["train"] & keys["validation"] and min(map(len, keys.values())) > 55
    for seed in (3, 120):
        assert isolated.reset(seed=seed, options=NOISE) == here.reset(seed=seed, options=NOISE)


def test_several_data_sets_are_mixed_and_named_as_kinds() -> None:
    env = Question("train", datasets={"chain_sum": {}, "spell_backward": {}})
    assert set(kinds_of(env, range(20))) == {"chain_sum", "spell_backward"}


def test_the_level_rises_with_the_number_of_the_task_and_validation_plays_the_last() -> None:
    kinds = kinds_of(Question("train", **LEVELS), range(0, 40, 5))
    assert [int(kind[-1]) for kind in kinds] == [0, 0, 1, 1, 2, 2, 2, 2]
    assert set(kinds_of(Question("validation", **LEVELS), range(3))) == {"chain_sum level 2"}
    later = Question("train", **LEVELS)
    later.first_seed = 1_000_003
    assert kinds_of(later, range(1_000_003, 1_000_043, 5)) == kinds, "the place in the run counts, not the seed"
    longest = {
        level: max(
            len(re.findall(r"\d+", Question("train", datasets={"chain_sum": {}}, level=level).reset(
                seed=seed, options=NOISE)[0])) for seed in range(20)
        )
        for level in (0, 3)
    }  # fmt: skip
    assert longest[0] < longest[3]


def test_any_text_of_bounded_length_is_an_answer() -> None:
    env = Question("train", **SUMS)
    assert env.read_action(" 4 \n") == "4" and env.read_action("x" * MAX_ANSWER) == "x" * MAX_ANSWER
    assert env.read_action(" \t") is None and env.read_action("x" * (MAX_ANSWER + 1)) is None


def test_an_answer_at_which_the_scorer_fails_is_wrong_and_fails_no_trajectory() -> None:
    env = Question("train", datasets={"prime_factorization": {}})
    env.reset(seed=0, options=NOISE)
    with pytest.raises(ValueError, match="invalid literal"):
        env._dataset.score_answer("squelch", env._entry)
    assert env.step("squelch")[1:] == (0.0, True, False, {"success": False})


def test_an_entry_that_the_package_cannot_make_is_passed_over() -> None:
    """Found by a reviewer: basic_arithmetic divides by 0 at an entry of this seed, whatever the noise."""
    env = Question("validation", datasets={"basic_arithmetic": {}})
    shown, info = env.reset(seed=73, options=NOISE)
    assert shown and split_of(info["task_key"]) == "validation"


def test_data_sets_whose_scorers_evaluate_the_answer_as_a_program_are_known() -> None:
    """Found by a reviewer: one answer could change the scorer so that every later answer was right."""
    from reasoning_gym.factory import DATASETS

    assert {name for name, (made, _) in DATASETS.items() if evaluates_text(made)} == {
        *("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication"),
        *("puzzle24", "simple_integration", "spiral_matrix", "string_insertion"),
    }, "number_sorting evaluates the task's own answer, and propositional_logic has a parser of its own"


@pytest.mark.parametrize("name", PAID_ANYHOW)
def test_a_data_set_that_pays_one_answer_to_most_questions_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = f"datasets: the scorer of '{name}' pays the answer '{PAID_ANYHOW[name]}' in full, whatever the question is"
    with pytest.raises(ValueError, match=says):
        Question("train", datasets={"chain_sum": {}, name: {}})
    answer = PAID_ANYHOW[name]
    monkeypatch.setattr("squelch.envs.adapters.reasoning_gym.PAID_ANYHOW", {})
    env, paid = Question("train", datasets={name: {}}), 0.0
    for seed in range(0, 1000, 50):
        env.reset(seed=seed, options=NOISE)
        assert env._entry["answer"].lower() != answer
        paid += env.step(answer)[1]
    assert paid >= 14, "else the package is mended, and the data set can be played"


def test_the_level_follows_the_position_in_the_run_also_in_the_process_that_makes_the_questions() -> None:
    env = make("ReasoningGym", options={**LEVELS, "timeout_s": 60}, first_seed=2_000_006)
    assert [env.reset(seed=2_000_006 + k, options=NOISE)[1]["task_kind"][-1] for k in (0, 9, 10, 35)] == [*"0012"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"datasets": {"chian_sum": {}}},
            r"datasets: reasoning-gym has no data set 'chian_sum'; did you mean 'chain_sum'",
        ),
        ({"datasets": {"composite": {}}}, r"datasets: reasoning-gym has no data set 'composite'"),
        ({"datasets": {"chain_sum": {}, "n_queens": {}}}, r"datasets: the scorer of 'n_queens' evaluates the answer"),
        ({"datasets": {"chain_sum": {"colour": 1}}}, r"datasets\.chain_sum: .* unexpected keyword argument 'colour'"),
        ({"datasets": {"chain_sum": {"min_terms": 0}}}, r"datasets\.chain_sum: min_terms must be positive"),
        ({"datasets": {"chain_sum": {"seed": 1}}}, r"datasets\.chain_sum: seed follows from the task's seed"),
        ({"datasets": {"chain_sum": {}}, "raise_every": 5}, r"raise_every: level and last_level must be set"),
        ({"datasets": {"chain_sum": {}}, "last_level": 4}, r"last_level=4: level must be set"),
        (
            {"datasets": {"chain_sum": {}}, "level": 3, "last_level": 1, "raise_every": 10},
            r"last_level=1 is below level=3, from which raise_every raises it",
        ),
        (
            {"datasets": {"chain_sum": {"min_terms": 3, "max_terms": 3}}, "level": 4},
            r"datasets\.chain_sum: the curriculum sets min_terms=2 at level 4, in place of 3",
        ),
        ({"datasets": {"gsm_symbolic": {}, "arc_agi": {}}, "level": -1}, r"level: Input should be greater"),
        ({"datasets": {}}, r"datasets: .* at least 1 item"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=rf"environment\.options\.{says}"):
        make("ReasoningGym", options={**options, "timeout_s": 60})
