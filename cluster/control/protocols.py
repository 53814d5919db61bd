"""The parties of a run as protocols: the calls that the loop makes to the actors and services. Pure.

`cluster.fleet.ray_actors` implements them as Ray actors; the tests run the same loop with in-process parties. A call
to a party returns a value, raises an error of `cluster.control.actor_errors`, or never ends: callers bound every call
(`cluster.fleet.waiting`), and after the bound a TimeoutError names the party.

A cancelled call is cancelled in the party too where that is possible; its result is never used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from squelch.actors.filter.decisions import StepDecision
    from squelch.actors.messages import GroupMember, Imitation, StepReport, UpdateReport, WeightBundle
    from squelch.actors.process.progress_marks import Progress
    from squelch.actors.process.spans import Span
    from squelch.actors.records import GroupSummary, Ticket
    from squelch.cluster.control.scaling import Answer, Kind, Request
    from squelch.learner.batching import Row
    from squelch.learner.decomposition.statistics import Decomposition

LEARNER = "learner"
"""The learner's name, in events and in what `Actors.leaving` returns."""
Payload = Any
"""Reference to a group's rows; `Payloads.fetch` resolves it."""


class Actor(Protocol):
    """Any party."""

    def kill(self) -> None:
        """Ends the party at once in any state, without waiting for the end. A second call does nothing."""

    async def lost(self) -> NoReturn:
        """Waits until a process of the party is gone, then raises `Died`; the party has been ready."""


class Single(Actor, Protocol):
    """A party of one process."""

    async def progress(self) -> Progress:
        """Its progress, also while another call is under way; Failed if it cannot work any more."""


class Player(Single, Protocol):
    """An environment actor."""

    async def ready(self) -> object:
        """Returns once the environment actor can play."""

    async def set_workers(self, workers: Mapping[str, Worker]) -> None:
        """Replaces the rollout workers that the environment actor knows, by name."""

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, Payload]:
        """Plays a ticket on the rollout worker that it names; returns the summary and a reference to the rows."""

    async def evaluate(self, tickets: list[Ticket]) -> list[GroupSummary]:
        """Plays one trajectory per ticket; returns the summaries in their order."""

    async def take_spans(self) -> Sequence[Span]:
        """The spans since the last call, which are then forgotten."""


class Worker(Single, Protocol):
    """A rollout worker."""

    async def ready(self) -> object:
        """Returns once the engine is loaded."""

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Loads a version and checks it (checksum, parity probe)."""

    async def join_group(self, member: GroupMember) -> None:
        """Joins a weight group, in place of the present one; waits for its other members."""

    async def receive_weights(self, bundle: WeightBundle) -> UpdateReport:
        """As `update_weights`, with the weights that the learner sends in the weight group."""

    async def health(self, timeout_s: float) -> object:
        """Generates one token, so that an answer proves that the engine works; Failed if none comes in `timeout_s`. A
        worker that loads weights meanwhile answers without one."""

    async def take_spans(self) -> Sequence[Span]:
        """The spans since the last call, which are then forgotten."""

    async def stop(self) -> object:
        """Ends the engine; the worker takes no further call."""


class Filter(Single, Protocol):
    """The filter service; `actors.filter.windows` documents each call."""

    async def admit(self, summaries: list[GroupSummary]) -> object:
        """Adds the groups of these summaries to their steps' windows."""

    async def close(self, step: int, final: bool, target: int) -> StepDecision:
        """Decides on a step that should train on `target` groups; `final`: no further refill round."""

    async def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        """The state of the service as JSON-able data; of the open steps only those in `steps`, by default all."""

    async def restore(self, state: dict[str, Any]) -> object:
        """Replaces the state by that of an earlier service."""


class Scorer(Single, Protocol):
    """The scorer."""

    async def health(self) -> object:
        """Returns once the scorer has loaded its model."""

    async def score(
        self, step: int, bundle: WeightBundle, payloads: list[Payload], replaces: bool
    ) -> tuple[dict[str, float], dict[str, Any], pa.Table]:
        """The flat figures of a step's groups, the scorer's state after them as in `state`, and the score matrices
        (`actors.archive.scores`); `bundle`: the weights of the policy that is scored; `replaces`: whether the step
        was scored before, with groups that are lost, so that what that left in the state is forgotten."""

    async def probe(
        self, step: int, bundle: WeightBundle, payloads: list[Payload]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """The flat figures of a reading of the fixed probe after a step, and the scorer's state after it as in `state`;
        `payloads`: the groups of its tasks."""

    async def state(self) -> dict[str, Any]:
        """The state of the scorer as JSON-able data."""

    async def restore(self, state: dict[str, Any]) -> object:
        """Replaces the state by that of an earlier scorer."""


class Learner(Actor, Protocol):
    """All learner ranks together. After any error but `Refused` the group is of no more use: a rank's shards are lost,
    or the ranks wait for one another. The error names the rank that died, failed or is late."""

    @property
    def ranks(self) -> int:
        """Number of ranks, fewer than `learner.ranks` after a recovery without room for all."""

    async def start(self) -> None:
        """Returns once every rank has loaded the model."""

    async def progress(self, timeout_s: float) -> Sequence[Progress | None]:
        """The progress of each rank, also while another call is under way; None for a rank that does not answer within
        `timeout_s`."""

    async def train_step(self, step: int, payloads: list[Payload], ids: list[str], loss_scale: float) -> StepReport:
        """One training step on the groups with these ids; `loss_scale` multiplies the loss."""

    async def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        """One supervised optimizer step on these rows; Refused if its loss or gradient is not finite."""

    async def imitation_loss(self, rows: Sequence[Row]) -> float:
        """The mean loss of these rows, nats per sampled token; the weights do not change."""

    async def decompose(self, payloads: list[Payload], ids: list[str]) -> Decomposition:
        """The gradient decomposition of the groups with these ids; the weights do not change."""

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        """Gathers the current weights as `version`, in `dtype`."""

    async def open_group(self) -> tuple[str, int]:
        """Rank 0 leaves its weight group and listens for the members of a new one; the address and port."""

    async def join_group(self, member: GroupMember) -> str:
        """Rank 0 forms the group that it announced; the reason if others did not come, else an empty string."""

    async def send(self, dtype: str, timeout_s: float) -> str:
        """Broadcasts the current weights in the weight group; the reason if the group failed, else an empty string."""

    async def save(self, path: Path, loop: Mapping[str, Any]) -> None:
        """Writes a checkpoint to the folder `path`, with the state `loop` of the training loop."""

    async def load(self, path: Path) -> dict[str, Any]:
        """Loads the checkpoint in the folder `path`; returns the loop's state in it."""

    async def export(self, path: Path) -> None:
        """Writes the policy to the folder `path` as a Hugging Face folder."""

    async def stop(self) -> None:
        """Ends every rank."""


class ControlEndpoint(Protocol):
    """Takes the requests of `squelch scale` while the run goes on."""

    def kill(self) -> None:
        """Closes the endpoint."""

    async def take(self, timeout_s: float) -> Sequence[tuple[int, Request]]:
        """The requests that came since the last call, each with a number; waits up to `timeout_s` for the first."""

    async def answer(self, number: int, answer: Answer) -> None:
        """Answers a request."""


class Payloads(Protocol):
    """The store of the groups' rows, from which learner, scorer and archive read them."""

    def put(self, table: pa.Table) -> Payload:
        """Stores a group's rows; returns the reference."""

    async def fetch(self, payloads: list[Payload], timeout_s: float) -> list[pa.Table]:
        """The rows of each payload; TimeoutError if they do not arrive within `timeout_s`, `Failed` if they are
        lost."""


class Actors(Protocol):
    """Creates parties. The methods return at once; a party's `ready`, `health` or `start` returns once it is up.
    `ActorError` if a player or worker cannot be created, which may go better the next time."""

    @property
    def payloads(self) -> Payloads:
        """The store that these parties share."""

    def player(self, name: str) -> Player:
        """An environment actor."""

    def worker(self, name: str) -> Worker:
        """A rollout worker."""

    def filter(self) -> Filter:
        """A filter service, without groups."""

    def scorer(self) -> Scorer:
        """A scorer."""

    def learner(self, ranks: int) -> Learner:
        """The learner with this number of ranks."""

    def control_endpoint(self) -> ControlEndpoint:
        """The control endpoint under the name by which `squelch scale` finds the run."""

    async def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        """What the cluster lacks for these numbers of members, in one sentence; None if it has that or if an
        autoscaler can add it, which is then asked."""

    async def settled(self) -> None:
        """Ends what an autoscaler was asked for, if it was: all wanted members have come, or the run ends."""

    async def leaving(self) -> Mapping[str, float]:
        """Rollout workers and environment actors whose nodes will be taken away, and `learner` if a rank's will: the
        seconds until then by name, infinite if they are not told."""

    async def room_for_ranks(self) -> int:
        """Number of learner ranks, at most `learner.ranks`, for which the nodes that stay have room now; the ranks that
        are up on such a node count as room."""

    def room(self) -> str:
        """What is free in the cluster and which parties have no node yet, for the message about a late start."""


class Archive(Protocol):
    """A run's groups, figures and spans in its folder; implemented in `actors.archive`."""

    def write_groups(
        self, step: int, tables: Sequence[pa.Table], decisions: Mapping[str, Any], filter_text: str = ""
    ) -> object:
        """Writes a step's groups with the decision on each; ArchiveError if the disk refuses."""

    def write_scores(self, step: int, table: pa.Table) -> object:
        """Writes the score matrices of a step; ArchiveError if the disk refuses."""

    def groups(self, step: int, ids: Sequence[str]) -> list[pa.Table]:
        """The rows of these groups of a written step, in this order; ArchiveError if one cannot be read."""

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends a step's figures to `metrics.jsonl`."""

    def event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        """Appends a span from `start` to `end` (unix seconds) to `events.jsonl`."""


class MetricsSink(Protocol):
    """Takes the figures of a step, and single values in between, for `/metrics`."""

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Sets a gauge."""

    def step(self, step: int, flat: Mapping[str, Any]) -> None:
        """Exports the flat figures of a step."""
