"""The calls that the coordinator makes to remote actors, one typed row each. Pure.

A call has two definitions: the function, a method of the class that the actor holds, and its row here. The row says
what the caller needs to know, and the type checker sees the function's arguments and result where the call is made:

    report = await learner.call(TRAIN_STEP, step, payloads, ids, terms)

`cluster.control.client` makes the calls, on whatever transport; `actors.process.shell` receives them on Ray. Each table
names the class that an actor holds, which only the actor's own process imports.

    column      meaning
    method      name of the function
    bound       seconds that the call may take, from the configuration and the arguments
    guarded     whether the actor bounds the call itself, by the same time: it then says what is late, so that the
                client waits `GRACE_S` longer
    signs       the signs that a call to the learner is not hung (`Signs`); `cluster.fleet.supervision` polls every
                other actor
    all_ranks   whether every rank of the learner gets the call, in the same order as all other calls; else rank 0
    reduce      how the ranks' results become one
    returns     2: the first result is awaited, the second stays where it is, and the caller gets the reference
    payloads    the argument that refers to groups' rows, which may be lost with their host
    folder      what the ranks do with the folder that the first argument names on the driver's disk
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from squelch.actors.messages import GroupMember, Imitation, StepReport, StepTerms, UpdateReport, WeightBundle
    from squelch.actors.process.spans import Span
    from squelch.cluster.config import RunConfig
    from squelch.kit.diagnosis.interventions import Intervention, LeftOut, Swap
    from squelch.kit.filter.decisions import StepDecision
    from squelch.kit.records.records import Cluster, GroupSummary, Ticket
    from squelch.learner.batching import Row
    from squelch.learner.decomposition.statistics import Decomposition
    from squelch.learner.network import Endpoint, RankProcess

P = ParamSpec("P")
R = TypeVar("R")
Payload = Any
"""Reference to a group's rows; `Payloads.fetch` of `cluster.control.protocols` resolves it."""
GRACE_S = 5.0
"""Seconds that the coordinator waits beyond a bound for an explanation: the answer of an actor that bounds the call
itself, or the failures of other ranks after the first, one of which may be a death."""
REACH_S = 20.0
"""Seconds within which every rank must have tried to connect to every other; a cut-off rank is named after them."""
STOP_S = 30.0
"""Seconds within which an engine must have ended."""
SPANS_S = 30.0
FILTER_S = 60.0


class Signs(Enum):
    """The signs that a call to all ranks is not hung (`cluster.control.progress`)."""

    MARKS = "marks"
    """Micro-batches; answers until the first micro-batch of the group's life, and with `learner.compile`, because a
    compiled layer may be compiled again for new shapes at any time."""
    ANSWERS = "answers"
    """Answers of all ranks."""
    ANSWERS_BEFORE = "answers before"
    """Answers of all ranks before the call. Then only the bound counts: loading a model or a file may keep a process
    from answering."""
    NONE = "none"
    """Only the bound counts."""


class Folder(Enum):
    """Whether the ranks write or read a folder of the driver's disk."""

    WRITTEN = "written"
    READ = "read"


@dataclass(frozen=True)
class Bound:
    """Seconds that a call may take. `setting`: the key that says so, for the error; empty for a constant."""

    seconds: float
    setting: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:g} s" + (f" ({self.setting})" if self.setting else "")


@dataclass(frozen=True)
class Setting:
    """The bound that a setting holds."""

    path: str

    def __call__(self, config: Any, *_: Any) -> float:
        """Seconds."""
        return float(attrgetter(self.path)(config))


def setting(path: str) -> Callable[..., float]:
    """The bound that a setting holds."""
    return Setting(path)


def seconds(constant: float) -> Callable[..., float]:
    """A bound that no setting holds."""
    return lambda *_: constant


def of_argument(name: str) -> Callable[..., float]:
    """The bound that the call's argument names."""
    return lambda config, argument: getattr(argument, name)


def broadcast_s(config: RunConfig, *_: Any) -> float:
    """The bound of a broadcast of weights, and of the forming of its group: the way through the object store takes the
    rest of the bound of an update."""
    return config.rollout.update_timeout_s / 2


def first(results: Sequence[R]) -> R:
    """Rank 0's result; a collective gives every rank the same."""
    return results[0]


def every(results: Sequence[Any]) -> Any:
    """The results by rank."""
    return list(results)


def slowest(reports: Sequence[StepReport]) -> StepReport:
    """Rank 0's report, whose metrics are over all ranks, with the slowest rank's seconds of each part, and all ranks'
    operations and GPUs."""
    parts, done = reports[0].seconds, [report.operations for report in reports if report.operations is not None]
    return replace(
        reports[0],
        seconds={part: max(report.seconds[part] for report in reports) for part in parts},
        operations=sum(done[1:], done[0]) if done else None,
        gpus=tuple(gpu for report in reports for gpu in report.gpus),
    )


def any_failure(failures: Sequence[str | None]) -> str | None:
    """The first reason that a rank gives; None if none does."""
    return next((failure for failure in failures if failure is not None), None)


@dataclass(frozen=True)
class Call(Generic[P, R]):
    """One row: a call with arguments P and result R; see the module's head. `bound`: None if the caller bounds several
    calls together (`cluster.fleet.waiting.within`)."""

    method: str
    bound: Callable[..., float] | None
    guarded: bool = False
    signs: Signs = Signs.NONE
    all_ranks: bool = False
    reduce: Callable[[Sequence[Any]], Any] = first
    returns: int = 1
    payloads: int | None = None
    folder: Folder | None = None
    apart: str | None = None
    """The method that is called instead if a rank is on another node than the caller."""

    def within(self, bound_s: float) -> str:
        """In words: a bound of this call, with the setting that holds it."""
        return f"within {Bound(bound_s, self.bound.path if isinstance(self.bound, Setting) else '')}"


@dataclass(frozen=True)
class Table:
    """The rows of one actor. `target`: the class that it holds, as MODULE:CLASS; `direct`: names of functions that
    others than the coordinator call."""

    target: str
    direct: tuple[str, ...] = ()
    rows: list[Call[..., Any]] = field(default_factory=list)

    def row(self, method: str, bound: Callable[..., float] | None, **columns: Any) -> Call[..., Any]:
        """Adds a row."""
        self.rows.append(Call(method, bound, **columns))
        return self.rows[-1]

    @property
    def title(self) -> str:
        """The name of the class."""
        return self.target.partition(":")[2]

    @property
    def methods(self) -> dict[str, int]:
        """The number of results of each function that is called from outside, by its name."""
        return dict.fromkeys(self.direct, 1) | {row.method: row.returns for row in self.rows}


# -- the learner's ranks ---------------------------------------------------------------------------------------------

LEARNER_RANK = Table(
    "squelch.learner.rank:LearnerRank", direct=("forget", "sees", "stage", "staged", "read_staged", "unstage")
)
_START, _STEP = setting("learner.start_timeout_s"), setting("learner.step_timeout_s")
_DISK = setting("learner.checkpoint_timeout_s")


def _collective(method: str, signs: Signs, bound: Callable[..., float] = _STEP, **columns: Any) -> Call[..., Any]:
    return LEARNER_RANK.row(method, bound, guarded=True, signs=signs, all_ranks=True, **columns)


def _step_for_each_group(config: RunConfig, payloads: Sequence[Payload], ids: Sequence[str]) -> float:
    return config.learner.step_timeout_s * max(1, len(ids))


IDENTIFY: Call[[], list[RankProcess]] = LEARNER_RANK.row("identify", _START, all_ranks=True, reduce=every)
"""The node and the process of each rank."""
OPEN_ENDPOINT: Call[[bool], list[Endpoint]] = LEARNER_RANK.row(
    "open_endpoint", seconds(REACH_S), all_ranks=True, reduce=every
)
"""Each rank listens, until `start`, for the others; whether all share a node."""
UNREACHABLE: Call[[Sequence[Endpoint]], list[dict[int, str]]] = LEARNER_RANK.row(
    "unreachable", seconds(REACH_S), all_ranks=True, reduce=every
)
"""For each rank, why it cannot connect to others, by their rank."""
START: Call[[Sequence[Endpoint], bool], None] = _collective("start", Signs.NONE, _START)
"""Joins the process group and loads the model, but for the weights that a checkpoint brings: whether `load` follows."""
TRAIN_STEP: Call[[int, Sequence[Payload], Sequence[str], StepTerms], StepReport] = _collective(
    "train_step", Signs.MARKS, reduce=slowest, payloads=1
)
"""One training step on the groups with these ids."""
IMITATE: Call[[int, Sequence[Row]], Imitation] = _collective("imitate", Signs.MARKS)
"""One supervised optimizer step on these rows; `Refused` if its loss or gradient is not finite."""
IMITATION_LOSS: Call[[Sequence[Row]], float] = _collective("imitation_loss", Signs.MARKS)
"""The mean loss of these rows, nats per sampled token; the weights do not change."""
DECOMPOSE: Call[[Sequence[Payload], Sequence[str]], Decomposition] = _collective(
    "decompose", Signs.MARKS, _step_for_each_group, payloads=0
)
"""The gradient decomposition of the groups with these ids; each trajectory needs a pass of its own."""
PUBLISH: Call[[int, str], WeightBundle] = _collective("publish", Signs.ANSWERS)
"""The current weights as this version, in this dtype. The chunks exist as long as rank 0 and a reference to them do."""
OPEN_GROUP: Call[[], tuple[str, int]] = LEARNER_RANK.row("open_group", seconds(REACH_S))
"""Rank 0 leaves its weight group and listens for the members of a new one; the address and port."""
JOIN_GROUP: Call[[GroupMember], str | None] = LEARNER_RANK.row("join_group", of_argument("timeout_s"), guarded=True)
"""Rank 0 forms the group that it announced; the reason if others did not come."""
SEND: Call[[str], str | None] = LEARNER_RANK.row("send", broadcast_s, guarded=True, all_ranks=True, reduce=any_failure)
"""Broadcasts the current weights in the weight group, in this dtype; the reason if the group failed."""
SAVE: Call[[Path, Mapping[str, Any]], dict[str, float]] = _collective(
    "save", Signs.ANSWERS_BEFORE, _DISK, folder=Folder.WRITTEN
)
"""Writes a checkpoint that contains the state of the training loop; the seconds of each part."""
WRITE: Call[[Path, Mapping[str, Any]], dict[str, float]] = _collective(
    "write", Signs.ANSWERS_BEFORE, _DISK, folder=Folder.WRITTEN, apart="save"
)
"""As `save`; where all ranks are on the driver's node, the folder keeps its temporary name, and the seconds have no
part `seal`: the driver seals it (`learner.checkpoint.seal`), and the ranks' weights may change meanwhile."""
LOAD: Call[[Path], dict[str, Any]] = _collective("load", Signs.ANSWERS_BEFORE, _DISK, folder=Folder.READ)
"""Loads a checkpoint; the loop's state in it."""
EXPORT: Call[[Path], None] = _collective("export", Signs.ANSWERS_BEFORE, _DISK, folder=Folder.WRITTEN)
"""Writes the policy as a Hugging Face folder."""
STOP_RANKS: Call[[], None] = LEARNER_RANK.row("stop", seconds(2 * GRACE_S), all_ranks=True)
"""Leaves the process group."""

# -- environment actors ----------------------------------------------------------------------------------------------

READY: Call[[], object] = Call("ready", None)
"""Returns once the environment actor can play, or the rollout worker's engine is loaded."""
TAKE_SPANS: Call[[], Sequence[Span]] = Call("take_spans", seconds(SPANS_S))
"""The spans of an environment actor or rollout worker since the last call, which are then forgotten."""
ENVIRONMENT_ACTOR = Table("squelch.actors.play.actor:EnvironmentActor", rows=[READY, TAKE_SPANS])
SET_WORKERS: Call[[Mapping[str, Any]], None] = ENVIRONMENT_ACTOR.row("set_workers", setting("cluster.start_timeout_s"))
"""Replaces the rollout workers that the environment actor knows, handles by name."""
PLAY: Call[[Ticket], tuple[GroupSummary, Payload]] = ENVIRONMENT_ACTOR.row(
    "play", setting("loop.group_timeout_s"), returns=2
)
"""Plays a ticket on the rollout worker that it names; the summary and a reference to the rows."""
EVALUATE: Call[[list[Ticket]], tuple[list[GroupSummary], Payload]] = ENVIRONMENT_ACTOR.row(
    "evaluate", setting("loop.group_timeout_s"), returns=2
)
"""Plays one trajectory per ticket; the summaries in their order, and a reference to the rows."""
INTERVENE: Call[[list[Swap]], list[Intervention | LeftOut]] = ENVIRONMENT_ACTOR.row(
    "intervene", setting("loop.group_timeout_s")
)
"""Samples the actions of first turns again after other reasonings; one result per task, in their order."""

CLUSTERS: Call[[list[Ticket]], dict[str, Cluster]] = ENVIRONMENT_ACTOR.row("clusters", setting("loop.group_timeout_s"))
"""The clusters of hard negatives of the tickets' tasks, by ticket id; nothing is sampled."""

# -- rollout workers -------------------------------------------------------------------------------------------------

ROLLOUT_WORKER = Table(
    "squelch.actors.rollout.worker:RolloutWorker",
    direct=("submit", "collect", "abort", "stats"),
    rows=[READY, TAKE_SPANS],
)
UPDATE_WEIGHTS: Call[[WeightBundle], UpdateReport] = ROLLOUT_WORKER.row(
    "update_weights", setting("rollout.update_timeout_s"), guarded=True
)
"""Loads a version and checks it (checksum, parity probe)."""
JOIN_GROUP_AS_WORKER: Call[[GroupMember], None] = ROLLOUT_WORKER.row(
    "join_group", of_argument("timeout_s"), guarded=True
)
"""Joins a weight group, in place of the present one; waits for its other members."""
RECEIVE_WEIGHTS: Call[[WeightBundle], UpdateReport] = ROLLOUT_WORKER.row("receive_weights", broadcast_s, guarded=True)
"""As `update_weights`, with the weights that the learner sends in the weight group."""
HEALTH: Call[[float], dict[str, Any]] = ROLLOUT_WORKER.row("health", lambda config, timeout_s: timeout_s, guarded=True)
"""Generates one token, so that an answer proves that the engine works; `Failed` if none comes in this many seconds. A
worker that loads weights meanwhile answers without one."""
STOP_ENGINE: Call[[], None] = ROLLOUT_WORKER.row("stop", seconds(STOP_S))
"""Ends the engine; the worker takes no further call."""

# -- services --------------------------------------------------------------------------------------------------------

FILTER_SERVICE = Table("squelch.actors.filter.service:FilterService")
FILTER_READY: Call[[Collection[int]], dict[str, Any]] = FILTER_SERVICE.row("state", setting("cluster.start_timeout_s"))
"""The state of a service that may just have been created, with these of the open steps."""
ADMIT: Call[[list[GroupSummary]], None] = FILTER_SERVICE.row("admit", seconds(FILTER_S))
"""Adds the groups of these summaries to their steps' windows; `kit.filter.windows` documents each call."""
CLOSE: Call[[int, bool, int], tuple[StepDecision, dict[str, Any]]] = FILTER_SERVICE.row("close", seconds(FILTER_S))
"""Decides on a step: whether no further refill round is possible, and how many groups it should train on. Returns the
service's state too, as JSON-able data, of the open steps with this one alone."""
FILTER_RESTORE: Call[[dict[str, Any]], None] = FILTER_SERVICE.row("restore", seconds(FILTER_S))
"""Replaces the state by that of an earlier service."""

SCORER = Table("squelch.actors.scorer.actor:ScorerActor")
SCORE: Call[[int, WeightBundle, Sequence[Payload], bool], tuple[dict[str, float], dict[str, Any], pa.Table]] = (
    SCORER.row("score", None)
)
"""The flat metrics of a step's groups, the scorer's state after them as in `state`, and the score matrices
(`kit.archive.score_matrices`), under these weights of the policy. The last argument: whether the step was scored
before, with groups that are lost, so that its effect on the state is forgotten. Nothing waits for a scorer step;
supervision ends a hung scorer."""
PROBE: Call[[int, WeightBundle, Sequence[Payload], Mapping[str, Cluster]], tuple[dict[str, float], dict[str, Any]]] = (
    SCORER.row("probe", lambda config, *_: 2 * config.scorer.timeout_s)
)
"""The flat metrics of an evaluation of the fixed probe after a step, on the groups of its tasks and with their clusters
of hard negatives, and the scorer's state after it as in `state`. A scorer step may be under way before it."""
SCORER_RESTORE: Call[[dict[str, Any]], None] = SCORER.row("restore", setting("cluster.start_timeout_s"))
"""Replaces the state by that of an earlier scorer."""

CONTROL_ENDPOINT = Table("squelch.cluster.fleet.control_endpoint:ControlEndpoint", direct=("ask",))
TAKE: Call[[float], Sequence[tuple[int, dict[str, Any]]]] = CONTROL_ENDPOINT.row(
    "take", lambda config, timeout_s: timeout_s, guarded=True
)
"""The requests of `squelch scale` that came since the last call, each with a number; waits up to these seconds for the
first."""
ANSWER: Call[[int, Mapping[str, Any]], None] = CONTROL_ENDPOINT.row("answer", seconds(GRACE_S))
"""Answers a request."""
