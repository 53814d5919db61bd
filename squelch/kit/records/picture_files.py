"""Pictures from elsewhere: PNG and JPEG files that were not written here, and pictures as parts of a JSON value.

Only what decodes to one exact picture is taken: 8-bit RGB, one frame; in a data set's file also 8-bit grey, which every
reader repeats in three channels. Everything else is refused by name instead of being converted, because a conversion
would decide what the policy sees. The header's size is checked before a pixel is decoded, and the number of scans of a
JPEG, each of which is decoded over all pixels, so that a small file cannot ask for much memory or time.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.kit.records.pictures import Picture, Shown
from squelch.kit.untrusted.files import MIB, Unreadable, brief, decoding, reason, size_text

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PNG = MIB
"""Bytes of one PNG."""
_END = b"IEND\xaeB`\x82"
MAX_PIXELS = 2**21
"""Pixels of one picture; 1,448 x 1,448."""
MAX_PICTURES = 8
"""Pictures in one observation."""
MAX_FILE, MAX_FILE_PIXELS = 16 * MIB, 2**24
"""Bytes and pixels of one picture in a data set."""
_MAX_SCANNED = 16 * MAX_FILE_PIXELS
"""Pixels times scans of a JPEG; a progressive one has about ten scans."""
_SCAN = b"\xff\xda"
"""With which each scan begins; within pixels 0xff is followed by other bytes."""
_MAX_OWN = 4 * MAX_FILE_PIXELS
"""Bytes of a PNG that was written here, of any picture in a data set."""
_ORIENTATION = 0x0112
"""EXIF's tag."""


def picture_of_png(data: bytes, where: str) -> Picture:
    """The picture. Raises Unreadable, beginning with `where`, for everything but one frame of 8-bit RGB within the
    bounds."""
    return _png(data, where, MAX_PNG, MAX_PIXELS)


def own_picture_of_png(data: bytes, where: str) -> Picture:
    """As `picture_of_png`, of what `png_of` wrote: as large as any picture that is taken."""
    return _png(data, where, _MAX_OWN, MAX_FILE_PIXELS)


def picture_of_file(data: bytes, where: str) -> Picture:
    """The picture in a PNG or JPEG of a data set. Raises Unreadable, beginning with `where`, for everything but one
    upright frame of 8-bit RGB or grey within the bounds."""
    with _opened_file(data, where) as image:
        if (turned := image.getexif().get(_ORIENTATION, 1)) != 1:  # of a PNG it is known once that is decoded
            raise Unreadable(
                f"{where}: is stored turned (EXIF orientation {brief(turned)}), which some readers undo; write it "
                "upright"
            )
        return _picture(image)


def size_of_file(data: bytes, where: str) -> tuple[int, int]:
    """(width, height) in pixels of the picture that `picture_of_file` decodes, from its header. Raises its errors that
    need no pixels."""
    with _opened_file(data, where) as image:
        return image.size


@contextmanager
def _opened_file(data: bytes, where: str) -> Iterator[Image]:
    if len(data) > MAX_FILE:
        raise Unreadable(f"{where}: a picture of more than {size_text(MAX_FILE)}")
    if _cut(data):
        raise Unreadable(f"{where}: a PNG without its end")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about many pixels, which are refused by name
        with _opened(data, where, ("PNG", "JPEG"), MAX_FILE_PIXELS, ("RGB", "L")) as image:
            yield image


def _png(data: bytes, where: str, most_bytes: int, most_pixels: int) -> Picture:
    if len(data) > most_bytes:
        raise Unreadable(f"{where}: a PNG of more than {size_text(most_bytes)}")
    if _cut(data):
        raise Unreadable(f"{where}: a PNG without its end")
    with _opened(data, where, ("PNG",), most_pixels, ("RGB",)) as image:
        return _picture(image)


def _cut(data: bytes) -> bool:
    return data.startswith(b"\x89PNG") and not data.endswith(_END)


@contextmanager
def _opened(
    data: bytes, where: str, formats: tuple[str, ...], most_pixels: int, modes: tuple[str, ...]
) -> Iterator[Image]:
    """The picture, of which only the header is read; errors of its decoding within the block become Unreadable."""
    from PIL import Image, UnidentifiedImageError  # 60 ms; most environments show no pictures

    named = " or ".join(formats)
    with decoding(f"{where}: a {named}", "that cannot be decoded"):
        try:
            with Image.open(io.BytesIO(data), formats=formats) as image:
                _require_exact(image, where, most_pixels, modes)
                if image.format == "JPEG" and data.count(_SCAN) * image.width * image.height > _MAX_SCANNED:
                    raise Unreadable(f"{where}: a JPEG of {data.count(_SCAN)} scans; save it again")
                yield image
        except UnidentifiedImageError as error:
            raise Unreadable(f"{where}: no {named} (begins with {brief(data[:8])})") from error


def _picture(image: Image) -> Picture:
    image.load()
    pixels = np.asarray(image, np.uint8)
    return Picture(np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels)


def _require_exact(image: Image, where: str, most_pixels: int, modes: tuple[str, ...]) -> None:
    from PIL.PngImagePlugin import PngImageFile

    width, height = image.size
    if width * height > most_pixels:
        raise Unreadable(f"{where}: {width} x {height} pixels, more than {most_pixels}")
    if getattr(image, "n_frames", 1) > 1:
        raise Unreadable(f"{where}: an animation; one picture is needed")
    if image.mode not in modes or "transparency" in image.info:
        mode = f"{image.mode} with a transparent colour" if image.mode in modes else image.mode
        raise Unreadable(f"{where}: pixels of the mode {mode}; 8-bit RGB is needed")
    stored = image.tile[0].args if isinstance(image, PngImageFile) and image.tile else image.mode
    if stored != image.mode:  # of another depth, which Pillow would convert
        raise Unreadable(f"{where}: pixels of the mode {stored}; 8-bit RGB is needed")


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
