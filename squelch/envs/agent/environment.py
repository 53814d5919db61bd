"""The environment `Agent`: tasks that somebody's own program plays, calling the policy over HTTP.

    environment.name=Agent
    environment.options.command='[python, agent.py]'          # one process a trajectory
    environment.options.call=agent.py:play                    # or an async function, many in one process

A task is a row of `data`, as JSON, or without data its seed alone. The program reports rewards itself, or an answer
that `reward` functions reward. Whatever it does instead, fails its own trajectory with a cause (`result.py`), or earns
what `failure_reward` gives that ending (`ending.py`). Its calls are trained on but for those of `untrained`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from pydantic import Field, field_validator

from squelch.envs.agent.called import Host, Target, check_call, shared_host
from squelch.envs.agent.command import check_command, run_command
from squelch.envs.agent.ending import AgentEnded, faults_of_names
from squelch.envs.agent.folders import check_kept, folder_of_trajectory
from squelch.envs.agent.result import read_result
from squelch.envs.agent.untrained import CallRule
from squelch.envs.contract import (
    Access,
    AgentCall,
    AgentDriven,
    AgentInterrupted,
    AgentResult,
    Environment,
    GroupReward,
    GroupRewarded,
)
from squelch.envs.prompt_file.environment import Prompts
from squelch.envs.prompt_file.rows import open_prompts
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NAMES_FILES, NAMES_PROGRAM
from squelch.kit.records.splits import Split, task_key_of
from squelch.kit.untrusted.secrets import know_secrets

_NO_TOOLS = ""
"""The column of tools that a prompt shows: none, because an agent has its own."""


class AgentOptions(Settings):
    """The program, its tasks, and its bounds."""

    command: Annotated[tuple[str, ...], NAMES_PROGRAM] = ()
    """The program and its arguments: one process a trajectory, whose environment variables lead OpenAI's and
    Anthropic's clients to the policy."""
    call: Annotated[str, NAMES_FILES] = ""
    """In place of `command`: an async function of a task and a client, `module:function` or `file.py:function`. One
    process plays many trajectories with it."""
    python: Annotated[str, NAMES_PROGRAM] = ""
    """The Python of `call`, of another virtual environment; empty: the run's own."""
    data: Annotated[str | tuple[str, ...] | None, NAMES_FILES] = None
    """The tasks, a file as of the environment Prompts; a task has every column of its row. Unset: a task has only
    `seed`, `noise_seed` and `split`, which every task has."""
    prompt_column: str = "prompt"
    """The column of the prompts. Rows with the same prompt are in the same split."""
    reward: Annotated[str | dict[str, float] | None, NAMES_FILES] = None
    """Reward functions of the agent's answers, as of the environment Prompts; unset: the agent reports rewards."""
    success_at: float = 1.0
    """A trajectory counts as a success from this reward on, unless the agent says; it only affects what is reported."""
    failure_reward: dict[str, float] = Field(default_factory=dict)
    """Rewards of trajectories whose agent fails through the policy's fault: by exit code of `command`, or by class of
    the exception of `call`. Any other ending without a result fails the trajectory, and so do these if the endpoint
    left a call of it without an answer (docs/reference/endpoint.md)."""
    untrained: tuple[CallRule, ...] = ()
    """Calls that are answered but not trained on: those for which one of the rules holds. A rule has patterns of the
    `model` and of `headers` by name, in which `*` stands for any text, and `no_tools`; all that it has must hold."""
    turns: Literal["model", "squelch"] = "model"
    """`model`: calls are answered in the model's own format. `squelch`: in Squelch's turns, `<think>` opened for the
    policy and the whole text as the content, for agents that read these."""
    max_processes: int = Field(8, ge=1)
    """Most processes of `command` at once in one environment actor; other trajectories wait for their turn."""
    keep_home: tuple[str, ...] = ()
    """Files and folders below your home folder, such as `.gitconfig`, that each process of `command` finds in its own
    home, as links to yours. Else its home is empty at its start and removed at its end. `.`: it gets your home itself.
    """
    memory_gib: float | None = Field(None, ge=0.25)
    """Address space of each process in GiB; unset: no limit, because some runtimes reserve far more than they use."""
    blocked_s: float = Field(30.0, gt=0)
    """Most seconds for which the function of `call` may block its event loop; then its process is replaced."""
    timeout_s: float = Field(60.0, gt=0)
    """Most seconds for the reward functions of one group. Keep it below `environment_actor.step_timeout_s`."""

    @field_validator("command", mode="before")
    @classmethod
    def _arguments(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError("give the program and its arguments as a list, e.g. [python, agent.py]")
        return given

    @field_validator("failure_reward", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        if len({type(name) for name in given}) > 1:
            raise ValueError("write all exit codes alike, as 7 or as '7'")
        return {str(name): reward for name, reward in given.items()}

    def _faults(self) -> Iterator[str]:
        if bool(self.command) == bool(self.call):
            yield "set either command or call"
        if self.python and not self.call:
            yield "python is the interpreter of call; a command names its own"
        if self.keep_home and self.call:
            yield "keep_home is of command; the process of call has your home"
        yield from faults_of_names(self.failure_reward, bool(self.command))
        if self.reward is not None and self.data is None:
            yield "reward needs data, whose columns the reward functions get; or let the agent report rewards"


class Agent(Environment, AgentDriven, GroupRewarded):
    """One task after another, played by the program."""

    Options = AgentOptions
    options: AgentOptions
    max_turns = 64
    """Calls of one trajectory."""
    turns: Literal["model", "squelch"] = "model"
    most_at_once: int | None = None
    whole_turns = True
    stochastic = True

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        given = self.options
        know_secrets(list(given.command))  # which failures and logs of this process then mask
        self.turns = given.turns
        self.most_at_once = given.max_processes if given.command else None
        self._task: dict[str, Any] = {}
        self._seed = 0
        self._left = AsyncExitStack()
        self._alone = False
        """Whether the task is played in a process of its own, because it was interrupted in a shared one."""

    def check(self) -> None:
        """Raises ValueError if the program, the data or a reward function cannot be used."""
        given = self.options
        if given.command:
            check_command(given.command)
            check_kept(given.keep_home)
        else:
            check_call(self._target)
        if given.data is not None:
            self._read(0)
        if given.reward is not None:
            self._judge.check()

    def rules(self) -> str:
        """None: the agent writes its prompts itself."""
        return ""

    def read_action(self, text: str) -> str:
        """The text: a call has no actions."""
        return text

    def longest_call(self) -> tuple[float, str]:
        """That of the reward functions."""
        return (0.0, "") if self.options.reward is None else self._judge.longest_call()

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Takes the task of the seed."""
        own = {"seed": seed, "noise_seed": options["noise_seed"], "split": self.split}
        row, key = ({}, task_key_of("Agent", f"{self.split} {seed}")) if self.options.data is None else self._read(seed)
        self._task, self._seed, self._alone = {**own, **row}, seed, False
        return "", {"task_key": key}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Never called: the agent calls the policy itself."""
        raise RuntimeError("an agent is run, not stepped")

    async def run(self, access: Access) -> AgentResult:
        """Plays the task with the program."""
        given = self.options
        try:
            if given.command:
                folder = await self._left.enter_async_context(folder_of_trajectory())
                found: Any = await run_command(
                    given.command, self._task, access, folder, given.memory_gib, given.keep_home
                )
            else:
                found = await self._called(access)
        except AgentEnded as error:
            raise error.earning(given.failure_reward) from error
        return read_result(found, given.reward is not None, given.success_at)

    async def clean_up(self) -> None:
        """Removes the folder of the trajectory's command."""
        await self._left.aclose()

    def untrained(self, call: AgentCall) -> str:
        """The first of the rules that holds for the call, in words."""
        return next((str(rule) for rule in self.options.untrained if rule.holds(call)), "")

    def group_rewards(self, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> list[GroupReward]:
        """As `Prompts.group_rewards`, of the agents' answers."""
        self._judge.reset(seed=self._seed, options={"noise_seed": 0})
        return self._judge.group_rewards(completions, completion_ids)

    async def _called(self, access: Access) -> Any:
        if not self._alone:
            try:
                return await shared_host(self._target).play(self._task, access)
            except AgentInterrupted:
                self._alone = True
                raise
        async with _slots(self.options.max_processes):
            host = Host(self._target)
            try:
                return await host.play(self._task, access)
            finally:
                await host.close()

    def _read(self, seed: int) -> tuple[dict[str, Any], str]:
        """(columns of the seed's row, its key)."""
        given = self.options
        assert given.data is not None
        found = open_prompts(given.data, given.prompt_column, self.split, _NO_TOOLS).of(seed)
        return {given.prompt_column: found.given, **found.columns}, found.key

    @property
    def _target(self) -> Target:
        given = self.options
        return Target(given.call, given.python, given.blocked_s, given.memory_gib)

    @cached_property
    def _judge(self) -> Prompts:
        """The prompts and reward functions, in a process of their own."""
        given = self.options
        names = ("data", "reward", "prompt_column", "success_at", "timeout_s")
        return Prompts(self.split, tools_column=_NO_TOOLS, **given.model_dump(include=set(names)))


_SLOTS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = WeakKeyDictionary()


def _slots(most: int) -> asyncio.Semaphore:
    """Bounds the processes of interrupted trajectories in this event loop."""
    return _SLOTS.setdefault(asyncio.get_running_loop(), {}).setdefault(most, asyncio.Semaphore(most))
