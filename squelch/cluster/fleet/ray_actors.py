"""The actors of a run on Ray: creates them with their resources on their nodes (`cluster.fleet.placement`), with the
folders that they need (`actors.process.shipping`), and converts Ray's errors to the loop's.

This is the only module of the fleet that uses Ray's actor handles. The coordinator gets clients
(`cluster.control.client`), which make and bound every call; each actor is a shell (`actors.process.shell`) that imports
in its own process the class that its table of calls names (`cluster.control.calls`).
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from squelch.actors.node_labels import admits
from squelch.actors.process.allocator import ALLOCATOR
from squelch.actors.process.log import log_variable
from squelch.actors.process.ray_errors import DEAD, cause_of_death
from squelch.actors.process.shell import asynchronous, threaded
from squelch.actors.process.shipping import EVERYTHING, MODEL_FILES, Folder, offer, own_node
from squelch.cluster.config import RunConfig
from squelch.cluster.control import calls
from squelch.cluster.control.actor_errors import ActorError, Died, Failed, Refused
from squelch.cluster.control.calls import Payload
from squelch.cluster.control.client import Client, Handle, nothing
from squelch.cluster.control.rank_client import LEARNER, LearnerClient
from squelch.cluster.control.scaling import Kind
from squelch.cluster.fleet import control_endpoint
from squelch.cluster.fleet.demand import ROUNDING
from squelch.cluster.fleet.placement import Placement, Reservation, alive_nodes, may_grow
from squelch.cluster.fleet.ray_internals import actors, state
from squelch.envs.registry import plays_whole_turns
from squelch.envs.retrieval.index import opened
from squelch.kit.archive.rows import packed, unpacked
from squelch.learner.process_environment import ENVIRONMENT

T = TypeVar("T")
CALLERS = {"max_concurrency": 1000}
"""Ray's option of an actor whose calls run at the same time."""
LOADED = ("*", "sharded/**/*")
"""The files of a checkpoint that a rank loads; the export is not among them."""


class RayActors:
    """Creates every actor of a run as Ray actors with the resources of its configuration. Each actor's output goes to
    its own file in the folder `logs`."""

    def __init__(self, config: RunConfig, model_dir: Path, logs: Path) -> None:
        self.config, self.model_dir, self.logs = config, model_dir, logs
        self.payloads, self.transport = RayPayloads(), RayTransport()
        self.placement = Placement(config)
        self._offers: dict[Path, Folder] = {}
        self._members: dict[str, Handle] = {}
        """The newest rollout worker or environment actor of each name."""
        self._learner: LearnerClient | None = None
        self._endpoints = count()
        self._creating = threading.Lock()
        """Members are created in threads, one at a time."""

    def _offer(self, path: Path, patterns: Sequence[str]) -> Folder:
        """The folder for an actor on any node. It is put into the object store once the cluster has another node."""
        offered = self._offers.get(path)
        if offered is None or not offered.entries:
            several = len(alive_nodes()) > 1 or may_grow(self.config)
            offered = self._offers[path] = offer(path, patterns, ship=several)
        return offered

    def _model(self) -> Folder:
        return self._offer(self.model_dir, MODEL_FILES)

    def free_resources(self) -> str:
        """The free resources of the cluster, for the message about a late actor."""
        return self.placement.free_resources()

    def _process(self, name: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Ray's runtime environment for the process of the actor `name`."""
        return {"env_vars": {**(variables or {}), **log_variable(self.logs, name)}}

    def player(self, name: str) -> Client:
        """An environment actor."""
        return self._member(name, self._player)

    def worker(self, name: str) -> Client:
        """A rollout worker."""
        return self._member(name, self._worker)

    def _member(self, name: str, create: Callable[[str], Client]) -> Client:
        """Creates a rollout worker or environment actor; `Failed` with its name for what Ray or the system says."""
        try:
            with self._creating:
                client = create(name)
        except (RayError, RuntimeError, OSError) as error:
            raise Failed(f"{name} could not be created: {error}", error) from error
        self._members[name] = client.handle
        return client

    def _player(self, name: str) -> Client:
        config = self.config
        options = {"num_cpus": config.environment_actor.num_cpus, **CALLERS, **self.placement.player()}
        settings = (config.mixture, config.sampling, config.environment_actor, config.rollout.max_model_len)
        indices = [self._offer(folder, EVERYTHING) for folder in opened()]
        actor = self._created(name, calls.ENVIRONMENT_ACTOR, asynchronous, options)
        return self._client(actor.remote(name, self._model(), *settings, indices))

    def _worker(self, name: str) -> Client:
        chosen = {"weight_transfer": self.config.way.name}  # a worker does not know what the learner has
        rollout, place = self.config.rollout.model_copy(update=chosen), self.placement.worker(name)
        options = {"num_cpus": rollout.num_cpus, "num_gpus": rollout.num_gpus, **CALLERS, **place.options[0]}
        with _given_back_on_error(place):
            actor = self._created(name, calls.ROLLOUT_WORKER, asynchronous, options)
            return self._client(actor.remote(name, self._model(), rollout), place.release)

    def filter(self) -> Client:
        """The filter service, which needs no CPU of its own."""
        options = {"num_cpus": 0, **self.placement.service()}
        return self._client(self._created("filter", calls.FILTER_SERVICE, threaded, options).remote(self.config.filter))

    def scorer(self) -> Client:
        """The scorer."""
        config, scorer = self.config, self.config.scorer
        options = {"num_cpus": scorer.num_cpus, "num_gpus": scorer.num_gpus, **self.placement.scorer()}
        actor = self._created("scorer", calls.SCORER, threaded, options, ALLOCATOR)
        settings = (scorer, config.sampling.temperature, config.seed, config.loop.max_staleness)
        fixed = self._offer(Path(scorer.model), MODEL_FILES) if scorer.model is not None else None
        whole = plays_whole_turns(config.scored.environment)
        return self._client(actor.remote(self._model(), *settings, config.learner.kernels, fixed, whole))

    def learner(self, ranks: int) -> LearnerClient:
        """The learner's ranks. Each writes its output to a file of its own."""
        config, place = self.config, self.placement.learner(ranks)
        learner = config.learner.model_copy(update={"ranks": ranks})
        variables = {**ENVIRONMENT, "OMP_NUM_THREADS": str(learner.num_threads)}
        resources = {"num_cpus": learner.num_cpus, "num_gpus": learner.num_gpus}
        settings = (learner, config.seed, config.sampling.temperature, config.way.name)
        with _given_back_on_error(place):
            model, handles = self._model(), list[Handle]()
            for rank, options in enumerate(place.options):
                both = {**resources, **options}
                actor = self._created(f"learner-{rank}", calls.LEARNER_RANK, threaded, both, variables)
                handles.append(actor.remote(rank, model, *settings))
            self._learner = LearnerClient(handles, self.transport, config, place.release)
        return self._learner

    def control_endpoint(self) -> Client:
        """The control endpoint, under a name of this run, job and number: the name of one that hangs is taken."""
        job = f"{ray.get_runtime_context().get_job_id()}.{next(self._endpoints):04d}"
        namespace = f"{control_endpoint.namespace_of(self.config.run_dir)}/{job}"
        options = {"num_cpus": 0, **CALLERS, **self.placement.service()}
        named = options | {"name": control_endpoint.NAME, "namespace": namespace}
        return self._client(self._created("control-endpoint", calls.CONTROL_ENDPOINT, asynchronous, named).remote())

    def _created(
        self,
        name: str,
        table: calls.Table,
        shell: Callable[[str, str, Mapping[str, int]], Any],
        options: Mapping[str, Any],
        variables: Mapping[str, str] | None = None,
    ) -> Any:
        """The Ray actor class of a table with its resources, place and environment. Ray titles the process by the class
        that it holds; its output goes to the log of `name`. Its calls are no task events, of which gcs would keep
        100,000 with about 3 KiB each."""
        actor = shell(table.title, table.target, table.methods)
        return actor.options(runtime_env=self._process(name, variables), enable_task_events=False, **options)

    def _client(self, handle: Handle, release: Callable[[], None] = nothing) -> Client:
        return Client(handle, self.transport, self.config, release)

    async def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        """See `Actors`."""
        return await _query(self.placement.lacking, counts)

    async def end_node_request(self) -> None:
        """See `Actors`."""
        await _query(self.placement.end_node_request)

    async def leaving(self) -> Mapping[str, float]:
        """See `Actors`."""
        return await _query(_leaving, dict(self._members), self._rank_nodes())

    def _rank_nodes(self) -> list[str]:
        """Ids of the nodes of the learner's ranks; empty before they are up and after their end."""
        return self._learner.nodes if self._learner is not None else []

    async def ranks_that_fit(self) -> int:
        """See `Actors`. A rank needs its resources on one node, and the labels that its selector asks for."""
        learner = self.config.learner
        free = await _query(_free, learner.label_selector)
        needs = {kind: need for kind, need in (("CPU", learner.num_cpus), ("GPU", learner.num_gpus)) if need > 0}
        up = sum(node in free for node in self._rank_nodes())
        fit = (
            min(((has.get(kind, 0.0) + ROUNDING) // need for kind, need in needs.items()), default=math.inf)
            for has in free.values()
        )
        return int(min(learner.ranks, up + sum(fit)))


async def _query(question: Callable[..., T], *arguments: Any) -> T:
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


class RayTransport:
    """Ray's actor handles for the clients (`cluster.control.client.Transport`)."""

    def failure(self, error: BaseException) -> ActorError | None:
        """`Died` if the actor's process is gone, `Refused` if the actor raised a ValueError, `Failed` if it raised
        another error, or Ray did; None if the error is not Ray's."""
        if isinstance(error, DEAD):
            return Died(cause_of_death(error))
        if isinstance(error, RayTaskError):
            kind = Refused if isinstance(error.cause, ValueError) else Failed
            return kind(str(error), error.cause)
        return Failed(str(error), error) if isinstance(error, RayError) else None

    def result(self, reference: Any) -> Any:
        """The reference itself: Ray keeps the result until it is released."""
        return reference

    def cancel(self, call: Any) -> None:
        """Cancels a call in its actor."""
        ray.cancel(call, force=False)

    def kill(self, handle: Handle) -> None:
        """Ends an actor at once."""
        ray.kill(handle)

    def own_node(self) -> tuple[str, str]:
        """The id and address of this process's node."""
        return own_node()

    def offer(self, folder: Path) -> Folder:
        """A checkpoint of this disk, without its export, in the object store."""
        return offer(folder, LOADED, outlined=True)


@contextmanager
def _given_back_on_error(place: Reservation) -> Iterator[None]:
    """Releases the resources reserved for an actor that could not be created: nobody else knows of them."""
    try:
        yield
    except BaseException:
        place.release()
        raise


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
