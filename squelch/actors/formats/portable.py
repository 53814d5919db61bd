"""A format without its model: the small files from which it is opened, so that a run's ids can be parsed anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.kit.text.stamp import STAMP_FILE
from squelch.kit.text.tokenizer import FILES, TOKENIZER_FILE
from squelch.kit.untrusted.files import MIB, decoding, is_file, read_bytes

if TYPE_CHECKING:
    from squelch.actors.formats.choice import AnyFormat

NAMES = (*(name for name in FILES if name != TOKENIZER_FILE), "config.json", "generation_config.json", STAMP_FILE)
MOST_BYTES = 4 * MIB
"""Bytes of one file."""


def small_files(model: Path) -> dict[str, str]:
    """The texts of a model folder's files, apart from the tokenizer, that say how its ids are read."""
    found = {}
    for path in (model / name for name in NAMES):
        if is_file(path):
            data = read_bytes(path, MOST_BYTES)
            with decoding(str(path), "is no text in UTF-8"):
                found[path.name] = data.decode()
    return found


def open_portable(files: Mapping[str, str], tokenizer: bytes, folder: Path) -> AnyFormat:
    """The format of these files and of a tokenizer.json, which are written to the empty `folder`. Raises ValueError if
    they are none."""
    from squelch.actors.formats.choice import open_format  # imports transformers

    for name in NAMES:
        if isinstance(text := files.get(name), str):
            (folder / name).write_text(text, encoding="utf-8")
    (folder / TOKENIZER_FILE).write_bytes(tokenizer)
    return open_format(folder)
