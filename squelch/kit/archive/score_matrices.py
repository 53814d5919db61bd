"""The score matrices of one scorer step in a file: which reasoning was how likely under which prompt.

    scores/step-000012.parquet                  `SCORES_SCHEMA`: one row per scored pair (reasoning, prompt), in order
                                                of scope, reasoning and prompt; at most `MAX_BYTES`

    scores/steps-000100-000198-MASK.parquet     several scorer steps' (`kit.archive.parts`), with two more columns:
                                                `step`, and `policy_version` as in the metadata of the other files

A pair names its texts by group, trajectory and turn; the texts are in the step's part of the archive. A matrix of more
than `MAX_PAIRS` pairs keeps evenly spaced reasonings with all of their pairs. Each scorer step replaces the file of its
step; a scorer step without a matrix (fewer than two prompts) writes an empty one.

`ScoreMatrix` is one scope in memory. Pure: imports neither torch nor Ray.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squelch.kit.archive.parts import SCORES, Part, by_step, opened, part_key, parts_in, row_groups_of
from squelch.kit.archive.schema import SCORES_SCHEMA, text_columns
from squelch.kit.archive.store import Store, as_store, reading
from squelch.kit.archive.version import check_version, version_of
from squelch.kit.untrusted.files import MIB, decoding
from squelch.kit.untrusted.parquet import MOST_BYTES, in_one, open_parquet, row_groups

if TYPE_CHECKING:
    from squelch.kit.archive.reader import Place

MAX_BYTES = MIB
MAX_PAIRS = 200_000
"""Pairs of one scorer step, all scopes together: 4 bytes a pair do not compress, the rest of a row does."""
POLICY_KEY = b"squelch.policy_version"
MERGED_SCHEMA = pa.schema(
    [*SCORES_SCHEMA, pa.field("step", pa.int32()), pa.field("policy_version", pa.int32())], SCORES_SCHEMA.metadata
)
"""Of a merged file. A policy version is null where the step's own file stated none."""
_ADDED = ("step", "policy_version")
_REMEDY = "delete it: the run does not need it"

DICTIONARY = [*text_columns(SCORES_SCHEMA), "sample", "prompt", "num_tokens"]
"""Columns whose values repeat."""


@dataclass(frozen=True)
class TurnPlace:
    """The turn (from 0) of a trajectory of a group."""

    group: str
    trajectory: int
    turn: int


@dataclass(frozen=True)
class ScoreMatrix:
    """One scope of one scorer step.

    `values`: (num_samples, num_prompts) float64, nats per sequence; not finite for a pair that was not scored.
    `source`: (num_samples,) the column of each reasoning's own prompt. `lengths`: (num_samples,) tokens of each
    reasoning. `samples`: the turn of each reasoning; `prompts`: a turn that showed each prompt.
    """

    values: np.ndarray
    source: np.ndarray
    lengths: np.ndarray
    samples: Sequence[TurnPlace]
    prompts: Sequence[TurnPlace]

    def thinned(self, most_pairs: int) -> ScoreMatrix:
        """The matrix of the reasonings that were scored under their own prompt, evenly spaced ones if there are more
        than `most_pairs` pairs, and of the prompts that one of them was scored under."""
        known = np.flatnonzero(np.isfinite(self.values[np.arange(len(self.source)), self.source]))
        room = most_pairs // max(len(self.prompts), 1)
        if len(known) > room:
            known = known[np.linspace(0, len(known) - 1, room).round().astype(np.int64)]
        return self._part(known, np.flatnonzero(np.isfinite(self.values[known]).any(axis=0)))

    def _part(self, rows: np.ndarray, columns: np.ndarray) -> ScoreMatrix:
        number = np.full(len(self.prompts), -1)
        number[columns] = np.arange(len(columns))
        return ScoreMatrix(
            self.values[np.ix_(rows, columns)],
            number[self.source[rows]],
            self.lengths[rows],
            [self.samples[row] for row in rows],
            [self.prompts[column] for column in columns],
        )


def scored_steps(store: Store) -> list[int]:
    """The steps of a run that have score matrices, ascending."""
    return list(by_step(parts_in(store, SCORES)))


def scores_table(matrices: dict[str, ScoreMatrix], policy_version: int) -> pa.Table:
    """The pairs of one scorer step (`SCORES_SCHEMA`), by scope; `policy_version`: that of the scorer's weights."""
    share = MAX_PAIRS // max(len(matrices), 1)
    tables = [_pairs(scope, matrix.thinned(share)) for scope, matrix in matrices.items()]
    found = pa.concat_tables([SCORES_SCHEMA.empty_table(), *tables])
    return found.replace_schema_metadata(SCORES_SCHEMA.metadata | {POLICY_KEY: str(policy_version).encode()})


def _pairs(scope: str, matrix: ScoreMatrix) -> pa.Table:
    rows, columns = np.nonzero(np.isfinite(matrix.values))
    places = {
        f"{side}_{name}": pa.array([getattr(place, name) for place in of]).take(pa.array(index))
        for side, of, index in (("sample", matrix.samples, rows), ("prompt", matrix.prompts, columns))
        for name in ("group", "trajectory", "turn")
    }
    found = {
        "scope": pa.array([scope] * len(rows), pa.string()),
        "sample": rows,
        "prompt": columns,
        "log_likelihood": matrix.values[rows, columns],
        "own": matrix.source[rows] == columns,
        "num_tokens": matrix.lengths[rows],
    } | places
    return pa.table({name: pa.array(found[name]).cast(SCORES_SCHEMA.field(name).type) for name in SCORES_SCHEMA.names})


def encoded(table: pa.Table) -> bytes:
    """The file of a table of `SCORES_SCHEMA`; RuntimeError if it is larger than `MAX_BYTES`."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=DICTIONARY)
    if buffer.tell() > MAX_BYTES:
        raise RuntimeError(f"{len(table)} scored pairs take {buffer.tell()} bytes, more than {MAX_BYTES}")
    return buffer.getvalue()


def read_scores(place: Place, step: int) -> dict[str, ScoreMatrix]:
    """The matrices of a scored step by scope. Raises ArchiveError if there is no such file or if it is damaged."""
    store = as_store(place)
    with reading(store.where(part_key(SCORES, step))), closing(opened(store, SCORES, [step])) as files:
        part, _, raw = next(files)
        with reading(where := store.where(part.key)):
            table = _pairs_of(_opened(raw, where), where, part, step)
    with reading(where), decoding(where, "holds no score matrix", _REMEDY):
        if not np.isfinite(table["log_likelihood"].to_numpy()).all():
            raise ValueError("a log-likelihood is not finite")
        scopes = pc.unique(table["scope"]).to_pylist()
        return {scope: _matrix(table.filter(pc.equal(table["scope"], scope))) for scope in scopes}


def rows_to_merge(store: Store, steps: Sequence[int]) -> Iterator[pa.Table]:
    """The pairs of these scored steps (`MERGED_SCHEMA`), a step at a time. ArchiveError for a damaged file."""
    with reading(store.where(SCORES)), closing(opened(store, SCORES, steps)) as files:
        for part, found, raw in files:
            file = _opened(raw, where := store.where(part.key))
            for step in found:
                table = _pairs_of(file, where, part, step, _ADDED if part.merged else ())
                if not part.merged:
                    stated = (file.schema_arrow.metadata or {}).get(POLICY_KEY, b"")
                    version = int(stated) if stated.isdigit() else None
                    for name, value in zip(_ADDED, (step, version), strict=True):
                        table = table.append_column(name, pa.array([value] * len(table), pa.int32()))
                yield table.cast(MERGED_SCHEMA)


def _opened(raw: BinaryIO, where: str) -> pq.ParquetFile:
    file = open_parquet(raw, where, _REMEDY)
    check_version(version_of(file.schema_arrow.metadata), where)
    return file


def _pairs_of(file: pq.ParquetFile, where: str, part: Part, step: int, added: Sequence[str] = ()) -> pa.Table:
    """The pairs of one of a file's steps, in the columns of `SCORES_SCHEMA` and those `added` of `MERGED_SCHEMA`."""
    names = [*SCORES_SCHEMA.names, *added]
    schema = pa.schema([MERGED_SCHEMA.field(name) for name in names], SCORES_SCHEMA.metadata)
    with decoding(where, "holds no score matrix", _REMEDY):
        rows = row_groups(file, where, names, row_groups_of(file, where, part, [step]))
        table = in_one(
            chain([schema.empty_table()], (one.cast(schema) for one in rows)), where, MOST_BYTES, 4 * MAX_PAIRS
        )
        if any(table[name].null_count for name in SCORES_SCHEMA.names):
            raise ValueError("it holds nulls")
    return table


def _matrix(table: pa.Table) -> ScoreMatrix:
    """The matrix of one scope's pairs. Raises ValueError for rows that are none."""
    rows, columns = table["sample"].to_numpy(), table["prompt"].to_numpy()
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    if rows.min() < 0 or columns.min() < 0 or shape[0] * shape[1] > 4 * MAX_PAIRS:
        raise ValueError(
            f"its samples and prompts go from {rows.min()}, {columns.min()} to {rows.max()}, {columns.max()}"
        )
    values = np.full(shape, np.nan)
    values[rows, columns] = table["log_likelihood"].to_numpy()
    source, lengths = np.full(shape[0], -1), np.zeros(shape[0], np.int64)
    own = table["own"].to_numpy()
    source[rows[own]] = columns[own]
    lengths[rows] = table["num_tokens"].to_numpy()
    if (source < 0).any():
        raise ValueError("a reasoning lacks the pair with its own prompt")
    samples, prompts = (_places(table, side, index) for side, index in (("sample", rows), ("prompt", columns)))
    return ScoreMatrix(values, source, lengths, samples, prompts)


def _places(table: pa.Table, side: str, index: np.ndarray) -> list[TurnPlace]:
    """The turn of each row (or column) of the matrix; `index`: (num_pairs,) its number. ValueError for a gap."""
    numbers, first = np.unique(index, return_index=True)
    if len(numbers) != numbers[-1] + 1:
        raise ValueError(f"the numbers in `{side}` have gaps")
    parts = [table[f"{side}_{name}"].take(first).to_pylist() for name in ("group", "trajectory", "turn")]
    return [TurnPlace(*place) for place in zip(*parts, strict=True)]
