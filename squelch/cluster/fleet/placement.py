"""Placement: which node of the Ray cluster each actor runs on, and whether the cluster has room for the run at all.

    actor               where                                                  how
    learner ranks       together (`learner.placement: pack`) or apart          one placement group, a bundle a rank
    rollout worker      a node with all of its CPUs and GPUs                   a placement group of one bundle
    environment actor   a rollout worker's node, else any with room            node affinity, soft; in turn
    filter service      the driver's node                                      Ray's own resource of that node
    scorer              the driver's node, else any with room                  node affinity, soft
    exporter            in the driver's process

`label_selector` of an actor restricts its nodes. A bundle of its own keeps all GPUs of a tensor-parallel worker on one
node, and shows where a worker will run before its process exists.

| waits for | unblocked by | on time-out |
|---|---|---|
| `make_room`: nodes that an autoscaler can add | the autoscaler | UserError with the sum, `cluster.start_timeout_s` |
| `player`: the bundles of new rollout workers | Ray | the actor is placed anywhere, `BUNDLES_S` |

A request that exceeds what the cluster has is refused before any actor is created (`cluster.fleet.demand`). One that
merely finds the resources taken by others waits like any actor, for `cluster.start_timeout_s`; `free_resources` says
what is free.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from squelch.actors.process.shipping import own_node
from squelch.cluster.config import RunConfig
from squelch.cluster.control.scaling import Kind
from squelch.cluster.fleet.demand import KINDS, Need, Node, needs, shortfall
from squelch.kit.base.errors import UserError

BUNDLES_S = 1.0
"""Seconds in which Ray reserves a bundle for which there is room."""
POLL_S = 1.0
STRATEGIES = {"pack": "PACK", "spread": "SPREAD"}
"""Ray's strategy of each `learner.placement`."""
NODE_GROUP = "ray.io/node-group"
"""Label that a node has if an autoscaler, such as KubeRay's, started it."""
HEAD = "node:__internal_head__"
TRACE = 0.001
"""Share of a node's own resource that pins an actor to it."""
Options = dict[str, Any]
"""Ray's options for an actor's node."""


def alive_nodes() -> list[Node]:
    """The cluster's nodes that are alive."""
    found = [node for node in ray.nodes() if node["Alive"]]
    return [Node(node["NodeManagerAddress"], node["Resources"], node["Labels"]) for node in found]


def make_room(config: RunConfig, learning: bool, say: Callable[[str], None]) -> None:
    """Returns once nothing proves that the cluster is too small for the run, at once on a cluster without autoscaler.

    Raises:
        UserError: the cluster is too small; the text has the sum.
    """
    wanted = needs(config, learning)
    missing = shortfall(wanted, alive_nodes())
    if not missing:
        return
    if not may_grow(config):
        raise UserError(missing)
    bound = config.cluster.start_timeout_s
    say(f"waiting up to {bound:g} s for the autoscaler: {missing}")
    _ask_for(wanted)
    try:
        _await_nodes(lambda: shortfall(wanted, alive_nodes()), bound)
    finally:
        request_resources(bundles=[])  # the actors ask by themselves from here on


def _ask_for(wanted: Sequence[Need]) -> None:
    """Asks the autoscaler for nodes on which these requests fit, until it is asked for something else."""
    bundles = [(_bundle(need.resources["CPU"], need.resources["GPU"]), dict(need.selector)) for need in wanted]
    copies = [pair for need, pair in zip(wanted, bundles, strict=True) if pair[0] for _ in range(need.count)]
    request_resources(bundles=[one for one, _ in copies], bundle_label_selectors=[labels for _, labels in copies])


def may_grow(config: RunConfig) -> bool:
    """Whether an autoscaler can add nodes to the cluster: the setting, else what the cluster shows."""
    return autoscales() if config.cluster.autoscaler is None else config.cluster.autoscaler


def _await_nodes(missing: Callable[[], str | None], bound_s: float) -> None:
    deadline = time.monotonic() + bound_s
    while text := missing():
        if time.monotonic() > deadline:
            raise UserError(f"{text}. The autoscaler did not add it within cluster.start_timeout_s={bound_s:g}")
        time.sleep(POLL_S)


def autoscales() -> bool:
    """Whether an autoscaler starts nodes of this cluster, as far as the cluster shows it.

    Nodes that an autoscaler of version 2 started (KubeRay's, for one) carry its label of the node's group. The report
    of version 1 lists nodes by the type in its configuration; without a configuration each node is a type of its own.
    """
    if any(NODE_GROUP in node.labels for node in alive_nodes()):
        return True
    report = json.loads(_internal_kv_get("__autoscaling_status") or "{}").get("autoscaler_report") or {}
    return any(not name.startswith("node_") for name in report.get("active_nodes") or {})


def _bundle(num_cpus: float, num_gpus: float) -> dict[str, float]:
    """The bundle of a request; empty if it asks for nothing, which Ray refuses as a bundle."""
    return {kind: amount for kind, amount in zip(KINDS, (num_cpus, num_gpus), strict=True) if amount > 0}


@dataclass
class Reservation:
    """The resources that are reserved for one actor. The event loop may release it while a thread looks at it."""

    actor: str
    options: list[Options]
    """Ray's options of each of its actors."""
    group: PlacementGroup | None = None
    """Its bundles; None if it needs none."""

    @property
    def nodes(self) -> list[str]:
        """Ids of the bundles' nodes; empty until Ray has reserved them, and after the release."""
        group = self.group
        return _nodes_of(group) if group is not None else []

    def await_bundles(self, timeout_s: float) -> None:
        """Waits until Ray has reserved the bundles, they are released, or the time is up."""
        group = self.group
        if group is None:
            return
        try:
            group.wait(timeout_s)
        except (RayError, ValueError):  # Ray knows no group that was removed
            if self.group is not None:
                raise

    def release(self) -> None:
        """Gives the bundles back. A second call does nothing."""
        group, self.group = self.group, None
        if group is not None:
            remove_placement_group(group)


class Placement:
    """Ray's options for the node of each actor of a run."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._reserved: list[Reservation] = []
        self._workers: list[Reservation] = []
        self._turn = count()
        self._asked = False
        """Whether the autoscaler has been asked for more than the cluster had."""

    def learner(self, ranks: int) -> Reservation:
        """The resources of the learner, with options for each rank."""
        learner = self.config.learner
        bundles = [_bundle(learner.num_cpus, learner.num_gpus)] * ranks
        return self._reserve("learner", bundles, STRATEGIES[learner.placement], learner.label_selector)

    def worker(self, name: str) -> Reservation:
        """The resources of a rollout worker."""
        rollout = self.config.rollout
        bundle = _bundle(rollout.num_cpus, rollout.num_gpus)
        reserved = self._reserve(name, [bundle], "STRICT_PACK", rollout.label_selector)
        self._workers = [*(worker for worker in self._workers if worker.group is not None), reserved]
        return reserved

    def player(self) -> Options:
        """Options of an environment actor. Waits up to `BUNDLES_S` for the bundles of rollout workers."""
        if selector := self.config.environment_actor.label_selector:
            return _labelled(selector)
        nodes = self._worker_nodes()
        return _near(nodes[next(self._turn) % len(nodes)]) if nodes else {}

    def scorer(self) -> Options:
        """Options of the scorer."""
        selector = self.config.scorer.label_selector
        return _labelled(selector) if selector else _near(own_node()[0])

    def service(self) -> Options:
        """Options of a service that speaks to the driver only and needs no CPU. Ray places an actor that requests
        nothing on a random node, whatever node affinity says, so that it requests a trace of the driver's node."""
        return {"resources": {_node_resource(own_node()[0]): TRACE}}

    def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        """The resources that the cluster can never provide for these numbers of members; None if there are none, or if
        an autoscaler was asked for them."""
        wanted = needs(self.config, counts=counts)
        missing = shortfall(wanted, alive_nodes())
        if missing and may_grow(self.config):
            _ask_for(wanted)
            self._asked = True
            return None
        return missing

    def end_node_request(self) -> None:
        """Ends the request to the autoscaler; the nodes stay as long as members are on them."""
        if self._asked:
            request_resources(bundles=[])
            self._asked = False

    def free_resources(self) -> str:
        """The free resources of the cluster, and the actors without a node; for the message about a late start."""
        free, total = ray.available_resources(), ray.cluster_resources()
        shown = [f"{free.get(kind, 0):g} of {total[kind]:g} {kind}" for kind in KINDS if total.get(kind)]
        waiting = [reserved.actor for reserved in self._reserved if reserved.group is not None and not reserved.nodes]
        unplaced = f"; without a node: {', '.join(waiting)}" if waiting else ""
        return f"free in the cluster: {', '.join(shown) or 'nothing'}{unplaced}"

    def _reserve(
        self, actor: str, bundles: list[dict[str, float]], strategy: str, selector: dict[str, str]
    ) -> Reservation:
        if not all(bundles):
            return Reservation(actor, [_labelled(selector) for _ in bundles])
        selectors = [dict(selector)] * len(bundles) if selector else None
        group = placement_group(bundles, strategy=strategy, bundle_label_selector=selectors)
        strategies = (PlacementGroupSchedulingStrategy(group, index) for index in range(len(bundles)))
        options: list[Options] = [{"scheduling_strategy": one} for one in strategies]
        self._reserved = [reserved for reserved in self._reserved if reserved.group is not None]
        self._reserved.append(Reservation(actor, options, group))
        return self._reserved[-1]

    def _worker_nodes(self) -> list[str]:
        """Ids of the nodes on which rollout workers have their bundles."""
        deadline = time.monotonic() + BUNDLES_S
        for reserved in self._workers:
            reserved.await_bundles(max(0.0, deadline - time.monotonic()))
        return sorted({node for reserved in self._workers for node in reserved.nodes})


def _node_resource(node: str) -> str:
    """The resource that a node alone has; Ray gives each node one, named by its address."""
    found = next((one["Resources"] for one in ray.nodes() if one["NodeID"] == node), None)
    if found is None:
        raise RuntimeError(f"the node {node} is gone")
    return next(name for name in found if name.startswith("node:") and name != HEAD)


def _nodes_of(group: PlacementGroup) -> list[str]:
    """The nodes of a placement group's bundles; empty until Ray has reserved them, and once Ray has removed them."""
    table = placement_group_table(group)
    return list(table["bundles_to_node_id"].values()) if table.get("state") == "CREATED" else []


def _labelled(selector: dict[str, str]) -> Options:
    return {"label_selector": dict(selector)} if selector else {}


def _near(node: str) -> Options:
    """Prefers a node. Without Ray's private option for the spill, an actor would wait there while others have room."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)}
