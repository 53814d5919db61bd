"""Ray's errors as the loop's, and the resources that actors ask Ray for; no cluster is started."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError, RaySystemError, RayTaskError

from squelch.cluster.config import load
from squelch.cluster.control.actor_errors import ActorError, Died, Failed, Refused
from squelch.cluster.control.calls import FILTER_SERVICE, READY, UPDATE_WEIGHTS
from squelch.cluster.control.client import Client
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.fleet import ray_actors
from squelch.cluster.fleet.ray_actors import RayActors, RayTransport
from squelch.learner.network import RankProcess


class Raising:
    """The handle of an actor whose calls raise this error, or never end."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def __getattr__(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(remote=self._call)

    def _call(self, *_: Any) -> asyncio.Future[None]:
        call = asyncio.get_running_loop().create_future()
        if self.error is not None:
            call.set_exception(self.error)
        return call


def asked(error: BaseException | None, *words: str) -> None:
    async def ask() -> None:
        await Client(Raising(error), RayTransport(), load("frozenlake", list(words))).call(READY)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RayActorError(), Died),
        (OutOfMemoryError("ended by the memory monitor"), Died),
        (RayTaskError("close", "trace", KeyError("x")).as_instanceof_cause(), Failed),
        (RayTaskError("close", "trace", ValueError("rho")).as_instanceof_cause(), Refused),
        (RaySystemError("no raylet"), Failed),
    ],
)
def test_each_error_of_ray_is_one_of_the_loops(error: Exception, kind: type[ActorError]) -> None:
    with pytest.raises(ActorError) as found:
        asked(error)
    assert type(found.value) is kind


@pytest.mark.parametrize("error", [RaySystemError("no raylet"), ConnectionError("no head"), RuntimeError("gone")])
@pytest.mark.parametrize("what", ["player", "worker"])
def test_a_member_that_ray_cannot_create_is_a_failure_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    actors = RayActors(load("frozenlake"), tmp_path, tmp_path)

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(actors, f"_{what}", fail)
    with pytest.raises(Failed, match=f"new-7 could not be created: .*{str(error).split()[0]}"):
        getattr(actors, what)("new-7")


def test_a_refusal_gives_its_reason_without_the_trace() -> None:
    error = RayTaskError(
        "close", "Traceback\n  File far.py", ValueError("first\nfilter.rho is 2")
    ).as_instanceof_cause()
    with pytest.raises(Refused) as found:
        asked(error)
    assert found.value.reason == "filter.rho is 2"


def test_a_call_that_is_given_up_is_cancelled_in_its_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[bool] = []
    monkeypatch.setattr("ray.cancel", lambda ref, force: cancelled.append(force))

    async def give_up() -> None:
        worker = Client(Raising(None), RayTransport(), load("frozenlake", ["rollout.update_timeout_s=0.01"]))
        monkeypatch.setattr("squelch.cluster.control.client.GRACE_S", 0.01)
        with pytest.raises(TimeoutError, match=r"^no answer within 0\.01 s \(rollout\.update_timeout_s\)$"):
            await worker.call(UPDATE_WEIGHTS, None)

    asyncio.run(give_up())
    assert cancelled == [False]


def test_as_many_ranks_fit_as_all_of_their_resources_allow_and_no_more_than_wanted(monkeypatch) -> None:
    words = ["learner.ranks=4", "learner.num_cpus=2", "learner.num_gpus=1"]
    actors = RayActors(load("frozenlake", words), Path("policy"), Path("log"))
    rooms = []
    draining = {"leaves": 0}
    monkeypatch.setattr("ray.nodes", lambda: [{"NodeID": id, "Labels": {}} for id in ("stays", "narrow", "leaves")])
    monkeypatch.setattr(ray_actors.state, "get_draining_nodes", lambda: draining)
    for free in ({"CPU": 16.0, "GPU": 9.0}, {"CPU": 5.0, "GPU": 9.0}, {"CPU": 16.0, "GPU": 1.0}, {"CPU": 16.0}):
        other = {"CPU": 1.0, "GPU": 9.0}  # a rank needs its resources on one node
        nodes = {"stays": free, "narrow": other, "leaves": {"CPU": 16.0, "GPU": 9.0}}
        monkeypatch.setattr(ray_actors.state, "available_resources_per_node", lambda nodes=nodes: nodes)
        rooms.append(asyncio.run(actors.ranks_that_fit()))
    assert rooms == [4, 2, 1, 0]
    actors._learner = LearnerClient([], RayTransport(), actors.config)
    actors._learner.processes = [RankProcess(node, "10.0.0.1", 0) for node in ("stays", "leaves")]
    assert asyncio.run(actors.ranks_that_fit()) == 1, "the place of the rank that is up on a node that stays"
    actors._learner.kill()
    assert asyncio.run(actors.ranks_that_fit()) == 0


def test_only_nodes_that_the_label_selector_admits_have_room_for_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["learner.ranks=4", "learner.num_cpus=0.1", "learner.label_selector={role: learner}"]
    actors = RayActors(load("frozenlake", words), Path("policy"), Path("log"))
    roles = {"a": "learner", "b": "rollouts", "c": "learner"}
    nodes = [{"NodeID": id, "Labels": {"role": role}} for id, role in roles.items()]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr(ray_actors.state, "get_draining_nodes", dict)
    free = {"a": {"CPU": 0.3}, "b": {"CPU": 64.0}, "c": {}}
    monkeypatch.setattr(ray_actors.state, "available_resources_per_node", lambda: free)
    assert asyncio.run(actors.ranks_that_fit()) == 3, "0.3 CPU hold three ranks of 0.1; 64 CPU elsewhere hold none"


def test_the_scorer_asks_ray_for_what_its_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def options(runtime_env: dict[str, Any], **options: Any) -> Any:
        assert "MALLOC_TRIM_THRESHOLD_" in runtime_env["env_vars"], "glibc reads it when the process starts"
        asked.append(options)
        return SimpleNamespace(remote=lambda model, *_: f"scorer of {model}")

    monkeypatch.setattr(ray_actors, "threaded", lambda *_: SimpleNamespace(options=options))
    monkeypatch.setattr(ray_actors, "offer", lambda path, patterns, ship: path)
    monkeypatch.setattr(ray_actors, "alive_nodes", lambda: [None])
    monkeypatch.setattr(ray_actors, "may_grow", lambda config: False)
    selector = "scorer.label_selector={role: score}"
    for overrides in ([selector], [selector, "scorer.num_gpus=0.5", "scorer.num_cpus=2"]):
        actors = RayActors(load("frozenlake", overrides), Path("policy"), Path("log"))
        assert actors.scorer().handle == "scorer of policy"
    where = {"label_selector": {"role": "score"}, "enable_task_events": False}
    assert asked == [{"num_cpus": 0.25, "num_gpus": 0.0, **where}, {"num_cpus": 2.0, "num_gpus": 0.5, **where}]


@pytest.mark.parametrize(("nodes", "autoscaler", "ships"), [(1, False, False), (2, False, True), (1, True, True)])
def test_a_folder_is_shipped_once_the_cluster_has_another_node_for_it(monkeypatch, nodes, autoscaler, ships) -> None:
    offered: list[bool] = []

    def offer(path: Path, patterns: Any, ship: bool) -> Any:
        offered.append(ship)
        return SimpleNamespace(entries=(1,) if ship else ())

    monkeypatch.setattr(ray_actors, "offer", offer)
    monkeypatch.setattr(ray_actors, "alive_nodes", lambda: [None] * nodes)
    config = load("frozenlake", [f"cluster.autoscaler={autoscaler}"])
    actors = RayActors(config, Path("policy"), Path("log"))
    actors._model(), actors._model()
    assert offered == [True] if ships else [False, False]


def test_members_on_a_node_that_drains_are_reported_with_the_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"a": "node-1", "b": "node-2", "c": "node-3"}
    found = {id: {"Address": {"NodeID": node}} for id, node in nodes.items()}
    monkeypatch.setattr(ray_actors, "actors", lambda id: found.get(id, {}))
    monkeypatch.setattr(ray_actors.state, "get_draining_nodes", lambda: {"node-1": 160_000, "node-2": 0})
    monkeypatch.setattr("time.time", lambda: 100.0)
    actors = RayActors(load("frozenlake"), Path("policy"), Path("log"))
    handles = {"rollout-0": "a", "rollout-1": "b", "env-0": "c", "env-1": "created a moment ago"}
    actors._members = {
        name: SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda id=id: id)) for name, id in handles.items()
    }
    assert asyncio.run(actors.leaving()) == {"rollout-0": 60.0, "rollout-1": math.inf}
    actors._learner = LearnerClient([], RayTransport(), actors.config)
    actors._learner.processes = [RankProcess(node, "10.0.0.1", 0) for node in ("node-3", "node-2", "node-1")]
    assert asyncio.run(actors.leaving()) == {"rollout-0": 60.0, "rollout-1": math.inf, "learner": 60.0}
    actors._learner.kill()
    assert "learner" not in asyncio.run(actors.leaving())
    monkeypatch.setattr(ray_actors.state, "get_draining_nodes", dict)
    assert asyncio.run(actors.leaving()) == {}


@pytest.mark.parametrize("what", ["worker", "learner"])
def test_an_actor_that_cannot_be_created_keeps_no_place(tmp_path: Path, monkeypatch, what: str) -> None:
    """Otherwise its bundles stay reserved until the run ends, and no successor finds room."""
    actors = RayActors(load("frozenlake"), tmp_path, tmp_path)
    released: list[str] = []
    place = SimpleNamespace(options=[{}], release=lambda: released.append(what))
    monkeypatch.setattr(actors, "placement", SimpleNamespace(worker=lambda _: place, learner=lambda _: place))

    def full(*_: Any, **__: Any) -> Any:
        raise RaySystemError("the object store is full")

    monkeypatch.setattr(ray_actors, "offer", full)
    monkeypatch.setattr(ray_actors, "alive_nodes", lambda: [object(), object()])
    with pytest.raises((Failed, RaySystemError), match="the object store is full"):
        actors.worker("rollout-7") if what == "worker" else actors.learner(1)
    assert released == [what]


def test_no_call_of_an_actor_is_a_task_event_that_gcs_would_keep(tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    made = RayActors.__new__(RayActors)
    made.logs = tmp_path
    shell = SimpleNamespace(options=given.update)
    made._created("filter", FILTER_SERVICE, lambda *_: shell, {})
    assert given["enable_task_events"] is False
