"""Parquet is decoded a row group at a time, within a bound; columns of one name, and text that is none, are named."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.kit.untrusted import parquet
from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.parquet import open_parquet, row_groups


def read(path: Path, columns: list[str]) -> list[pa.Table]:
    return list(row_groups(open_parquet(path, str(path)), str(path), columns))


def test_row_groups_come_one_by_one_with_the_wanted_columns(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(10)), "b": [[str(i)] for i in range(10)], "c": [1.0] * 10})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=4)
    found = read(tmp_path / "x.parquet", ["b", "a"])
    assert [len(part) for part in found] == [4, 4, 2]
    assert pa.concat_tables(found).select(["a", "b"]).equals(table.select(["a", "b"]))


def test_a_file_without_rows_gives_an_empty_table(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "x.parquet")
    (found,) = read(tmp_path / "x.parquet", ["a"])
    assert len(found) == 0 and found.schema.names == ["a"]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "x.parquet")
    with pytest.raises(Unreadable, match=r"x\.parquet has more than one column 'a'"):
        read(tmp_path / "x.parquet", ["a"])


def test_text_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    text = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))
    pq.write_table(pa.table({"a": text}), tmp_path / "x.parquet")
    with pytest.raises(Unreadable, match=r"x\.parquet cannot be decoded as Parquet \(.*UTF"):
        read(tmp_path / "x.parquet", ["a"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.zeros(3_000_000, np.int64)),
        pa.ListArray.from_arrays([0, 3_000_000], pa.array(np.zeros(3_000_000, np.int64))),
        pa.array(["x" * 100_000] * 300),
    ],
    ids=["equal numbers", "one list", "one text"],
)
def test_few_bytes_that_stand_for_many_values_are_refused_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: pa.Array
) -> None:
    pq.write_table(pa.table({"a": column}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 300_000
    monkeypatch.setattr(parquet, "MOST_BYTES", 2**22)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Unreadable, match=r"a row group decodes to more than 4 MiB"):
        read(tmp_path / "x.parquet", ["a"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(20) + b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1"])
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(data)
    with pytest.raises(Unreadable, match=r"x\.parquet cannot be decoded as Parquet"):
        read(tmp_path / "x.parquet", ["a"])


READ_EVERY_CHANGE = """
import io, sys
from pathlib import Path
from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.parquet import open_parquet, row_groups

whole, refused = Path(sys.argv[1]).read_bytes(), 0
for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole) - 8):
    changed = bytearray(whole)
    changed[place] ^= int(sys.argv[2])
    try:
        list(row_groups(open_parquet(io.BytesIO(changed), "x"), "x", ["a", "b"]))
    except (Unreadable, KeyError):
        refused += 1
print(refused)
"""


@pytest.mark.slow
@pytest.mark.parametrize("change", [1, 2, 4])
def test_no_byte_of_a_footer_can_end_the_process(tmp_path: Path, change: int) -> None:
    pq.write_table(pa.table({"a": [[1, 2], [3]], "b": ["x", None], "c": [1, 2]}), tmp_path / "x.parquet")
    words = [sys.executable, "-c", READ_EVERY_CHANGE, str(tmp_path / "x.parquet"), str(change)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 50
