"""One episode of a task. It receives the policy's text and returns messages; it depends on neither tokens nor Ray.

Invariants: an episode ends when the environment ends it or after `max_turns` turns; badly formatted turns count, too.
The format penalty is separate from the environment's rewards. A turn that is cut at its token limit gets the penalty of
a badly formatted turn, and the episode continues. An environment of whole turns (`Environment.whole_turns`) writes its
messages itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from squelch.envs.config import FormatConfig
from squelch.envs.contract import AgentDriven, Environment, Twinned, lacking
from squelch.envs.format import ParsedTurn, parse, system_message, turn_message
from squelch.envs.reward_noise import NO_NOISE, RewardNoise
from squelch.kit.records.pictures import Shown, shown_of
from squelch.kit.untrusted.rewards import finite_reward

Message = dict[str, Any]
"""`role`, text, and `content`, text or, with pictures, `kit.records.pictures.Shown`."""
Ending = Literal["terminated", "truncated"]  # the environment's own


@dataclass(frozen=True)
class TurnOutcome:
    """The result of one turn. `truncated`: a limit ended the episode here; the environment did not terminate it."""

    reward: float
    """Sum of the environment's rewards in this turn, without format penalty."""
    format_penalty: float
    format_valid: bool
    format_reason: str | None
    """The reason if the turn is badly formatted, else None."""
    num_actions: int
    """Actions executed."""
    done: bool
    success: bool
    truncated: bool
    bootstrap_last_state: bool
    """The environment itself truncated the episode, so that its last state still has value. At the turn limit it has
    none: the limit belongs to the task."""
    next_message: Message | None
    """The next message to the policy; None if the episode is over."""


class Episode:
    """Plays one task in `env`, which it resets; the trajectories of a group each need an environment of their own."""

    def __init__(
        self, env: Environment, seed: int, noise_seed: int, config: FormatConfig, reward_noise: RewardNoise = NO_NOISE
    ) -> None:
        self._env, self._config = env, config.resolved(env)
        self._seed, self._noise_seed, self._reward_noise = seed, noise_seed, reward_noise
        self._max_turns = self._config.max_turns or env.max_turns
        self.max_actions = self._config.max_actions_per_turn or env.max_actions_per_turn
        """Most actions of a turn."""
        self._actions_left = self._max_turns * self.max_actions
        self._observation: str | Shown = ""
        self._turns = 0
        self._done = True
        self._success = False
        self.task_key = ""
        """Digest of the task's content; known after `start`, as is `task_kind`."""
        self.task_kind: str | None = None
        self.tools: list[dict[str, Any]] | None = None
        """JSON schemas that the prompt shows, of an environment of whole turns."""

    def start(self) -> list[Message]:
        """Reset the environment; returns the system message and the first user message, none for an agent."""
        return self._opened("reset", self._env.reset(seed=self._seed, options={"noise_seed": self._noise_seed}))

    def start_twin(self, env: Twinned, content: str) -> list[Message]:
        """As `start`, with the task of that content, in the environment `env` of this episode, which was started."""
        return self._opened("start", env.start(content))

    def _opened(self, method: str, given: tuple[str | Shown, dict[str, Any]]) -> list[Message]:
        observation, info = given
        self._observation = shown_of(observation, method)
        self.task_key, self.task_kind = _task_of(info)
        self._actions_left = self._max_turns * self.max_actions
        self._turns, self._done, self._success = 0, False, False
        if self._env.whole_turns:
            self.tools = info.get("tools")
            return _required(info, "messages", "reset") if lacking(self._env, AgentDriven) else []
        return [
            {"role": "system", "content": system_message(self._env, self._config)},
            {"role": "user", "content": self._turn_message(None)},
        ]

    def act(self, text: str, hit_token_limit: bool = False) -> TurnOutcome:
        """Play a turn that the policy sampled, after the `<think>` of Squelch's format if the environment uses that;
        `hit_token_limit`: the turn was cut at its token limit."""
        if self._done:
            raise RuntimeError(f"turn {self._turns + 1} was played in an episode that is not running")
        whole = self._env.whole_turns
        parsed = ParsedTurn("", (text,), True, None) if whole else parse(text, self.max_actions, self._env.read_action)
        reward, played, ending = self._play(parsed)
        self._turns += 1
        self._actions_left -= played
        self._done = ending is not None or self._turns >= self._max_turns
        valid = parsed.valid and not hit_token_limit
        return TurnOutcome(
            reward=reward + (self._reward_noise.draw(self._noise_seed) if self._done else 0.0),
            format_penalty=0.0 if valid or whole else self._config.format_penalty,
            format_valid=valid,
            format_reason="cut at the token limit" if hit_token_limit else parsed.reason,
            num_actions=played,
            done=self._done,
            success=self._done and self._success,
            truncated=self._done and ending != "terminated",
            bootstrap_last_state=ending == "truncated" and self._turns < self._max_turns,
            next_message=None if self._done else {"role": "user", "content": self._turn_message(reward)},
        )

    def _play(self, parsed: ParsedTurn) -> tuple[float, int, Ending | None]:
        """(reward, number of executed actions, the environment's ending); actions after the end are dropped."""
        reward, played = 0.0, 0
        for action in parsed.actions:
            observation, step_reward, terminated, truncated, info = self._env.step(action)
            self._observation = shown_of(observation, "step")
            reward, played = reward + finite_reward(step_reward), played + 1
            self._success = bool(_required(info, "success", "step"))
            if terminated or truncated:
                return reward, played, "terminated" if terminated else "truncated"
        return reward, played, None

    def _turn_message(self, reward: float | None) -> str | Shown:
        if self._env.whole_turns:
            return self._observation
        return turn_message(self._observation, self._actions_left, reward, self._env.prompt)


def _task_of(info: dict[str, Any]) -> tuple[str, str | None]:
    """Key and kind of the task, from the `info` of `reset`. Raises ValueError if one is no text."""
    key, kind = _required(info, "task_key", "reset"), info.get("task_kind")
    for name, value, wanted in (("task_key", key, "text"), ("task_kind", kind, "text or None")):
        if not isinstance(value, str) and (value is not None or name == "task_key"):
            raise ValueError(f"the environment's reset() returned info[{name!r}]={value!r}, which must be {wanted}")
    return key, kind


def _required(info: dict[str, Any], key: str, method: str) -> Any:
    """`info[key]` of the environment. Raises ValueError with the method's name if it is missing."""
    if key not in info:
        raise ValueError(f"the environment's {method}() returned no info[{key!r}] (envs.contract.Environment.{method})")
    return info[key]
