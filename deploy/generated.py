"""Files that are generated and committed: which of them differ from the code, and the command that writes them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def stale(texts: Mapping[Path, str], root: Path = ROOT) -> list[Path]:
    """The files that are missing or differ from their text."""
    return [path for path, text in texts.items() if not _holds(root / path, text)]


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write(texts: Mapping[Path, str], root: Path = ROOT) -> list[Path]:
    """Writes the files that differ; returns their paths."""
    changed = stale(texts, root)
    for path in changed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(texts[path], encoding="utf-8")
    return changed


def command(module: str, artefacts: Callable[[], Mapping[Path, str]], arguments: Sequence[str] | None = None) -> int:
    """`python -m MODULE --write | --check`; returns 1 if a check found a file that differs, else 0.

    Args:
        artefacts: the text of each file, by its path in the repository.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description="Writes or checks generated files.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the files that differ")
    mode.add_argument("--check", action="store_true", help="exit with 1 if a file differs")
    chosen = parser.parse_args(arguments)
    paths = write(artefacts()) if chosen.write else stale(artefacts())
    for path in paths:
        sys.stdout.write(f"{'wrote' if chosen.write else 'differs from the code'}: {path}\n")
    return 1 if chosen.check and paths else 0
