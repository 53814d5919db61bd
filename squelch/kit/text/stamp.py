"""What a run stamps on the folder of its initial policy, so that every process that opens the folder writes the same
prompts: `squelch_format.json`."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

from squelch.kit.text.tokenizer import read_object
from squelch.kit.untrusted.files import Unreadable

STAMP_FILE = "squelch_format.json"


class Stamp(NamedTuple):
    """`format`, `keep_reasoning`: the settings `model.format`, once it is known, and `model.keep_reasoning`
    (`actors.formats.choice`). `template`: digest of the chat template for which the format was chosen; empty: of any.
    `date`: the day that prompts name, as 2026-11-28; empty: the day on which they are written. `reasoning`, `answer`:
    the settings `model.reasoning` and `model.answer` (`kit.text.answer_start`)."""

    format: str = "own"
    keep_reasoning: str = "all"
    template: str = ""
    date: str = ""
    reasoning: str = "marked"
    answer: str = ""


def read_stamp(folder: Path) -> Stamp:
    """The stamp of a folder; that of our own format if it has none. Raises Unreadable, naming the file, for a value
    that is no text or no date."""
    path = folder / STAMP_FILE
    found = read_object(path)
    stamp = Stamp(**{name: found[name] for name in Stamp._fields if name in found})
    if not all(isinstance(value, str) for value in stamp):
        raise Unreadable(f"{path}: {', '.join(Stamp._fields)} must be text")
    try:
        if stamp.date:
            date.fromisoformat(stamp.date)
    except ValueError as error:
        raise Unreadable(f"{path}: date={stamp.date[:100]!r} must be a day such as 2026-11-28") from error
    return stamp
