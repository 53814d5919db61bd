"""Targets of arrays and tables: score matrices and rewards (.npz), archives, data sets and samples in Parquet.

Bytes of a compressed file mostly fail at its checksum, so half of the inputs are well-formed files of hostile values.
"""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from squelch.kit.archive.schema import ARCHIVE_SCHEMA, INDEX_SCHEMA
from squelch.kit.archive.version import VERSION_KEY
from tests.fuzz.mutation import mutated, mutated_value
from tests.fuzz.target import NAME, Target
from tests.fuzz.text_readers import HOTPOT, PROBLEMS, ROWS, read_all_rows, read_hotpot, read_problems, read_samples

Rows = Sequence[dict[str, Any]]
DTYPES = ("f8", "f4", "f2", "i8", "i1", "u8", "?", "c16", "S4", "U3", "M8[s]", "m8[s]", "V4", ">f8", "g", "O")
HEADERS = (
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f8', 'fortran_order': 2, 'shape': [3], }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<U0', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<U900000000', 'fortran_order': False, 'shape': (9,), }",
    "{'descr': [('a', '<f8'), ('a', '<f8')], 'fortran_order': False, 'shape': (), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }",
    "(" * 900,
    "{'descr': '<f8'",
    "[1, 2]",
    "\x00\xff\\",
)
COLUMNS = (
    "query",
    "prompt",
    "group_id",
    "step",
    "loss_mask",
    "log_probs",
    "episode_return",
    "split",
    "turns",
    "segments",
    "untrained",
)
ODD = (
    pa.array([None, None, None]),
    pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array([b"\xff", b"a", None]),
    pa.array([[1], None, [2, None]]),
    pa.array([2**62, 0, -1]),
    pa.array([float("nan"), float("inf"), 0.0]),
    pa.array([{"a": 1}, None, {"a": 2}]),
    pa.array([1, 2, 3], pa.timestamp("ns", "Mars/Olympus")),
    pa.array([1, 2, 3], pa.decimal128(38, 2)),
    pa.array([[[["x"]]], [], None]),
    pa.array(["train", "train", "validation"], pa.large_string()),
)


def _archive_row(index: int) -> dict[str, Any]:
    turn = {"sample_start": 1, "sample_end": 3, "reasoning_start": 1, "reasoning_end": 2, "reward": 1.0}
    aside = {"rule": "no tools", "token_ids": [1, 2], "sampled": [False, True], "log_probs": [0.0, -1.0]}
    aside |= {"version_min": 0, "version_max": 0}
    turn |= {"format_penalty": 0.0, "format_valid": True, "hit_token_limit": False, "num_actions": 1}
    return {
        **{"group_id": f"000001-00{index // 2}", "trajectory": index % 2, "step": 1, "environment": "FrozenLake"},
        **{"split": "train", "task_seed": 1, "task_options": "{}", "task_key": "k", "token_ids": [1, 2, 3, 4]},
        **{"loss_mask": [False, True, True, False], "log_probs": [0.0, -0.5, -1.5, 0.0]},
        **{"episode_return": float(index), "segments": [{"start": 3, "cause": "x"}] if index else None},
        **{"untrained": [aside] if index == 2 else None, "failure_rewarded": "exit code 1" if index else None},
        **{"turns": [turn | {"version_min": 0, "version_max": 0}], "format_penalty": 0.0, "success": True},
        **{"truncated": False, "bootstrap_last_state": False, "worker": "w", "version_spans": None, "pictures": None},
        **{"failure_cause": "step_timeout" if index == 3 else None, "decision": "kept", "score": 0.5},
    }


ARCHIVE = [_archive_row(index) for index in range(4)]
INDEX = [
    {
        **{"group_id": "g", "step": 1, "environment": "e", "split": "train", "task_seed": 1, "task_key": "k"},
        **{"returns": [1.0, None], "successes": [True, None], "lengths": [1, 2], "num_turns": [1, 1]},
        **{"failure_causes": [], "num_trajectories": 2, "num_failures": 1, "num_truncated": 0, "num_tokens": 3},
        "worker": "w",
    }
]
IDS = [{"prompt_ids": [1, 2], "reasoning_ids": [3], "prompt": "a", "reasoning": "b", "step": 1} for _ in range(3)]


def _parquet(rows: Rows, schema: pa.Schema | None = None) -> Callable[[random.Random], bytes]:
    """Inputs: tables whose values, columns or metadata are hostile, or the bytes of a valid file mutated."""

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return mutated(rng, _written(rng, pa.Table.from_pylist(rows, schema)), [b"PAR1", b""])
        return _written(rng, _hostile_columns(rng, _hostile_values(rng, rows, schema)))

    return make


def _hostile_values(rng: random.Random, rows: Rows, schema: pa.Schema | None) -> pa.Table:
    """A table of mutated rows; the rows themselves if Arrow cannot express the mutated ones."""
    for _ in range(3):
        changed = mutated_value(rng, rows)
        try:
            return pa.Table.from_pylist(changed, schema if rng.random() < 0.8 else None)
        except (pa.ArrowException, TypeError, AttributeError, LookupError, ArithmeticError, ValueError, RecursionError):
            continue
    return pa.Table.from_pylist(rows, schema)


def _hostile_columns(rng: random.Random, table: pa.Table) -> pa.Table:
    what = rng.randrange(6)
    if what == 0 and table.num_columns:
        name = rng.choice(table.column_names)
        table = table.append_column(name, table[name])
    elif what == 1 and table.num_columns:
        table = table.drop_columns([rng.choice(table.column_names)])
    elif what == 2:
        odd = rng.choice(ODD)
        names = [*table.column_names, *COLUMNS]
        table = pa.table({rng.choice(names): odd, "other": odd})
    elif what == 3:
        stated = rng.choice(("9", "-1", "0", "1", "x", "9" * 5000, b"\xff", ""))
        table = table.replace_schema_metadata({VERSION_KEY: stated})
    elif what == 4:
        table = table.slice(0, rng.randrange(len(table) + 1))
    return table


def _written(rng: random.Random, table: pa.Table) -> bytes:
    out = io.BytesIO()
    try:
        codec = rng.choice(("none", "zstd", "snappy", "gzip"))
        pq.write_table(
            table, out, compression=codec, row_group_size=rng.choice((1, 2, 100)), use_dictionary=codec != "gzip"
        )
    except (pa.ArrowException, ValueError):  # e.g. a struct without fields has no place in Parquet
        return b"PAR1"
    return out.getvalue()


def _npz(arrays: Callable[[], dict[str, np.ndarray]]) -> Callable[[random.Random], bytes]:
    """Inputs: archives of hostile arrays, headers or zip entries, or the bytes of a valid archive mutated."""

    def make(rng: random.Random) -> bytes:
        known = arrays()
        kind = rng.randrange(4)
        if kind == 0:
            return mutated(rng, _zipped(rng, known), [_zipped(rng, {"x": np.zeros(3)})])
        if kind == 1:
            name = rng.choice(list(known))
            return _hostile_zip(rng, known, f"{name}.npy", _with_header(rng))
        changed = known | {rng.choice([*known, "prompt_id", "lengths", "penalties"]): _array(rng)}
        return _zipped(rng, changed)

    return make


def _zipped(rng: random.Random, arrays: dict[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    save = np.savez if rng.random() < 0.5 else np.savez_compressed
    save(out, allow_pickle=True, **arrays)  # readers must refuse arrays of objects
    return out.getvalue()


def _hostile_zip(rng: random.Random, arrays: dict[str, np.ndarray], name: str, data: bytes) -> bytes:
    out = io.BytesIO(_zipped(rng, {key: array for key, array in arrays.items() if f"{key}.npy" != name}))
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(out, "a", method) as archive:
        archive.writestr(name, data)
    whole = bytearray(out.getvalue())
    if rng.random() < 0.3:  # the flag of encryption, in the entry of the central directory
        place = whole.rfind(b"PK\x01\x02")
        whole[place + 8] |= 1
    return bytes(whole)


def _with_header(rng: random.Random) -> bytes:
    header = rng.choice(HEADERS).encode("latin-1")
    version, size = (b"\x01\x00", "<H") if len(header) < 60_000 else (b"\x02\x00", "<I")
    stated = rng.choice((len(header), 0, 60_000))
    magic = b"\x93NUMPY" + rng.choice((version, version, b"\x02\x00", b"\x03\x00", b"\x09\x09"))
    return magic + struct.pack(size, stated) + header + rng.randbytes(rng.choice((0, 24, 200)))


def _array(rng: random.Random) -> np.ndarray:
    shape = tuple(rng.randrange(5) for _ in range(rng.randrange(6)))
    kind = rng.choice(DTYPES)
    if kind == "O":
        return np.full(shape, None)
    values = rng.choice((0.0, 1.0, -1.0, 0.5, np.nan, np.inf, 1e300, -1e308, 3.0, 1e18))
    with np.errstate(all="ignore"):
        made = np.full(shape, values)
        return made.astype(kind) if kind not in ("V4", "M8[s]", "m8[s]") else np.zeros(shape, kind)


def _rewards() -> dict[str, np.ndarray]:
    rewards = np.array([[0.0, 1.0, 1.0], [1.0, np.nan, 0.0], [1.0, 1.0, 1.0]])
    return {
        "rewards": rewards,
        "lengths": np.ones((3, 3)),
        "surprisals": np.ones((3, 3)) / 2,
        "penalties": -rewards / 9,
    }


def _matrix() -> dict[str, np.ndarray]:
    matrix = np.random.default_rng(0).normal(size=(3, 2, 3)) - 9
    return {"log_likelihood": matrix, "lengths": np.full((3, 2), 4), "prompt_id": np.arange(3)}


def _filter(path: Path) -> None:
    import json

    from squelch.kit.commands.filter import filter_report, filter_table, read_windows
    from squelch.kit.filter.settings import FilterConfig

    windows = read_windows(path)
    for config in (FilterConfig(), FilterConfig(rule="min_p", rho=0.5), FilterConfig(statistic="reward_std")):
        report = filter_report(path, windows, config)
        json.dumps(report, allow_nan=False)
        filter_table(report)


def _mi(path: Path) -> None:
    import json

    from squelch.kit.commands.mi import mi_json, mi_reports, mi_table

    for compat in ("paper", "ragen"):
        found, _ = mi_reports(path, compat)
        for report, sure in found:
            json.dumps(mi_json(report, sure, 0.05), allow_nan=False)
            mi_table(report, sure, 0.05)


def _groups(path: Path) -> None:
    from squelch.cluster.commands.existing_runs.gradients import archived_groups

    archived_groups(path.parents[1], 1)


def _index(path: Path) -> None:
    from squelch.cluster.runs.folder import RunFolder

    RunFolder(path.parents[1]).index()


TARGETS = (
    Target("rewards", f"{NAME}.npz", _npz(_rewards), _filter),
    Target("score matrix", f"{NAME}.npz", _npz(_matrix), _mi),
    Target("groups for the filter", f"{NAME}.parquet", _parquet(ARCHIVE, ARCHIVE_SCHEMA), _filter),
    Target("groups of a run", f"{NAME}/groups/step-000001.parquet", _parquet(ARCHIVE, ARCHIVE_SCHEMA), _groups),
    Target("index of a run", f"{NAME}/groups/index-000000.parquet", _parquet(INDEX, INDEX_SCHEMA), _index),
    Target("samples in Parquet", f"{NAME}.parquet", _parquet(IDS), read_samples),
    Target("rows in Parquet", f"{NAME}.parquet", _parquet(ROWS), read_all_rows),
    Target("problems in Parquet", f"{NAME}.parquet", _parquet(PROBLEMS[:1]), read_problems),
    Target("contexts in Parquet", f"{NAME}.parquet", _parquet(HOTPOT[1:]), read_hotpot),
)
