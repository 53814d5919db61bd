"""Prompts of a file, rewarded by functions of the user: one turn a task, in the model's own format.

    environment.name=Prompts
    environment.options.data=questions.jsonl
    environment.options.reward=rewards.py:right

A task is a row's prompt; the completion is all that the policy samples, and nothing is added to the prompt. All
trajectories of a group are rewarded in one call (`rewards.py`), in a process of their own (`envs.own_process`): a
function that raises, hangs, ends the process or returns no rewards fails its group with a reason that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, field_validator

from squelch.envs.contract import Environment, GroupReward, GroupRewarded, Opening
from squelch.envs.own_process.isolated import OwnProcess, ProcessOptions
from squelch.envs.prompt_file import rewards
from squelch.envs.prompt_file.rows import TOOLS, Prompt, open_prompts
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NAMES_FILES
from squelch.kit.records.splits import Split


class TaskOptions(Settings):
    """The file, and what is rewarded."""

    data: Annotated[str | tuple[str, ...], NAMES_FILES]
    """The prompts: a Parquet, JSON or JSON Lines file, several of them, a folder, a file of an installed package
    (`package:file`), or the id of a data set on the Hugging Face hub (downloaded). A split that names call validation
    is used for validation; without one, every eighth prompt, chosen by its content, is held out."""
    validation_data: Annotated[str | tuple[str, ...] | None, NAMES_FILES] = None
    """The prompts of validation, whatever their files are called (`test.parquet`): as `data`, of which it takes the
    place of a split for validation. Of a folder or a data set its split for validation, else that for tests."""
    reward: Annotated[str | dict[str, float], NAMES_FILES]
    """Reward function, `module:function` or `file.py:function`, or several with their weights
    (`{rewards.py:right: 1.0, rewards.py:short: 0.2}`). The signature is TRL's."""
    prompt_column: str = "prompt"
    """The column of the prompts: text, which becomes a user's message, or messages with `role` and `content`. Every
    other column is passed to the reward functions under its name."""
    tools_column: str = TOOLS
    """The column of the tools that a prompt shows: a list of JSON schemas in OpenAI's form, or its JSON as text. The
    model's chat template writes them into the prompt; nothing calls them. A file may lack `tools`, and any other column
    that is named here must be there; empty: no prompt has tools."""
    success_at: float = 1.0
    """A trajectory counts as a success from this reward on; it only affects what is reported."""

    @field_validator("reward")
    @classmethod
    def _names_functions(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        if not value:
            raise ValueError("name at least one reward function")
        if isinstance(value, dict) and not all(value.values()):
            raise ValueError("a function of weight 0 adds nothing; leave it out")
        return value


class PromptsOptions(TaskOptions, ProcessOptions):
    """The file and the functions, and the process in which they are."""

    timeout_s: float = Field(60.0, gt=0)
    """Most seconds for the reward functions of one group; then their process is ended, and the group fails. Keep it
    below `environment_actor.step_timeout_s`."""


class Prompts(OwnProcess, GroupRewarded):
    """A prompt of the file and the reward functions, in a process of their own."""

    Options = PromptsOptions
    options: PromptsOptions
    inside = f"{__name__}:PromptTask"
    max_turns = 1
    whole_turns = True

    def group_rewards(self, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> list[GroupReward]:
        """As `PromptTask.group_rewards`."""
        ids = [list(map(int, own)) for own in completion_ids]
        return self._session.ask("group_rewards", list(completions), ids)


class PromptTask(Environment, GroupRewarded):
    """A prompt of the file, in the process that calls the reward functions."""

    Options = TaskOptions
    options: TaskOptions
    max_turns = 1
    whole_turns = True

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        given = self.options
        named = {given.reward: 1.0} if isinstance(given.reward, str) else given.reward
        self._functions = [rewards.load(name, weight) for name, weight in named.items()]
        self._prompts = open_prompts(given.data, given.prompt_column, split, given.tools_column, given.validation_data)
        self._prompt: Prompt | None = None

    def rules(self) -> str:
        """None: the file's prompts say what they ask for."""
        return ""

    def read_action(self, text: str) -> str:
        """The text: a turn has no actions."""
        return text

    def longest_openings(self) -> list[Opening]:
        """The prompts with most characters, with tools and without."""
        return self._prompts.longest

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Takes the prompt of the seed."""
        prompt = self._prompt = self._prompts.of(seed)
        return "", {"task_key": prompt.key, "messages": prompt.messages, "tools": prompt.tools}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Ends the episode; the reward comes with the group's."""
        return "", 0.0, True, False, {"success": False}

    def group_rewards(self, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> list[GroupReward]:
        """The sums of the functions' rewards. RuntimeError if one of them raises or returns no rewards."""
        if self._prompt is None:
            raise RuntimeError("group_rewards was called before reset")
        found = rewards.group_rewards(self._functions, self._prompt, completions, completion_ids)
        return [one if isinstance(one, str) else (one, one >= self.options.success_at) for one in found]
