"""`squelch inspect`: shows a run's groups, trajectories, score matrices and spans in the browser.

The page only reads the run's folder or its store, so the run may be live, over, or on another machine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from squelch.cluster.commands.arguments import add_run_place, place_of
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError
from squelch.kit.commands.arguments import natural

PORT = 8420
TOKEN = "SQUELCH_INSPECT_TOKEN"
LEAST_TOKEN = 16

HELP = """\
Serves a web page that shows a live or finished run: every group with its reward spread and the filter's decision, the
trajectories of a group side by side, the score matrix, the reasonings nearest to every prompt, the actors' spans, and
the curves of the run.

The page is at http://127.0.0.1:8420/ and reachable from this machine alone. With --host on another address a token is
needed, which is printed with the address. Keys on the page: j and k move, Enter opens, / searches, ? lists all."""

EPILOG = f"""\
examples:
  squelch inspect runs/frozenlake
  squelch inspect runs/sokoban --compare runs/no-filter         the curves of both
  squelch inspect runs/sokoban --port 0                         a free port
  squelch inspect s3://bucket/runs/sokoban                      a run in its store
  squelch inspect runs/sokoban --host 0.0.0.0 --allow-host gpu7.example.org
  ssh -L 8420:127.0.0.1:8420 gpu7                               the page of a run on another machine

environment:
  {TOKEN}    the token, instead of a random one; at least {LEAST_TOKEN} characters"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description, parser.epilog = HELP, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_place(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=natural, default=PORT, help="port, 0 for a free one (default: %(default)s)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name under which browsers may reach the page, e.g. that of a proxy; may be repeated",
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="RUN",
        help="another run, whose curves the page of figures shows beside this one's; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C."""
    from squelch.cluster.inspector.server import serve

    token = os.environ.get(TOKEN) or None
    if token is not None and len(token) < LEAST_TOKEN:
        raise UserError(f"{TOKEN} has {len(token)} characters; give at least {LEAST_TOKEN}, or leave it out")
    if options.port > 65535:
        raise UserError(f"--port {options.port}: a port is a number from 0 to 65535")
    folder, *others = (_folder(place) for place in (options.run_dir, *options.compare))
    serve(folder, options.host, options.port, token, options.allow_host, others)
    return 0


def _folder(name: str) -> RunFolder:
    """The run; a folder by its whole path, because `importing` leaves the current folder."""
    place = place_of(name)
    return RunFolder(place.absolute() if isinstance(place, Path) else place)
