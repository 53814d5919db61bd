"""Every environment speaks both prompt styles: natural English with a legend and, if asked for, a worked turn, and the
tiny one."""

import random
import re

import gymnasium
import pytest

from squelch.envs.base import TextEnv
from squelch.envs.config import EnvironmentConfig, FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.format import parse, system_message, well_formed
from squelch.envs.registry import environment_names, make
from squelch.envs.wording import DemonstrationQuality
from squelch.learner.warmup.demonstrations import play
from squelch.learner.warmup.tiny import build_tiny
from tests.envs.demonstrations import TRUE

OPTIONS = {"SearchQA": {"num_passages": 2_000}, "WebShop": {"num_products": 500}}
NAMES = (*environment_names(), "docs.examples.sort_words:SortWords")


def speaking(name: str, split: str = "train") -> TextEnv:
    return make(name, split, OPTIONS.get(name, {}), "natural")


@pytest.mark.parametrize("name", NAMES)
def test_natural_messages_are_english_with_the_format_and_a_worked_turn(name: str) -> None:
    env = speaking(name)
    system, user = Episode(env, 3, 0, FormatConfig()).start()
    said = system["content"]
    assert said.startswith(env.rules()) and "Always output: <think>" in said and "example of one turn" in said
    assert " ." not in said.replace(" || ", "") and "{" not in said, "no word of the tiny style, no open field"
    assert user["content"].startswith("State:\n") and "\nActions left: " in user["content"]
    assert env.observation_space.contains(env.observation())
    assert user["content"] not in said, "the worked turn is another task"


@pytest.mark.parametrize("name", NAMES)
def test_the_worked_turn_is_well_formed_and_its_actions_are_actions(name: str) -> None:
    env = speaking(name)
    for per_turn in (env.max_actions_per_turn, 1):
        said = system_message(env, FormatConfig(max_actions_per_turn=per_turn))
        turn = parse(said.rpartition("<think>")[2], per_turn, env.read_action)
        assert turn.valid and len(turn.actions) == min(per_turn, len(env.wording.example.actions))


@pytest.mark.parametrize("name", NAMES)
def test_a_worked_turn_and_the_longest_response_are_said_only_if_the_format_says_so(name: str) -> None:
    env = speaking(name)
    bare = system_message(env, FormatConfig(worked_turn=False))
    assert "example of one turn" not in bare and "<think> your thoughts" in bare and bare.startswith(env.rules())
    said = system_message(env, FormatConfig(worked_turn=False, response_length=400))
    assert said == f"{bare} Max response length: 400 words (tokens)."
    assert system_message(env, FormatConfig(worked_turn=True)) == system_message(env, FormatConfig())
    tiny = make(name, options=OPTIONS.get(name, {}), prompt="tiny")
    assert system_message(tiny, FormatConfig(worked_turn=True, response_length=9)) == system_message(
        tiny, FormatConfig()
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_natural_demonstration_is_an_episode_without_open_fields(name: str) -> None:
    config = EnvironmentConfig(name=name, options=OPTIONS.get(name, {}), prompt="natural")
    env = speaking(name)
    for seed in range(2 if name == "DeepCoder" else 12):
        for text in play(env, config, seed, TRUE).texts()[1:]:
            assert "{" not in text and "  " not in text.strip()


@pytest.mark.parametrize("name", NAMES)
def test_natural_demonstrations_vary_their_words_and_are_generic_only_as_often_as_asked(name: str) -> None:
    env, rng = speaking(name), random.Random(0)
    env.reset(seed=1)
    generic = {text for part in env.wording.generic for text in part}
    named, plain = (
        {env.demonstrate(rng, TRUE.model_copy(update={"grounded": share}))[0] for _ in range(40)}
        for share in (1.0, 0.0)
    )
    assert len(named) > 1 and not any(text.startswith(tuple(generic)) for text in named)
    assert all(text.startswith(tuple(generic)) for text in plain)


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban"])
def test_coordinates_before_a_natural_board_say_where_everything_on_it_is(name: str) -> None:
    env, judge, rng = speaking(name), speaking(name).judge(), random.Random(0)
    plain = make(name, options={"observation_format": "grid"}, prompt="natural")
    for seed in range(40):
        shown, board = env.reset(seed=seed, options={"noise_seed": 0})[0], plain.reset(seed=seed)[0]
        facts, _, rest = shown.partition("\nRow 0:")
        assert f"Row 0:{rest}" == board and env.observation_space.contains(shown)
        claimed = [(c.fact, c.cell) for line in facts.splitlines() for c in judge.claims(line.replace(":", " at", 1))]
        assert sorted(claimed) == sorted((fact, at) for fact, cells in judge.facts(board).items() for at in cells)
        assert env.observation_space.contains(env.step(rng.choice(env.actions))[0])


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban"])
def test_the_worked_turn_shows_its_board_as_observations_do(name: str) -> None:
    said = system_message(speaking(name), FormatConfig())
    example = make(name, options={"observation_format": "grid"}, prompt="natural").wording.example
    assert re.search(rf"player: row (.+\n)+{re.escape(example.observation)}\nActions left", said)
    assert said.count("player: row") == 1


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban"])
def test_coordinates_are_refused_in_the_style_that_has_no_words_for_them(name: str) -> None:
    with pytest.raises(ValueError, match=r"observation_format=grid_coord needs environment\.prompt=natural"):
        make(name, options={"observation_format": "grid_coord"})
    with pytest.raises(ValueError, match=r"needs environment\.prompt=natural"):
        gymnasium.make(f"squelch.envs.base:squelch/{name}-v0", observation_format="grid_coord").reset(seed=1)
    with pytest.raises(ValueError, match="observation_format"):
        make(name, options={"observation_format": "coord"}, prompt="natural")
    assert "row" not in make(name).reset(seed=1, options={"noise_seed": 0})[0], "the tiny style shows the board alone"


def test_a_seed_is_the_same_task_in_both_styles() -> None:
    for name in ("FrozenLake", "Sokoban", "Countdown", "MetaMathQA"):
        keys = [make(name, prompt=prompt).reset(seed=7)[1]["task_key"] for prompt in ("tiny", "natural")]
        assert keys[0] == keys[1]


def test_a_wrong_answer_of_a_natural_demonstration_is_not_stated_as_a_fact() -> None:
    quality = DemonstrationQuality(grounded=1.0, wrong_coordinates=0.0, random_plan=1.0)
    env, rng = speaking("Countdown"), random.Random(0)
    judge = env.judge()
    missed = 0
    for seed in range(60):
        observation, _ = env.reset(seed=seed)
        reasoning, (action,) = env.demonstrate(rng, quality)
        assert all(judge.holds(claim, judge.facts(observation)) for claim in judge.claims(reasoning))
        missed += "not the target" in reasoning
        assert ("not the target" in reasoning) == (env.step(action)[1] < 1)
    assert missed > 20


def test_the_tiny_policy_reads_no_natural_prompt(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"environment\.prompt=natural .* environment\.prompt=tiny .*model\.path"):
        build_tiny(tmp_path / "policy", EnvironmentConfig(prompt="natural"))


def test_squelchs_own_sentences_are_natural_for_a_foreign_environment_too() -> None:
    env = make("tests.envs.test_contract:Doubling", prompt="natural")
    system, user = Episode(env, 4, 0, FormatConfig()).start()
    assert system["content"].startswith("Double the number") and "Strictly follow" in system["content"]
    assert "example" not in system["content"] and user["content"].startswith("State:\n")
    assert Episode(env, 4, 0, FormatConfig()).start()[1] == user
    assert well_formed("so", ["8"]) == " so </think> <answer> 8 </answer>"
