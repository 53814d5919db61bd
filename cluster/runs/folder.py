"""A run's folder, read by one pure reader: whatever a command shows of a run, live or finished, comes from here.

A folder is a local path, or a store that holds the same files (`actors.archive.store`). Nothing here writes, waits, or
imports Ray, torch or gymnasium; Arrow is imported only where groups are read. Bad files are a `UserError` that names
the file and says what to do; so is a file of a newer schema.

    file                               read by           present
    config.yaml                        config            from the start
    metrics.jsonl                      metrics           from the first step; a last line being written is left out
    events.jsonl                       events            from the start
    groups/step-NNNNNN.parquet         groups, steps     one step late
    groups/index-NNNNNN.parquet        index             with the step's part; older runs have none
    gradients/step-NNNNNN.json         decompositions    with gradients.every
    checkpoints/step-N/                checkpoints       once the checkpoint is whole
    summary.json                       summary           once the run has ended; older than the metrics after a resume
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.archive import reader
from actors.archive.store import ArchiveError, LocalStore, Stat, Store, as_store
from cluster.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from cluster.config import RunConfig

SUMMARY, LOOP_FILE = "summary.json", "loop.json"
GRADIENTS, CHECKPOINTS = "gradients", "checkpoints"
_LOOP_STATE = re.compile(rf"({CHECKPOINTS}/step-(\d+))/{re.escape(LOOP_FILE)}")
_DECOMPOSITION = re.compile(rf"{GRADIENTS}/step-(\d+)\.json")


class RunFolder:
    """One run's files; see the module's head. Every call reads anew, so that a live run is seen as it is."""

    def __init__(self, place: Path | str | Store) -> None:
        self.store = as_store(place)

    @property
    def name(self) -> str:
        """The folder's own name, which is the run's."""
        return Path(self.store.where()).name

    def require(self) -> RunFolder:
        """Itself. UserError where a local folder does not exist."""
        if isinstance(self.store, LocalStore) and not self.store.folder.is_dir():
            raise UserError(
                f"{self.store.folder} is not a run's folder; runs are kept in `runs_dir`, e.g. runs/frozenlake"
            )
        return self

    def config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The resolved configuration, under dotted overrides."""
        from cluster.config import read_yaml, validated

        where = self.store.where(reader.CONFIG)
        if self.store.stat(reader.CONFIG) is None:
            raise UserError(f"{where} does not exist; give a run's folder, e.g. runs/frozenlake")
        tree = read_yaml(self._text(reader.CONFIG), where)
        if not isinstance(tree, dict):
            raise UserError(f"{where} must hold a mapping of settings, not {type(tree).__name__}")
        return validated(tree, list(overrides))

    def metrics(self) -> list[dict[str, Any]]:
        """The figures of each step, in order (docs/metrics.md); step 0 is what was measured before training."""
        with mendable():
            return reader.read_metrics(self.store)

    def metrics_stamp(self) -> Stat | None:
        """What changes when a step is added; None before the first one."""
        return self.store.stat(reader.METRICS)

    def events(self) -> list[dict[str, Any]]:
        """The spans of all actors, in order of their end."""
        with mendable():
            return reader.read_events(self.store)

    def last_event(self) -> dict[str, Any] | None:
        """The span that ended last."""
        with mendable():
            return reader.last_event(self.store)

    def steps(self) -> list[int]:
        """The archived steps, ascending; UserError where there is none."""
        with mendable():
            return reader.group_steps(self.store)

    def groups(self, steps: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Archived groups, one row a trajectory (`actors.archive.reader.read_groups`)."""
        with mendable():
            return reader.read_groups(self.store, steps, columns)

    def index(self) -> pa.Table:
        """One row a group (`actors.archive.reader.read_index`)."""
        with mendable():
            return reader.read_index(self.store)

    def decompositions(self) -> dict[int, dict[str, Any]]:
        """The gradient decompositions by step (docs/gradients.md)."""
        found = ((_DECOMPOSITION.fullmatch(key), key) for key in self.store.list(f"{GRADIENTS}/"))
        return {int(match[1]): self._json(key) for match, key in found if match}

    def checkpoints(self) -> dict[int, str]:
        """The keys of the whole checkpoints' folders by step, ascending. A half-written one has no final name."""
        found = (_LOOP_STATE.fullmatch(key) for key in self.store.list(f"{CHECKPOINTS}/step-"))
        return dict(sorted((int(match[2]), match[1]) for match in found if match))

    def summary(self) -> dict[str, Any] | None:
        """The content of `summary.json`; None where there is none."""
        return None if self.store.stat(SUMMARY) is None else self._json(SUMMARY)

    def current_summary(self) -> dict[str, Any] | None:
        """The summary, unless the metrics are newer: then the run was resumed after the summary was written."""
        written, measured = self.store.stat(SUMMARY), self.metrics_stamp()
        if written is None or (measured is not None and measured.modified_ns > written.modified_ns):
            return None
        return self.summary()

    def _json(self, key: str) -> dict[str, Any]:
        where = self.store.where(key)
        try:
            found = json.loads(self._text(key))
        except ValueError as error:
            raise UserError(f"{where} is not JSON: {error}. Delete it to read the rest of the run.") from error
        if not isinstance(found, dict):
            raise UserError(f"{where} must hold one JSON object, not {type(found).__name__}")
        with mendable():
            reader.check_version(found.get("schema", 0), where)
        return found

    def _text(self, key: str) -> str:
        try:
            with self.store.get(key) as file:
                return file.read().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.store.where(key)} cannot be read as text: {error}") from error


@contextmanager
def mendable() -> Iterator[None]:
    """A damaged file of the run is the user's to mend."""
    try:
        yield
    except ArchiveError as error:
        raise UserError(str(error)) from error
