"""Actions of the form `verb[argument]`, for WebShop and SearchQA."""

from __future__ import annotations

from collections.abc import Sequence

MAX_ARGUMENT = 200
"""Characters of an argument; the rest is cut."""


def read_bracketed(text: str, verbs: Sequence[str]) -> str | None:
    """`verb[argument]` in its one spelling; None if the text is no such action.

    Case and white space around the verb are ignored. The argument is the text between the first `[` and the last `]`,
    which must end the text. Runs of white space in it become one space, and it must not be empty. A returned action is
    read as itself.
    """
    verb, opened, rest = text.strip().partition("[")
    name = verb[: MAX_ARGUMENT + 1].strip().lower()
    if name not in verbs or not opened or not rest.endswith("]"):
        return None
    argument = " ".join(rest[:-1].split())[:MAX_ARGUMENT].rstrip()
    return f"{name}[{argument}]" if argument else None


def split_bracketed(action: str) -> tuple[str, str]:
    """(verb, argument) of an action that `read_bracketed` returned."""
    verb, _, rest = action.partition("[")
    return verb, rest[:-1]
