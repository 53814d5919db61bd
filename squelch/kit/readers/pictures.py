"""The pictures of a trainer's rows: found in its columns and messages, read within bounds, decoded for one model.

| where | form |
|---|---|
| column `images` or `image` | a picture, or a list of them: the prompt's, in order |
| part of a message's content, of type `image`, `image_url`, `input_image` | its own picture, or the column's next one |
| `<image>` in a prompt, if its row has that column and no such part | the column's next one |

A picture is a PNG or JPEG: bytes, `{"bytes": ..., "path": ...}` as data sets of Hugging Face have it, a data URL, or a
path, which is relative to the file's folder, or to `--pictures`, and may not leave it.

Invariants:

- Equal bytes are kept, and decoded, once.
- Nothing is fetched, and nothing is resized unless the user says so; then once, as the model's published processor.
- Every error names file, row and column.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.api.messages import PICTURE_BLOCKS, VIDEO_BLOCKS
from squelch.kit.base.errors import UserError
from squelch.kit.base.values import known_id
from squelch.kit.readers.format_rows import Row
from squelch.kit.readers.records import Record
from squelch.kit.records.picture_files import MAX_FILE, picture_of_file, size_of_file
from squelch.kit.records.pictures import Picture
from squelch.kit.untrusted.files import Unreadable, brief, is_folder, read_bytes, reason, shortened

if TYPE_CHECKING:
    from squelch.kit.api.pictures import Given
    from squelch.kit.pictures.geometry import Vision

PICTURES, VIDEOS = ("images", "image"), ("videos", "video")
"""Names of the columns."""
MOST = 32
"""Pictures of one row."""
PLACE = "<image>"
_SOURCES = ("image", "image_url", "url", "path", "base64")
"""Keys of a part that may hold its own picture."""
_FORMS = 'bytes, {"bytes": ..., "path": ...}, a data URL or a path'


@dataclass(frozen=True)
class Encoded:
    """The file of a picture. `where`: the first file, row and column that show it."""

    data: bytes
    where: str
    digest: str


class PictureFiles:
    """Reads the pictures of the rows of one file or folder."""

    def __init__(self, path: Path, folder: Path | None) -> None:
        """`path`: of the samples; `folder`: that of paths, None: the samples' own."""
        self._folder = folder
        self._root = os.path.realpath(folder or (path if is_folder(path) else path.parent))
        self._known: dict[str, Encoded] = {}

    def take(self, row: Row, record: Record, file: Path, where: str) -> None:
        """Puts the pictures that the row's prompt shows under `pictures`, as `Encoded`, with a part of type `image` for
        each in messages. A row without pictures stays as it is."""
        for name in VIDEOS:
            if record.get(name):
                raise UserError(f"{where}, column `{name}`: videos are not read; leave these rows out")
        name = next((name for name in PICTURES if not _is_empty(record.get(name))), PICTURES[0])
        given = record.get(name)
        column = [] if _is_empty(given) else given if isinstance(given, list) else [given]
        if len(column) > MOST:
            raise UserError(f"{where}, column `{name}`: {len(column)} pictures; at most {MOST} a row")
        base = self._folder or file.parent
        named = [f"{where}, column `{name}`, picture {number}" for number in range(1, len(column) + 1)]
        left = list(zip(column, named, strict=True))
        messages = row.get("prompt")
        if isinstance(messages, list) and (row.get("prompt_ids") is None or _show(messages)):
            row["prompt"] = _with_parts(messages) if column else messages
            left = _filled(row, left, where)
        if isinstance(row.get("completion"), list):
            row["completion"] = [_bare(message) for message in row["completion"]]
        if left:
            row["pictures"] = [self._encoded(value, each, base) for value, each in left]

    def _encoded(self, value: Any, where: str, base: Path) -> Encoded:
        data = self._data(value, where, base)
        if len(data) > MAX_FILE:
            raise UserError(f"{where}: {len(data):,} bytes; a picture may have {MAX_FILE:,}")
        digest = blake2b(data, digest_size=16).hexdigest()
        return self._known.setdefault(digest, Encoded(data, where, digest))

    def _data(self, value: Any, where: str, base: Path) -> bytes:
        if isinstance(value, dict):
            content = value.get("bytes")
            if isinstance(content, str):
                return _of_base64(content, where)
            value = content if content is not None else value.get("path")
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str) or not value:
            raise UserError(f"{where} is {brief(value)}; a picture is {_FORMS}")
        if value[:5].lower() == "data:":
            return _of_base64(value.partition(",")[2], where)
        if re.match(r"[a-z]+://", value, re.IGNORECASE):
            raise UserError(f"{where} is {shortened(value, 80)!r}, and nothing is fetched; give the picture's {_FORMS}")
        return self._read(value, where, base)

    def _read(self, name: str, where: str, base: Path) -> bytes:
        try:
            path = os.path.realpath(base / name)
            if os.path.commonpath([self._root, path]) == self._root:
                return read_bytes(Path(path), MAX_FILE)
        except (ValueError, OSError) as error:
            raise UserError(f"{where}: {error if isinstance(error, Unreadable) else reason(error)}") from error
        raise UserError(
            f"{where}: {shortened(name, 120)!r} leads out of {self._root}; --pictures DIR names the folder of pictures"
        )


def _is_empty(cell: Any) -> bool:
    """Whether a cell holds no picture; an empty cell of a table of texts is ""."""
    return not known_id(cell) or (isinstance(cell, list) and all(map(_is_empty, cell)))


def _of_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UserError(f"{where}: no base64: {reason(error)}") from error


# --- places in messages ---


def _with_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a part for each `<image>` in their texts, unless they have such parts."""
    if _show(messages):
        return messages
    found = []
    for message in messages:
        texts = [part.get("text") or "" for part in _parts(message)] or [message.get("content") or ""]
        pieces = [piece for text in texts for piece in re.split(f"({PLACE})", text) if piece]
        parts = [{"type": "image"} if piece == PLACE else {"type": "text", "text": piece} for piece in pieces]
        found.append({**message, "content": parts} if PLACE in pieces else message)
    return found


def _filled(row: Row, left: list[tuple[Any, str]], where: str) -> list[tuple[Any, str]]:
    """The pictures of a prompt's parts in order, each with its name; the parts become places."""
    found, rest, places = list[tuple[Any, str]](), iter(left), 0
    for number, message in enumerate(row["prompt"], 1):
        for part in _parts(message):
            if part["type"] in VIDEO_BLOCKS:
                raise UserError(f"{where}, message {number} of the prompt: videos are not read; leave these rows out")
            if not _is_picture(part):
                continue
            own = _own(part)
            if own is not None:
                found.append((own, f"{where}, message {number} of the prompt, picture {len(found) + 1}"))
            else:
                places += 1
                found += [next(rest)] if places <= len(left) else []
    if places != len(left):
        raise UserError(
            f"{where}: the prompt's messages have places for {places} pictures, and its columns "
            f"({', '.join(f'`{name}`' for name in PICTURES)}) hold {len(left)}; give one for each place, or remove a "
            "column that means something else"
        )
    if len(found) > MOST:
        raise UserError(f"{where}: {len(found)} pictures in the prompt; at most {MOST} a row")
    row["prompt"] = [_bare(message) for message in row["prompt"]]
    return found


def _show(messages: list[dict[str, Any]]) -> bool:
    return any(_is_picture(part) for message in messages for part in _parts(message))


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_picture(part: dict[str, Any]) -> bool:
    return part["type"] in PICTURE_BLOCKS


def _own(part: dict[str, Any]) -> Any:
    """The picture that a part brings along; None if it is only a place."""
    key = next((key for key in _SOURCES if part.get(key) is not None), None)
    if key is None:
        return part if part.get("bytes") is not None else None
    value = part[key]
    if isinstance(value, dict) and "url" in value:
        return value["url"]
    return {"bytes": value} if key == "base64" else value


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its pictures as places."""
    if not any(_is_picture(part) for part in _parts(message)):
        return message
    return {**message, "content": [{"type": "image"} if _is_picture(part) else part for part in message["content"]]}


# --- for one model ---


def decoded(rows: Sequence[tuple[int, Row]], vision: Vision, resize: bool) -> list[tuple[int, Row]]:
    """The rows with their pictures as `squelch.kit.api.pictures.Given`. UserError for one that is no picture or does
    not
    fit the model, unless `resize` makes it fit."""
    known: dict[str, Given] = {}
    found = []
    for number, row in rows:
        for one in row.get("pictures") or ():
            if one.digest not in known:
                known[one.digest] = _given(one, vision, resize)
        shown = [known[one.digest] for one in row.get("pictures") or ()]
        found.append((number, {**row, "pictures": shown}))
    return found


def _given(one: Encoded, vision: Vision, resize: bool) -> Given:
    from squelch.kit.api.pictures import Given
    from squelch.kit.records.content import Picture as Placed

    try:
        size = size_of_file(one.data, one.where)
        size = vision.fitting(*size) if resize else size
        vision.grid(*size)
        picture = resized(picture_of_file(one.data, one.where), size)
    except Unreadable as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        advice = "" if resize else " (--resize)"
        raise UserError(f"{one.where}: {error}{advice}") from error
    return Given(size, Placed.of(0, picture))


def resized(picture: Picture, size: tuple[int, int]) -> Picture:
    """The picture at another size, bicubic, as the model's published processor without torchvision resizes it."""
    import numpy as np
    from PIL import Image

    if size == picture.size:
        return picture
    return Picture(np.asarray(Image.fromarray(picture.rgb).resize(size, Image.Resampling.BICUBIC)))
