"""Records of tasks, tickets, trajectories and groups, and the tables in which groups are passed on and archived.

Invariants:

- A trajectory is one append-only sequence of the exact token ids that were fed and sampled. `loss_mask` is true at
  sampled ids only; `log_probs` holds, at those ids, the log-probability (nats) under the distribution they were drawn
  from, and 0 elsewhere.
- Turn t samples `token_ids[sample_start:sample_end]`. X of the turn is `token_ids[:sample_start]`, which ends with
  the opening of the reasoning; Z is `token_ids[reasoning_start:reasoning_end]`. A turn without reasoning has
  `reasoning_start == reasoning_end`: both are `sample_start` if there is no text before the closing marker, and
  `sample_end` if the reasoning was never closed.
- A group's identity is its ticket's id, which the coordinator assigns; it is never derived from text.
- A failed trajectory keeps its row, with `failure` set and the tokens that it had; the learner never uses it.

The table (`actors.archive.schema.TRAJECTORY_SCHEMA`) has one row per trajectory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from actors.archive.schema import TRAJECTORY_SCHEMA
from actors.content import Picture, turn_keys
from actors.failures import Failure, failure_of
from actors.messages import VersionSpan
from envs.splits import Split


@dataclass(frozen=True)
class Task:
    """One environment instance to be solved. It determines the episode, except for the environment's declared noise."""

    environment: str
    seed: int
    split: Split = "train"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def options_json(self) -> str:
        """The options as a JSON object with sorted keys."""
        return json.dumps(dict(self.options), sort_keys=True)


@dataclass(frozen=True)
class Ticket:
    """The right to play one task for one training step.

    `ticket_id` is also the group's id. `worker` names the rollout worker that samples the whole group.
    """

    ticket_id: str
    step: int
    task: Task
    group_size: int
    seed: int
    temperature: float = 1.0
    worker: str = ""


@dataclass
class Turn:
    """One turn of a trajectory; positions index the trajectory's `token_ids`. See `actors.archive.schema.TURN`."""

    sample_start: int
    sample_end: int
    reasoning_start: int
    reasoning_end: int
    reward: float
    format_penalty: float
    format_valid: bool
    hit_token_limit: bool
    """The turn was cut at its token limit; the episode continued."""
    num_actions: int
    version_min: int
    version_max: int


@dataclass
class Trajectory:
    """One episode. Arrays are 1-D of equal length: `token_ids` int32, `loss_mask` bool, `log_probs` float32 (nats)."""

    index: int
    token_ids: np.ndarray
    loss_mask: np.ndarray
    log_probs: np.ndarray
    turns: list[Turn]
    success: bool
    truncated: bool
    """A limit ended the episode, not the environment's own `terminated`: the turn limit, the environment's own
    `truncated`, or a context without room for a further turn."""
    failure: Failure | None = None
    worker: str = ""
    bootstrap_last_state: bool = False
    """The environment's own `truncated`, or a full context, ended the episode with turns left. Its last state still has
    value, for which the critic's estimate is used. Never true at the turn limit: the prompt states the number of
    turns left, and none is left there."""
    version_spans: tuple[VersionSpan, ...] | None = None
    """Runs of tokens and the policy version that sampled each, in order; positions index `token_ids`. None if not
    recorded."""
    pictures: tuple[Picture, ...] = ()

    @property
    def episode_return(self) -> float:
        """Sum of rewards, without format penalties."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def format_penalty(self) -> float:
        """Sum of the turns' format penalties, 0 or negative."""
        return float(sum(turn.format_penalty for turn in self.turns))


@dataclass
class Group:
    """The trajectories of one ticket, in order of their index."""

    ticket: Ticket
    task_key: str
    trajectories: list[Trajectory]
    task_kind: str | None = None
    """The kind of the task, if its environment declares one."""
    seconds_environment: float = 0.0
    """Mean seconds that a trajectory waited for its environment."""
    seconds_generation: float = 0.0
    """Mean seconds that a trajectory waited for its tokens."""


@dataclass(frozen=True)
class GroupSummary:
    """The part of a group that the filter, the ledger and the metrics need; the group itself is not passed to them.

    Arrays have one entry per surviving trajectory, in order of `indices`.
    """

    group_id: str
    step: int
    environment: str
    task_key: str
    group_size: int
    indices: tuple[int, ...]
    returns: np.ndarray  # float64, without format penalties
    format_penalties: np.ndarray  # float64, <= 0
    lengths: np.ndarray  # int64, sampled tokens
    surprisals: np.ndarray  # float64, mean -log p (nats) of the sampled tokens
    successes: np.ndarray  # bool
    truncations: np.ndarray  # bool, the episode ended at the turn limit
    format_valid_turns: int
    num_turns: int
    num_tokens: int  # all tokens, fed and sampled
    reasoning_tokens: int
    version_min: int
    version_max: int
    failures: tuple[Failure, ...] = field(default=())
    """Failures of the trajectories that failed."""
    worker: str = ""
    seconds_environment: float = 0.0
    seconds_generation: float = 0.0


def summarise(group: Group) -> GroupSummary:
    """The summary of a group; failed trajectories count only in `failures`."""
    alive = [t for t in group.trajectories if t.failure is None]
    turns = [turn for t in alive for turn in t.turns]
    lengths = np.array([int(t.loss_mask.sum()) for t in alive], dtype=np.int64)
    sums = np.array([-float(t.log_probs[t.loss_mask].sum(dtype=np.float64)) for t in alive])
    return GroupSummary(
        group_id=group.ticket.ticket_id,
        step=group.ticket.step,
        environment=group.ticket.task.environment,
        task_key=group.task_key,
        group_size=group.ticket.group_size,
        indices=tuple(t.index for t in alive),
        returns=np.array([t.episode_return for t in alive], dtype=np.float64),
        format_penalties=np.array([t.format_penalty for t in alive], dtype=np.float64),
        lengths=lengths,
        surprisals=sums / np.maximum(lengths, 1),
        successes=np.array([t.success for t in alive], dtype=bool),
        truncations=np.array([t.truncated for t in alive], dtype=bool),
        format_valid_turns=sum(turn.format_valid for turn in turns),
        num_turns=len(turns),
        num_tokens=sum(len(t.token_ids) for t in alive),
        reasoning_tokens=sum(turn.reasoning_end - turn.reasoning_start for turn in turns),
        version_min=min((turn.version_min for turn in turns), default=-1),
        version_max=max((turn.version_max for turn in turns), default=-1),
        failures=tuple(t.failure for t in group.trajectories if t.failure is not None),
        worker=group.ticket.worker,
        seconds_environment=group.seconds_environment,
        seconds_generation=group.seconds_generation,
    )


def to_table(group: Group) -> pa.Table:
    """The group as a table of `TRAJECTORY_SCHEMA`, one row per trajectory."""
    return pa.Table.from_pylist([_row(group, t) for t in group.trajectories], schema=TRAJECTORY_SCHEMA)


def packed(table: pa.Table) -> pa.Buffer:
    """The table as one Arrow IPC stream, the form in which rows are stored and sent: pickling a table of these nested
    columns takes ten times as long."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpacked(rows: pa.Buffer) -> pa.Table:
    """The table of `packed`; it shares the buffer's memory."""
    return pa.ipc.open_stream(rows).read_all()


def _row(group: Group, trajectory: Trajectory) -> dict[str, Any]:
    t, ticket, task = trajectory, group.ticket, group.ticket.task
    keys = turn_keys(t.token_ids, [turn.sample_start for turn in t.turns], t.pictures)
    return {
        "group_id": ticket.ticket_id,
        "trajectory": t.index,
        "step": ticket.step,
        "environment": task.environment,
        "split": task.split,
        "task_seed": task.seed,
        "task_options": task.options_json,
        "task_key": group.task_key,
        "task_kind": group.task_kind,
        "token_ids": t.token_ids,
        "loss_mask": t.loss_mask,
        "log_probs": t.log_probs,
        "turns": [vars(turn) | {"content_key": key} for turn, key in zip(t.turns, keys, strict=True)],
        "version_spans": None if t.version_spans is None else [vars(span) for span in t.version_spans],
        "pictures": [vars(picture) for picture in t.pictures] or None,
        "episode_return": t.episode_return,
        "format_penalty": t.format_penalty,
        "success": t.success,
        "truncated": t.truncated,
        "bootstrap_last_state": t.bootstrap_last_state,
        "failure_cause": None if t.failure is None else t.failure.cause.value,
        "failure_detail": None if t.failure is None else t.failure.detail,
        "worker": t.worker,
    }


def list_column(table: pa.Table, name: str) -> list[np.ndarray]:
    """A list column as one numpy array per row, without a Python object per element."""
    column = table.column(name).combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


def from_table(table: pa.Table) -> list[Trajectory]:
    """The trajectories of a table, in its row order; inverse of `to_table` up to the ticket."""
    big = ("token_ids", "loss_mask", "log_probs")
    arrays = zip(*(list_column(table, name) for name in big), strict=True)
    small = table.select([name for name in TRAJECTORY_SCHEMA.names if name not in big]).to_pylist()
    return [_trajectory(row, *parts) for row, parts in zip(small, arrays, strict=True)]


def _trajectory(row: dict[str, Any], ids: np.ndarray, mask: np.ndarray, log_probs: np.ndarray) -> Trajectory:
    spans = row["version_spans"]
    return Trajectory(
        index=row["trajectory"],
        token_ids=ids,
        loss_mask=mask,
        log_probs=log_probs,
        turns=[_turn(turn) for turn in row["turns"]],
        success=row["success"],
        truncated=row["truncated"],
        failure=_failure(row["failure_cause"], row["failure_detail"]),
        worker=row["worker"],
        bootstrap_last_state=row["bootstrap_last_state"],
        version_spans=None if spans is None else tuple(VersionSpan(**span) for span in spans),
        pictures=tuple(Picture(**picture) for picture in row["pictures"] or ()),
    )


def _turn(row: dict[str, Any]) -> Turn:
    return Turn(**{name: value for name, value in row.items() if name != "content_key"})


def _failure(cause: str | None, detail: str | None) -> Failure | None:
    return None if cause is None else failure_of(cause, detail or "")
