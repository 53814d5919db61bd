"""Errors that a user can correct: the command line prints them as one paragraph and exits with code 2."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from squelch.kit.base.lookup import MAX_COMPARED
from squelch.kit.untrusted.files import Unreadable


class UserError(Exception):
    """Bad input. The message names the key, file or actor at fault and says what would be right."""

    exit_code = 2


class Fault(UserError):
    """An actor, Ray or a disk failed, and not the input: the same command may succeed."""

    exit_code = 1


@contextmanager
def as_user_error(*kinds: type[Exception], about: Path | str = "", into: type[UserError] = UserError) -> Iterator[None]:
    """Turns errors of these kinds, by default ValueError, whose text says what is wrong, into a UserError, or into the
    kind of it that is given; `about` precedes the text."""
    kinds = kinds or (ValueError,)
    try:
        yield
    except kinds as error:
        raise into(f"{about}: {error}" if about else str(error)) from error


def bad_files_are_the_users() -> AbstractContextManager[None]:
    """Turns the error about a file that cannot be read or written, which names it, into a UserError."""
    return as_user_error(Unreadable)


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """The question `Did you mean ...? `, with a space at its end; empty if no valid word is similar."""
    close = difflib.get_close_matches(word[:MAX_COMPARED], valid, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}? " if close else ""
