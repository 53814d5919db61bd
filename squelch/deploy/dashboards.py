"""Writes Grafana's dashboards, squelch/deploy/grafana/*.json.

    python -m squelch.deploy.dashboards

The sources are `cluster.metrics` (the registry) and `deploy.boards`, so that renaming a metric cannot leave an empty
panel. The dashboards can be imported or provisioned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from squelch.deploy.boards import BOARDS
from squelch.deploy.boards.build import text

ROOT = Path(__file__).resolve().parents[2]


def artefacts() -> Mapping[Path, str]:
    """The text of each generated file, by its path in the repository."""
    return {Path(f"squelch/deploy/grafana/{board.name}.json"): text(board) for board in BOARDS}


def main() -> None:
    """Writes the files."""
    for path, content in artefacts().items():
        (ROOT / path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
