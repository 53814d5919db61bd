"""`squelch inspect`: shows a run's groups, trajectories, score matrices and spans in the browser.

The page only reads the run's folder or its store, so the run may be live, over, or on another machine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from squelch.cluster.commands.arguments import place_of
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError

TOKEN = "SQUELCH_INSPECT_TOKEN"
LEAST_TOKEN = 16


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
