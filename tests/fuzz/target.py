"""What is fuzzed: a reader, valid files for it, and the errors by which it may refuse a file."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from squelch.envs.retrieval.retriever import RetrieverError
from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.files import Unreadable

REFUSALS = (UserError, Unreadable, RetrieverError)
"""Errors that name the file; any other error would reach the user as a traceback."""
LONGEST_MESSAGE = 4_000
"""Characters of an error's message."""
NAME = "fuzzed"


@dataclass(frozen=True)
class Target:
    """One reader.

    `file`: the input's path below the work folder; it contains `NAME`. `make(rng)` gives the input's bytes.
    `read(path)` reads the file, or the run's folder that it is in, as the commands do. `named`: whether an error must
    name the file (an override or an answer over HTTP has none).
    """

    name: str
    file: str
    make: Callable[[random.Random], bytes]
    read: Callable[[Path], object]
    named: bool = True

    def path(self, folder: Path) -> Path:
        """The place of the input in a work folder; the folders to it are created."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True)
class Outcome:
    """How an input ended. `fault`: what is wrong in one line; None if it was read or refused as it should be."""

    refused: bool
    fault: str | None = None


def outcome(read: Callable[[], object], named: bool = True) -> Outcome:
    """Reads an input. A refusal must be of bounded length and, if `named`, name the file."""
    try:
        read()
    except REFUSALS as error:
        return Outcome(True, _of_message(str(error), named))
    except Exception as error:  # what a user would see as a traceback is what this program looks for
        if type(error) is ValueError and NAME in str(error):
            return Outcome(True, _of_message(str(error), named))  # environments raise it, and commands refuse with it
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Outcome(True, f"{type(error).__name__} at {place}: {str(error)[:300]}")
    return Outcome(False)


def _of_message(message: str, named: bool) -> str | None:
    if len(message) > LONGEST_MESSAGE:
        return f"a message of {len(message)} characters: {message[:100]!r}"
    if named and NAME not in message:
        return f"a message that does not name the file: {message[:300]!r}"
    return None
