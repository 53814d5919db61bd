"""`squelch dashboards`: pushes the dashboards to a Grafana server, or exports them as files.

Loads neither torch nor Ray, and grafana-client only for a push.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from squelch.cluster.grafana import boards
from squelch.cluster.grafana.address import address
from squelch.kit.process.terminal import one_line, say

EPILOG = """\
environment:
  GRAFANA_URL                     the server, where --url is not given
  GRAFANA_TOKEN                   token of a service account (role Editor; Admin for the data source)
  GRAFANA_USER, GRAFANA_PASSWORD  instead of a token
  REQUESTS_CA_BUNDLE              certificates of authorities that are trusted

Exit codes: 0 done, 1 push kept something that was changed by hand, 2 bad input."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = "Grafana dashboards of a run (docs/guide/dashboards.md)."
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    _add_push(actions.add_parser("push", help="put data source, folder and dashboards into a Grafana server"))
    _add_export(actions.add_parser("export", help="write provisioning files for people who mount them"))


def _add_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=os.environ.get("GRAFANA_URL", ""), help="the server's address")
    _add_prometheus(parser, "address of Prometheus as Grafana sees it; adds a data source")
    parser.add_argument("--folder", default="", metavar="UID", help="an existing folder instead of Squelch")
    parser.add_argument("--overwrite", action="store_true", help="also replace what was changed by hand")
    parser.add_argument("--dry-run", action="store_true", help="change nothing and list what would change")
    parser.add_argument("--plain-http", action="store_true", help="allow credentials over http to another machine")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder to write to")
    _add_prometheus(parser, "address of Prometheus as Grafana sees it; adds its data source")
    parser.add_argument("--mount", default="", help="where Grafana will see FOLDER/dashboards")
    parser.add_argument("--overwrite", action="store_true", help="replace files that differ")


def _add_prometheus(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--prometheus", metavar="URL", help=text)


def run(options: argparse.Namespace) -> int:
    """Runs the action and returns the exit code."""
    if options.prometheus is not None:
        address(options.prometheus, "--prometheus")
    return {"push": _push, "export": _export}[options.action](options)


def _push(options: argparse.Namespace) -> int:
    from squelch.cluster.grafana.push import FOLDER, Push
    from squelch.cluster.grafana.server import URL, Server

    server = Server(options.url or URL, options.plain_http)
    say(f"Grafana {one_line(server.version())} at {server.url}")
    push = Push(server, options.folder or FOLDER, options.overwrite, options.dry_run)
    outcomes = push.run(boards.trees(), options.prometheus)
    for outcome in outcomes:
        say(f"{one_line(outcome.what)}: {one_line(outcome.action)}")
        _list(outcome.lines)
    return 1 if any(outcome.kept for outcome in outcomes) else 0


def _export(options: argparse.Namespace) -> int:
    from squelch.cluster.grafana.files import MOUNT, export

    changed = export(options.folder, options.prometheus, options.mount or MOUNT, options.overwrite)
    for path in changed:
        say(f"wrote {path}")
    if not changed:
        say(f"{options.folder} is up to date")
    return 0


def _list(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"  {one_line(line)}")
