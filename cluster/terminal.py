"""What a command says to the person at the terminal."""

import sys


def say(text: str) -> None:
    """A line, at once."""
    print(text, flush=True)


def remark(text: str) -> None:
    """A line beside what a command prints as its result, on stderr."""
    print(text, file=sys.stderr, flush=True)
