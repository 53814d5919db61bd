"""Every environment is played by the real player, and its records agree with the environment itself.

The policy is a script. It keeps a twin of each trajectory's environment, which it resets and steps directly, so that it
knows what the player has to feed and to record. It says right, demonstrated, malformed, hostile and cut answers.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.play.seeds import noise_seed
from squelch.actors.sampling import SamplingConfig
from squelch.envs.base import TextEnv
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Environment
from squelch.envs.registry import ADAPTERS, ENVIRONMENTS, environment_names, make
from squelch.envs.remote.__main__ import server_of
from squelch.envs.sandbox.backends import choose
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, summarise
from tests.envs.remote.serving import served

PENALTY = -0.1
LONGEST_TOKEN = 12  # bytes; of `byte_level_bpe`
TAXI = {"id": "Taxi-v4", "actions": ["South", "North", "East", "West", "Pickup", "Dropoff"]}
CLIFF = {"id": "CliffWalking-v1", "actions": ["Up", "Right", "Down", "Left"], "success_reward": -1, "hold_out": False}
CLIFF_PATH = ["Up", *["Right"] * 11, "Down"]
OPTIONS: dict[str, dict[str, Any]] = {
    "Countdown": {},
    "DeepCoder": {"sandbox": {"limits": {"wall_s": 10, "total_s": 60}}},
    "FrozenLake": {"slip_rate": 0.1},
    "MetaMathQA": {},
    "SearchQA": {"num_passages": 2000},
    "Sokoban": {},
    "WebShop": {"num_products": 1000},
    "docs.examples.sort_words:SortWords": {},
    "Gymnasium/Taxi": TAXI,
    "Gymnasium/CliffWalking": CLIFF,
    "Http": {},  # the fixture adds the server's address
    "OwnProcess": {"environment": "docs.examples.sort_words:SortWords", "timeout_s": 60},
    "ReasoningGym": {"datasets": {"chain_sum": {}}, "timeout_s": 60},
    "TextArena": {"game": "GuessTheNumber-v0", "timeout_s": 60},
}
WITHOUT_KINDS = {"Gymnasium", "TextArena", "OwnProcess", "docs.examples.sort_words:SortWords"}
WHOLE_TURNS = {"Agent", "Prompts"}
"""Environments without a turn format; `tests/envs/prompt_file` plays them."""
SAID = {"OwnProcess": ("moon pear", "pear", "moon island engine pear")}
"""Actions of an environment without demonstrations, where numbers are none."""
SERVED = "Countdown"
"""The environment behind `Http`."""
MALFORMED: tuple[tuple[Callable[[str], str], bool], ...] = (
    (lambda action: f" go </think> {action}", False),
    (lambda action: f" go <answer> {action} </answer>", False),
    (lambda action: f" go </think> <answer> {action}", False),
    (lambda action: " go </think> <answer>  </answer>", False),
    (lambda action: "", False),
    (lambda action: "</think><answer>" * 50 + "||" * 50 + "__import__('os').system('ls')", False),
    (lambda action: f" go </think> so <answer> {action} </answer>", True),
    (lambda action: f" go </think> <answer> {action} </answer> bye", True),
    (lambda action: f" go </think> <answer> {action} </answer> <answer> {action} </answer>", True),
)
"""Badly formatted turns around an action, and whether the action is executed all the same."""
HOSTILE = ("\x00\u202e", "((((1", "search[", "é" * 5000, "{}%s", "😀 None")
"""Answers of a well-formed turn that are an action in few environments; `read_action` of the twin says which."""
SCRIPTS = ("solution", "demonstration", "demonstration", "noise", "hostile", "cut", *["malformed"] * len(MALFORMED))


@dataclass
class Said:
    """One turn as the script says it, and what the player must record of it."""

    ids: np.ndarray
    log_probs: np.ndarray
    head: str | None
    """The text before `</think>`; None where the reasoning is never closed."""
    actions: list[str]
    valid: bool
    cut: bool
    reward: float = 0.0


@dataclass
class Script:
    """One trajectory's answers, made from a twin of its environment."""

    env: Environment
    kind: str
    index: int
    config: EnvironmentConfig
    rng: random.Random
    observation: str = ""
    key: str = ""
    kind_of_task: str | None = None
    turns: list[Said] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """The message that must stand in what is fed before each turn."""
    success: bool = False
    ended: bool = False

    def start(self, seed: int, noise: int) -> None:
        self.seed = seed
        self.observation, info = self.env.reset(seed=seed, options={"noise_seed": noise})
        self.key, self.kind_of_task = info["task_key"], info.get("task_kind")
        self.shown.append(f"{self.observation}\nactions left {self.budget}")

    @property
    def budget(self) -> int:
        return self.env.max_turns * self.env.max_actions_per_turn - len(self.executed)

    def answer(self) -> tuple[str, list[str], bool, bool]:
        """(text, actions to be executed, whether the turn is well formed, whether it is cut) of the next turn."""
        kind = self.kind if not self.turns or self.kind == "solution" else "demonstration"
        if kind == "solution":
            actions = self._solution()[: self.env.max_actions_per_turn]
            return _turn("so", actions), actions, True, False
        reasoning, actions = self._demonstrated()
        if kind == "malformed":
            make_text, executes = MALFORMED[self.index - SCRIPTS.index("malformed")]
            return make_text(actions[0]), actions[:1] if executes else [], False, False
        if kind == "hostile":
            text = HOSTILE[self.rng.randrange(len(HOSTILE))]
            read = self.env.read_action(text)
            return _turn("hm", [text]), [] if read is None else [read], read is not None, False
        return _turn(reasoning, actions), actions, kind != "cut", kind == "cut"

    def _solution(self) -> list[str]:
        if isinstance(self.env, TextEnv):
            return self.env.solution() or []
        if self.config.name == "Gymnasium":
            return CLIFF_PATH[len(self.executed) :] if self.config.options == CLIFF else ["South"]
        return [FOREIGN_SOLUTIONS[self.config.name](self)]

    def _demonstrated(self) -> tuple[str, list[str]]:
        if isinstance(self.env, TextEnv):
            return self.env.demonstrate(self.rng, DemonstrationQuality(max_actions=self.env.max_actions_per_turn))
        words = self.config.options.get("actions") or SAID.get(self.config.name, ("7", "12", "-3", "9 - 2"))
        return "let me see", [self.rng.choice(words)]

    def play(self, said: Said) -> None:
        """Step the twin as the player must step its environment."""
        self.turns.append(said)
        played = []
        for action in said.actions:
            self.observation, reward, terminated, truncated, info = self.env.step(action)
            said.reward += reward
            played.append(action)
            self.success, self.ended = info["success"], terminated or truncated
            if self.ended:
                break
        said.actions = played
        self.executed += played
        self.success &= self.ended
        reward = f"reward {round(said.reward, 1) + 0.0:.1f}"
        self.shown.append(f"{reward}\n{self.observation}\nactions left {self.budget}")


def _turn(reasoning: str, actions: list[str]) -> str:
    return f" {reasoning} </think> <answer> {' || '.join(actions)} </answer>"


def _sum(script: Script) -> str:
    """The answer to a question of chain_sum."""
    terms = re.findall(r"([+-]?) ?(\d+)", script.observation.rpartition(":")[2])
    return str(sum(-int(number) if sign == "-" else int(number) for sign, number in terms))


def _halving(script: Script) -> str:
    """The next guess of a number from 1 to 20 by the hints so far."""
    low, high = 1, 20
    for guess, shown in zip(script.executed, script.shown[1:], strict=True):
        low, high = (int(guess) + 1, high) if "higher" in shown else (low, int(guess) - 1)
    return str((low + high) // 2)


def _local(name: str) -> Callable[[Script], str]:
    """The solution of an environment that is also here."""

    def solution(script: Script) -> str:
        env = make(name)
        assert isinstance(env, TextEnv)
        env.reset(seed=script.seed, options={"noise_seed": 0})
        return (env.solution() or [""])[0]

    return solution


FOREIGN_SOLUTIONS: dict[str, Callable[[Script], str]] = {
    "Http": _local(SERVED),
    "OwnProcess": _local("docs.examples.sort_words:SortWords"),
    "ReasoningGym": _sum,
    "TextArena": _halving,
}


FOREIGN_PACKAGES = {"ReasoningGym": "reasoning_gym", "TextArena": "textarena"}


class ScriptedPolicy:
    """Answers the requests of one ticket by the scripts; records what it was fed."""

    def __init__(
        self, codec: ChatCodec, config: EnvironmentConfig, ticket: Ticket, kinds: tuple[str, ...] = SCRIPTS
    ) -> None:
        self.codec, self.fed = codec, {}
        self.scripts = [
            Script(make(config.name, "train", config.options), kind, index, config, random.Random(index))
            for index, kind in enumerate(kinds)
        ]
        for index, script in enumerate(self.scripts):
            script.start(ticket.task.seed, noise_seed(ticket, index, script.env.shared_noise))

    async def __call__(self, worker: str, request: GenerationRequest) -> Completion:
        index, turn = map(int, request.request_id.split("/")[1:])
        script = self.scripts[index]
        assert turn == len(script.turns) and not script.ended, "the player went on after the end"
        self.fed[index, turn] = request.prompt_ids
        said = self._said(script, np.random.default_rng(request.seed))
        script.play(said)
        reason = "length" if said.cut else "stop"
        return Completion(request.request_id, said.ids, said.log_probs, reason, turn, turn + 1)

    def _said(self, script: Script, rng: np.random.Generator) -> Said:
        text, actions, valid, cut = script.answer()
        ids = self.codec.encode(text)
        if script.kind == "noise" and not script.turns:
            ids = rng.integers(256, size=40).astype(np.int32)  # single bytes: hardly ever UTF-8
            text, actions, valid = self.codec.text(ids), [], False
            assert "</think>" not in text
        ids = ids if cut else np.append(ids, self.codec.stop_ids[0]).astype(np.int32)
        head, closed, _ = text.partition("</think>")
        return Said(ids, -rng.random(len(ids)).astype(np.float32), head if closed else None, actions, valid, cut)


@dataclass(frozen=True)
class Game:
    """One group as the player returned it, and the scripts that it was played with."""

    config: EnvironmentConfig
    codec: ChatCodec
    group: Group
    policy: ScriptedPolicy

    def pairs(self) -> Iterator[tuple[Trajectory, Script]]:
        yield from zip(self.group.trajectories, self.policy.scripts, strict=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(server_of(SERVED, {})) as address:
        yield address


@pytest.fixture(scope="module", params=OPTIONS)
def game(request: pytest.FixtureRequest, codec: ChatCodec) -> Game:
    name, options = request.param.partition("/")[0], OPTIONS[request.param]
    if name == "Http":
        options = {"url": request.getfixturevalue("url")}
    if name in FOREIGN_PACKAGES and importlib.util.find_spec(FOREIGN_PACKAGES[name]) is None:
        pytest.skip(f"{FOREIGN_PACKAGES[name]} is not installed: pip install -e .[reasoning-gym,textarena]")
    if name == "DeepCoder":
        try:
            choose(False)
        except ValueError as error:
            pytest.skip(f"no sandbox here: {error}")
    config = EnvironmentConfig(name=name, options=options)
    task = Task(name, 7, "train", tuple(options.items()))
    ticket = Ticket("000001-000", 1, task, len(SCRIPTS), 3, 1.0, "rollout-0")
    policy = ScriptedPolicy(codec, config, ticket)
    bounds = EnvironmentActorConfig(step_timeout_s=60)
    sampling = SamplingConfig(max_tokens_per_turn=20_000)
    player = EnvironmentPlayer(codec, config, sampling, bounds, 1_000_000, policy)
    try:
        return Game(config, codec, asyncio.run(player.play(ticket)), policy)
    finally:
        player.close()


def test_every_environment_of_the_table_is_played_here() -> None:
    played = {name.partition("/")[0] for name in OPTIONS}
    assert played >= set(environment_names()) == set(ENVIRONMENTS) and played >= set(ADAPTERS) - WHOLE_TURNS


@pytest.mark.slow
def test_no_answer_fails_a_trajectory_and_every_episode_ends_where_the_twin_ends(game: Game) -> None:
    for trajectory, script in game.pairs():
        assert trajectory.failure is None
        assert len(trajectory.turns) == len(script.turns)
        assert script.ended or len(script.turns) == script.env.max_turns
        assert trajectory.success == script.success
        assert not trajectory.truncated or not trajectory.success
    assert game.group.task_key and {script.key for script in game.policy.scripts} == {game.group.task_key}


def test_the_group_names_the_kind_of_task_where_the_environment_has_kinds(game: Game) -> None:
    kinds = {"Countdown": "3 numbers", "Http": "3 numbers", "ReasoningGym": "chain_sum", "SearchQA": "2 hops"}
    assert {script.kind_of_task for script in game.policy.scripts} == {game.group.task_kind}
    assert game.config.name not in kinds or game.group.task_kind == kinds[game.config.name]
    assert (game.group.task_kind is None) == (game.config.name in WITHOUT_KINDS)


def test_rewards_actions_and_penalties_are_the_twins(game: Game) -> None:
    for trajectory, script in game.pairs():
        for turn, said in zip(trajectory.turns, script.turns, strict=True):
            assert turn.reward == pytest.approx(said.reward, abs=1e-12)
            assert turn.num_actions == len(said.actions)
            assert turn.format_valid == said.valid
            assert turn.format_penalty == (0.0 if said.valid else PENALTY)
            assert turn.hit_token_limit == said.cut
        assert trajectory.episode_return == pytest.approx(sum(said.reward for said in script.turns))


def test_the_same_actions_under_the_noise_of_the_trajectory_pay_the_recorded_return(game: Game) -> None:
    ticket, options = game.group.ticket, game.config.options
    env = make(game.config.name, "train", options)
    for trajectory, script in game.pairs():
        noise = noise_seed(ticket, trajectory.index, env.shared_noise)
        env.reset(seed=ticket.task.seed, options={"noise_seed": noise})
        assert sum(env.step(action)[1] for action in script.executed) == pytest.approx(trajectory.episode_return)


def test_the_solution_succeeds_and_nothing_pays_more(game: Game) -> None:
    if game.config.options == TAXI:
        pytest.skip("nobody solves Taxi here")
    solved = game.group.trajectories[SCRIPTS.index("solution")]
    assert solved.success and not solved.truncated
    assert solved.episode_return == max(one.episode_return for one in game.group.trajectories)
    assert min(one.episode_return for one in game.group.trajectories) < solved.episode_return, "no variance"
    assert all(turn.format_valid for turn in solved.turns)


def test_the_mask_and_the_log_probabilities_cover_exactly_what_was_sampled(game: Game) -> None:
    for trajectory, script in game.pairs():
        mask = np.zeros(len(trajectory.token_ids), dtype=bool)
        for turn, said in zip(trajectory.turns, script.turns, strict=True):
            sampled = slice(turn.sample_start, turn.sample_end)
            np.testing.assert_array_equal(trajectory.token_ids[sampled], said.ids)
            np.testing.assert_array_equal(trajectory.log_probs[sampled], said.log_probs)
            mask[sampled] = True
        np.testing.assert_array_equal(trajectory.loss_mask, mask)
        assert not trajectory.log_probs[~mask].any()
        assert trajectory.turns[-1].sample_end == len(trajectory.token_ids)


def test_each_turn_is_fed_the_whole_past_and_shown_the_twins_state(game: Game) -> None:
    rules = make(game.config.name, "train", game.config.options).rules()
    for trajectory, script in game.pairs():
        end = 0
        for number, turn in enumerate(trajectory.turns):
            prompt = game.policy.fed[trajectory.index, number]
            np.testing.assert_array_equal(prompt, trajectory.token_ids[: turn.sample_start])
            fed = game.codec.text(prompt[end:])
            assert f"user\n{script.shown[number]}" in fed and fed.endswith("<think>")
            assert (rules in fed) == (number == 0)
            closed_here = number > 0 and prompt[end] == game.codec.stop_ids[0]
            assert closed_here == (number > 0 and script.turns[number - 1].cut)
            end = turn.sample_end


def test_reasoning_spans_hold_the_whole_tokens_before_the_marker(game: Game) -> None:
    for trajectory, script in game.pairs():
        for turn, said in zip(trajectory.turns, script.turns, strict=True):
            if said.head is None:
                assert turn.reasoning_start == turn.reasoning_end == turn.sample_end
                continue
            span = game.codec.text(trajectory.token_ids[turn.reasoning_start : turn.reasoning_end])
            assert turn.reasoning_start == turn.sample_start
            assert said.head.startswith(span) and len(said.head) - len(span) < LONGEST_TOKEN


def test_the_summary_of_the_group_counts_what_the_scripts_said(game: Game) -> None:
    summary, scripts = summarise(game.group), game.policy.scripts
    turns = [said for script in scripts for said in script.turns]
    assert summary.failures == () and summary.indices == tuple(range(len(SCRIPTS)))
    np.testing.assert_allclose(summary.returns, [sum(said.reward for said in one.turns) for one in scripts])
    bad = [sum(not said.valid for said in one.turns) for one in scripts]
    np.testing.assert_allclose(summary.format_penalties, [PENALTY * count for count in bad])
    assert summary.format_valid_turns == len(turns) - sum(bad) and summary.num_turns == len(turns)
    assert summary.num_actions == sum(len(said.actions) for said in turns)
    assert summary.lengths.tolist() == [sum(len(said.ids) for said in one.turns) for one in scripts]
    surprisals = [-np.concatenate([said.log_probs for said in one.turns]).mean(dtype=np.float64) for one in scripts]
    np.testing.assert_allclose(summary.surprisals, surprisals, rtol=1e-6)
    assert summary.successes.tolist() == [one.success for one in scripts]
    assert summary.environment == game.config.name and summary.task_key == game.group.task_key
    assert (summary.version_min, summary.version_max) == (0, max(len(one.turns) for one in scripts))
