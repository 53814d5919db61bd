"""The parties of a run as Ray actors: creates them with their resources on their nodes (`cluster.fleet.placement`),
with the folders that they need (`actors.process.shipping`), and converts Ray's errors to the loop's.

This is the only module of the fleet that uses Ray's actor handles. `cluster.control.protocols` documents the methods.
Nothing here sets a time-out: callers bound every call (`cluster.fleet.waiting`), and cancelling a call cancels it in
its actor too.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
import ray
from ray._private.state import actors, state
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from squelch.actors.archive.rows import packed, unpacked
from squelch.actors.filter.decisions import StepDecision
from squelch.actors.filter.service import FilterService
from squelch.actors.labels import admits
from squelch.actors.messages import GroupMember, Imitation, StepReport, UpdateReport, WeightBundle
from squelch.actors.play.actor import EnvironmentActor
from squelch.actors.process.allocator import ALLOCATOR
from squelch.actors.process.log import log_variable
from squelch.actors.process.progress_marks import Progress
from squelch.actors.process.ray_errors import DEAD, cause_of_death
from squelch.actors.process.shipping import EVERYTHING, MODEL_FILES, Folder, offer
from squelch.actors.process.spans import Span
from squelch.actors.records import GroupSummary, Ticket
from squelch.actors.rollout.worker import RolloutWorker
from squelch.actors.scorer.actor import ScorerActor
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import Died, Failed, Refused
from squelch.cluster.control.protocols import LEARNER, Payload, Worker
from squelch.cluster.control.scaling import Answer, Kind, Request
from squelch.cluster.fleet import control_endpoint
from squelch.cluster.fleet.demand import ROUNDING
from squelch.cluster.fleet.placement import Placement, Reservation, alive_nodes, may_grow
from squelch.envs.retrieval.index import opened
from squelch.learner.actor import LearnerGroup, RankLost
from squelch.learner.batching import Row
from squelch.learner.decomposition.statistics import Decomposition

T = TypeVar("T")
Handle = Any  # a Ray actor handle; Ray exports no public type for it


class RayActors:
    """Creates every party of a run as Ray actors with the resources of its configuration. Each actor's output goes to
    its own file in the folder `logs`."""

    def __init__(self, config: RunConfig, model_dir: Path, logs: Path) -> None:
        self.config, self.model_dir, self.logs = config, model_dir, logs
        self.payloads = RayPayloads()
        self.placement = Placement(config)
        self._offers: dict[Path, Folder] = {}
        self._members: dict[str, Handle] = {}
        """The newest rollout worker or environment actor of each name."""
        self._learner: RayLearner | None = None
        self._creating = threading.Lock()
        """Members are created in threads, one at a time."""

    def _offer(self, path: Path, patterns: Sequence[str]) -> Folder:
        """The folder for an actor on any node. It is put into the object store once the cluster has another node."""
        offered = self._offers.get(path)
        if offered is None or not offered.entries:
            offered = self._offers[path] = offer(path, patterns, ship=_may_need_shipping(self.config))
        return offered

    def _model(self) -> Folder:
        return self._offer(self.model_dir, MODEL_FILES)

    def room(self) -> str:
        """What is free in the cluster, for the message about a late party."""
        return self.placement.room()

    def _process(self, name: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Ray's runtime environment for the process of the party `name`."""
        return {"env_vars": {**(variables or {}), **log_variable(self.logs, name)}}

    def player(self, name: str) -> RayPlayer:
        """An environment actor."""
        with self._creating, _creation_of(name):
            actor = self._player(name)
        self._members[name] = actor.handle
        return actor

    def _player(self, name: str) -> RayPlayer:
        config = self.config
        shell = ray.remote(EnvironmentActor).options(
            num_cpus=config.environment_actor.num_cpus,
            max_concurrency=1000,
            runtime_env=self._process(name),
            **self.placement.player(),
        )
        settings = (config.environment, config.sampling, config.environment_actor, config.rollout.max_model_len)
        indices = [self._offer(folder, EVERYTHING) for folder in opened()]
        return RayPlayer(shell.remote(name, self._model(), *settings, indices))

    def worker(self, name: str) -> RayWorker:
        """A rollout worker."""
        with self._creating, _creation_of(name):
            actor = self._worker(name)
        self._members[name] = actor.handle
        return actor

    def _worker(self, name: str) -> RayWorker:
        chosen = {"weight_transfer": self.config.weight_transfer}  # a worker does not know what the learner has
        rollout, place = self.config.rollout.model_copy(update=chosen), self.placement.worker(name)
        with _given_back_on_error(place):
            shell = ray.remote(RolloutWorker).options(
                num_cpus=rollout.num_cpus,
                num_gpus=rollout.num_gpus,
                max_concurrency=1000,
                runtime_env=self._process(name),
                **place.options[0],
            )
            return RayWorker(shell.remote(name, self._model(), rollout), place.release)

    def filter(self) -> RayFilter:
        """The filter service, which needs no CPU of its own."""
        options = self.placement.service()
        shell = _shell(FilterService).options(num_cpus=0, runtime_env=self._process("filter"), **options)
        return RayFilter(shell.remote(self.config.filter))

    def scorer(self) -> RayScorer:
        """The scorer."""
        config, scorer = self.config, self.config.scorer
        shell = _shell(ScorerActor).options(
            num_cpus=scorer.num_cpus,
            num_gpus=scorer.num_gpus,
            runtime_env=self._process("scorer", ALLOCATOR),
            **self.placement.scorer(),
        )
        settings = (scorer, config.sampling.temperature, config.seed, config.loop.max_staleness)
        fixed = self._offer(Path(scorer.model), MODEL_FILES) if scorer.model is not None else None
        return RayScorer(shell.remote(self._model(), *settings, config.learner.kernels, fixed))

    def learner(self, ranks: int) -> RayLearner:
        """The learner, which creates its ranks."""
        config, place = self.config, self.placement.learner(ranks)
        learner = config.learner.model_copy(update={"ranks": ranks})
        settings = (learner, config.seed, config.sampling.temperature, self.logs, place.options)
        with _given_back_on_error(place):
            self._learner = RayLearner(LearnerGroup(self._model(), *settings), place.release)
        return self._learner

    def control_endpoint(self) -> RayControlEndpoint:
        """The control endpoint, under a name of this run and job."""
        job = ray.get_runtime_context().get_job_id()
        shell = ray.remote(control_endpoint.ControlEndpoint).options(
            name=control_endpoint.NAME,
            namespace=f"{control_endpoint.namespace_of(self.config.run_dir)}/{job}",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=100,
            runtime_env=self._process("control-endpoint"),
            **self.placement.service(),
        )
        return RayControlEndpoint(shell.remote())

    async def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        """As the protocol says."""
        return await _asked(self.placement.lacking, counts)

    async def settled(self) -> None:
        """As the protocol says."""
        await _asked(self.placement.settled)

    async def leaving(self) -> Mapping[str, float]:
        """As the protocol says."""
        return await _asked(_leaving, dict(self._members), self._rank_nodes())

    def _rank_nodes(self) -> list[str]:
        """Ids of the nodes of the learner's ranks; empty before they are up and after their end."""
        return self._learner.nodes if self._learner is not None else []

    async def room_for_ranks(self) -> int:
        """As the protocol says. A rank needs its resources on one node, and the labels that its selector asks for."""
        learner = self.config.learner
        free = await _asked(_free, learner.label_selector)
        needs = {kind: need for kind, need in (("CPU", learner.num_cpus), ("GPU", learner.num_gpus)) if need > 0}
        up = sum(node in free for node in self._rank_nodes())
        fit = (
            min(((has.get(kind, 0.0) + ROUNDING) // need for kind, need in needs.items()), default=math.inf)
            for has in free.values()
        )
        return int(min(learner.ranks, up + sum(fit)))


def _may_need_shipping(config: RunConfig) -> bool:
    """Whether actors may run on another node than the driver's, now or later."""
    return len(alive_nodes()) > 1 or may_grow(config)


async def _asked(question: Callable[..., T], *arguments: Any) -> T:
    """Asks the cluster in a thread; Failed if it does not answer."""
    try:
        return await asyncio.to_thread(question, *arguments)
    except RayError as error:
        raise Failed(str(error), error) from error


def _leaving(members: Mapping[str, Handle], rank_nodes: Collection[str]) -> dict[str, float]:
    """Seconds until the node of each member, and the first of the learner's nodes, is taken away, of those that drain.
    Ray has no public call for either fact; its own Train library asks in this way."""
    draining = state.get_draining_nodes()  # the deadline in milliseconds by node, 0 without one
    if not draining:
        return {}
    facts = {name: actors(handle._actor_id.hex()) for name, handle in members.items()}
    nodes = {name: [fact["Address"]["NodeID"]] for name, fact in facts.items() if fact} | {LEARNER: rank_nodes}
    until = {node: max(0.0, at / 1000 - time.time()) if at else math.inf for node, at in draining.items()}
    first = {name: min((until[node] for node in own if node in until), default=None) for name, own in nodes.items()}
    return {name: seconds for name, seconds in first.items() if seconds is not None}


def _free(selector: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The free resources of each node that stays and that the label selector admits, by its id."""
    draining = state.get_draining_nodes()
    admitted = {node["NodeID"] for node in ray.nodes() if admits(selector, node["Labels"])}
    free = state.available_resources_per_node()
    return {node: has for node, has in free.items() if node in admitted and node not in draining}


def _nothing() -> None:
    """Gives nothing back: the party has no bundle of its own."""


def _shell(decorated: Any) -> Any:
    """Returns the class as Any: `ray.remote` has replaced it by an actor class, which annotations do not express."""
    return decorated


async def answered(ref: Any) -> Any:
    """Awaits an actor's call and returns its value. Cancelling this cancels the call in the actor too.

    Raises:
        Died: the actor's process is gone.
        Refused: the actor raised a ValueError.
        Failed: the actor raised another error, or Ray did.
    """
    try:
        return await ref
    except DEAD as error:
        raise Died(cause_of_death(error)) from error
    except RayTaskError as error:
        kind = Refused if isinstance(error.cause, ValueError) else Failed
        raise kind(str(error), error.cause) from error
    except RayError as error:
        raise Failed(str(error), error) from error
    except asyncio.CancelledError:
        ray.cancel(ref, force=False)
        raise


class RayActor:
    """A party that is one Ray actor. `release` gives its place back."""

    def __init__(self, handle: Handle, release: Callable[[], None] = _nothing) -> None:
        self.handle, self.release = handle, release

    def kill(self) -> None:
        """Ends the actor's process at once."""
        ray.kill(self.handle)
        self.release()

    async def lost(self) -> NoReturn:
        await answered(self.handle.live.remote())
        raise RuntimeError("the actor's life ended without an error")

    async def progress(self) -> Progress:
        return await answered(self.handle.progress.remote())


class RayPlayer(RayActor):
    """An environment actor."""

    async def ready(self) -> bool:
        return await answered(self.handle.ready.remote())

    async def set_workers(self, workers: Mapping[str, Worker]) -> None:
        """Sends the rollout workers' actor handles."""
        handles = {name: worker.handle for name, worker in workers.items() if isinstance(worker, RayActor)}
        await answered(self.handle.set_workers.remote(handles))

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, Payload]:
        """Plays a ticket; the rows stay in the object store, and only their reference is returned."""
        summary, table = self.handle.play.options(num_returns=2).remote(ticket)
        return await answered(summary), table

    async def evaluate(self, tickets: list[Ticket]) -> list[GroupSummary]:
        summaries, _ = self.handle.evaluate.options(num_returns=2).remote(tickets)
        return await answered(summaries)

    async def take_spans(self) -> Sequence[Span]:
        return await answered(self.handle.take_spans.remote())


class RayWorker(RayActor):
    """A rollout worker."""

    async def ready(self) -> object:
        return await answered(self.handle.ready.remote())

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        return await answered(self.handle.update_weights.remote(bundle))

    async def join_group(self, member: GroupMember) -> None:
        await answered(self.handle.join_group.remote(member))

    async def receive_weights(self, bundle: WeightBundle) -> UpdateReport:
        return await answered(self.handle.receive_weights.remote(bundle))

    async def health(self, timeout_s: float) -> object:
        return await answered(self.handle.health.remote(timeout_s))

    async def take_spans(self) -> Sequence[Span]:
        return await answered(self.handle.take_spans.remote())

    async def stop(self) -> object:
        return await answered(self.handle.stop.remote())


class RayFilter(RayActor):
    """The filter service."""

    async def admit(self, summaries: list[GroupSummary]) -> object:
        return await answered(self.handle.admit.remote(summaries))

    async def close(self, step: int, final: bool, target: int) -> StepDecision:
        return await answered(self.handle.close.remote(step, final, target))

    async def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        return await answered(self.handle.state.remote(steps))

    async def restore(self, state: dict[str, Any]) -> object:
        return await answered(self.handle.restore.remote(state))


class RayScorer(RayActor):
    """The scorer."""

    async def health(self) -> object:
        return await answered(self.handle.health.remote())

    async def score(
        self, step: int, bundle: WeightBundle, payloads: list[Payload], replaces: bool
    ) -> tuple[dict[str, float], dict[str, Any], pa.Table]:
        return await answered(self.handle.score.remote(step, bundle, payloads, replaces))

    async def probe(
        self, step: int, bundle: WeightBundle, payloads: list[Payload]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        return await answered(self.handle.probe.remote(step, bundle, payloads))

    async def state(self) -> dict[str, Any]:
        return await answered(self.handle.state.remote())

    async def restore(self, state: dict[str, Any]) -> object:
        return await answered(self.handle.restore.remote(state))


class RayControlEndpoint(RayActor):
    """The endpoint."""

    async def take(self, timeout_s: float) -> Sequence[tuple[int, Request]]:
        requests: list[tuple[int, Request]] = []
        for number, data in await answered(self.handle.take.remote(timeout_s)):
            try:
                requests.append((number, control_endpoint.unpacked_request(data)))
            except ValueError as error:
                await self.answer(number, Answer(False, str(error)))
        return requests

    async def answer(self, number: int, answer: Answer) -> None:
        await answered(self.handle.answer.remote(number, control_endpoint.packed(answer)))


class RayLearner:
    """All learner ranks. `LearnerGroup` blocks with its own time-outs, so each call runs in a thread."""

    def __init__(self, group: LearnerGroup, release: Callable[[], None] = _nothing) -> None:
        self.group, self.release = group, release
        self._ended = False

    @property
    def ranks(self) -> int:
        """As the protocol says."""
        return len(self.group.ranks)

    @property
    def nodes(self) -> list[str]:
        """Ids of the ranks' nodes; empty before they are up and after their end."""
        return [] if self._ended else [home.node for home in self.group.homes]

    async def start(self) -> None:
        await _ranks(self.group.start)

    async def lost(self) -> NoReturn:
        lives = enumerate(self.group.lives)
        await asyncio.gather(*(_death(f"{rank}{self.group.site(rank)}", life) for rank, life in lives))
        raise RuntimeError("the ranks' lives ended without an error")

    async def progress(self, timeout_s: float) -> Sequence[Progress | None]:
        return await _ranks(self.group.progress, timeout_s)

    async def train_step(self, step: int, payloads: list[Payload], ids: list[str], loss_scale: float) -> StepReport:
        return await _ranks(self.group.train_step, step, payloads, ids, loss_scale)

    async def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        return await _ranks(self.group.imitate, step, rows)

    async def imitation_loss(self, rows: Sequence[Row]) -> float:
        return await _ranks(self.group.imitation_loss, rows)

    async def decompose(self, payloads: list[Payload], ids: list[str]) -> Decomposition:
        return await _ranks(self.group.decompose, payloads, ids)

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        return await _ranks(self.group.publish, version, dtype)

    async def open_group(self) -> tuple[str, int]:
        return await _ranks(self.group.open_group)

    async def join_group(self, member: GroupMember) -> str:
        return await _ranks(self.group.join_group, member)

    async def send(self, dtype: str, timeout_s: float) -> str:
        return await _ranks(self.group.send, dtype, timeout_s)

    async def save(self, path: Path, loop: Mapping[str, Any]) -> None:
        await _ranks(self.group.save, path, loop)

    async def load(self, path: Path) -> dict[str, Any]:
        return await _ranks(self.group.load, path)

    async def export(self, path: Path) -> None:
        await _ranks(self.group.export, path)

    async def stop(self) -> None:
        await asyncio.to_thread(self.group.stop)

    def kill(self) -> None:
        self._ended = True
        self.group.kill()
        self.release()


@contextmanager
def _creation_of(name: str) -> Iterator[None]:
    """`Failed` with the member's name for what Ray or the system says against its creation."""
    try:
        yield
    except (RayError, RuntimeError, OSError) as error:
        raise Failed(f"{name} could not be created: {error}", error) from error


@contextmanager
def _given_back_on_error(place: Reservation) -> Iterator[None]:
    """Gives the place of a party back that could not be created: nobody else knows of it."""
    try:
        yield
    except BaseException:
        place.release()
        raise


async def _ranks(method: Callable[..., T], *arguments: Any) -> T:
    """Makes a blocking call to all ranks in a thread; `Died` or `Failed` with the rank's name if the group is lost."""
    try:
        return await asyncio.to_thread(method, *arguments)
    except RankLost as error:
        raise (Died(str(error)) if error.died else Failed(str(error), error.__cause__ or error)) from error


async def _death(rank: str, life: Any) -> None:
    """Waits for the end of a rank's process; raises `Died` with the rank's name."""
    try:
        await life
    except DEAD as error:
        raise Died(f"learner rank {rank} died: {cause_of_death(error)}") from error


class RayPayloads:
    """The groups' rows, packed, in Ray's object store."""

    def put(self, table: pa.Table) -> Payload:
        """Puts a group's rows into the object store."""
        return ray.put(packed(table))

    async def fetch(self, payloads: list[Payload], timeout_s: float) -> list[pa.Table]:
        """Fetches groups' rows, in a thread, because `ray.get` blocks; Failed if they were lost with their node."""
        try:
            rows = await asyncio.to_thread(ray.get, payloads, timeout=timeout_s)
        except GetTimeoutError:
            raise
        except RayError as error:
            raise Failed(str(error), error) from error
        return [unpacked(one) for one in rows]
