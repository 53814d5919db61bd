"""What the actors ask Ray for, and how a run waits for room; no cluster is started."""

import json
from typing import Any

import pytest
from ray.exceptions import RaySystemError

from squelch.cluster.config import RunConfig, load
from squelch.cluster.control.scaling import Kind
from squelch.cluster.fleet import placement
from squelch.cluster.fleet.demand import Node
from squelch.cluster.fleet.placement import Placement, _nodes_of, autoscales, make_room
from squelch.kit.base.errors import UserError

HERE, FAR = "a" * 56, "b" * 56


class Group:
    """A placement group; `nodes`: where its bundles are, nothing until Ray has reserved them."""

    def __init__(self, bundles: list[dict[str, float]], strategy: str, bundle_label_selector: Any) -> None:
        self.bundles, self.strategy, self.selectors = bundles, strategy, bundle_label_selector
        self.nodes: list[str] = []
        self.removed = False

    def wait(self, timeout_seconds: float) -> bool:
        assert timeout_seconds <= placement.BUNDLES_S
        return bool(self.nodes)


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The placement groups that were made."""
    groups: list[Group] = []

    def reserve(bundles: Any, strategy: str, bundle_label_selector: Any) -> Group:
        groups.append(Group(bundles, strategy, bundle_label_selector))
        return groups[-1]

    def table(group: Group) -> dict[str, Any]:
        return {"state": "CREATED" if group.nodes else "PENDING", "bundles_to_node_id": dict(enumerate(group.nodes))}

    monkeypatch.setattr(placement, "placement_group", reserve)
    monkeypatch.setattr(placement, "placement_group_table", table)
    monkeypatch.setattr(placement, "remove_placement_group", lambda group: setattr(group, "removed", True))
    monkeypatch.setattr(placement, "own_node", lambda: (HERE, "10.0.0.1"))
    here = {"NodeID": HERE, "Resources": {placement.HEAD: 1.0, "CPU": 4.0, "node:10.0.0.1": 1.0}}
    monkeypatch.setattr("ray.nodes", lambda: [{"NodeID": FAR, "Resources": {"node:10.0.0.2": 1.0}}, here])
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 0.5})
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0})
    return groups


def config(*overrides: str) -> RunConfig:
    return load("frozenlake", list(overrides))


def near(options: dict[str, Any]) -> str:
    """The node that the options prefer; an actor may run elsewhere if that has no room."""
    strategy = options["scheduling_strategy"]
    assert strategy.soft and strategy._spill_on_unavailable
    return strategy.node_id


@pytest.mark.parametrize(("how", "strategy"), [("pack", "PACK"), ("spread", "SPREAD")])
def test_learner_ranks_share_one_group_with_a_bundle_each(ray, how, strategy) -> None:
    place = Placement(
        config("learner.ranks=3", f"learner.placement={how}", "learner.num_gpus=1", "learner.label_selector={a: b}")
    ).learner(3)
    (group,) = ray
    assert group.bundles == [{"CPU": 0.5, "GPU": 1.0}] * 3 and group.strategy == strategy
    assert group.selectors == [{"a": "b"}] * 3
    chosen = [options["scheduling_strategy"] for options in place.options]
    assert [one.placement_group_bundle_index for one in chosen] == [0, 1, 2]
    assert all(one.placement_group is group for one in chosen)


def test_a_rollout_worker_has_all_of_its_gpus_in_one_bundle_of_its_own(ray) -> None:
    places = Placement(config("rollout.num_gpus=4", "rollout.tensor_parallel_size=4", "learner.num_cpus=0"))
    places.worker("rollout-0"), places.worker("rollout-1")
    assert [group.bundles for group in ray] == [[{"CPU": 0.5, "GPU": 4.0}]] * 2
    assert {group.strategy for group in ray} == {"STRICT_PACK"}
    assert places.learner(2).options == [{}, {}] and len(ray) == 2, "Ray refuses a bundle that holds nothing"


def test_environment_actors_go_to_the_nodes_of_rollout_workers_in_turn(ray) -> None:
    places = Placement(config())
    assert places.player() == {}
    first, second = places.worker("rollout-0"), places.worker("rollout-1")
    assert places.player() == {}, "Ray has not placed the workers yet: the actor does not wait for that"
    first.group.nodes, second.group.nodes = [HERE], [FAR]
    assert [near(places.player()) for _ in range(4)] == [HERE, FAR, HERE, FAR]
    second.release()
    assert [near(places.player()) for _ in range(2)] == [HERE, HERE]
    labelled = Placement(config("environment_actor.label_selector={role: play}"))
    assert labelled.player() == {"label_selector": {"role": "play"}}


@pytest.mark.parametrize("error", [None, ValueError("not found"), RaySystemError("removed")])
def test_a_worker_that_is_ended_while_an_environment_actor_is_placed_does_no_harm(monkeypatch, ray, error) -> None:
    """The event loop releases its place while a thread waits for the bundles."""
    places = Placement(config())
    ended, stays, after = (places.worker(f"rollout-{k}") for k in range(3))
    ended.group.nodes, stays.group.nodes = [FAR], [HERE]

    def wait(group: Group, timeout_seconds: float) -> bool:
        ended.release(), after.release()
        if group.removed and error is not None:
            raise error
        return False

    monkeypatch.setattr(Group, "wait", wait)
    known = placement.placement_group_table
    monkeypatch.setattr(placement, "placement_group_table", lambda group: {} if group.removed else known(group))
    assert near(places.player()) == HERE
    assert _nodes_of(ray[0]) == [] == ended.nodes


def test_an_error_about_a_place_that_is_still_held_is_raised(monkeypatch, ray) -> None:
    places = Placement(config())
    places.worker("rollout-0")

    def wait(group: Group, timeout_seconds: float) -> bool:
        raise RaySystemError("the cluster is gone")

    monkeypatch.setattr(Group, "wait", wait)
    with pytest.raises(RaySystemError):
        places.player()


def test_services_go_with_the_driver_unless_a_label_says_otherwise(ray) -> None:
    places = Placement(config())
    assert places.service() == {"resources": {"node:10.0.0.1": placement.TRACE}} and near(places.scorer()) == HERE
    assert Placement(config("scorer.label_selector={gpu: small}")).scorer() == {"label_selector": {"gpu": "small"}}


def test_a_place_is_given_back_once_and_its_successor_keeps_its_own(ray) -> None:
    places = Placement(config())
    dead, successor = places.worker("rollout-0"), places.worker("rollout-0")
    dead.release(), dead.release()
    assert [group.removed for group in ray] == [True, False] and successor.group is ray[1]


def test_the_message_about_a_late_start_says_what_is_free_and_who_has_no_node(ray) -> None:
    places = Placement(config())
    places.worker("rollout-0").group.nodes = [HERE]
    places.learner(2)
    assert places.free_resources() == "free in the cluster: 0.5 of 4 CPU; without a node: learner"


class Autoscaler:
    """Adds a node of 8 CPUs for the `looks`-th look at the cluster, if it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
        self.looks, self.asked, self.now = looks, list[Any](), 0.0
        monkeypatch.setattr(placement, "request_resources", lambda **request: self.asked.append(request))
        monkeypatch.setattr(placement, "alive_nodes", self.nodes)
        monkeypatch.setattr(placement.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(placement.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def nodes(self) -> list[Node]:
        self.looks -= 1
        return [Node("10.0.0.1", {"CPU": 1.0}, {}), *([Node("10.0.0.2", {"CPU": 8.0}, {})] if self.looks < 0 else [])]


def test_without_an_autoscaler_a_run_that_is_too_large_is_refused_at_once(monkeypatch) -> None:
    scaler = Autoscaler(monkeypatch, 1000)
    with pytest.raises(UserError, match=r"the cluster has 1 CPU and the run needs 2 \("):
        make_room(config("cluster.autoscaler=false"), True, print)
    assert scaler.now == 0.0 and not scaler.asked


def test_with_an_autoscaler_the_run_asks_waits_and_goes_on(monkeypatch) -> None:
    scaler, said = Autoscaler(monkeypatch, 5), list[str]()
    make_room(config("cluster.autoscaler=true", "rollout.count=2", "rollout.label_selector={}"), True, said.append)
    assert scaler.now == pytest.approx(4 * placement.POLL_S)
    asked, cleared = scaler.asked
    assert asked["bundles"].count({"CPU": 0.5}) == 4 and len(asked["bundles"]) == 6 == len(
        asked["bundle_label_selectors"]
    )
    assert cleared == {"bundles": []}, "a request outlives the job that made it"
    assert said[0].startswith("waiting up to 300 s for the autoscaler: the cluster has 1 CPU and the run needs 2.5")


def test_an_autoscaler_that_adds_nothing_ends_the_run_with_what_is_missing(monkeypatch) -> None:
    scaler = Autoscaler(monkeypatch, 10_000)
    with pytest.raises(UserError, match=r"the run needs 2 .*within cluster\.start_timeout_s=40"):
        make_room(config("cluster.autoscaler=true", "cluster.start_timeout_s=40"), True, print)
    assert 40 <= scaler.now <= 42 and scaler.asked[-1] == {"bundles": []}


def test_more_members_than_the_cluster_can_hold_are_refused_with_the_sum(monkeypatch) -> None:
    scaler = Autoscaler(monkeypatch, 1000)
    fixed = Placement(config("cluster.autoscaler=false", "rollout.label_selector={}"))
    missing = fixed.lacking({Kind.ROLLOUT: 3})
    assert missing.startswith("the cluster has 1 CPU and the run needs 3 (3 x 0.5 for rollout workers")
    fixed.end_node_request()
    assert not scaler.asked


def test_an_autoscaler_is_asked_for_more_members_until_they_have_come(monkeypatch) -> None:
    scaler = Autoscaler(monkeypatch, 1000)
    growing = Placement(config("cluster.autoscaler=true", "rollout.label_selector={}"))
    assert growing.lacking({Kind.ROLLOUT: 7, Kind.ENVIRONMENT: 1}) is None
    assert scaler.asked[0]["bundles"].count({"CPU": 0.5}) >= 7
    for _ in range(2):
        growing.end_node_request()
    assert scaler.asked[1:] == [{"bundles": []}]


@pytest.mark.parametrize(
    ("labels", "types", "found"),
    [
        ({}, None, False),
        ({}, ["node_" + HERE], False),
        ({}, ["head-group", "workers"], True),
        ({"ray.io/node-group": "workers"}, None, True),
    ],
)
def test_an_autoscaler_is_recognised_by_the_groups_of_its_nodes(monkeypatch, labels, types, found) -> None:
    report = json.dumps({"autoscaler_report": {"active_nodes": dict.fromkeys(types, 1)}}) if types else None
    monkeypatch.setattr(placement, "_internal_kv_get", lambda key: report)
    monkeypatch.setattr(placement, "alive_nodes", lambda: [Node("10.0.0.1", {}, labels)])
    assert autoscales() is found
