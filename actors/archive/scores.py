"""The score matrices of one scorer step in a file: which reasoning was how likely under which prompt.

    scores/step-000012.parquet      `SCORES_SCHEMA`: one row per scored pair (reasoning, prompt), in order of scope,
                                    reasoning and prompt; at most `MAX_BYTES`

A pair names its texts by group, trajectory and turn; the texts are in the step's part of the archive. A matrix of more
than `MAX_PAIRS` pairs keeps evenly spaced reasonings with all of their pairs. Each scorer step replaces the file of its
step; a scorer step without a matrix (fewer than two prompts) writes an empty one.

`ScoreMatrix` is one scope in memory. Pure: imports neither torch nor Ray.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squelch.actors.archive.schema import SCORES_SCHEMA
from squelch.actors.archive.store import Store, as_store, reading
from squelch.actors.archive.version import check_version, version_of
from squelch.envs.untrusted.files import MIB, decoding
from squelch.envs.untrusted.parquet import MOST_BYTES, in_one, open_parquet, row_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from squelch.actors.archive.reader import Place

SCORES = "scores"
MAX_BYTES = MIB
MAX_PAIRS = 200_000
"""Pairs of one scorer step, all scopes together: 4 bytes a pair do not compress, the rest of a row does."""
POLICY_KEY = b"squelch.policy_version"
_FILE = re.compile(rf"{SCORES}/step-([0-9]{{1,9}})\.parquet")
_REMEDY = "delete it: the run does not need it"

_TEXT = [field.name for field in SCORES_SCHEMA if field.type == pa.string()]


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


def scores_key(step: int) -> str:
    """The key of a step's score matrices, e.g. `scores/step-000012.parquet`."""
    return f"{SCORES}/step-{step:06d}.parquet"


def scores_keys(store: Store) -> dict[int, str]:
    """The files of score matrices of a run by step, ascending."""
    with reading(store.where()):
        found = [(_FILE.fullmatch(key), key) for key in store.list(f"{SCORES}/step-")]
    return dict(sorted((int(match[1]), key) for match, key in found if match))


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
    pq.write_table(table, buffer, compression="zstd", use_dictionary=[*_TEXT, "sample", "prompt", "num_tokens"])
    if buffer.tell() > MAX_BYTES:
        raise RuntimeError(f"{len(table)} scored pairs take {buffer.tell()} bytes, more than {MAX_BYTES}")
    return buffer.getvalue()


def read_scores(place: Place, step: int) -> dict[str, ScoreMatrix]:
    """The matrices of a scored step by scope. Raises ArchiveError if there is no such file or if it is damaged."""
    store = as_store(place)
    key = scores_key(step)
    where = store.where(key)
    with reading(where), store.get(key) as raw:
        file = open_parquet(raw, where, _REMEDY)
        check_version(version_of(file.schema_arrow.metadata), where)
        with decoding(where, "holds no score matrix", _REMEDY):
            rows = row_groups(file, where, SCORES_SCHEMA.names)
            table = in_one(rows, where, MOST_BYTES, 4 * MAX_PAIRS).cast(SCORES_SCHEMA)
            if any(column.null_count for column in table.columns):
                raise ValueError("it holds nulls")
            if not np.isfinite(table["log_likelihood"].to_numpy()).all():
                raise ValueError("a log-likelihood is not finite")
            scopes = pc.unique(table["scope"]).to_pylist()
            return {scope: _matrix(table.filter(pc.equal(table["scope"], scope))) for scope in scopes}


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
