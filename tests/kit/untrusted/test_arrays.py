"""An .npz gives the arrays that numpy wrote, or an error that names file and array, before much is inflated."""

import io
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from squelch.kit.untrusted.arrays import MOST_BYTES, read_npz
from squelch.kit.untrusted.files import Unreadable
from tests.kit.untrusted.kinds import KINDS


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def zipped(path: Path, data: bytes, method: int = zipfile.ZIP_DEFLATED, flags: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.npy", data)
    whole = bytearray(path.read_bytes())
    whole[whole.rfind(b"PK\x01\x02") + 8] |= flags
    path.write_bytes(whole)
    return path


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text.encode()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_any_order_and_type_are_read_as_numpy_reads_them(tmp_path: Path, save) -> None:
    arrays = {
        "a": np.arange(24.0).reshape(2, 3, 4),
        "b": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        "c": np.array(["x", "yy"]),
        "d": np.zeros((0, 3), bool),
        "e": np.array(3.5),
    }
    save(tmp_path / "x.npz", **arrays)
    found = read_npz(tmp_path / "x.npz", ["a"], ["b", "c", "d", "e", "none"])
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)


SHAPE = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (npy(np.array([None])), {}, "`a` holds Python objects"),
        (npy(np.zeros(3)), {"flags": 1}, "`a` is encrypted"),
        (npy(np.zeros(3)), {"method": zipfile.ZIP_LZMA}, "another method than deflate"),
        (npy(np.zeros(3))[:-1], {}, "`a` is damaged"),
        (b"junk", {}, "`a` is damaged"),
        (header(SHAPE % ("<f8", (2**60,))), {}, "at most 512 MiB are read"),
        (header(SHAPE % ("<f8", (-1,))), {}, "has the shape"),
        (header(SHAPE % ("<f8", "(" + "9" * 5000 + ",)")), {}, "`a`"),
        (header("(" * 5000), {}, "`a` is damaged"),
        (header("{'descr'"), {}, "`a` is damaged"),
        (header(SHAPE % ("<f8", (1,)), b"\x09\x09"), {}, "`a` is damaged"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(2**24), {}, "`a` is damaged"),
    ],
)
def test_a_hostile_member_is_named(tmp_path: Path, data: bytes, options: dict[str, int], says: str) -> None:
    path = zipped(tmp_path / "x.npz", data, **options)
    with pytest.raises(Unreadable, match=f"^{path}.*{says}"):
        read_npz(path, ["a"], [])


def test_a_bomb_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    count = MOST_BYTES // 8 + 1
    path = zipped(tmp_path / "x.npz", header(SHAPE % ("|i1", (count,))) + bytes(count))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Unreadable, match="at most 512 MiB are read"):
        read_npz(path, ["a"], [])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


@pytest.mark.timeout(5)
@pytest.mark.parametrize("kind", KINDS)
def test_no_other_kind_of_file_is_an_archive(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "x.npz")
    with pytest.raises(Unreadable, match="a regular file is needed"):
        read_npz(tmp_path / "x.npz", ["a"], [])
