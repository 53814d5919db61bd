"""Failures of trajectories: a cause for programs, and a detail for people. Standard library only.

The causes are the label values of `squelch_trajectory_failures_total` and the codes of failed tickets in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureCause(StrEnum):
    """Cause of a failure; the values are stored and exported."""

    STEP_TIMEOUT = "step_timeout"
    """One call of the environment ran longer than `environment_actor.step_timeout_s`."""
    GENERATION_TIMEOUT = "generation_timeout"
    """A turn's tokens did not arrive within `environment_actor.generation_timeout_s`."""
    EPISODE_TIMEOUT = "episode_timeout"
    """The episode ran longer than `environment_actor.episode_timeout_s`."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment raised an error."""
    GENERATION_ERROR = "generation_error"
    """The rollout worker could not sample the turn."""
    AGENT_ERROR = "agent_error"
    """The agent crashed, ran for too long, made no call, or reported no valid result."""
    CONTEXT_EXHAUSTED = "context_exhausted"
    """The first prompt and one turn do not fit the model's context."""
    GROUP_TIMEOUT = "group_timeout"
    """The environment actor did not return the group within `loop.group_timeout_s`."""
    ACTOR_DIED = "actor_died"
    """The environment actor's process died."""
    ACTOR_ERROR = "actor_error"
    """The environment actor raised an error."""
    WORKER_DIED = "worker_died"
    """The group's rollout worker died."""
    OTHER = "other"
    """A file of another trainer states a cause that is not listed here; the detail is its text. No run of Squelch
    records this cause."""

    @property
    def in_generation(self) -> bool:
        """Whether sampling failed, so that the rollout worker may be at fault."""
        return self in (FailureCause.GENERATION_TIMEOUT, FailureCause.GENERATION_ERROR)


@dataclass(frozen=True)
class Failure:
    """Why a trajectory failed. `detail`: one line in plain words, without the cause; may be empty."""

    cause: FailureCause
    detail: str = ""

    def __post_init__(self) -> None:
        """Escapes lone surrogates, which an error of foreign code may hold and no file takes."""
        object.__setattr__(self, "detail", self.detail.encode(errors="backslashreplace").decode())

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}" if self.detail else str(self.cause)


def failure_of(cause: str, detail: str) -> Failure:
    """The failure with this cause and detail; an unknown cause becomes `OTHER` with cause and detail as its detail."""
    if cause not in set(FailureCause):
        return Failure(FailureCause.OTHER, f"{cause}: {detail}" if detail else cause)
    return Failure(FailureCause(cause), detail)
