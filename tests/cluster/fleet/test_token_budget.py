"""`learner.token_budget: auto` becomes a number once, at the start of a run."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.commands.plan import RANK_RUNTIME_GIB
from squelch.cluster.config import changes, dump, load, settings_of
from squelch.cluster.errors import UserError
from squelch.cluster.fleet import token_budget
from squelch.learner import memory
from squelch.learner.config import LearnerConfig
from squelch.learner.shapes import published
from tests.learner.models import make_model

GIB, SHAPE = memory.GIB, published("Qwen2.5-0.5B")


def no_card(learner: LearnerConfig) -> None:
    raise AssertionError("the settings say how much memory a rank has")


AUTO = "learner.token_budget=auto"
LEARNER = LearnerConfig(num_gpus=1, dtype="bfloat16")


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 200 * GIB), st.integers(0, 100 * GIB), st.sampled_from([512, 3000, 100_000]))
def test_an_automatic_budget_is_never_above_the_memory_and_grows_with_it(room: int, more: int, longest: int) -> None:
    small, large = (memory.fitting_tokens(SHAPE, LEARNER, 1, 0, longest, has) for has in (room, room + more))
    assert longest <= small <= large <= max(longest, memory.MOST_TOKENS)
    assert small == longest or memory.estimate(SHAPE, LEARNER.with_tokens(small), 1).total <= room


def test_on_a_cpu_it_is_what_recipes_had_and_a_number_stays() -> None:
    for words, tokens in (
        ([AUTO], 8192),
        ([AUTO, "rollout.max_model_len=9000"], 9000),
        (["learner.token_budget=2048"], 2048),
    ):
        config = load("frozenlake", words)
        assert token_budget.settled(config, None, None).token_budget == tokens == config.tokens_fed


def test_the_number_is_written_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    said: list[str] = []
    words = [f"runs_dir={tmp_path}", "name=run", "learner.num_gpus=1", "rollout.num_gpus=1"]
    folder, config = make_model(tmp_path), load("frozenlake", [*words, AUTO, "learner.max_memory_gib=4"])
    found = token_budget.choose_token_budget(config, folder, False, said.append, 0, no_card)
    assert isinstance(found.learner.token_budget, int) and "learner.max_memory_gib" not in said[0]
    assert said == [f"learner.token_budget={found.learner.token_budget}, for 4.0 GiB of a GPU per rank"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(dump(config))  # as a sweep writes it before the run's first start
    assert token_budget.choose_token_budget(config, folder, True, said.append, 0, no_card) == found
    (tmp_path / "run/config.yaml").write_text(
        dump(found.model_copy(update={"learner": found.learner.with_tokens(999)}))
    )
    assert token_budget.choose_token_budget(config, folder, True, said.append, 0, no_card).learner.token_budget == 999
    assert changes(settings_of(tmp_path / "run/config.yaml"), config) == []  # not the user's change
    chosen = load("frozenlake", [*words, "learner.token_budget=4096"])
    assert token_budget.choose_token_budget(chosen, folder, True, said.append, 0, no_card) == chosen


def test_memory_below_the_longest_trajectory_is_refused_with_the_figure(tmp_path: Path) -> None:
    words = [
        AUTO,
        "learner.num_gpus=1",
        "rollout.num_gpus=1",
        "learner.max_memory_gib=0.01",
        "rollout.max_model_len=4000",
    ]
    config, folder = load("frozenlake", words), make_model(tmp_path)
    assert memory.RUNTIME == RANK_RUNTIME_GIB * GIB
    with pytest.raises(UserError, match=r"^learner\.token_budget=auto: the learner needs .* GiB .*, has 0\.0: "):
        token_budget.choose_token_budget(config, folder, False, lambda line: None, 0, no_card)
