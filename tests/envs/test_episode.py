"""Episodes: turns, ends, penalties."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.config import FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.registry import make

CONFIG = FormatConfig(max_turns=5, max_actions_per_turn=2)


def start(name: str = "FrozenLake", seed: int = 0, config: FormatConfig = CONFIG, **options) -> tuple:
    """(environment, started episode), without slips on the lake."""
    env = make(name, options=options | ({"slip_rate": 0.0} if name == "FrozenLake" else {}))
    episode = Episode(env, seed, 0, config)
    episode.start()
    return env, episode


def bump(env) -> str:
    """An action that leaves the state as it is."""
    for action in env.actions:
        twin = make(env.name, options={"slip_rate": 0.0})
        before, _ = twin.reset(seed=env.task_seed)
        if twin.step(action)[0] == before:
            return action
    return "nothing"


def seed_with_a_bump() -> int:
    for seed in range(100):
        env, _ = start(seed=seed)
        if bump(env) != "nothing":
            return seed
    raise AssertionError("no start lies at an edge")


def test_the_first_messages_hold_rules_and_state():
    env = make("FrozenLake")
    system, user = Episode(env, 5, 0, CONFIG).start()
    assert (system["role"], user["role"]) == ("system", "user")
    assert system["content"].startswith(env.rules())
    assert user["content"] == f"{env.observation()}\nactions left 10"


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban"])
def test_the_solution_succeeds_in_pairs_of_actions(name):
    env, episode = start(name, seed=3)
    path, outcome, total = env.solution(), None, 0.0
    while path:
        outcome = episode.act(well_formed("go", path[:2]))
        assert outcome.format_valid and outcome.format_penalty == 0
        path, total = path[2:], total + outcome.reward
    assert (outcome.done, outcome.success, outcome.truncated, outcome.next_message) == (True, True, False, None)
    assert total >= 1


def test_actions_after_the_end_are_dropped():
    env, episode = start(seed=next(s for s in range(99) if len(start(seed=s)[0].solution()) == 3))
    first, second, third = env.solution()
    assert not episode.act(well_formed("go", [first, second])).done
    outcome = episode.act(well_formed("go", [third, "Up"]))
    assert (outcome.num_actions, outcome.success, outcome.reward, outcome.format_valid) == (1, True, 1.0, True)


def test_an_episode_is_truncated_after_its_last_turn_and_then_over():
    env, episode = start(seed=seed_with_a_bump())
    still = bump(env)
    outcomes = [episode.act(well_formed("stay", [still])) for _ in range(CONFIG.max_turns)]
    assert [outcome.done for outcome in outcomes] == [False] * 4 + [True]
    assert (outcomes[-1].truncated, outcomes[-1].success, outcomes[-1].next_message) == (True, False, None)
    assert not outcomes[-1].bootstrap_last_state, "the prompt counts the turns down: none is left"
    lefts = [outcome.next_message["content"].split()[-1] for outcome in outcomes[:-1]]
    assert lefts == ["9", "8", "7", "6"]
    with pytest.raises(RuntimeError, match="turn 6 was played in an episode that is not running"):
        episode.act("")


def test_a_bad_turn_pays_the_penalty_apart_from_the_reward_and_goes_on():
    _, episode = start("Sokoban", config=FormatConfig(format_penalty=-0.25))
    outcome = episode.act("no tags at all")
    assert (outcome.reward, outcome.format_penalty, outcome.format_valid) == (0.0, -0.25, False)
    assert (outcome.num_actions, outcome.done, outcome.format_reason) == (0, False, "no </think>")
    assert outcome.next_message["content"].startswith("reward 0.0\n")
    assert outcome.next_message["content"].endswith("actions left 10")


def test_a_turn_cut_at_its_token_limit_is_played_penalised_and_goes_on():
    env, episode = start(seed=seed_with_a_bump())
    outcome = episode.act(well_formed("stay", [bump(env)]), hit_token_limit=True)
    assert (outcome.num_actions, outcome.format_valid, outcome.format_penalty) == (1, False, -0.1)
    assert (outcome.done, outcome.truncated) == (False, False)
    assert outcome.format_reason == "cut at the token limit"


def test_an_episode_must_be_started():
    with pytest.raises(RuntimeError, match="not running"):
        Episode(make("FrozenLake"), 0, 0, CONFIG).act("")


@pytest.mark.parametrize("solved", [True, False])
def test_the_success_of_the_last_step_counts_at_the_turn_limit_too(monkeypatch, solved: bool) -> None:
    """Found by a reviewer: an environment that does not end where it is solved never succeeded."""
    env, episode = start()
    monkeypatch.setattr(env, "step", lambda action: ("P", 0.0, False, False, {"success": solved}))
    *running, last = [episode.act(well_formed("go", ["Up"] if turn < 4 else [])) for turn in range(5)]
    assert not any(outcome.success for outcome in running) and not any(outcome.done for outcome in running)
    assert last.done and last.num_actions == 0 and last.success is solved


def test_an_environment_that_truncates_ends_the_episode_as_truncated(monkeypatch):
    env, episode = start()
    monkeypatch.setattr(env, "step", lambda action: ("P", 0.0, False, True, {"success": False, "action_valid": True}))
    outcome = episode.act(well_formed("go", ["Up", "Up"]))
    assert (outcome.done, outcome.truncated, outcome.success, outcome.num_actions) == (True, True, False, 1)
    assert outcome.bootstrap_last_state


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["FrozenLake", "Sokoban"]),
    seed=st.integers(0, 10_000),
    turns=st.lists(
        st.lists(st.sampled_from(["Left", "Down", "Right", "Up", "Fly"]), max_size=4), min_size=5, max_size=5
    ),
)
def test_every_episode_ends_once_within_its_turns_and_actions(name, seed, turns):
    _, episode = start(name, seed=seed)
    outcomes = []
    for actions in turns:
        outcomes.append(episode.act(well_formed("go", actions)))
        if outcomes[-1].done:
            break
    assert [outcome.done for outcome in outcomes] == [False] * (len(outcomes) - 1) + [True]
    assert sum(outcome.num_actions for outcome in outcomes) <= CONFIG.max_turns * CONFIG.max_actions_per_turn
    for actions, outcome in zip(turns, outcomes, strict=False):
        assert outcome.format_valid == (0 < len(actions) <= 2 and "Fly" not in actions)
        assert outcome.format_penalty == (0.0 if outcome.format_valid else -0.1)


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("shown", [5, None, {"a": 1}])
def test_an_observation_that_is_no_text_is_refused(monkeypatch, method: str, shown: object) -> None:
    """Found by a reviewer: it was written into the prompt as Python writes it."""
    env = make("FrozenLake", options={"slip_rate": 0.0})
    sound = getattr(env, method)
    monkeypatch.setattr(env, method, lambda *args, **about: (shown, *sound(*args, **about)[1:]))
    episode = Episode(env, 0, 0, CONFIG)
    with pytest.raises(ValueError, match=rf"{method}\(\) returned the observation .*, which must be text"):
        episode.start()
        episode.act(well_formed("so", [env.actions[0]]))
