"""Errors that a user can correct: the command line prints them as one paragraph and exits with code 2."""

from collections.abc import Iterator
from contextlib import contextmanager

from squelch.envs.untrusted.files import Unreadable


class UserError(Exception):
    """Bad input. The message names the key, file or actor at fault and says what would be right."""


@contextmanager
def bad_files_are_the_users() -> Iterator[None]:
    """Turns the error about a file that cannot be read or written, which names it, into a UserError."""
    try:
        yield
    except Unreadable as error:
        raise UserError(str(error)) from error
