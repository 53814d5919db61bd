"""Squelch: the package. The public API (`squelch.kit.api`) is loaded name by name at its first use: this module imports
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from squelch.kit.api.evidence import EvidenceResult
    from squelch.kit.api.filtering import FilterResult, filter
    from squelch.kit.api.information import MIResult, mi
    from squelch.kit.api.monitor import Monitor
    from squelch.kit.api.scoring import ScoreResult, score
    from squelch.kit.checks.run import CheckResult, check
    from squelch.kit.diagnosis.proxies import EmaState

__version__ = "0.1.0"
__all__ = [
    "CheckResult",
    "EmaState",
    "EvidenceResult",
    "FilterResult",
    "MIResult",
    "Monitor",
    "ScoreResult",
    "check",
    "filter",
    "mi",
    "score",
]

_MODULES = {
    "CheckResult": "squelch.kit.checks.run",
    "EmaState": "squelch.kit.diagnosis.proxies",
    "EvidenceResult": "squelch.kit.api.evidence",
    "FilterResult": "squelch.kit.api.filtering",
    "MIResult": "squelch.kit.api.information",
    "Monitor": "squelch.kit.api.monitor",
    "ScoreResult": "squelch.kit.api.scoring",
    "check": "squelch.kit.checks.run",
    "filter": "squelch.kit.api.filtering",
    "mi": "squelch.kit.api.information",
    "score": "squelch.kit.api.scoring",
}
"""The module of each public name."""


class Deprecated(NamedTuple):
    """A name that will be removed: the public name to use instead, and the first release without it."""

    successor: str
    removed_in: str


DEPRECATED: dict[str, Deprecated] = {}
"""The names that still work and will be removed."""


def __getattr__(name: str) -> Any:
    if name in DEPRECATED:
        import warnings

        successor, removed_in = DEPRECATED[name]
        text = f"squelch.{name} will be removed in squelch-rl {removed_in}; use squelch.{successor}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return __getattr__(successor)
    if name not in _MODULES:
        raise AttributeError(f"module 'squelch' has no attribute {name!r}; public are {', '.join(__all__)}")
    from importlib import import_module

    found = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
