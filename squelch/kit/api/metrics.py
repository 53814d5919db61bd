"""The metrics of a run of another trainer, under the names of a run of Squelch, so that its dashboards and alerts serve
both: `squelch monitor` and the observer inside TRL serve them."""

from __future__ import annotations

import squelch.actors.diagnosis.metrics
import squelch.actors.filter.metrics
import squelch.actors.metrics.training
import squelch.actors.scorer.metrics
from squelch.actors.metrics.registry import Registry

REGISTRY = Registry(
    squelch.actors.metrics.training.METRICS,
    squelch.actors.filter.metrics.METRICS,
    squelch.actors.diagnosis.metrics.METRICS,
    squelch.actors.scorer.metrics.METRICS,
)
