"""Metrics of the findings, and of the groups and texts that some of them are about. Pure."""

from __future__ import annotations

from squelch.kit.metrics.declared import declared

METRICS = declared(__file__)
