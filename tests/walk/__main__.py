"""`python -m tests.walk [PAGE ...] [--all] [--fresh]`: walks pages, CI's by default. Exit code 1 if one has a fault."""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

from tests.walk.places import ROOT, Ground
from tests.walk.walking import walk_page

GUIDE = "docs/guide/"
IN_CI = ("bring-your-own", "filter", "use-with-other-trainers", "python", "trl", "agents")
"""Pages of the guide that CI walks; with the tests they have to fit into CI's time on a machine of half the speed."""


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.walk", description=__doc__.partition(":")[2])
    parser.add_argument("pages", nargs="*", help="e.g. docs/guide/filter.md")
    parser.add_argument(
        "--all", action="store_true", help="every page of the guide that has a mode, and the README, whole"
    )
    parser.add_argument("--fresh", action="store_true", help="`make setup` of a clone installs every package")
    given = parser.parse_args()
    walks = ROOT / "build" / "walk"
    for ended in walks.glob("*"):
        if not psutil.pid_exists(int(ended.name)):
            shutil.rmtree(ended, ignore_errors=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what pages started ends then, too
    ground = Ground(walks / str(os.getpid()), given.fresh, say)
    pages = given.pages or [f"{GUIDE}{name}.md" for name in IN_CI]
    if given.all:
        walked = (path for path in sorted((ROOT / GUIDE).glob("*.md")) if "<!-- walk: " in path.read_text())
        pages = ["README.md", *(path.relative_to(ROOT).as_posix() for path in walked)]
    faults, began = list[str](), time.monotonic()
    try:
        for page in pages:
            start = time.monotonic()
            found = walk_page(ground, Path(page).as_posix(), given.all, say)
            say(f"{page}: {len(found)} faults, {time.monotonic() - start:.0f} s")
            faults += found
    finally:
        ground.close()
    say(f"walked {len(pages)} pages in {time.monotonic() - began:.0f} s: {len(faults) or 'no'} faults")
    for fault in faults:
        say(fault)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
