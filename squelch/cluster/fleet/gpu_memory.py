"""The memory of the GPUs on which Ray may place the learner's ranks, asked on the cluster once Ray is connected.

| waits for | unblocked by | on time-out |
|---|---|---|
| one GPU of any kind that ranks may get | a task on it | UserError |
| one of each other kind | a task on it | it counts as taken; a warning names it |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import ray
from ray.exceptions import RayError

from squelch.actors.node_labels import admits, spelled
from squelch.cluster.config import RunConfig
from squelch.cluster.fleet.bootstrap import starts_ray
from squelch.cluster.fleet.demand import Node
from squelch.cluster.fleet.placement import alive_nodes
from squelch.kit.base.errors import UserError
from squelch.learner.config import LearnerConfig

log = logging.getLogger(__name__)
GPU_TIMEOUT_S = 300.0
"""Seconds until the GPU of a rank must have said how large it is; its process imports torch first."""
OTHER_GPUS_TIMEOUT_S = 20.0
"""Seconds after the first answer until a kind of GPU without one is taken to be in use."""
GPU_LABEL = "ray.io/accelerator-type"
"""The label with which Ray marks the kind of a node's GPUs."""


def memory_of_a_gpu(config: RunConfig) -> int:
    """Bytes that a rank may use of its GPU, wherever Ray places it: the least of one GPU of each kind that the cluster
    lends to ranks. On a cluster of this machine, the driver sees the GPUs itself. A kind whose GPUs are all taken
    is left out, which a warning says; a rank on one refuses a budget that does not fit.

    Raises:
        UserError: no node has such a GPU, no GPU answers, or a process that has one sees none.
    """
    from squelch.learner import memory  # imports torch

    if starts_ray(config):
        answers = {"this machine": memory.available(config.learner)}
    else:
        answers = _memory_by_kind(config.learner, gpu_selectors(config.learner, alive_nodes()))
    if blind := [kind for kind, has in answers.items() if has is None]:
        raise UserError(
            f"learner.token_budget=auto: torch sees no CUDA device on {blind[0]}, although Ray lends its GPUs; "
            "install a torch for its driver there, or set learner.max_memory_gib"
        )
    return min(has for has in answers.values() if has is not None)


def gpu_selectors(learner: LearnerConfig, nodes: Sequence[Node]) -> dict[str, dict[str, str]]:
    """By the kind of GPU, in words: the label selector of the nodes that have it and that a rank may run on."""
    admitted = [node for node in nodes if admits(learner.label_selector, node.labels)]
    kinds = {node.labels.get(GPU_LABEL) for node in admitted if node.resources.get("GPU", 0) >= learner.num_gpus}
    labelled = sorted({kind for node in nodes if (kind := node.labels.get(GPU_LABEL)) is not None})
    named = sorted(kind for kind in kinds if kind is not None)
    selectors = {f"the {kind} of the cluster": {**learner.label_selector, GPU_LABEL: kind} for kind in named}
    if None in kinds:
        without = {GPU_LABEL: f"!in({', '.join(labelled)})"} if labelled else {}
        selectors["a node of the cluster without a label of its GPU"] = {**learner.label_selector, **without}
    return selectors


def _memory_by_kind(learner: LearnerConfig, selectors: Mapping[str, dict[str, str]]) -> dict[str, int | None]:
    """The answers by the kind of GPU, of those that answer in time."""
    from squelch.learner import memory

    if not selectors:
        admitted = f"node that learner.label_selector admits ({spelled(learner.label_selector) or 'all'})"
        raise UserError(
            f"learner.token_budget=auto: no {admitted} has learner.num_gpus={learner.num_gpus:g} GPUs; correct either, "
            "or set learner.max_memory_gib"
        )
    asked = {}
    for kind, selector in selectors.items():
        task = ray.remote(num_cpus=0, num_gpus=learner.num_gpus, label_selector=selector)(memory.available)
        asked[task.remote(learner)] = kind
    try:
        ready, late = ray.wait(list(asked), num_returns=1, timeout=GPU_TIMEOUT_S)
        if ready and late:
            further, late = ray.wait(late, num_returns=len(late), timeout=OTHER_GPUS_TIMEOUT_S)
            ready = [*ready, *further]
        for task in late:
            ray.cancel(task)
        found = {asked[task]: ray.get(task) for task in ready}
    except RayError as error:
        raise UserError(f"learner.token_budget=auto: {_no_gpu(str(error))}") from error
    if not found:
        raise UserError(f"learner.token_budget=auto: {_no_gpu(f'none answered in {GPU_TIMEOUT_S:g} s')}")
    if late:
        log.warning("learner.token_budget=auto: left out, all taken: %s", ", ".join(asked[task] for task in late))
    return found


def _no_gpu(why: str) -> str:
    return f"no GPU of the cluster said how much memory it has ({why}); set learner.max_memory_gib, or a number"
