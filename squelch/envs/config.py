"""The configuration of an environment: its name and options, the turn format, and the seeds of its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from squelch.envs.reward_noise import RewardNoise
from squelch.envs.wording import PromptName
from squelch.kit.base.settings import Settings

if TYPE_CHECKING:
    from squelch.envs.contract import Environment


class TurnDefaults(Protocol):
    """The limits of an environment, or its class, that apply unless the configuration sets them."""

    max_turns: int
    max_actions_per_turn: int


class FormatConfig(Settings):
    """The turn format of `envs.format`, shared by all environments."""

    format_penalty: float = Field(-0.1, le=0)
    """Added once per turn whose output is not well formed (paper, appendix B.2); never part of the reward variance."""
    max_turns: int | None = Field(None, ge=1)
    """Turns in one episode; by default the environment's own number (grid worlds: 5, appendix B.2)."""
    max_actions_per_turn: int | None = Field(None, ge=1)
    """Most actions in one answer, separated by `||`; further actions are ignored and the turn is badly formatted. With
    1 the whole answer is the action. By default the environment's own number (grid worlds: 2)."""

    worked_turn: bool | None = None
    """Whether the system message of the style `natural` shows a worked turn with its reasoning, which is a template for
    the reasonings that mutual information is measured of. Unset: only if the run warms its model up
    (`model.warmup`)."""
    response_length: int | None = Field(None, ge=0)
    """N in the sentence "Max response length: N words (tokens)." of the style `natural`; 0: no such sentence. It limits
    nothing. Unset: `sampling.max_tokens_per_turn`, as in the authors' code, whose environments set 100 or 120."""

    def resolved(self, environment: TurnDefaults | type[Environment]) -> FormatConfig:
        """The format with the environment's own numbers where the configuration does not set them."""
        return self.model_copy(
            update={
                "max_turns": self.max_turns or environment.max_turns,
                "max_actions_per_turn": self.max_actions_per_turn or environment.max_actions_per_turn,
            }
        )


class EnvironmentConfig(Settings):
    """One environment and its tasks."""

    name: str = "FrozenLake"
    """Registered name, without the namespace: `FrozenLake` is `squelch/FrozenLake-v0`; or `package.module:Class` for
    your own environment (docs/guide/adding-an-environment.md)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Task options of that environment; checked against its own `Options` model before anything starts."""
    prompt: PromptName = "tiny"
    """Style of the messages: `natural` is English with a legend, for pretrained language models; `tiny` is the
    closed vocabulary of the tiny policy (`model.path=tiny`)."""
    format: FormatConfig = FormatConfig()
    reward_noise: RewardNoise = RewardNoise()
    """Noise that is added to the return of episodes, which makes any environment stochastic."""
    train_seed: int = Field(0, ge=0)
    """The k-th training task has seed `train_seed + k`; a curriculum counts its tasks from it."""
    validation_seed: int = Field(1_000_000_000, ge=0)
    """The k-th validation task has seed `validation_seed + k`. Splits are disjoint by content for all seeds."""


def spoken(config: EnvironmentConfig, warmed_up: bool, max_tokens: int) -> EnvironmentConfig:
    """`config` with the run's values where the format leaves open what its natural messages say. `warmed_up`: whether
    the run warms its model up; `max_tokens`: most sampled tokens of a turn."""
    if config.prompt != "natural":
        return config
    form = config.format
    shown = warmed_up if form.worked_turn is None else form.worked_turn
    length = max_tokens if form.response_length is None else form.response_length
    return config.model_copy(
        update={"format": form.model_copy(update={"worked_turn": shown, "response_length": length})}
    )


class EnvironmentEntry(EnvironmentConfig):
    """One of several environments of a run: the settings of `environment`, whose defaults it takes, and these."""

    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Share of the run's tickets, relative to the other weights."""
    label: str = Field("", max_length=64, pattern=r"^[\w.:+=-]*$")
    """Name in metrics, reports and the archive, of letters, digits and . : + = _ -; empty: the environment's name."""
    max_tokens_per_turn: int | None = Field(None, ge=1)
    """Most sampled tokens of a turn; unset: `sampling.max_tokens_per_turn`."""
