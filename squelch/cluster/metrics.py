"""The metrics of a run: the tables of all components, and that of the training loop, the ledger and the fleet.

To add a metric, add it to the `metrics.yaml` of the component that measures it, and a panel to `deploy.boards`.
Importing this module loads none of Ray, torch, vLLM and numpy, and reads no file.
"""

from __future__ import annotations

import squelch.actors.endpoint.metrics
import squelch.actors.gpus.metrics
import squelch.actors.play.metrics
import squelch.actors.rollout.metrics
import squelch.kit.diagnosis.metrics
import squelch.kit.filter.metrics
import squelch.kit.findings.metrics
import squelch.kit.metrics.training
import squelch.kit.scoring.metrics
import squelch.learner.decomposition.metrics
import squelch.learner.metrics
from squelch.actors.play.metrics import FAILURES
from squelch.kit.metrics.declared import declared
from squelch.kit.metrics.registry import Registry

WAITED_FOR = {
    "rollout": "environment",
    "filter": "filter",
    "train": "learner",
    "publish": "rollout",
    "archive": "archive",
}
"""The actor, or disk, for which the coordinator waits in each part of a step."""
LEDGER_STATES = (
    "issued",
    "in_flight",
    "buffered",
    "kept_waiting",
    "training",
    "trained",
    "dropped",
    "spared",
    "failed",
    "cancelled",
)
"""The counts of `cluster.control.ledger`, in the order of its equation."""
OPEN_STATES = LEDGER_STATES[1:5]
"""The states of tickets that have not ended."""

METRICS = declared(
    __file__,
    WAITED_FOR=(*WAITED_FOR.values(), "scorer"),
    LEDGER_STATES=LEDGER_STATES,
    OPEN_STATES=OPEN_STATES,
    FAILURES=(*FAILURES, "refused_by_learner"),
)
REGISTRY = Registry(
    squelch.kit.metrics.training.METRICS,
    METRICS,
    squelch.actors.play.metrics.METRICS,
    squelch.actors.endpoint.metrics.METRICS,
    squelch.kit.filter.metrics.METRICS,
    squelch.kit.diagnosis.metrics.METRICS,
    squelch.kit.scoring.metrics.METRICS,
    squelch.learner.metrics.METRICS,
    squelch.learner.decomposition.metrics.METRICS,
    squelch.actors.rollout.metrics.METRICS,
    squelch.actors.gpus.metrics.METRICS,
    squelch.kit.findings.metrics.METRICS,
)
"""The table of any trainer, that of the run, and the components' in the order of a training step."""
