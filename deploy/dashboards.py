"""Generates Grafana's dashboards and the alert rules.

    python -m squelch.deploy.dashboards --write    writes deploy/grafana/*.json and deploy/alerts.yml
    python -m squelch.deploy.dashboards --check    exits with 1 and names the files that differ from the code

The sources are `cluster.metrics` (the registry), `deploy.boards` and `deploy.alert_rules`, so that renaming a metric
cannot leave an empty panel. The dashboards can be imported or provisioned.
"""

from __future__ import annotations

import sys
from pathlib import Path

from squelch.deploy.alert_rules import rules_text
from squelch.deploy.boards import BOARDS
from squelch.deploy.boards.build import text
from squelch.deploy.generated import command


def artefacts() -> dict[Path, str]:
    """The text of each generated file, by its path in the repository."""
    return {
        **{Path(f"deploy/grafana/{board.title.lower()}.json"): text(board) for board in BOARDS},
        Path("deploy/alerts.yml"): rules_text(),
    }


if __name__ == "__main__":
    sys.exit(command("squelch.deploy.dashboards", artefacts))
