"""`squelch dashboards`: pushes the dashboards to a Grafana server, exports them as files, or checks them.

Loads neither torch nor Ray, and grafana-client only for a push.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.cluster.grafana import boards
from squelch.cluster.grafana.address import address
from squelch.cluster.terminal import one_line, say

if TYPE_CHECKING:
    from squelch.cluster.grafana.prometheus import Prometheus

EPILOG = """\
environment:
  GRAFANA_URL                     the server, where --url is not given
  GRAFANA_TOKEN                   token of a service account (role Editor; Admin for the data source)
  GRAFANA_USER, GRAFANA_PASSWORD  instead of a token
  REQUESTS_CA_BUNDLE              certificates of authorities that are trusted
  PROMETHEUS_TOKEN                bearer token for `check --prometheus`

Exit codes: 0 done, 1 push kept something that was changed by hand, or check found a fault, 2 bad input."""
SCHEMA = "SQUELCH_GRAFANA_SCHEMA"
"""Variable with the path of Grafana's JSON schema of dashboards, which Squelch does not ship."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = "Grafana dashboards of a run (docs/guide/dashboards.md)."
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    _add_push(actions.add_parser("push", help="put data source, folder and dashboards into a Grafana server"))
    _add_export(actions.add_parser("export", help="write provisioning files for people who mount them"))
    _add_check(actions.add_parser("check", help="hold the dashboards against a schema and a Prometheus"))


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


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_prometheus(parser, "evaluate every expression at this Prometheus")
    parser.add_argument("--schema", type=Path, help=f"Grafana's JSON schema of dashboards (default: ${SCHEMA})")
    parser.add_argument("--empty", action="store_true", help="list the expressions without a value now")


def _add_prometheus(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--prometheus", metavar="URL", help=text)


def run(options: argparse.Namespace) -> int:
    """Runs the action and returns the exit code."""
    if options.prometheus is not None:
        address(options.prometheus, "--prometheus")
    return {"push": _push, "export": _export, "check": _check}[options.action](options)


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


def _check(options: argparse.Namespace) -> int:
    from squelch.cluster.grafana.prometheus import Prometheus

    schema = options.schema or os.environ.get(SCHEMA)
    prometheus = Prometheus(options.prometheus) if options.prometheus else None
    faults = sum(_check_one(name, tree, schema, prometheus, options) for name, tree in boards.trees().items())
    if not schema:
        say(f"no schema: --schema or {SCHEMA} names the file with Grafana's JSON schema of dashboards (version 1)")
    if prometheus is None:
        say("no expression was evaluated: --prometheus gives the address of a Prometheus that scrapes a run")
    return 1 if faults else 0


def _check_one(
    name: str,
    tree: boards.Tree,
    schema: Path | str | None,
    prometheus: Prometheus | None,
    options: argparse.Namespace,
) -> int:
    """Prints what is found about one dashboard; returns the number of faults."""
    from squelch.cluster.grafana.check import answers, schema_errors

    board = boards.read_board(tree)
    said, faults, empty = [f"{len(list(boards.expressions(board)))} expressions"], list[str](), list[str]()
    if schema:
        faults += schema_errors(tree, Path(schema))
        said.append(f"breaks the schema in {len(faults)} places" if faults else "matches the schema")
    if prometheus is not None:
        found = answers(board, prometheus)
        said.append(f"{len(found.filled)} have values, {len(found.empty)} have none now")
        faults += [f"{one.place}: {one.expr}: {reason}" for one, reason in found.refused]
        empty = [f"{one.place}: {one.expr}" for one in found.empty] if options.empty else []
    say(f"{name}: {'; '.join(said)}")
    _list([*faults, *empty])
    return len(faults)


def _list(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"  {one_line(line)}")
