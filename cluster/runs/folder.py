"""Reads a run's folder. Every command that shows a live or finished run gets its data from here.

A folder is a local path, or a store that holds the same files (`actors.archive.store`). Nothing here writes, waits, or
imports Ray, torch or gymnasium; Arrow is imported only to read groups. A damaged file, or a file of a newer schema,
raises a `UserError` that names the file and the remedy.

    file                               read by           present
    config.yaml                        config            from the start
    metrics.jsonl                      metrics           from the first step; an incomplete last line is left out
    events.jsonl                       events            from the start
    groups/step-NNNNNN.parquet         groups, steps     one step late
    groups/index-NNNNNN.parquet        index             with the step's part; older runs have none
    gradients/step-NNNNNN.json         decompositions    if `gradients.every` is set
    checkpoints/step-N/                checkpoints       once the checkpoint is complete
    summary.json                       summary           after the run's end; older than the metrics after a resume
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
    """The files of one run; see the module's docstring. Every call reads the files again: the run may be live."""

    def __init__(self, place: Path | str | Store) -> None:
        self.store = as_store(place)

    @property
    def name(self) -> str:
        """The name of the folder and of the run."""
        return Path(self.store.where()).name

    def require(self) -> RunFolder:
        """Returns itself; UserError if a local folder does not exist."""
        if isinstance(self.store, LocalStore) and not self.store.folder.is_dir():
            raise UserError(f"{self.store.folder} does not exist; give a run's folder, e.g. runs/frozenlake")
        return self

    def config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The resolved configuration with dotted overrides applied."""
        from cluster.config import read_yaml, validated

        where = self.store.where(reader.CONFIG)
        if self.store.stat(reader.CONFIG) is None:
            raise UserError(f"{where} does not exist; give a run's folder, e.g. runs/frozenlake")
        tree = read_yaml(self._text(reader.CONFIG), where)
        if not isinstance(tree, dict):
            raise UserError(f"{where} must hold a mapping of settings, not {type(tree).__name__}")
        return validated(tree, list(overrides))

    def metrics(self) -> list[dict[str, Any]]:
        """The figures of each step, in order (docs/metrics.md). Step 0 holds the figures from before training."""
        with mendable():
            return reader.read_metrics(self.store)

    def metrics_stamp(self) -> Stat | None:
        """File facts that change when a step is added to the metrics; None before the first step."""
        return self.store.stat(reader.METRICS)

    def events(self) -> list[dict[str, Any]]:
        """The spans of all actors, in order of their end."""
        with mendable():
            return reader.read_events(self.store)

    def last_event(self) -> dict[str, Any] | None:
        """The span that ended last; None if there is none."""
        with mendable():
            return reader.last_event(self.store)

    def steps(self) -> list[int]:
        """The archived steps, ascending; UserError if there is none."""
        with mendable():
            return reader.group_steps(self.store)

    def groups(self, steps: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Archived groups, one row per trajectory (`actors.archive.reader.read_groups`)."""
        with mendable():
            return reader.read_groups(self.store, steps, columns)

    def index(self) -> pa.Table:
        """Archived groups, one row per group (`actors.archive.reader.read_index`)."""
        with mendable():
            return reader.read_index(self.store)

    def decompositions(self) -> dict[int, dict[str, Any]]:
        """The gradient decompositions by step (docs/gradients.md)."""
        found = ((_DECOMPOSITION.fullmatch(key), key) for key in self.store.list(f"{GRADIENTS}/"))
        return {int(match[1]): self._json(key) for match, key in found if match}

    def checkpoints(self) -> dict[int, str]:
        """The keys of the complete checkpoints' folders by step, ascending. A partly written checkpoint has no final
        name and is left out."""
        found = (_LOOP_STATE.fullmatch(key) for key in self.store.list(f"{CHECKPOINTS}/step-"))
        return dict(sorted((int(match[2]), match[1]) for match in found if match))

    def summary(self) -> dict[str, Any] | None:
        """The content of `summary.json`; None if the file does not exist."""
        return None if self.store.stat(SUMMARY) is None else self._json(SUMMARY)

    def current_summary(self) -> dict[str, Any] | None:
        """The summary; None if there is none, or if the metrics are newer because the run was resumed afterwards."""
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
    """Converts the error about a damaged file of the run to a UserError."""
    try:
        yield
    except ArchiveError as error:
        raise UserError(str(error)) from error
