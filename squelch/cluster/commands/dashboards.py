"""`squelch dashboards`: pushes the dashboards to a Grafana server, or exports them as files.

Loads neither torch nor Ray, and grafana-client only for a push.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from squelch.cluster.grafana import boards
from squelch.cluster.grafana.address import address
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import one_line, say
from squelch.kit.untrusted.files import brief


def run(options: argparse.Namespace) -> int:
    """Runs the action and returns the exit code."""
    for flag, given in (("--prometheus", options.prometheus), ("--docs", options.docs)):
        if given is not None:
            address(given, flag)
    options.docs = (options.docs or "").rstrip("/")
    if "*" in re.sub(r"/\*\.\w+$", "", options.docs):
        where = "a * stands for the name of each page, and only at the end, as in https://example.com/docs/*.html"
        raise UserError(f"--docs {brief(options.docs)}: {where}")
    return {"push": _push, "export": _export}[options.action](options)


def _push(options: argparse.Namespace) -> int:
    from squelch.cluster.grafana.push import FOLDER, Push
    from squelch.cluster.grafana.server import URL, Server

    server = Server(options.url or os.environ.get("GRAFANA_URL") or URL, options.plain_http)
    say(f"Grafana {one_line(server.version())} at {server.url}")
    push = Push(server, options.folder or FOLDER, options.overwrite, options.dry_run)
    outcomes = push.run(boards.trees(options.docs), options.prometheus)
    for outcome in outcomes:
        say(f"{one_line(outcome.what)}: {one_line(outcome.action)}")
        _list(outcome.lines)
    return 1 if any(outcome.kept for outcome in outcomes) else 0


def _export(options: argparse.Namespace) -> int:
    from squelch.cluster.grafana.files import MOUNT, export, texts

    labels = dict(map(_label, options.label))
    wanted = texts(options.prometheus, options.mount or MOUNT, options.docs, labels)
    changed = export(options.folder, wanted, options.overwrite)
    for path in changed:
        say(f"wrote {path}")
    if not changed:
        say(f"{options.folder} is up to date")
    return 0


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise UserError(f"--label {one_line(text)} is not KEY=VALUE, such as release=kube-prometheus-stack")
    return key, value


def _list(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"  {one_line(line)}")
