"""Metrics of the gradient decomposition (paper, section 3.1 and Figure 3). Pure."""

from __future__ import annotations

from squelch.kit.metrics.declared import declared

METRICS = declared(__file__)
