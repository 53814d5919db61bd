"""PNGs from elsewhere: what is exact is taken, and everything else is refused by name and in little memory."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from squelch.kit.records.picture_files import (
    MAX_PIXELS,
    MAX_PNG,
    json_of,
    own_picture_of_png,
    picture_of_file,
    picture_of_png,
    png_of,
    shown_of_json,
    size_of_file,
)
from squelch.kit.records.pictures import Picture, Shown
from squelch.kit.untrusted.files import Unreadable

PICTURE = Picture(np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3))


def png(mode: str = "RGB", size: tuple[int, int] = (4, 4), **options: object) -> bytes:
    written = io.BytesIO()
    Image.new(mode, size).save(written, format="PNG", **options)
    return written.getvalue()


def claimed(width: int, height: int, rows: bytes = b"", depth: int = 8, colour: int = 2) -> bytes:
    """A PNG whose header claims that size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_what_was_written_is_read_to_the_pixel() -> None:
    assert picture_of_png(png_of(PICTURE), "here") == PICTURE


def test_another_file_with_the_same_pixels_is_the_same_picture() -> None:
    written = io.BytesIO()
    Image.fromarray(PICTURE.rgb).save(written, format="PNG", compress_level=9)
    assert written.getvalue() != png_of(PICTURE) and picture_of_png(written.getvalue(), "here") == PICTURE


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16"])
def test_pixels_of_another_mode_are_refused_instead_of_converted(mode: str) -> None:
    with pytest.raises(Unreadable, match=f"here: pixels of the mode {mode}"):
        picture_of_png(png(mode), "here")


def test_a_transparent_colour_is_refused() -> None:
    with pytest.raises(Unreadable, match="transparent colour"):
        picture_of_png(png(transparency=(0, 0, 0)), "here")


def test_an_animation_is_refused() -> None:
    written = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(written, format="PNG", save_all=True, append_images=frames[1:])
    with pytest.raises(Unreadable, match="an animation"):
        picture_of_png(written.getvalue(), "here")


@pytest.mark.parametrize(("width", "height"), [(2**31 - 1, 2**31 - 1), (MAX_PIXELS + 1, 1), (60_000, 60_000)])
def test_a_small_file_that_claims_many_pixels_is_refused_before_they_are_decoded(width: int, height: int) -> None:
    with pytest.raises(Unreadable, match=r"pixels, more than|cannot be decoded|no PNG"):
        picture_of_png(claimed(width, height), "here")


@pytest.mark.parametrize("data", [b"", b"GIF89a", png()[:40], png()[:-20], claimed(4, 4), claimed(4, 4, b"\x05" * 99)])
def test_what_is_no_whole_png_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="here: "):
        picture_of_png(data, "here")


def test_other_formats_are_refused_by_what_they_begin_with() -> None:
    written = io.BytesIO()
    Image.new("RGB", (4, 4)).save(written, format="BMP")
    with pytest.raises(Unreadable, match=r"no PNG .begins with b'BM"):
        picture_of_png(written.getvalue(), "here")


def test_a_large_file_is_refused() -> None:
    with pytest.raises(Unreadable, match="more than 1 MiB"):
        picture_of_png(b"\x89PNG" + bytes(MAX_PNG), "here")


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_no_bytes_raise_another_error(garbage: bytes, place: int, value: int) -> None:
    good = bytearray(png_of(PICTURE))
    good[place % len(good)] = value
    for data in (garbage, png()[:33] + garbage, bytes(good)):
        try:
            picture_of_png(data, "here")
        except Unreadable as error:
            assert str(error).startswith("here: ")


def test_parts_come_back_in_their_order() -> None:
    shown = Shown.of("a", PICTURE, PICTURE, "b")
    assert shown_of_json(json_of(shown), "here") == shown and shown_of_json("text", "here") == "text"
    assert shown_of_json([{"text": "a"}, {"text": "b"}], "here") == "ab"


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ([3], r"here\[0\]: .* is needed"),
        ([{"text": "a", "png": "b"}], r"here\[0\]: .* is needed"),
        ([{"text": 1}], r"here\[0\]: .* is needed"),
        ([{"jpeg": "a"}], "a part is text or png"),
        ([{"png": "ä"}], "no base64"),
        (json_of(Shown((PICTURE,) * 9)), "more than 8 pictures"),
    ],
)
def test_parts_of_another_form_are_refused_with_their_number(value: list, wrong: str) -> None:
    with pytest.raises(Unreadable, match=wrong):
        shown_of_json(value, "here")


def test_a_data_sets_jpeg_and_grey_png_are_pictures() -> None:
    grey, written = Image.fromarray(PICTURE.rgb[:, :, 0]), io.BytesIO()
    grey.save(written, format="PNG")
    assert picture_of_file(written.getvalue(), "here") == Picture(np.repeat(PICTURE.rgb[:, :, :1], 3, axis=2))
    written = io.BytesIO()
    Image.fromarray(PICTURE.rgb).save(written, format="JPEG", quality=95)
    with Image.open(written) as image:
        assert picture_of_file(written.getvalue(), "here") == Picture(np.asarray(image))


@pytest.mark.parametrize(("depth", "colour", "mode"), [(16, 2, "RGB;16B"), (4, 0, "L;4"), (2, 0, "L;2")])
def test_another_depth_than_8_bit_is_refused_instead_of_converted(depth: int, colour: int, mode: str) -> None:
    width = 4 * depth * (3 if colour == 2 else 1) // 8
    data = claimed(4, 4, (b"\0" + bytes(width)) * 4, depth, colour)
    for read in (picture_of_file, size_of_file, picture_of_png):
        with pytest.raises(Unreadable, match=f"here: pixels of the mode ({mode}|L);"):
            read(data, "here")
    assert picture_of_png(claimed(4, 4, (b"\0" + bytes(12)) * 4), "here").size == (4, 4)


def scanned(scans: int) -> bytes:
    """A progressive JPEG of 4096 x 4096 pixels whose last scan is written that many times more."""
    written = io.BytesIO()
    Image.new("L", (4096, 4096)).save(written, format="JPEG", progressive=True)
    data = written.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * scans + data[-2:]


def test_a_jpeg_of_many_scans_is_refused_before_one_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert size_of_file(scanned(0), "here") == (4096, 4096)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("pixels were decoded"))
    for read in (picture_of_file, size_of_file):
        with pytest.raises(Unreadable, match=r"here: a JPEG of \d+ scans; save it again"):
            read(scanned(1000), "here")


@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(["PNG", "JPEG"]))
def test_a_damaged_file_is_a_picture_or_is_refused(place: int, value: int, form: str) -> None:
    written = io.BytesIO()
    Image.fromarray(PICTURE.rgb).save(written, format=form)
    data = bytearray(written.getvalue())
    data[place % len(data)] = value
    try:
        assert picture_of_file(bytes(data), "here").rgb.size
    except Unreadable as error:
        assert str(error).startswith("here: ")


def test_what_was_written_here_is_read_again_however_large_it_is() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    png = png_of(Picture(rgb))
    assert len(png) > MAX_PNG and own_picture_of_png(png, "here") == Picture(rgb)
    with pytest.raises(Unreadable, match="a PNG of more than 1 MiB"):
        picture_of_png(png, "here")
