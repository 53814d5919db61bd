"""Reads a run's folder. Every command that shows a live or finished run gets its data from here.

A folder is a local path, or a store that holds the same files (`kit.archive.store`). Nothing here writes, waits, or
imports Ray, torch or gymnasium; Arrow is imported only to read groups. A damaged file, or a file of a newer schema,
raises a `UserError` that names the file and the remedy. The files may be hostile: they are bounded as `kit.untrusted`
says, and `cluster.runs.shapes` defines their shape.

    file                               read by           present
    config.yaml                        config            from the start
    metrics.jsonl                      metrics           from the first step; an incomplete last line is left out
    events.jsonl                       events            from the start
    groups/step-NNNNNN.parquet         groups, steps     one step late; merged ones: `kit.archive.parts`
    groups/index-NNNNNN.parquet        index             with the step's part
    findings.json                      findings          from the start; of an earlier release not
    scores/step-NNNNNN.parquet         scores, scored    after each scorer step
    tokenizer.json                     tokenizer         from the start
    format.json                        format_files      from the start, of an environment without Squelch's turns
    gradients/step-NNNNNN.json         decompositions    if `gradients.every` is set
    checkpoints/step-N/                checkpoints       once the checkpoint is complete
    summary.json                       summary           after the run's end; until a resume begins
    .driver                            driven            from the start; not in stores
    .starting.json                     stage             until the first step is recorded; not in stores
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.cluster.runs import driver, starting
from squelch.cluster.runs.starting import Stage
from squelch.kit.archive import reader
from squelch.kit.archive.store import LocalStore, Stat, Store, as_store, reading
from squelch.kit.archive.version import check_version
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.untrusted.files import MIB, is_folder, read_bounded
from squelch.kit.untrusted.text import MAX_RECIPE, parse_object

if TYPE_CHECKING:
    import pyarrow as pa

    from squelch.cluster.config import RunConfig
    from squelch.kit.archive.score_matrices import ScoreMatrix
    from squelch.kit.findings.finder import Finding

SUMMARY, LOOP_FILE = "summary.json", "loop.json"
EARLIER_SUMMARY = "summary.earlier.json"
"""The summary of the process before, which a resume moves aside. No command reads it."""
GRADIENTS, CHECKPOINTS = "gradients", "checkpoints"
MAX_DOCUMENT = 64 * MIB
"""Bytes of a JSON document of a run."""
FIRST_LINES = MIB
"""Bytes of `metrics.jsonl` that show whether a step is recorded: the line of step 0 is far shorter."""
_LOOP_STATE = re.compile(rf"({CHECKPOINTS}/step-([0-9]{{1,9}}))/{re.escape(LOOP_FILE)}")
_DECOMPOSITION = re.compile(rf"{GRADIENTS}/step-([0-9]{{1,9}})\.json")


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
        with bad_files_are_the_users():
            missing = isinstance(self.store, LocalStore) and not is_folder(self.store.folder)
        if missing:
            raise UserError(f"{self.store.where()} does not exist; give a run's folder, e.g. runs/frozenlake")
        return self

    def config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The resolved configuration with dotted overrides applied."""
        from squelch.cluster.config import validated

        return validated(self._resolved(), list(overrides), self.store.where(reader.CONFIG))

    def settings(self) -> dict[str, Any]:
        """The resolved configuration's values by dotted key, unchecked, so that a run of any version has them."""
        from squelch.cluster.setting_keys import flat

        return flat(self._resolved())

    def _resolved(self) -> dict[str, Any]:
        """The content of `config.yaml`. UserError if it does not exist, or holds nothing: a run writes every setting,
        so an empty file would pass for a run with the defaults."""
        from squelch.cluster.config import read_resolved

        where = self.store.where(reader.CONFIG)
        if self._stat(reader.CONFIG) is None:
            raise UserError(f"{where} does not exist; give a run's folder, e.g. runs/frozenlake")
        found = read_resolved(self._bytes(reader.CONFIG, MAX_RECIPE), where)
        if not found:
            raise UserError(
                f"{where} is empty, though a run writes every setting into it; take it from a copy of the run"
            )
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step, in order (docs/reference/metrics.md). Step 0 holds the metrics from before
        training."""
        from squelch.cluster.runs.shapes import check_metrics

        with bad_files_are_the_users():
            lines = reader.read_metrics(self.store)
            check_metrics(lines, self.store.where(reader.METRICS))
        return lines

    def findings(self) -> list[tuple[Finding, str]] | None:
        """The findings that hold, each with its command (`cluster.runs.findings`); None if the run is of a release
        without them."""
        from squelch.cluster.runs.findings import FILE, read_findings

        if self._stat(FILE) is None:
            return None
        where = self.store.where(FILE)
        with bad_files_are_the_users():
            return read_findings(parse_object(self._bytes(FILE, MAX_DOCUMENT), where), where)

    def metrics_stamp(self) -> Stat | None:
        """File facts that change when a step is added to the metrics; None before the first step."""
        return self._stat(reader.METRICS)

    def has_begun(self) -> bool:
        """Whether a training step is recorded; a start that failed before its first step has at most the line of step
        0. True if the lines cannot be read."""
        if self._stat(reader.METRICS) is None:
            return False
        try:
            with self.store.get(reader.METRICS) as file:
                head = file.read(FIRST_LINES)
            return len(head) == FIRST_LINES or any(json.loads(line)["step"] > 0 for line in head.split(b"\n")[:-1])
        except (OSError, ValueError, LookupError, TypeError):
            return True

    def events(self) -> list[dict[str, Any]]:
        """The spans of all actors, in order of their end."""
        with bad_files_are_the_users():
            return reader.read_events(self.store)

    def last_event(self) -> dict[str, Any] | None:
        """The span that ended last; None if there is none."""
        from squelch.cluster.runs.shapes import checked_event

        with bad_files_are_the_users():
            event = reader.last_event(self.store)
            return None if event is None else checked_event(event, self.store.where(reader.EVENTS))

    def steps(self) -> list[int]:
        """The archived steps, ascending; UserError if there is none."""
        with bad_files_are_the_users():
            return reader.group_steps(self.store)

    def groups(self, steps: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Archived groups, one row per trajectory (`kit.archive.reader.read_groups`)."""
        with bad_files_are_the_users():
            return reader.read_groups(self.store, steps, columns)

    def index(self) -> pa.Table:
        """Archived groups, one row per group (`kit.archive.reader.read_index`)."""
        with bad_files_are_the_users():
            return reader.read_index(self.store)

    def group(self, step: int, group_id: str) -> pa.Table:
        """The trajectories of one group, in order (`kit.archive.reader.read_group`)."""
        with bad_files_are_the_users():
            return reader.read_group(self.store, step, group_id)

    def scored(self) -> list[int]:
        """The steps that have score matrices, ascending."""
        from squelch.kit.archive.score_matrices import scored_steps

        with bad_files_are_the_users():
            return scored_steps(self.store)

    def scores(self, step: int) -> dict[str, ScoreMatrix]:
        """The score matrices of a step by scope (`kit.archive.score_matrices`)."""
        from squelch.kit.archive.score_matrices import read_scores

        with bad_files_are_the_users():
            return read_scores(self.store, step)

    def tokenizer(self) -> bytes | None:
        """The policy's `tokenizer.json`; None if there is none."""
        return None if self._stat(reader.TOKENIZER) is None else self._bytes(reader.TOKENIZER, MAX_DOCUMENT)

    def format_files(self) -> dict[str, str]:
        """The files with which the model's own format is opened (`actors.formats.portable`), by name; empty if the
        run's turns are Squelch's."""
        if self._stat(reader.FORMAT) is None:
            return {}
        with bad_files_are_the_users():
            found = parse_object(self._bytes(reader.FORMAT, MAX_DOCUMENT), self.store.where(reader.FORMAT))
        return {name: text for name, text in found.items() if isinstance(text, str)}

    def decompositions(self) -> dict[int, dict[str, Any]]:
        """The gradient decompositions by step (docs/guide/gradients.md)."""
        found = ((_DECOMPOSITION.fullmatch(key), key) for key in self._list(f"{GRADIENTS}/"))
        return {int(match[1]): self._json(key) for match, key in found if match}

    def checkpoints(self) -> dict[int, str]:
        """The keys of the complete checkpoints' folders by step, ascending. A partly written checkpoint has no final
        name and is left out."""
        found = (_LOOP_STATE.fullmatch(key) for key in self._list(f"{CHECKPOINTS}/step-"))
        return dict(sorted((int(match[2]), match[1]) for match in found if match))

    def summary(self) -> dict[str, Any] | None:
        """The content of `summary.json`; None if the file does not exist."""
        if self._stat(SUMMARY) is None:
            return None
        from squelch.cluster.runs.shapes import checked_summary

        with bad_files_are_the_users():
            return checked_summary(self._json(SUMMARY), self.store.where(SUMMARY))

    def current_summary(self) -> dict[str, Any] | None:
        """The summary; None if there is none, or if it is not that of the process that drives the run now. A resume
        moves it aside before it trains (`cluster.loop.exit_code`)."""
        summary, driven_by = self.summary(), None
        if isinstance(self.store, LocalStore) and self.driven():
            driven_by = driver.named(self.store.folder)
        return None if summary is not None and driven_by not in (None, summary.get("driver")) else summary

    def driven(self) -> bool | None:
        """Whether a process drives the run at this moment; None if that cannot be judged (`cluster.runs.driver`), as of
        a run in a store."""
        return driver.is_driven(self.store.folder) if isinstance(self.store, LocalStore) else None

    def stage(self) -> Stage | None:
        """What the run is doing if it is starting; None otherwise, as of a run in a store, or if no process drives
        it."""
        if not isinstance(self.store, LocalStore) or self._stat(starting.FILE) is None or self.driven() is False:
            return None
        where = self.store.where(starting.FILE)
        with bad_files_are_the_users():
            return starting.stage_of(parse_object(self._bytes(starting.FILE, MIB), where))

    def _json(self, key: str) -> dict[str, Any]:
        where = self.store.where(key)
        with bad_files_are_the_users():
            found = parse_object(self._bytes(key, MAX_DOCUMENT), where)
            check_version(found.get("schema"), where)
        return found

    def _bytes(self, key: str, most_bytes: int) -> bytes:
        where = self.store.where(key)
        with bad_files_are_the_users(), reading(where), self.store.get(key) as file:
            return read_bounded(file, most_bytes, where)

    def _stat(self, key: str) -> Stat | None:
        with bad_files_are_the_users(), reading(self.store.where(key)):
            return self.store.stat(key)

    def _list(self, prefix: str) -> list[str]:
        with bad_files_are_the_users(), reading(self.store.where()):
            return self.store.list(prefix)
