"""In-process actors that drive the real loop: players, workers, filter, learner, scorer, archive, rows.

The loop reaches them through the real clients (`cluster.control.client`), on `tests.fakes.transport` in Ray's place:
each row of `cluster.control.calls` calls the method of its name here, as the shell does in an actor's process.

They do no work, but keep what the loop must preserve: a group is stamped with the versions that its worker held, a
worker never gets an older version than it has, nor two sets of weights under one version, the filter is the real
window. The learner's weights are the list of the updates that made them, so that it can tell how often it trained on a
ticket, how stale a group is, and whether weights that it does not descend from sampled it. `World.faults` says which
call of which actor dies, hangs, fails or refuses; `World.pace` says how long calls take, in virtual seconds
(`tests.fakes.clock`).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from squelch.actors.filter.service import FilterService
from squelch.actors.messages import (
    GroupMember,
    Imitation,
    StepReport,
    StepTerms,
    TransferRefused,
    UpdateReport,
    WeightBundle,
)
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import Died, Failed, Refused
from squelch.cluster.control.client import Client
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.control.scaling import Answer, Kind, Request, packed
from squelch.kit.base.disk import partial_path
from squelch.kit.process.progress_marks import Progress
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Cluster, Group, GroupSummary, Ticket, Trajectory, Turn, summarise
from squelch.learner import network
from squelch.learner.batching import Row
from squelch.learner.decomposition.statistics import Decomposition
from squelch.learner.network import LOOPBACK, RankProcess
from tests.fakes.transport import NODE, Handle, client, learner_client

NEVER_S = 1e9


@dataclass(frozen=True)
class Fault:
    """What befalls the `call`-th call (from 1) of one kind, e.g. `player.play`, counted over all actors of that kind.

    `what`: `die` (the process is gone, before or after the work as `after` says), `hang` (no answer, ever; a learner
    does not tell its progress either), `stall` (as `hang`, but its processes answer), `fail` (RuntimeError), `fill`
    (as `fail`, with figures of its own), `refuse` (ValueError), `lose` (a player's group whose worker died).
    """

    kind: str
    call: int
    what: str = "die"
    after: bool = False


@dataclass
class World:
    """What all actors of a test share: pace, faults, and what was called."""

    config: RunConfig
    faults: tuple[Fault, ...] = ()
    pace: Callable[[str], float] = lambda kind: 1.0
    rewards: Callable[[Ticket, int], float] | None = None
    calls: Counter[str] = field(default_factory=Counter)
    on_call: Callable[[str, int], None] | None = None
    """Told of every call before it is made, with its number among all calls."""
    trained: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Times that each (task seed, ticket id) was trained on, in the history that the newest learner descends from."""
    staleness: list[int] = field(default_factory=list)
    versions: dict[int, list[str]] = field(default_factory=dict)
    """The weights of each version that workers got."""
    reported: dict[int, list[str]] = field(default_factory=dict)
    """Tickets of each step whose update was reported to the loop."""
    terms: dict[int, StepTerms] = field(default_factory=dict)
    """The terms of each step's loss; a step that is trained on again has the same."""
    room: Callable[[int], int] = lambda made: 99
    """Number of learner ranks that fit, by the number of learners made so far."""
    drifts: bool = False
    """Whether a learner makes other weights than its predecessor from the same groups."""
    probed: dict[int, list[str]] = field(default_factory=dict)
    """Tasks of each evaluation of the fixed probe, by the step after which it was read."""
    clusters: dict[int, list[str]] = field(default_factory=dict)
    """The tasks of each of these evaluations that came with a cluster of hard negatives."""
    failing: Callable[[Ticket], Failure | None] = lambda ticket: None
    """Why all trajectories of a ticket fail, if they do."""
    evaluated: list[int] = field(default_factory=list)
    """Tasks of each batch of a validation that was begun."""
    evaluating: int = 0
    """Batches of a validation that are played now."""
    evaluating_most: int = 0
    broken: frozenset[str] = frozenset()
    """Environment actors that raise whenever they are to play a batch of a validation."""
    requests: list[Request] = field(default_factory=list)
    """Requests that wait at the endpoint."""
    answers: list[Answer] = field(default_factory=list)
    lacks: Callable[[Mapping[Kind, int]], str | None] = lambda counts: None
    """What the cluster lacks for these numbers of members."""
    draining: dict[str, float] = field(default_factory=dict)
    """Seconds until the nodes of these members are taken away; a new member is on another node."""
    lost_rows: set[str] = field(default_factory=set)
    """Tickets whose rows the object store has lost, until they are retried. Rows that the driver put there are
    on its own host and are never lost."""
    driver_rows: list[Group] = field(default_factory=list)
    """The rows that the driver put into the object store."""
    groups: defaultdict[int, set[Fake]] = field(default_factory=lambda: defaultdict(set))
    """The members of each weight group, by its number."""
    resumed: list[bool] = field(default_factory=list)
    """Of each learner that was started, whether it left the weights to a checkpoint."""
    broadcast: Counter[str] = field(default_factory=Counter)
    """Versions that each worker received in a weight group."""
    mark_s: float = 1.0
    """Seconds between two micro-batches."""
    refuse_updates: frozenset[int] = frozenset()
    """Steps whose update the learner refuses for non-finite values."""

    async def call(self, kind: str, actor: Fake, work: Callable[[], Any]) -> Any:
        """One call of an actor: takes its time, does its work, meets its fault."""
        actor.check_alive()
        self.calls[kind] += 1
        self.calls["all"] += 1
        if self.on_call is not None:
            self.on_call(kind, self.calls["all"])
        fault = next((f for f in self.faults if (f.kind, f.call) == (kind, self.calls[kind])), None)
        await actor.while_alive(asyncio.sleep(self.pace(kind)))
        if fault is None or (fault.what == "die" and fault.after):
            value = work()
        if fault is not None:
            await self._befall(fault, actor)
        return value

    def check_rows(self, groups: list[Any]) -> None:
        """Failed if rows of a group are lost."""
        own = {id(group) for group in self.driver_rows}
        played = [group.ticket.ticket_id for group in groups if isinstance(group, Group) and id(group) not in own]
        lost = [ticket_id for ticket_id in played if ticket_id in self.lost_rows]
        if lost:
            raise Failed(f"rows of {lost} are lost", RuntimeError("ObjectLostError"))

    async def _befall(self, fault: Fault, actor: Fake) -> None:
        if fault.what in ("hang", "stall"):
            actor.hangs, actor.frozen = True, fault.what == "hang"
            await actor.while_alive(asyncio.sleep(NEVER_S))
        if fault.what == "fail":
            raise Failed(f"{fault.kind} failed", RuntimeError(f"{fault.kind} failed"))
        if fault.what == "fill":
            raise Failed(f"{fault.kind} failed", RuntimeError(f"the memory ran out: {fault.call} GiB are free"))
        if fault.what == "load nothing":
            raise Failed(f"{fault.kind} failed", TransferRefused("no memory is left"))
        if fault.what == "refuse":
            raise Refused(f"{fault.kind} refused", ValueError(f"{fault.kind} refused"))
        actor.kill()
        actor.check_alive()


class Fake:
    """An actor that can die."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.hangs = self.frozen = False
        self.marks = 1
        self._dead = asyncio.Event()

    def kill(self) -> None:
        self._dead.set()

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    def check_alive(self) -> None:
        if not self.alive:
            raise Died(f"{self.name} is gone")

    async def while_alive(self, work: Any) -> None:
        """Awaits `work`; Died as soon as the actor is killed."""
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self._dead.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        self.check_alive()

    async def live(self) -> NoReturn:
        await self._dead.wait()
        raise Died(f"{self.name} is gone")

    async def progress(self) -> Progress:
        """Of a stalled actor: it answers and makes no marks."""
        self.check_alive()
        if self.frozen:
            await self.while_alive(asyncio.sleep(NEVER_S))
        self.marks += not self.hangs
        return Progress(self.marks, self.world.mark_s)

    async def _call(self, method: str, work: Callable[[], Any] = lambda: None) -> Any:
        return await self.world.call(f"{type(self).__name__.lower()}.{method}", self, work)


class Player(Fake):
    """An environment actor: plays a ticket on its worker in one call."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.workers: dict[str, Worker] = {}

    async def ready(self) -> object:
        return await self._call("ready")

    async def set_workers(self, handles: Mapping[str, Handle]) -> None:
        workers = {name: handle.actor for name, handle in handles.items()}
        await self._call("set_workers", lambda: self.workers.update(workers))

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, Any]:
        worker = self.workers.get(ticket.worker)
        began = version_of(worker)
        group = await self._call("play", lambda: self._group(ticket, began, version_of(worker)))
        return summarise(group), group

    async def evaluate(self, tickets: list[Ticket]) -> tuple[list[GroupSummary], Any]:
        workers = [self.workers.get(ticket.worker) for ticket in tickets]
        began = [version_of(worker) for worker in workers]
        self.world.evaluated.append(len(tickets))
        self.world.evaluating += 1
        self.world.evaluating_most = max(self.world.evaluating_most, self.world.evaluating)
        try:
            if self.name in self.world.broken:
                raise Failed(f"{self.name} is broken", RuntimeError("broken"))
            groups = await self._call(
                "evaluate",
                lambda: [self._group(t, b, version_of(w)) for t, b, w in zip(tickets, began, workers, strict=True)],
            )
        finally:
            self.world.evaluating -= 1
        return [summarise(group) for group in groups], None

    async def clusters(self, tickets: list[Ticket]) -> dict[str, Cluster]:
        ids = [np.array([place], np.int32) for place in range(3)]
        return await self._call("clusters", lambda: {t.ticket_id: Cluster(ids[0], tuple(ids[1:])) for t in tickets})

    async def take_spans(self) -> list[Any]:
        return []

    def _group(self, ticket: Ticket, began: int | None, ended: int | None) -> Group:
        """The ticket's trajectories, sampled from the version at the beginning through the one at the end, None where
        the worker could not be reached."""
        self.world.lost_rows.discard(ticket.ticket_id)
        if failure := self.world.failing(ticket):
            return Group(ticket, "", [failed(i, failure) for i in range(ticket.group_size)])
        reward = self.world.rewards or default_reward
        if began is None or ended is None or (began != ended and not self.world.config.loop.max_staleness):
            early = ticket.group_size // 2 if began is not None and ended is None else 0  # ended before the worker did
            members = [played(i, reward(ticket, i), began or 0, began or 0) for i in range(early)]
            gone = Failure(FailureCause.GENERATION_ERROR, "gone")
            members += [failed(i, gone) for i in range(early, ticket.group_size)]
            return Group(ticket, f"task-{ticket.task.seed}" if early else "", members)
        assert began >= 0, f"{ticket.worker} was given {ticket.ticket_id} before it held any version"
        members = [played(i, reward(ticket, i), began, ended) for i in range(ticket.group_size)]
        return Group(ticket, f"task-{ticket.task.seed}", members)


def version_of(worker: Worker | None) -> int | None:
    """The version that the worker samples from; None where it cannot be reached."""
    return worker.version if worker is not None and worker.alive else None


def default_reward(ticket: Ticket, index: int) -> float:
    """0 or 1 by a coin whose bias differs between tasks, so that some groups have no variance."""
    coin = random.Random(f"{ticket.task.split}/{ticket.task.seed}")
    bias = coin.choice([0.0, 0.3, 0.5, 1.0])
    return float(random.Random(f"{ticket.task.seed}/{index}").random() < bias)


def played(index: int, reward: float, oldest: int, newest: int) -> Trajectory:
    """A trajectory of two tokens, the second sampled."""
    turn = Turn(1, 2, 1, 1, reward, 0.0, True, False, 1, oldest, newest)
    tokens = np.array([1, 2], np.int32), np.array([False, True]), np.array([0.0, -0.5], np.float32)
    return Trajectory(index, *tokens, [turn], reward > 0, False)


def failed(index: int, failure: Failure) -> Trajectory:
    """A trajectory without tokens."""
    empty = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32)
    return Trajectory(index, *empty, [], False, False, failure)


class Worker(Fake):
    """A rollout worker: holds a version, -1 before its first."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.version = -1

    async def ready(self) -> object:
        return await self._call("ready")

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        assert bundle.version >= self.version, f"{self.name} got {bundle.version} after {self.version}"
        if bundle.chunks:
            (owner, weights) = bundle.chunks
            known = self.world.versions.setdefault(bundle.version, weights)
            assert known == weights, f"version {bundle.version} stands for {known} and for {weights}"

        def load() -> UpdateReport:
            if bundle.chunks and not owner.alive:
                raise Failed("the owner of the weights is gone", RuntimeError("OwnerDiedError"))
            self.version = bundle.version
            return UpdateReport(self.name, bundle.version, bundle.checksum, 0.0, 0.0, 0.0, 0.0, 0.0)

        return await self._call("update", load)

    async def join_group(self, member: GroupMember) -> None:
        await self._call("join_group", lambda: self.world.groups[member.number].add(self))

    async def receive_weights(self, bundle: WeightBundle) -> UpdateReport:
        sender, _ = bundle.chunks
        if self not in self.world.groups[sender.member.number]:
            raise Failed(f"{self.name} is in no weight group", RuntimeError("in no weight group"))
        self.world.broadcast[self.name] += 1
        return await self.update_weights(bundle)

    async def health(self, timeout_s: float) -> object:
        return await self._call("health")

    async def take_spans(self) -> list[Any]:
        return []

    async def stop(self) -> object:
        return None


class Endpoint(Fake):
    """Hands out the world's requests and keeps the answers."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "endpoint")

    async def take(self, timeout_s: float) -> list[tuple[int, dict[str, Any]]]:
        until = asyncio.get_running_loop().time() + timeout_s
        while not self.world.requests and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(1.0)
        taken, self.world.requests = self.world.requests, []
        data = [packed(request) for request in taken]
        return await self._call("take", lambda: list(enumerate(data, start=len(self.world.answers))))

    async def answer(self, number: int, answer: Mapping[str, Any]) -> None:
        await self._call("answer", lambda: self.world.answers.append(Answer(**answer)))


class Filter(Fake):
    """The filter's own service; its state passes through JSON."""

    def __init__(self, world: World, name: str = "filter") -> None:
        super().__init__(world, name)
        self.service = FilterService(world.config.filter)

    async def admit(self, summaries: list[GroupSummary]) -> object:
        return await self._call("admit", lambda: self.service.admit(summaries))

    async def close(self, step: int, final: bool, target: int) -> Any:
        decision, state = await self._call("close", lambda: self.service.close(step, final, target))
        return decision, json.loads(json.dumps(state))

    async def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        return json.loads(json.dumps(await self._call("state", lambda: self.service.state(steps))))

    async def restore(self, state: dict[str, Any]) -> object:
        return await self._call("restore", lambda: self.service.restore(state))


class Scorer(Fake):
    """A scorer without metrics."""

    async def score(
        self, step: int, bundle: WeightBundle, payloads: list[Any], replaces: bool
    ) -> tuple[dict[str, float], dict[str, Any], Any]:
        return await self._call("score", lambda: ({"scorer/version": float(bundle.version)}, {}, None))

    async def probe(
        self, step: int, bundle: WeightBundle, payloads: list[Any], clusters: Mapping[str, Cluster]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        played = [group for group in payloads if isinstance(group, Group)]
        turns = [turn for group in played for t in group.trajectories if not t.failure for turn in t.turns]
        versions = {version for turn in turns for version in (turn.version_min, turn.version_max)}
        assert versions <= {bundle.version}, f"the probe of step {step} was sampled by {versions}"
        self.world.probed[step] = [group.ticket.ticket_id for group in played]
        self.world.clusters[step] = sorted(clusters)
        return await self._call(
            "probe", lambda: ({"probe/step": float(step), "probe/version": float(bundle.version)}, {})
        )

    async def state(self) -> dict[str, Any]:
        return await self._call("state", dict)

    async def restore(self, state: dict[str, Any]) -> object:
        return await self._call("restore")


class Learner(Fake):
    """The learner, all ranks in one (`RankHandle`). `weights`: the updates since the model, each named by step, number
    of ranks and, where learners drift, learner."""

    def __init__(self, world: World, ranks: int, number: int) -> None:
        super().__init__(world, "learner")
        self.ranks = ranks
        self.mark = f"@{ranks}" + (f"#{number}" if world.drifts else "")
        self.weights: list[str] = []
        self.member: GroupMember | None = None
        self.trained: Counter[tuple[int, str]] = Counter()
        self._began: float | None = None
        self._marks = 0
        self.collective: asyncio.Future[Any] | None = None
        """The call that the ranks make together now."""

    async def identify(self) -> RankProcess:
        return RankProcess(NODE, LOOPBACK, 0)

    async def open_endpoint(self, one_node: bool) -> network.Endpoint:
        return network.Endpoint(LOOPBACK, 1, 2)

    async def unreachable(self, endpoints: Sequence[network.Endpoint]) -> dict[int, str]:
        return {}

    async def start(self, endpoints: Sequence[network.Endpoint], resumes: bool = False) -> None:
        def forget() -> None:
            self.world.trained = self.trained
            self.world.resumed.append(resumes)
            self.weights = ["not loaded yet"] if resumes else []

        await self._call("start", forget)

    async def progress(self) -> Progress:
        self.check_alive()
        if self.frozen:
            await self.while_alive(asyncio.sleep(NEVER_S))
        marks = self._marks + self._passes()
        return Progress(marks, self.world.mark_s if marks else 0.0)

    def _passes(self) -> int:
        """Micro-batches of the call under way."""
        if self._began is None or self.hangs:
            return 0
        return int((asyncio.get_running_loop().time() - self._began) / self.world.mark_s)

    async def train_step(self, step: int, payloads: list[Group], ids: list[str], terms: StepTerms) -> StepReport:
        assert self.world.terms.setdefault(step, terms) == terms
        self._began = asyncio.get_running_loop().time()
        report = await self._call("train", lambda: self._trained(step, payloads, ids, terms))
        self._marks, self._began = self._marks + self._passes() + 1, None
        if report.updated:
            self.world.reported[step] = ids
        return report

    def _trained(self, step: int, groups: list[Group], ids: list[str], terms: StepTerms) -> StepReport:
        self.world.check_rows(groups)
        assert [group.ticket.ticket_id for group in groups] == ids and len(set(ids)) == len(ids) > 0
        assert loss_count(groups) > 0
        if step in self.world.refuse_updates:
            return StepReport(step, False, 0, 0, 0, refused=f"non-finite loss in group {ids[0]}")
        if step in self.world.reported:
            assert ids == self.world.reported[step], "a step is trained on again with the same groups"
        else:
            self.world.staleness += [self._staleness(group) for group in groups]
        for group in (group for group in groups if group.ticket.ticket_id not in terms.spared):
            self.trained[group.ticket.task.seed, group.ticket.ticket_id] += 1
        self.weights = [*self.weights, f"{step}{self.mark}"]
        return StepReport(step, True, 1, loss_count(groups), loss_count(groups))

    def _staleness(self, group: Group) -> int:
        """Updates since the oldest weights that sampled the group; all of them must be ancestors of these."""
        turns = [turn for t in group.trajectories if not t.failure for turn in t.turns]
        sampled = {version for turn in turns for version in range(turn.version_min, turn.version_max + 1)}
        for version in sampled:
            weights = self.world.versions[version]
            lost = f"{group.ticket.ticket_id} was sampled from lost weights: version {version}, {weights}"
            assert weights == self.weights[: len(weights)], f"{lost}; the learner holds {self.weights}"
        return len(self.weights) - len(self.world.versions[min(sampled)])

    async def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        def learn() -> Imitation:
            self.weights = [*self.weights, f"{step}:{'+'.join(row.group_id for row in rows)}"]
            return Imitation(1 / step, sum(row.num_sampled for row in rows), 1.0)

        return await self._call("imitate", learn)

    async def imitation_loss(self, rows: Sequence[Row]) -> float:
        return await self._call("imitation_loss", lambda: 1 / (1 + len(self.weights)))

    async def decompose(self, payloads: list[Group], ids: list[str]) -> Decomposition:
        return await self._call("decompose", lambda: Decomposition((), ()))

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        def gather() -> WeightBundle:
            probe = np.zeros(1, np.int32), np.zeros(0, np.float32)
            return WeightBundle(version, (self, self.weights), "|".join(self.weights), *probe)

        return await self._call("publish", gather)

    async def open_group(self) -> tuple[str, int]:
        return await self._call("open_group", lambda: ("127.0.0.1", 1))

    async def join_group(self, member: GroupMember) -> str | None:
        async def form() -> None:
            self.member, members = member, self.world.groups[member.number]
            members.add(self)
            while len(members) < member.size:
                await asyncio.sleep(1.0)

        self.check_alive()
        try:
            await asyncio.wait_for(self.while_alive(form()), member.timeout_s)
        except TimeoutError:
            return "the others did not come"
        return None

    async def send(self, dtype: str) -> str | None:
        gone = [one.name for one in self.world.groups[self.member.number] if not one.alive]
        return await self._call("send", lambda: f"{gone} are gone" if gone else None)

    async def write(self, path: Path, loop: Mapping[str, Any]) -> dict[str, float]:
        return await self.save(partial_path(path), loop)

    async def save(self, path: Path, loop: Mapping[str, Any]) -> dict[str, float]:
        def write() -> dict[str, float]:
            path.mkdir(parents=True, exist_ok=True)
            trained = [[*key, count] for key, count in self.trained.items()]
            (path / "learner.json").write_text(json.dumps({"weights": self.weights, "trained": trained}))
            (path / "loop.json").write_text(json.dumps(loop))
            return {"shards": 1.0}

        return await self._call("save", write)

    async def load(self, path: Path) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            data = json.loads((path / "learner.json").read_text())
            self.weights = data["weights"]
            self.trained.update({(seed, ticket): count for seed, ticket, count in data["trained"]})
            return json.loads((path / "loop.json").read_text())

        return await self._call("load", read)

    async def export(self, path: Path) -> None:
        def write() -> None:
            path.mkdir(parents=True)
            (path / "model.txt").write_text("\n".join(self.weights))

        await self._call("export", write)

    async def stop(self) -> None:
        return None


def loss_count(groups: list[Group]) -> int:
    """Trajectories that a step learns from."""
    return sum(not t.failure for group in groups for t in group.trajectories)


class Rows:
    """Payloads are the groups themselves, or copies of them that the driver put."""

    def __init__(self, world: World) -> None:
        self.world = world

    def put(self, table: Any) -> Any:
        if not isinstance(table, Group):
            return table
        self.world.driver_rows.append(replace(table))
        return self.world.driver_rows[-1]

    async def fetch(self, payloads: list[Any], timeout_s: float) -> list[Any]:
        if self.world.on_call is not None:
            self.world.on_call("rows.fetch", self.world.calls["all"])
        await asyncio.sleep(self.world.pace("rows.fetch"))
        self.world.check_rows(payloads)
        return payloads


class FakeActors:
    """Creates fakes; `made` counts them by kind. `asks`: whether an autoscaler is asked for nodes."""

    asks = False

    def __init__(self, world: World) -> None:
        self.world, self.payloads, self.made = world, Rows(world), Counter[str]()

    def player(self, name: str) -> Client:
        self.made["player"] += 1
        self.world.draining.pop(name, None)
        return self._client(Player(self.world, name))

    def worker(self, name: str) -> Client:
        self.made["worker"] += 1
        self.world.draining.pop(name, None)
        return self._client(Worker(self.world, name))

    def filter(self) -> Client:
        self.made["filter"] += 1
        return self._client(Filter(self.world))

    def scorer(self) -> Client:
        self.made["scorer"] += 1
        return self._client(Scorer(self.world, "scorer"))

    def learner(self, ranks: int) -> LearnerClient:
        self.made["learner"] += 1
        self.world.draining.pop("learner", None)
        learner = Learner(self.world, ranks, self.made["learner"])
        return learner_client(learner, ranks, self.world.config)

    def _client(self, actor: Fake) -> Client:
        return client(actor, self.world.config)

    def control_endpoint(self) -> Client:
        self.made["endpoint"] += 1
        return self._client(Endpoint(self.world))

    async def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        self.asks = True
        return self.world.lacks(counts)

    async def end_node_request(self) -> None:
        self.asks = False

    async def leaving(self) -> Mapping[str, float]:
        return self.world.draining

    async def ranks_that_fit(self) -> int:
        return min(self.world.config.learner.ranks, self.world.room(self.made["learner"]))

    def free_resources(self) -> str:
        return "free in the cluster: 1 of 8 CPU"


@dataclass
class FakeArchive:
    """Rows by step, as decided; the lines of `metrics.jsonl`; the spans. Survives a stop, as a folder does."""

    steps: dict[int, dict[str, str]] = field(default_factory=dict)
    """Decision by ticket, by step."""
    recorded: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    """What each event says beside actor, name and time."""
    rows: dict[str, Any] = field(default_factory=dict)
    """The group of each ticket as it was written last."""
    scored_alone: list[dict[str, Any]] = field(default_factory=list)
    """The lines of `metrics.jsonl` that hold a scorer step and no step."""
    scored: list[int] = field(default_factory=list)
    """The steps whose score matrices were written."""

    def write_groups(self, step: int, tables: list[Any], decisions: Mapping[str, Any], filter_text: str = "") -> None:
        assert filter_text
        self.steps[step] = {name: decision.decision for name, decision in decisions.items()}
        assert len(tables) == len(decisions)
        self.rows |= {group.ticket.ticket_id: group for group in tables if isinstance(group, Group)}

    def write_scores(self, step: int, table: Any) -> None:
        self.scored.append(step)

    def groups(self, step: int, ids: list[str]) -> list[Any]:
        assert set(ids) <= set(self.steps[step])
        return [self.rows[ticket_id] for ticket_id in ids]

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        assert step not in self.recorded, f"step {step} was recorded twice"
        if step > 0 and "seconds/step" not in values:
            self.scored_alone.append({"step": step, **values})
        else:
            self.recorded[step] = dict(values)

    def event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        assert end >= start
        self.events.append((actor, name))
        self.facts.append(facts)

    def causes(self, actor: str) -> dict[str, str]:
        """The cause in the last event of each name about this actor."""
        about = zip(self.events, self.facts, strict=True)
        return {name: facts["cause"] for (who, name), facts in about if who == actor and "cause" in facts}

    def truncate_after(self, step: int) -> None:
        """What a resumed run makes again is forgotten."""
        self.steps = {s: rows for s, rows in self.steps.items() if s <= step}
        self.recorded = {s: row for s, row in self.recorded.items() if s <= step}
        self.scored_alone = [line for line in self.scored_alone if line["step"] <= step]
