"""BM25 over passages on disk. An index is built once; processes that search memory-map it.

An index is a folder of files that never change:

    passages.arrow    id, title, text, payload (data of the index's owner), one row per passage
    words.npy         the vocabulary in sorted order, UTF-8, `WORD_BYTES` bytes per word
    word_ids.npy      the number of each of those words in the score matrix
    *.csc.index.npy   the score matrix, as bm25s writes it (Lu 2024, "BM25S"): one column of BM25 scores per word

Invariants:

- All files are memory-mapped: processes of one host that search the same index share its pages, and a search reads only
  the pages of its words and results. The private memory of a process is the scores of one search.
- A folder with an index's name is complete: it is built under another name and then renamed. Its name depends on the
  data that it was built from.
- A query may be any text and never raises an error. Equal scores are ordered by row, so results are the same on every
  machine.
- Several threads may search an index.

An index is built in the call that creates the environment. The command line creates environments when it checks the
configuration, before actors start on its host.

| waits for | unblocked by | on time-out |
|---|---|---|
| an index being built elsewhere | its builder, whose death frees the lock | ValueError that names it |
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.envs.retrieval.retriever import Found
from squelch.kit.base.cache import CACHE_VARIABLE, cache_folder
from squelch.kit.base.file_lock import held

if TYPE_CHECKING:  # the filter's commands import `envs` and must start fast: pyarrow is loaded with the first index
    import pyarrow as pa

FORMAT = 1
"""Version of the index's format; increase it whenever an index built before would be wrong."""
BUILD_WAIT_S = 1800.0
"""Seconds to wait for another process that builds the index: a million passages take minutes."""
STALE_S = 24 * 3600.0
"""Age in seconds after which a partly built index is assumed to belong to a dead process."""
WORD_BYTES = 32
MAX_QUERY_WORDS = 64
"""Number of distinct words of a query that are used; further words are ignored."""

_BATCH = 4096
_WORD = re.compile(r"[^\W_]+")
_open: dict[Path, Index] = {}
_opening = threading.Lock()


@dataclass(frozen=True)
class Passage:
    """One passage. Title and text are searched; the payload is data of the index's owner."""

    id: str
    title: str
    text: str
    payload: str = ""


class Index:
    """An existing index; `open_index` builds it if necessary."""

    def __init__(self, folder: Path) -> None:
        import pyarrow as pa

        try:
            self._scores = _library().BM25.load(folder, mmap=True, load_vocab=False, show_progress=False)
            self._words = np.load(folder / "words.npy", mmap_mode="r", allow_pickle=False)
            self._word_ids = np.load(folder / "word_ids.npy", mmap_mode="r", allow_pickle=False)
            self._passages = pa.ipc.open_file(pa.memory_map(str(folder / "passages.arrow"))).read_all()
        except (OSError, ValueError, KeyError, pa.ArrowInvalid) as error:
            raise ValueError(
                f"{folder}: a damaged index ({error}); delete the folder, it will be built anew"
            ) from error
        self.folder = folder

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids of all passages by row, memory-mapped."""
        return self._passages.column("id")

    def passage(self, row: int) -> Passage:
        """The passage in a row, 0 <= row < len(self)."""
        return Passage(*(column[row].as_py() for column in self._passages.columns))

    def search(self, query: str, count: int) -> list[tuple[int, float]]:
        """(row, BM25 score) of the at most `count` best passages that share a word with `query`, the best first."""
        ids = self._ids(query)
        if not len(ids) or count < 1:
            return []
        scores = self._scores.get_scores_from_ids(ids)
        rows = _best(scores, count)
        return [(int(row), float(scores[row])) for row in rows]

    def retrieve(self, query: str, count: int) -> list[Found]:
        """The passages that `search` finds."""
        found = ((self.passage(row), score) for row, score in self.search(query, count))
        return [Found(passage.title, passage.text, score) for passage, score in found]

    def _ids(self, query: str) -> np.ndarray:
        """Numbers of the query's known words, each once, in an order that depends on the query's words only."""
        words = np.array(sorted(set(islice(words_of(query), MAX_QUERY_WORDS))), dtype=self._words.dtype)
        if not len(words):
            return np.zeros(0, np.int32)
        places = np.minimum(np.searchsorted(self._words, words), len(self._words) - 1)
        return self._word_ids[places[self._words[places] == words]]


def words_of(text: str) -> Iterator[bytes]:
    """The words of a text that are indexed: runs of letters and digits in lower case, without stop words, cut to
    `WORD_BYTES`."""
    stopwords = _stopwords()
    for found in _WORD.finditer(text.lower()):
        if (word := found.group()) not in stopwords:
            yield word.encode(errors="replace")[:WORD_BYTES]


@cache
def _library() -> ModuleType:
    """The module bm25s, imported at the first search or build, because it imports numba, which is slow."""
    import bm25s

    return bm25s


@cache
def _stopwords() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


def open_index(
    name: str, identity: str, passages: Callable[[], Iterable[Passage]], cache: str | os.PathLike[str] | None = None
) -> Index:
    """The index `name` of the data that `identity` describes, built from `passages()` if it is not in the cache.

    `identity` must change whenever the result of `passages()` changes. Raises ValueError if there is nothing to index,
    if the cache folder cannot be written, if the index is damaged, or if another process that builds it does not finish
    within `BUILD_WAIT_S`.
    """
    made_by = f"{FORMAT} {version('bm25s')}"
    digest = hashlib.blake2b(f"{made_by}\n{identity}".encode(), digest_size=8).hexdigest()
    folder = cache_folder(cache) / f"{name}-{digest}"
    if not _opening.acquire(timeout=BUILD_WAIT_S):
        raise ValueError(f"{folder}: another thread of this process has been building an index for {BUILD_WAIT_S:g} s")
    try:
        if folder not in _open:
            _ensure(folder, passages)
            _open[folder] = Index(folder)
        return _open[folder]
    finally:
        _opening.release()


def opened() -> list[Path]:
    """The folders of the indices that this process has opened."""
    return list(_open)


def file_identity(paths: Iterable[Path]) -> str:
    """A text that changes whenever one of the files changes: paths, sizes and times of the last change."""
    stats = ((path.resolve(), path.stat()) for path in paths)
    return "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)


def _ensure(folder: Path, passages: Callable[[], Iterable[Passage]]) -> None:
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with held(folder.with_name(f"{folder.name}.lock"), "building this index", BUILD_WAIT_S):
            if not folder.is_dir():
                _build(folder, passages())
    except OSError as error:
        where = f"name another with the option `cache` or the variable {CACHE_VARIABLE}"
        raise ValueError(f"{folder}: the index cannot be written ({error}); {where}") from error


def _build(folder: Path, passages: Iterable[Passage]) -> None:
    """Write the index under another name and then rename it."""
    _remove_stale(folder)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".building", dir=folder.parent))
    try:
        vocabulary, documents = _write_passages(aside / "passages.arrow", passages)
        if not vocabulary:
            raise ValueError(f"{folder.name}: no passage with a word in it; there is nothing to search")
        scores = _library().BM25(method="lucene")
        scores.index((documents, vocabulary), create_empty_token=False, show_progress=False)
        scores.vocab_dict = {}  # not saved: this module writes its own vocabulary, which can be memory-mapped
        scores.save(aside, show_progress=False)
        _write_vocabulary(aside, vocabulary)
        aside.chmod(0o755)
        _give_name(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # does not exist if the build succeeded


def _give_name(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        if not folder.is_dir():  # if it exists, a host that does not see the lock has built the same content
            raise


def _remove_stale(folder: Path) -> None:
    """Remove partly built indices of processes that were killed."""
    for left in folder.parent.glob(f"{folder.name}.*.building"):
        if left.stat().st_mtime < time.time() - STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def _write_passages(path: Path, passages: Iterable[Passage]) -> tuple[dict[bytes, int], list[list[int]]]:
    """Writes the passages; returns the number of each word, and the words of each passage by number."""
    import pyarrow as pa

    vocabulary: dict[bytes, int] = {}
    documents: list[list[int]] = []
    iterator = iter(passages)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _schema()) as writer:
        while batch := list(islice(iterator, _BATCH)):
            writer.write_batch(_record_batch([astuple(passage) for passage in batch]))
            for passage in batch:
                words = words_of(f"{passage.title} {passage.text}")
                documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
    return vocabulary, documents


@cache
def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ("id", "title", "text", "payload")])


def _record_batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [[_valid(value) for value in column] for column in zip(*rows, strict=True)]
    return pa.record_batch(columns, schema=_schema())


def _valid(text: str) -> str:
    """`text` without lone surrogates, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _write_vocabulary(folder: Path, vocabulary: dict[bytes, int]) -> None:
    words = np.array(list(vocabulary), dtype=f"S{WORD_BYTES}")
    order = np.argsort(words)
    np.save(folder / "words.npy", words[order])
    np.save(folder / "word_ids.npy", np.fromiter(vocabulary.values(), np.int32, len(vocabulary))[order])


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Rows of the `count` highest positive scores, (count,), with ties by row, whereas argpartition would order ties
    arbitrarily."""
    rows = np.flatnonzero(scores)
    if len(rows) > count:
        found = scores[rows]
        rows = rows[found >= np.partition(found, -count)[-count]]
    return rows[np.lexsort((rows, -scores[rows]))][:count]
