"""The outside judge reads coordinates off text and grids, and nothing else."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.diagnosis.grounding import ROLES, correlations, holds, judge_of, last_grid, ranks, spearman
from envs.registry import make
from envs.wording import DemonstrationQuality

LAKE = "Walk to G .\n\n_ O _ _\nG _ O O\nO _ _ P\n_ _ _ _\nactions left 10"
JUDGE = judge_of("FrozenLake")


@pytest.mark.parametrize("environment", list(ROLES))
def test_solver_demonstrations_are_right_and_misplaced_or_generic_ones_are_not(environment: str) -> None:
    judge, rng = judge_of(environment), random.Random(3)
    rates = {}
    for name, quality in {
        "true": DemonstrationQuality(grounded=1.0, wrong_coordinates=0.0),
        "wrong": DemonstrationQuality(grounded=1.0, wrong_coordinates=1.0),
        "generic": DemonstrationQuality(grounded=0.0),
    }.items():
        prompts, texts = [], []
        for seed in range(60):
            env = make(environment, "train", {})
            observation, _ = env.reset(seed=seed)
            prompts.append(f"Walk .\n{observation}\nactions left 10")
            texts.append(env.demonstrate(rng, quality)[0])
        rates[name] = judge.judge(prompts, texts, range(60))
    assert rates["true"]["right"] == 1.0 and rates["true"]["right_elsewhere"] < 0.2
    assert rates["wrong"]["names"] == 1.0 and rates["wrong"]["right"] < 0.35
    assert rates["generic"] == {"names": 0.0, "right": 0.0, "right_elsewhere": 0.0}


def test_a_phrase_inside_a_longer_one_is_not_a_second_claim() -> None:
    assert JUDGE.claims("i am at 2 3 and goal at 1 0 , hole at 0 1 so left") == [
        ("player", (2, 3)),
        ("goal", (1, 0)),
        ("hole", (0, 1)),
    ]
    assert JUDGE.claims("at 2 3") == [("player", (2, 3))] and JUDGE.claims("look 2 3 chat 1 2") == []


def test_one_false_claim_makes_a_reasoning_wrong_and_none_makes_it_silent() -> None:
    facts = JUDGE.facts(LAKE)
    assert facts["player"] == {(2, 3)} and facts["goal"] == {(1, 0)} and len(facts["hole"]) == 4
    assert holds(JUDGE.claims("at 2 3 goal at 1 0"), facts)
    assert not holds(JUDGE.claims("at 2 3 goal at 1 1"), facts)
    assert not holds(JUDGE.claims("left is best"), facts)


def test_only_the_last_grid_counts_and_text_without_one_has_no_truth() -> None:
    assert last_grid(f"{LAKE}\nreward 0.0\nP _\n_ G\nactions left 8", "P_G") == ["P_", "_G"]
    glued = "<|system|>P you _ ice O hole .<|user|>_ P _\n_ _ G\n_ O _\nactions left 10<|assistant|><think>"
    assert JUDGE.facts(glued)["player"] == {(0, 1)}, "a template may put its marker on the grid's first line"
    assert JUDGE.facts("no grid here\nactions left 3") is None
    assert all(math.isnan(v) for v in JUDGE.judge(["nothing"], ["at 1 2"], [0]).values())
    assert judge_of("Countdown") is None


@given(st.text(max_size=200), st.text(alphabet="P_OGX* \n0123456789atgol", max_size=200))
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_it(reasoning: str, prompt: str) -> None:
    shares = JUDGE.judge([prompt, LAKE], [reasoning, prompt], [0, 1])
    assert all(math.isnan(value) or 0 <= value <= 1 for value in shares.values())


def test_rank_correlation_over_a_runs_lines() -> None:
    lines = [{"step": s, "judge/right": s / 10, "first_turn/mi_est": s**2, "flat": 1.0} for s in range(8)]
    lines += [{"step": 8, "judge/right": None, "first_turn/mi_est": -9.0}, {"step": 9}]
    found = correlations(lines, ["first_turn/mi_est", "flat"])
    assert found["first_turn/mi_est"] == pytest.approx(1.0) and math.isnan(found["flat"])
    assert spearman([1, 2, 2, 4], [4, 2, 3, 1]) == pytest.approx(-0.9486833)
    assert ranks([5, 1, 5, 0]).tolist() == [2.5, 1.0, 2.5, 0.0]
