"""Reads the catalogue of checks, `catalogue.yaml`. Pure.

group_sizes:                     # the check's name
  of: ...                        # what it compares, for docs/reference/checks.md
  causes: ...                    # what usually causes a fault
  change: ...                    # what to do
  cannot: ...                    # what it cannot tell
  rate: 0.001                    # how often, at most, chance makes it wrong about a healthy run; none: never
  errs: ...                      # about which runs; or why never
  power: ...                     # how much it needs to see a fault
  holds: [logprobs, ...]         # what it needs of a format's files: words of `docs.writers.checks.words_of`
  options: {--base: always, ...} # what has to be given beside the files, and of which formats, by a word of these
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squelch.kit.untrusted.text import own_yaml

PATH = Path(__file__).with_suffix(".yaml")
PAGE = "docs/reference/checks.md"


@dataclass(frozen=True)
class Check:
    """One check's entry; see the module's head."""

    name: str
    of: str
    causes: str
    change: str
    cannot: str
    power: str
    rate: float = 0.0
    errs: str = ""
    holds: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def checks() -> dict[str, Check]:
    """Every check by name, in the file's order."""
    found = own_yaml(PATH)
    return {name: _check(name, one) for name, one in found.items()}


def _check(name: str, written: Mapping[str, Any]) -> Check:
    fields: dict[str, Any] = {**written, "holds": tuple(written.get("holds", ()))}
    return Check(name, **fields)
