"""The command's first module. It imports nothing slow: while the others are imported, a signal ends the process without
a trace, with the exit code that it has later (`kit.process.signals`)."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """As `cluster.cli.main`, in a process of its own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    from squelch.cluster import cli

    return cli.main()


def _end(number: int, _: object) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
