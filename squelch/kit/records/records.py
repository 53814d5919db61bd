"""Records of tasks, tickets, trajectories and groups. `kit.archive.rows` makes tables of them.

Invariants:

- A trajectory is one or more segments: append-only sequences of the exact token ids that were fed and sampled.
  `token_ids` holds them one after another, and every position that a record names counts in it. No segment sees the ids
  of another; all share the trajectory's return. Its sampled ids are in one segment each, once. Most have one segment.
- `loss_mask` is true at sampled ids only; `log_probs` holds, at those ids, the log-probability (nats) under the
  distribution they were drawn from, and 0 elsewhere.
- Turns are in order of their positions. Turn t samples `token_ids[sample_start:sample_end]`, inside one segment. X of
  the turn is `token_ids[start:prompt_end]` from the segment's start on, and ends with the opening of the reasoning: at
  `sample_start`, or after a `<think>` that the policy sampled itself; Z is
  `token_ids[reasoning_start:reasoning_end]`. A turn without reasoning has
  `reasoning_start == reasoning_end`: both are `sample_start` if the turn marks none, the first id behind its opening if
  there is no text before the closing marker, and `sample_end` if the reasoning was never closed.
- A group's identity is its ticket's id, which the coordinator assigns; it is never derived from text.
- A failed trajectory keeps its row, with `failure` set and the tokens that it had; the learner never uses it.
- Calls that are not trained on are in `untrained` and nowhere else: whatever reads tokens, turns or segments sees the
  trajectory that it would be without them.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from squelch.kit.records.content import Picture, Prompt, content_key, pictures_within
from squelch.kit.records.failures import Failure
from squelch.kit.records.repetition import repetition
from squelch.kit.records.splits import Split


@dataclass(frozen=True)
class Task:
    """One environment instance to be solved. It determines the episode, except for the environment's declared noise."""

    environment: str
    seed: int
    split: Split = "train"
    options: tuple[tuple[str, Any], ...] = ()
    label: str = ""
    """Which of the run's several environments plays it (`envs.mixture`); empty in a run of one."""

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
    most_turns: int | None = None
    """Turns after which a trajectory is truncated even if its episode could continue; None: no such limit."""


@dataclass(frozen=True)
class Segment:
    """A segment of a trajectory after its first one. `start`: the position of its first id, which was fed; `cause`: why
    it continues no earlier one: `history rewritten`, `compaction`, `other system message`, `template`."""

    start: int
    cause: str


@dataclass(frozen=True, eq=False)
class Untrained:
    """One conversation of calls that are answered and not trained on: ids of its own, as of a segment. `rule`: by which
    its first call was left out, in words; `token_ids` int32, `sampled` bool, `log_probs` float32 (nats, 0 where nothing
    was sampled), each (num_tokens,); `version_min`, `version_max`: oldest and newest version that sampled it."""

    rule: str
    token_ids: np.ndarray
    sampled: np.ndarray
    log_probs: np.ndarray
    version_min: int
    version_max: int


@dataclass(frozen=True)
class VersionSpan:
    """A run of sampled tokens `[start, end)` and the policy version that sampled them."""

    start: int
    end: int
    version: int


@dataclass
class Turn:
    """One turn of a trajectory; positions index the trajectory's `token_ids`. See `kit.archive.schema.TURN`."""

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

    @property
    def prompt_end(self) -> int:
        """Number of ids of X: those before the turn, and the opening of a reasoning that the policy opened itself."""
        return self.reasoning_start if self.reasoning_start < self.reasoning_end else self.sample_start

    @property
    def closed_reasoning(self) -> bool:
        """Whether the closing marker of the reasoning was sampled."""
        return self.reasoning_start < self.sample_end

    @property
    def reasoning_length(self) -> int:
        """Number of reasoning tokens: those before the closing marker, and every sampled token if there is none."""
        start = self.reasoning_start if self.closed_reasoning else self.sample_start
        return self.reasoning_end - start


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
    segments: tuple[Segment, ...] = ()
    """The segments after the first, in order; empty if the trajectory is one sequence."""
    untrained: tuple[Untrained, ...] = ()
    """Conversations that no loss, statistic or metric sees, in order of their first calls."""
    failure_rewarded: str | None = None
    """How the agent failed, where that ended the trajectory with a reward (`environment.options.failure_reward`) and
    is no failure of it; else None."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, end) of each segment, in order; together they are all of `token_ids`."""
        edges = [0, *(segment.start for segment in self.segments), len(self.token_ids)]
        return list(pairwise(edges))

    def segment_of(self, turn: int) -> int:
        """The number of a turn's segment; both count from 0."""
        return bisect_left(self.segments, self.turns[turn].sample_start, key=lambda segment: segment.start)

    def prompt_span(self, turn: int) -> tuple[int, int]:
        """(start, end) of X of a turn (from 0): the ids of its segment before its reasoning; for a turn without one,
        before it samples."""
        number = self.segment_of(turn)
        return self.segments[number - 1].start if number else 0, self.turns[turn].prompt_end

    def prompt_ids(self, turn: int) -> np.ndarray:
        """X of a turn (from 0)."""
        start, end = self.prompt_span(turn)
        return self.token_ids[start:end]

    def prompt_pictures(self, turn: int) -> tuple[Picture, ...]:
        """The pictures in X of a turn (from 0), whose positions count from the start of X."""
        return pictures_within(self.pictures, *self.prompt_span(turn))

    def reasoning_ids(self, turn: int) -> np.ndarray:
        """Z of a turn (from 0); empty for a turn without reasoning."""
        found = self.turns[turn]
        return self.token_ids[found.reasoning_start : found.reasoning_end]

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
    endpoint_counts: tuple[tuple[str, int], ...] = ()
    """Calls of agents, and fields of their requests, by name (`actors.endpoint.metrics`)."""
    prompts_differ: str | None = None
    """What differs between its members' first prompts, where agents write these; empty if nothing does."""


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
    """Sum of `Turn.reasoning_length`; unlike Z it counts reasoning that was never closed."""
    version_min: int
    version_max: int
    cut_in_reasoning: int = 0
    """Turns that reached the token limit before they closed their reasoning."""
    cut_in_answer: int = 0
    """Turns that reached the token limit after it."""
    cuts: tuple[bool, ...] = ()
    """Whether a turn of each surviving trajectory reached the token limit."""
    first_texts: tuple[tuple[str, float | None], ...] = ()
    """Of each surviving trajectory's first turn: a digest of what it sampled, and how much that repeats itself
    (`kit.records.repetition`)."""
    num_actions: int = 0
    """Actions that the environment executed."""
    failures: tuple[Failure, ...] = field(default=())
    """Failures of the trajectories that failed."""
    turns: tuple[int, ...] = ()
    """Number of turns of each surviving trajectory."""
    worker: str = ""
    seconds_environment: float = 0.0
    seconds_generation: float = 0.0
    task_kind: str | None = None
    """The kind of the task, if its environment declares one."""
    label: str = ""
    """The task's label."""
    endpoint_counts: tuple[tuple[str, int], ...] = ()
    """As of the group."""
    prompts_differ: str | None = None
    """As of the group."""


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
        reasoning_tokens=sum(turn.reasoning_length for turn in turns),
        cut_in_reasoning=sum(turn.hit_token_limit and not turn.closed_reasoning for turn in turns),
        cut_in_answer=sum(turn.hit_token_limit and turn.closed_reasoning for turn in turns),
        cuts=tuple(any(turn.hit_token_limit for turn in t.turns) for t in alive),
        first_texts=tuple(_first_text(t) for t in alive),
        num_actions=sum(turn.num_actions for turn in turns),
        version_min=min((turn.version_min for turn in turns), default=-1),
        version_max=max((turn.version_max for turn in turns), default=-1),
        failures=tuple(t.failure for t in group.trajectories if t.failure is not None),
        turns=tuple(len(t.turns) for t in alive),
        worker=group.ticket.worker,
        seconds_environment=group.seconds_environment,
        seconds_generation=group.seconds_generation,
        task_kind=group.task_kind,
        label=group.ticket.task.label,
        endpoint_counts=group.endpoint_counts,
        prompts_differ=group.prompts_differ,
    )


def _first_text(trajectory: Trajectory) -> tuple[str, float | None]:
    first = trajectory.turns[0] if trajectory.turns else None
    sampled = trajectory.token_ids[first.sample_start : first.sample_end] if first else trajectory.token_ids[:0]
    return content_key(sampled), repetition(sampled.tolist())


@dataclass(frozen=True)
class Cluster:
    """A task's first prompt and those of near variations of it. `prompt`, `twins`: (num_tokens,) int32 ids;
    `answers_changed`: share of the twins whose best answer is another, None without a solver; `pictures`: those of the
    prompt and of each twin, empty if none shows any. All prompts differ, in ids or pictures."""

    prompt: np.ndarray
    twins: tuple[np.ndarray, ...]
    answers_changed: float | None = None
    pictures: tuple[tuple[Picture, ...], ...] = ()

    def prompts(self) -> list[Prompt]:
        """The task's own prompt, and then each twin's."""
        ids = (self.prompt, *self.twins)
        return list(zip(ids, self.pictures or ((),) * len(ids), strict=True))
