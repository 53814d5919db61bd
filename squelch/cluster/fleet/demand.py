"""The resources that a run requests of a Ray cluster, and the proof that a cluster can never provide them. Pure.

`needs` lists the requests of all actors. `shortfall` compares them with the nodes and says what is missing, with the
sum that shows it; it is silent unless the shortfall is certain. It is certain if a single request exceeds every node
that its label selector admits, or if the requests together exceed all nodes that they may use. Whether requests can be
packed onto the nodes otherwise is left to Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from squelch.actors.node_labels import admits, spelled
from squelch.cluster.config import RunConfig
from squelch.cluster.control.scaling import Kind, start_counts

KINDS = ("CPU", "GPU")
ROUNDING = 1e-6
"""Slack in comparisons of amounts: ten times 0.1 CPU fit into 1 CPU."""


@dataclass(frozen=True)
class Need:
    """Equal requests of one kind of actor."""

    actor: str
    """In the plural, as the message shows it."""
    key: str
    """The block of settings that decides on them."""
    count: int
    resources: Mapping[str, float]
    """Amount of each kind in `KINDS` that one request asks for on one node."""
    selector: Mapping[str, str] = field(default_factory=dict)

    def total(self, kind: str) -> float:
        """Amount that all of these requests ask for together."""
        return self.count * self.resources[kind]


@dataclass(frozen=True)
class Node:
    """One node that is alive: its total resources, used or not, and its labels."""

    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


def needs(config: RunConfig, learning: bool = True, counts: Mapping[Kind, int] | None = None) -> list[Need]:
    """The requests of a run; without `learning` only those of the actors that play. `counts`: numbers of these other
    than those with which the run starts."""
    rollout, player, scorer, learner = config.rollout, config.environment_actor, config.scorer, config.learner
    workers, players = {**start_counts(config), **(counts or {})}.values()
    playing = [
        _need("rollout workers", "rollout", workers, rollout.num_cpus, rollout.num_gpus, rollout.label_selector),
        _need("environment actors", "environment_actor", players, player.num_cpus, 0, player.label_selector),
    ]
    if not learning:
        return playing
    ranks = _need("learner ranks", "learner", learner.ranks, learner.num_cpus, learner.num_gpus, learner.label_selector)
    scoring = _need("scorer", "scorer", 1, scorer.num_cpus, scorer.num_gpus, scorer.label_selector)
    return [*playing, ranks, *([scoring] if scorer.enabled else [])]


def _need(actor: str, key: str, count: int, cpus: float, gpus: float, selector: Mapping[str, str]) -> Need:
    return Need(actor, key, count, {"CPU": cpus, "GPU": gpus}, selector)


def needed(config: RunConfig, kind: str, learning: bool = True) -> float:
    """Amount of one kind that the whole run asks for, with as many rollout workers as it may be scaled to where that is
    bounded."""
    most = {Kind.ROLLOUT: config.rollout.max_count or config.rollout.start_count}
    return sum(need.total(kind) for need in needs(config, learning, most))


def shortfall(wanted: Sequence[Need], nodes: Sequence[Node]) -> str | None:
    """The requests that the nodes can never fulfil, in one sentence with the sum and the settings to change; None if
    there are none."""
    return _too_large(wanted, nodes) or _too_many(wanted, nodes)


def _too_large(wanted: Sequence[Need], nodes: Sequence[Node]) -> str | None:
    """The first request that fits no node that it may use."""
    for need in wanted:
        allowed = [node for node in nodes if admits(need.selector, node.labels)]
        if need.selector and not allowed:
            return (
                f"no node of the cluster has the labels that {need.key}.label_selector asks for "
                f"({spelled(need.selector)}); the nodes are {_nodes(nodes)}"
            )
        if not any(_fits(need, node) for node in allowed) and len(allowed) > 1:
            return (
                f"each of the {need.actor} needs {_amounts(need.resources)} on one node, and no node has that much: "
                f"{_nodes(allowed)}; lower {need.key}.num_cpus or {need.key}.num_gpus, or add a larger node"
            )
    return None


def _fits(need: Need, node: Node) -> bool:
    return all(node.resources.get(kind, 0) >= amount - ROUNDING for kind, amount in need.resources.items())


def _too_many(wanted: Sequence[Need], nodes: Sequence[Node]) -> str | None:
    """The first kind of which all requests, or those of one label selector, ask for more than there is."""
    selectors = {spelled(need.selector): need.selector for need in wanted if need.selector}
    groups = [({}, wanted), *((one, [n for n in wanted if n.selector == one]) for one in selectors.values())]
    for selector, group in groups:
        allowed = [node for node in nodes if admits(selector, node.labels)]
        for kind in KINDS:
            if text := _exceeds(kind, group, allowed, selector):
                return text
    return None


def _exceeds(kind: str, group: Sequence[Need], nodes: Sequence[Node], selector: Mapping[str, str]) -> str | None:
    need, have = sum(n.total(kind) for n in group), sum(node.resources.get(kind, 0) for node in nodes)
    if need <= have + ROUNDING:
        return None
    parts = " + ".join(f"{n.count} x {n.resources[kind]:g} for {n.actor}" for n in group if n.total(kind) > 0)
    there, of_them = (f"the nodes with {spelled(selector)} have", " of them") if selector else ("the cluster has", "")
    units = kind if have == 1 else f"{kind}s"
    return f"{there} {have:g} {units} and the run needs {need:g}{of_them} ({parts}); {_advice(kind)}"


def _advice(kind: str) -> str:
    if kind == "GPU":
        return (
            "use a larger cluster, let actors share a GPU (fractions of learner.num_gpus, rollout.num_gpus and "
            "scorer.num_gpus: docs/guide/real-models.md, On one GPU), or set scorer.enabled=false"
        )
    return (
        "add nodes (on one machine: raise cluster.num_cpus), or lower rollout.count, environment_actor.count, "
        "learner.ranks or their num_cpus"
    )


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {kind}" for kind, amount in resources.items() if amount > 0) or "nothing"


def _nodes(nodes: Sequence[Node]) -> str:
    """Resources and the user's labels of the first nodes."""
    shown = [
        f"{node.address} ({_amounts({kind: node.resources.get(kind, 0) for kind in KINDS})}"
        + "".join(f", {key}={value}" for key, value in node.labels.items() if not key.startswith("ray.io/"))
        + ")"
        for node in nodes[:4]
    ]
    return ", ".join(shown) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
