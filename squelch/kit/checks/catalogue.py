"""Reads the catalogue of checks, `catalogue.yaml`. Pure.

group_sizes:                     # the check's name
  of: ...                        # what it compares, for docs/reference/checks.md
  causes: ...                    # what usually causes a fault
  change: ...                    # what to do
  cannot: ...                    # what it cannot tell
  errs: ...                      # how often it is wrong about a healthy run
  power: ...                     # how much it needs to see a fault
  formats: [trl, ...]            # those whose files have what it needs
  needs: {verl: --base, ...}     # of some of these: what has to be given beside the files
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squelch.kit.untrusted.text import parse_yaml

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
    errs: str
    power: str
    formats: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def checks() -> dict[str, Check]:
    """Every check by name, in the file's order."""
    found = parse_yaml(PATH.read_text(encoding="utf-8"), str(PATH))
    return {name: _check(name, one) for name, one in found.items()}


def _check(name: str, written: Mapping[str, Any]) -> Check:
    fields: dict[str, Any] = {**written, "formats": tuple(written.get("formats", ()))}
    return Check(name, **fields)
