"""Schema 2 of the archive: every column with its type, unit and meaning. docs/reference/schema.md is generated from
this module.

A file of another version is refused (`kit.archive.version`). A change of a column's name, type or meaning needs a
new version; the schema has nullable columns for data that other trainers need not record.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from squelch.kit.archive.version import VERSION, VERSION_KEY


@dataclass(frozen=True)
class Column:
    """One column. `nullable`: the column may be null, with the meaning stated in `meaning`; other columns never are."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nullable: bool = False

    @property
    def field(self) -> pa.Field:
        """Arrow's field. It always allows nulls, so that the reader rather than Arrow refuses a file of another
        trainer."""
        return pa.field(self.name, self.type)


def _struct(columns: tuple[Column, ...]) -> pa.StructType:
    return pa.struct([column.field for column in columns])


TURN = (
    Column("sample_start", pa.int32(), "First sampled position", "index in token_ids"),
    Column("sample_end", pa.int32(), "One past the last sampled position", "index in token_ids"),
    Column("reasoning_start", pa.int32(), "First position of the reasoning Z", "index in token_ids"),
    Column("reasoning_end", pa.int32(), "One past the last position of the reasoning", "index in token_ids"),
    Column("reward", pa.float64(), "Sum of the environment's rewards in this turn, without format penalty", "reward"),
    Column("format_penalty", pa.float64(), "Penalty for a badly formatted turn, 0 or negative", "reward"),
    Column("format_valid", pa.bool_(), "The turn follows the answer format"),
    Column("hit_token_limit", pa.bool_(), "The turn was cut at its token limit; the episode continued"),
    Column("num_actions", pa.int32(), "Actions executed", "actions"),
    Column("version_min", pa.int32(), "Oldest policy version that sampled a token of the turn", "policy version"),
    Column("version_max", pa.int32(), "Newest policy version that sampled a token of the turn", "policy version"),
    Column(
        "content_key",
        pa.string(),
        "Digest of the content of the turn's prompt X (ids and pictures, from its segment's start; "
        "`kit.records.content.content_key`); null if the writer did not compute it",
        "32 hexadecimal digits",
        nullable=True,
    ),
)

VERSION_SPAN = (
    Column("start", pa.int32(), "First position of a run of sampled tokens", "index in token_ids"),
    Column("end", pa.int32(), "One past the run's last position", "index in token_ids"),
    Column("version", pa.int32(), "The policy version that sampled the run", "policy version"),
)

PICTURE = (
    Column("position", pa.int32(), "First position of the ids that stand for the picture", "index in token_ids"),
    Column("media_type", pa.string(), "Media type of the encoded bytes, e.g. `image/png`"),
    Column("digest", pa.string(), "First half of SHA-256 of the picture's size and RGB bytes", "32 hexadecimal digits"),
    Column("data", pa.binary(), "The encoded bytes; null if only the reference is stored", "bytes", nullable=True),
    Column("reference", pa.string(), "Key of the bytes in the run's store; null if `data` has them", nullable=True),
)

SEGMENT = (
    Column("start", pa.int32(), "Position of the segment's first id, which was fed", "index in token_ids"),
    Column("cause", pa.string(), "Why it continues no earlier segment, e.g. `history rewritten`"),
)

UNTRAINED = (
    Column("rule", pa.string(), "The rule of `environment.options.untrained` by which its first call was left out"),
    Column("token_ids", pa.list_(pa.int32()), "The exact ids that were fed and sampled, in order", "token ids"),
    Column("sampled", pa.list_(pa.bool_()), "True at sampled ids"),
    Column(
        "log_probs",
        pa.list_(pa.float32()),
        "At sampled ids, the log-probability under the distribution that they were drawn from; 0 elsewhere",
        "nats",
    ),
    Column("version_min", pa.int32(), "Oldest policy version that sampled a token of it", "policy version"),
    Column("version_max", pa.int32(), "Newest policy version that sampled a token of it", "policy version"),
)

TRAJECTORY = (
    Column("group_id", pa.string(), "The group: its ticket's id, assigned by the coordinator"),
    Column("trajectory", pa.int32(), "Index in the group", "from 0"),
    Column("step", pa.int32(), "Training step that the ticket belongs to", "from 1"),
    Column("environment", pa.string(), "Name of the environment"),
    Column(
        "label",
        pa.string(),
        "Which of the run's several environments played it, by its label; null in a run of one",
        nullable=True,
    ),
    Column("split", pa.string(), "`train` or `validation`"),
    Column("task_seed", pa.int64(), "Seed that determines the task"),
    Column("task_options", pa.string(), "Options of the environment", "JSON object"),
    Column("task_key", pa.string(), "Digest of the task's content, empty if the task could not be started"),
    Column(
        "task_kind",
        pa.string(),
        "Kind of the task, as its environment declares it; null if it declares none",
        nullable=True,
    ),
    Column(
        "token_ids",
        pa.list_(pa.int32()),
        "The exact ids that were fed and sampled, in order, one segment after another",
        "token ids",
    ),
    Column("loss_mask", pa.list_(pa.bool_()), "True at sampled ids"),
    Column(
        "log_probs",
        pa.list_(pa.float32()),
        "At sampled ids, the log-probability under the distribution that they were drawn from; 0 elsewhere",
        "nats",
    ),
    Column("turns", pa.list_(_struct(TURN)), "The turns in order of their positions, see below"),
    Column(
        "version_spans",
        pa.list_(_struct(VERSION_SPAN)),
        "Runs of sampled tokens and the policy version that sampled each, in order, see below; together they cover the "
        "sampled tokens; null if not recorded",
        nullable=True,
    ),
    Column(
        "pictures",
        pa.list_(_struct(PICTURE)),
        "Pictures in the trajectory, in order, see below; null if there is none",
        nullable=True,
    ),
    Column(
        "segments",
        pa.list_(_struct(SEGMENT)),
        "The segments after the first, in order, see below; null if the trajectory is one sequence",
        nullable=True,
    ),
    Column(
        "untrained",
        pa.list_(_struct(UNTRAINED)),
        "Conversations of an agent's calls that were answered and not trained on, in order of their first calls, see "
        "below; no other column counts them; null if there is none",
        nullable=True,
    ),
    Column("episode_return", pa.float64(), "Sum of the rewards, without format penalty", "reward"),
    Column("format_penalty", pa.float64(), "Sum of the turns' format penalties, 0 or negative", "reward"),
    Column("success", pa.bool_(), "The environment reports that the task was solved"),
    Column(
        "truncated",
        pa.bool_(),
        "A limit ended the episode, not the environment's own `terminated`: the turn limit, the environment's own "
        "`truncated`, or a context without room for a further turn",
    ),
    Column(
        "bootstrap_last_state",
        pa.bool_(),
        "The episode was ended from outside with turns left, so its last state has value; false at the turn limit",
    ),
    Column(
        "failure_cause",
        pa.string(),
        "Why the trajectory failed (`kit.records.failures.FailureCause`); null if it did not. The learner never uses a "
        "failed trajectory",
        nullable=True,
    ),
    Column("failure_detail", pa.string(), "The failure in words, may be empty; null if it did not fail", nullable=True),
    Column(
        "failure_rewarded",
        pa.string(),
        "How the agent failed, where `environment.options.failure_reward` rewarded that and the trajectory counts as "
        "any other; null elsewhere",
        nullable=True,
    ),
    Column("worker", pa.string(), "Rollout worker that sampled the trajectory"),
)

DECISION = (
    Column(
        "score", pa.float64(), "The filter's statistic of the group; null if the filter computed none", nullable=True
    ),
    Column("decision", pa.string(), "`kept`, `dropped` or `refused`; null in a file without decisions", nullable=True),
    Column("reason", pa.string(), "The decision's reason; null in a file without decisions", nullable=True),
    Column("filter", pa.string(), "The rule and its settings; null in a file without decisions", nullable=True),
)

INDEX = (
    Column("group_id", pa.string(), "The group"),
    Column("step", pa.int32(), "Training step; `groups/step-NNNNNN.parquet` holds the group's rows", "from 1"),
    Column("environment", pa.string(), "Name of the environment; its label in a run of several"),
    Column("split", pa.string(), "`train` or `validation`"),
    Column("task_seed", pa.int64(), "Seed that determines the task"),
    Column("task_key", pa.string(), "Digest of the task's content"),
    Column("task_kind", pa.string(), "Kind of the task; null if its environment declares none", nullable=True),
    Column("decision", pa.string(), "`kept`, `dropped` or `refused`; null in a file without decisions", nullable=True),
    Column("reason", pa.string(), "The decision's reason; null in a file without decisions", nullable=True),
    Column("score", pa.float64(), "The filter's statistic; null if the filter computed none", nullable=True),
    Column(
        "reward_variance",
        pa.float64(),
        "Sample variance (ddof = 1) of the returns of the trajectories that did not fail; null with fewer than two",
        "reward squared",
        nullable=True,
    ),
    Column(
        "mean_return",
        pa.float64(),
        "Mean return of the trajectories that did not fail; null if all failed",
        "reward",
        nullable=True,
    ),
    Column("returns", pa.list_(pa.float64()), "Return of each trajectory by its index; null if it failed", "reward"),
    Column("successes", pa.list_(pa.bool_()), "Success of each trajectory; null if it failed"),
    Column("lengths", pa.list_(pa.int32()), "Sampled tokens of each trajectory", "tokens"),
    Column("num_turns", pa.list_(pa.int32()), "Turns of each trajectory", "turns"),
    Column("failure_causes", pa.list_(pa.string()), "Cause of each failed trajectory, in order"),
    Column("num_trajectories", pa.int32(), "Trajectories of the group, including failed ones"),
    Column("num_failures", pa.int32(), "Failed trajectories"),
    Column("num_truncated", pa.int32(), "Trajectories that a limit ended"),
    Column("num_tokens", pa.int64(), "All tokens of the group, fed and sampled", "tokens"),
    Column(
        "version_min",
        pa.int32(),
        "Oldest policy version that sampled a token; null if none was sampled",
        "policy version",
        nullable=True,
    ),
    Column(
        "version_max",
        pa.int32(),
        "Newest policy version that sampled a token; null if none was sampled",
        "policy version",
        nullable=True,
    ),
    Column("worker", pa.string(), "Rollout worker that sampled the whole group"),
)

SCORE = (
    Column("scope", pa.string(), "`first_turn` or `trajectory` (docs/guide/reasoning.md)"),
    Column("sample", pa.int32(), "The reasoning: its row in the scope's matrix", "from 0"),
    Column("prompt", pa.int32(), "The prompt: its column in the scope's matrix", "from 0"),
    Column(
        "log_likelihood", pa.float32(), "log p(Z \\| X) of the reasoning under the prompt, summed over tokens", "nats"
    ),
    Column("own", pa.bool_(), "The reasoning was sampled under this prompt"),
    Column("num_tokens", pa.int32(), "Tokens of the reasoning", "tokens"),
    Column("sample_group", pa.string(), "Group of the reasoning"),
    Column("sample_trajectory", pa.int32(), "Index of its trajectory in the group", "from 0"),
    Column("sample_turn", pa.int32(), "Its turn", "from 0"),
    Column("prompt_group", pa.string(), "A group that was shown the prompt"),
    Column("prompt_trajectory", pa.int32(), "Index of a trajectory that was shown it", "from 0"),
    Column("prompt_turn", pa.int32(), "The turn that showed it", "from 0"),
)


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([column.field for column in columns], metadata={VERSION_KEY: str(VERSION)})


TRAJECTORY_SCHEMA = _schema(TRAJECTORY)
"""One row per trajectory: the form in which actors pass groups to each other."""
ARCHIVE_SCHEMA = _schema((*TRAJECTORY, *DECISION))
"""One row per trajectory with the filter's decision on its group: the form in which groups are archived."""
OPTIONAL = frozenset(column.name for column in (*TRAJECTORY, *DECISION) if column.nullable)
"""Columns that may be missing from a file of the archive; they are then read as null."""
INDEX_SCHEMA = _schema(INDEX)
"""One row per group, without tokens."""
SCORES_SCHEMA = _schema(SCORE)
"""One row per scored pair of a reasoning and a prompt (`kit.archive.score_matrices`)."""


def text_columns(schema: pa.Schema) -> list[str]:
    """The columns of text, whose values repeat."""
    return [field.name for field in schema if field.type == pa.string()]
