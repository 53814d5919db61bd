"""Writes Grafana's dashboards, squelch/deploy/grafana/*.json, and the alert rules, squelch/deploy/alerts.yml.

    python -m squelch.deploy.dashboards

The sources are `cluster.metrics` (the registry), `deploy.boards` and `deploy.alert_rules`, so that renaming a metric
cannot leave an empty panel. The dashboards can be imported or provisioned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from squelch.deploy.alert_rules import rules_text
from squelch.deploy.boards import BOARDS
from squelch.deploy.boards.build import text

ROOT = Path(__file__).resolve().parents[2]


def artefacts() -> Mapping[Path, str]:
    """The text of each generated file, by its path in the repository."""
    boards = {Path(f"squelch/deploy/grafana/{board.title.lower()}.json"): text(board) for board in BOARDS}
    return {**boards, Path("squelch/deploy/alerts.yml"): rules_text()}


def main() -> None:
    """Writes the files."""
    for path, content in artefacts().items():
        (ROOT / path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
