"""The files that git knows, a copy of them, and which modules they name."""

import re
import shutil
import subprocess
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"(squelch(?:\.\w+)+)(?: import (\([^)]*\)|[^\n]*))?")


def tracked() -> list[Path]:
    """The files and links that git knows and that are there, below the repository's root."""
    words = ["git", "ls-files", "-z"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [Path(name) for name in names if (ROOT / name).is_symlink() or (ROOT / name).is_file()]


def named(text: str) -> set[str]:
    """Dotted names of `squelch` that a text imports or names: packages, modules, and what is imported from them."""
    found = set[str]()
    for name, imported in NAMED.findall(text):
        found |= {
            *accumulate(name.split("."), "{}.{}".format),
            *(f"{name}.{word}" for word in re.findall(r"\w+", imported)),
        }
    return found


def copied(place: Path) -> None:
    """Copies them, links as links."""
    for name in tracked():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
