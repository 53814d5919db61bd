"""Condensed runs for tests."""

from dataclasses import asdict
from typing import Any

from research.kept import Kept


def content_of(run: Kept) -> dict[str, Any]:
    """The content that `research.kept.of_content` makes the run of."""
    return asdict(run)
