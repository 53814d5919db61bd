"""The outside judge reads claims and states off text, and nothing else."""

import math
import random
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.format import turn_message
from squelch.envs.registry import ENVIRONMENTS, judge_of, make
from squelch.envs.wording import DemonstrationQuality, PromptName
from squelch.kit.diagnosis.grounding import correlations, ranks, right, shares, spearman
from squelch.kit.records.content import Picture
from tests.envs.demonstrations import TRUE

LAKE = "Walk to G .\n\n_ O _ _\nG _ O O\nO _ _ P\n_ _ _ _\nactions left 10"
JUDGED = ("FrozenLake", "Sokoban", "Countdown")
WORDS = re.findall(
    r"\S+",
    "the goal hole box player i am at row 1 , column 2 and to left right above below me of ( 3 ) + - * / = is not no "
    "directly rows up target numbers makes 7 . so",
)
STYLES: tuple[PromptName, ...] = ("tiny", "natural")
JUDGE = judge_of("FrozenLake")


@pytest.mark.parametrize("prompt", STYLES)
@pytest.mark.parametrize("environment", JUDGED)
def test_solver_demonstrations_are_right_and_misplaced_or_generic_ones_are_not(
    environment: str, prompt: PromptName
) -> None:
    judge, rng = judge_of(environment), random.Random(3)
    rates = {}
    for name, quality in {
        "true": DemonstrationQuality(grounded=1.0, wrong_coordinates=0.0),
        "wrong": DemonstrationQuality(grounded=1.0, wrong_coordinates=1.0),
        "generic": DemonstrationQuality(grounded=0.0),
    }.items():
        prompts, texts = [], []
        for seed in range(60):
            env = make(environment, "train", {}, prompt)
            observation, _ = env.reset(seed=seed)
            prompts.append(f"{env.rules()}\n{turn_message(observation, 10, None, prompt)}")
            texts.append(env.demonstrate(rng, quality)[0])
        rates[name] = shares(judge, prompts, texts, range(60))
    assert rates["true"]["right"] == 1.0 and rates["true"]["right_elsewhere"] < 0.2
    assert rates["wrong"]["names"] == 1.0 and rates["wrong"]["right"] < 0.4
    assert rates["generic"] == {"names": 0.0, "right": 0.0, "right_elsewhere": 0.0}


def test_a_prompt_that_shows_its_state_in_a_picture_is_judged_by_its_pixels() -> None:
    rng, texts, seen = random.Random(3), list[str](), []
    for seed in range(20):
        env = make("FrozenLake", "train", {"observation_format": "picture", "cell_pixels": 8}, "tiny")
        observation, _ = env.reset(seed=seed)
        placed = [Picture.of(0, picture) for picture in observation.pictures]
        seen.append([picture.decoded("here") for picture in placed])
        texts.append(env.demonstrate(rng, DemonstrationQuality(grounded=1.0, wrong_coordinates=0.0))[0])
    found = shares(judge_of("FrozenLake"), [""] * 20, texts, range(20), seen)
    assert found["right"] == 1.0 and found["right_elsewhere"] < 0.2


def test_a_reasoning_is_judged_by_the_state_of_every_other_prompt_that_has_one() -> None:
    judge = SimpleNamespace(
        facts=lambda prompt: int(prompt) if prompt else None,
        claims=lambda text: [int(word) for word in text.split()],
        holds=lambda claim, facts: claim == facts,
    )
    found = shares(judge, ["1", "2", ""], ["1", "1", ""], [0, 1, 2])
    assert found == {"names": 1.0, "right": 0.5, "right_elsewhere": 0.5}, "the second is true of the first prompt alone"
    alone = shares(judge, ["1", ""], ["1"], [0])
    assert alone["right"] == 1.0 and math.isnan(alone["right_elsewhere"])


def test_natural_demonstrations_state_only_what_is_true_by_default() -> None:
    for name in JUDGED:
        env, judge, rng = make(name, prompt="natural"), judge_of(name), random.Random(0)
        for seed in range(100):
            observation, _ = env.reset(seed=seed)
            claims = judge.claims(env.demonstrate(rng, TRUE)[0])
            assert len(claims) >= 2 and right(judge, claims, judge.facts(observation))


def test_only_environments_that_declare_a_judge_have_one() -> None:
    assert {name for name in ENVIRONMENTS if judge_of(name) is not None} == set(JUDGED)


def test_text_without_a_state_has_no_truth() -> None:
    assert JUDGE.facts("no grid here\nactions left 3") is None
    assert all(math.isnan(v) for v in shares(JUDGE, ["nothing"], ["at 1 2"], [0]).values())


@pytest.mark.parametrize("environment", JUDGED)
@given(
    st.text(max_size=200),
    st.text(alphabet="P_OGX* \n0123456789atgol,()+-=.", max_size=200),
    st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join),
)
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_it(environment: str, reasoning: str, prompt: str, words: str) -> None:
    found = shares(judge_of(environment), [prompt, LAKE, words], [reasoning, prompt, words], [0, 1, 2])
    assert all(math.isnan(value) or 0 <= value <= 1 for value in found.values())


def test_rank_correlation_over_a_runs_lines() -> None:
    lines = [{"step": s, "judge/right": s / 10, "first_turn/mi_est": s**2, "flat": 1.0} for s in range(8)]
    lines += [{"step": 8, "judge/right": None, "first_turn/mi_est": -9.0}, {"step": 9}]
    found = correlations(lines, ["first_turn/mi_est", "flat"])
    assert found["first_turn/mi_est"] == pytest.approx(1.0) and math.isnan(found["flat"])
    assert spearman([1, 2, 2, 4], [4, 2, 3, 1]) == pytest.approx(-0.9486833)
    assert ranks([5, 1, 5, 0]).tolist() == [2.5, 1.0, 2.5, 0.0]


def test_an_environment_that_this_host_lacks_is_not_judged_and_is_said_once(caplog) -> None:
    assert judge_of("absent.module:Game") is None and judge_of("absent.module:Game") is None
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["reasonings are not judged"]
