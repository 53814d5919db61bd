"""Check of task options, with errors that name the option and say what would be right."""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

from pydantic import ValidationError

from squelch.kit.base.lookup import MAX_COMPARED
from squelch.kit.base.settings import Settings
from squelch.kit.untrusted.files import brief, shortened

S = TypeVar("S", bound=Settings)


def read_options(environment: str, model: type[S], options: dict[str, Any]) -> S:
    """`options`, checked against the environment's model. Raises ValueError with the option and what would be right."""
    known = list(model.model_fields)
    for key in options:
        if key not in known:
            wrong = f"environment.options.{shortened(key, 80)}"
            raise ValueError(f"{wrong}: {environment} has no such option; {nearest(key, known)}")
    try:
        return model(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("environment.options", *map(str, first["loc"])))
        wrong = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {wrong} (got {brief(first['input'])}, environment {environment})") from error


def nearest(word: str, known: list[str]) -> str:
    """A hint for an unknown word: the nearest known one, else all of them."""
    close = difflib.get_close_matches(word[:MAX_COMPARED], known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known) or 'none'}"
