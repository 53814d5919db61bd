"""The metrics of a run of another trainer, under the names of a run of Squelch, so that its dashboards and alerts serve
both: `squelch monitor` and the observer inside TRL serve them."""

from __future__ import annotations

import squelch.kit.diagnosis.metrics
import squelch.kit.filter.metrics
import squelch.kit.findings.metrics
import squelch.kit.metrics.training
import squelch.kit.scoring.metrics
from squelch.kit.metrics.registry import Registry

REGISTRY = Registry(
    squelch.kit.metrics.training.METRICS,
    squelch.kit.filter.metrics.METRICS,
    squelch.kit.diagnosis.metrics.METRICS,
    squelch.kit.scoring.metrics.METRICS,
    squelch.kit.findings.metrics.METRICS,
)
