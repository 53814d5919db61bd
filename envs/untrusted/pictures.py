"""Pictures from elsewhere: PNG files that were not written here, and pictures as parts of a JSON value.

Only what decodes to one exact picture is taken: 8-bit RGB, one frame. Everything else is refused by name instead of
being converted, because a conversion would decide what the policy sees. The header's size is checked before a pixel is
decoded, so that a small file cannot ask for much memory.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from squelch.envs.pictures import Picture, Shown
from squelch.envs.untrusted.files import MIB, Unreadable, brief, reason, size_text

MAX_PNG = MIB
"""Bytes of one PNG."""
_END = b"IEND\xaeB`\x82"
MAX_PIXELS = 2**21
"""Pixels of one picture; 1,448 x 1,448."""
MAX_PICTURES = 8
"""Pictures in one observation."""


def picture_of_png(data: bytes, where: str) -> Picture:
    """The picture. Raises Unreadable, beginning with `where`, for everything but one frame of 8-bit RGB within the
    bounds."""
    from PIL import Image, UnidentifiedImageError  # 60 ms; most environments show no pictures

    if len(data) > MAX_PNG:
        raise Unreadable(f"{where}: a PNG of more than {size_text(MAX_PNG)}")
    if data.startswith(b"\x89PNG") and not data.endswith(_END):
        raise Unreadable(f"{where}: a PNG without its end")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Unreadable(f"{where}: {width} x {height} pixels, more than {MAX_PIXELS}")
            if getattr(image, "n_frames", 1) > 1:
                raise Unreadable(f"{where}: an animation; one picture is needed")
            if image.mode != "RGB" or "transparency" in image.info:
                mode = "RGB with a transparent colour" if image.mode == "RGB" else image.mode
                raise Unreadable(f"{where}: pixels of the mode {mode}; 8-bit RGB is needed")
            image.load()
            return Picture(np.asarray(image, np.uint8))
    except UnidentifiedImageError as error:
        raise Unreadable(f"{where}: no PNG (begins with {brief(data[:8])})") from error
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise Unreadable(f"{where}: a PNG that cannot be decoded: {reason(error)}") from error


def png_of(picture: Picture) -> bytes:
    """The picture as a PNG."""
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(picture.rgb).save(written, format="PNG", compress_level=1)
    return written.getvalue()


def json_of(shown: str | Shown) -> str | list[dict[str, str]]:
    """An observation as JSON: text, or a list of `{"text": ...}` and `{"png": BASE64}`."""
    if isinstance(shown, str):
        return shown
    return [
        {"text": part} if isinstance(part, str) else {"png": base64.b64encode(png_of(part)).decode()}
        for part in shown.parts
    ]


def shown_of_json(value: str | Sequence[Any], where: str) -> str | Shown:
    """The reverse of `json_of`. Raises Unreadable, beginning with `where` and the part's number, for anything else."""
    if isinstance(value, str):
        return value
    parts = [_part(part, f"{where}[{number}]") for number, part in enumerate(value)]
    if sum(isinstance(part, Picture) for part in parts) > MAX_PICTURES:
        raise Unreadable(f"{where}: more than {MAX_PICTURES} pictures")
    return Shown.of(*parts)


def _part(part: Any, where: str) -> str | Picture:
    if not isinstance(part, dict) or len(part) != 1 or not isinstance(next(iter(part.values())), str):
        raise Unreadable(f'{where}: {{"text": TEXT}} or {{"png": BASE64}} is needed (got {brief(part)})')
    [(kind, value)] = part.items()
    if kind == "text":
        return value
    if kind != "png":
        raise Unreadable(f"{where}: a part is text or png, not {brief(kind)}")
    if len(value) > 2 * MAX_PNG:
        raise Unreadable(f"{where}.png: a PNG of more than {size_text(MAX_PNG)}")
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise Unreadable(f"{where}.png: no base64: {reason(error)}") from error
    return picture_of_png(data, f"{where}.png")
