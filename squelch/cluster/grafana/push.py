"""A push: the data source, the folder and the dashboards, each of them only if it has to change.

A repeated push changes nothing. Changes made by hand on the server are kept unless `overwrite` is set, and the push
lists the differences; a dashboard that was moved to another folder stays there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from squelch.cluster.grafana.boards import Tree
from squelch.cluster.grafana.changes import Verdict, differences, message, verdict
from squelch.cluster.grafana.server import Conflict, Server
from squelch.kit.base.errors import UserError

FOLDER, FOLDER_TITLE = "squelch", "Squelch"
SOURCE, SOURCE_NAME = "squelch-prometheus", "Squelch"
SCRAPE_INTERVAL = "5s"
"""The scrape interval of deploy/prometheus.yml, from which Grafana derives the window of rates."""


def data_source(prometheus: str) -> dict[str, Any]:
    """Our data source, as Grafana's API and its provisioning files write one. `prometheus`: its address there."""
    return {
        "name": SOURCE_NAME,
        "uid": SOURCE,
        "type": "prometheus",
        "access": "proxy",
        "url": prometheus,
        "jsonData": {"timeInterval": SCRAPE_INTERVAL},
    }


@dataclass(frozen=True)
class Outcome:
    """The outcome for one object. `kept`: it differs from ours and was left as it is; `lines`: the differences."""

    what: str
    action: str
    kept: bool = False
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Push:
    """How a push is made. `folder`: the folder's uid; `overwrite`: whether changes made by hand are replaced;
    `dry_run`: whether nothing is changed."""

    server: Server
    folder: str = FOLDER
    overwrite: bool = False
    dry_run: bool = False

    def run(self, boards: Mapping[str, Tree], prometheus: str | None) -> list[Outcome]:
        """Puts everything in place; what became of each object, in order. `prometheus`: its address as Grafana sees it;
        None if an existing data source is used. Raises UserError."""
        outcomes = [self._data_source(prometheus), self._folder()]
        return [*outcomes, *(self._board(name, board) for name, board in boards.items())]

    def _data_source(self, prometheus: str | None) -> Outcome:
        listed = self.server.data_sources()
        present = [source for source in listed or () if source.get("type") == "prometheus"]
        if prometheus is None:
            if listed is None:
                return Outcome("data source", "not looked at: these credentials may not list data sources")
            if not present:
                raise UserError(
                    f"Grafana at {self.server.url} has no data source of type Prometheus; give --prometheus the "
                    "address at which Grafana reaches it, for example http://prometheus:9090"
                )
            return Outcome("data source", f"uses {', '.join(str(source.get('name')) for source in present)}")
        own = next((source for source in present if source.get("uid") == SOURCE), None)
        return self._save_source(data_source(prometheus), own)

    def _save_source(self, wanted: dict[str, Any], found: dict[str, Any] | None) -> Outcome:
        what = f"data source {SOURCE_NAME}"
        if found is None:
            return self._create_source(what, wanted)
        lines = differences({key: found.get(key) for key in wanted}, wanted | {"jsonData": _with(found, wanted)})
        if not lines:
            return Outcome(what, "unchanged")
        if found.get("readOnly") or not self.overwrite:
            return Outcome(what, "kept: it is provisioned" if found.get("readOnly") else "kept", True, lines)
        merged = found | wanted | {"jsonData": _with(found, wanted)}
        return self._do(what, "overwritten", lambda: self.server.save_data_source(merged, SOURCE), lines)

    def _create_source(self, what: str, wanted: dict[str, Any]) -> Outcome:
        try:
            return self._do(what, "created", lambda: self.server.save_data_source(wanted, None))
        except Conflict as error:
            raise UserError(
                f"Grafana at {self.server.url} has another data source named {SOURCE_NAME} ({error}); rename that one, "
                "or leave --prometheus out to use it"
            ) from error

    def _folder(self) -> Outcome:
        title = self.server.folder(self.folder)
        if title is not None:
            return Outcome(f"folder {title}", "unchanged")
        if self.folder != FOLDER:
            raise UserError(f"Grafana at {self.server.url} has no folder with the uid {self.folder}; create it first")
        try:
            return self._do(
                f"folder {FOLDER_TITLE}", "created", lambda: self.server.create_folder(FOLDER, FOLDER_TITLE)
            )
        except Conflict as error:
            raise UserError(
                f"Grafana at {self.server.url} has another folder named {FOLDER_TITLE} ({error}); give --folder its "
                "uid, which is in its address"
            ) from error

    def _board(self, name: str, ours: Tree) -> Outcome:
        found, what = self.server.board(ours["uid"]), f"dashboard {ours['title']}"
        state = verdict(ours, found)
        if state is Verdict.SAME:
            return Outcome(what, "unchanged")
        compared = found is not None and (self.dry_run or state is not Verdict.OLDER)
        lines = differences(found.board, ours) if compared else []
        if state is Verdict.PROVISIONED:
            return Outcome(what, "kept: it comes from a provisioned file; change that file", True, lines)
        if state is Verdict.CHANGED and not self.overwrite:
            return Outcome(what, "kept: it was changed by hand (--overwrite replaces it)", True, lines)
        action = {Verdict.MISSING: "created", Verdict.OLDER: "updated"}.get(state, "overwritten")
        folder = self.folder if found is None else found.folder
        version = None if found is None else found.version
        try:
            save = self.server.save
            return self._do(what, action, lambda: save(ours, folder, message(ours), version), lines)
        except Conflict as error:
            return Outcome(what, f"kept: somebody changed it during this push ({error}); push again", True)

    def _do(self, what: str, action: str, change: Any, lines: Sequence[str] = ()) -> Outcome:
        """Makes the change, or reports it in a dry run."""
        if self.dry_run:
            return Outcome(what, f"would be {action}", False, lines)
        change()
        return Outcome(what, action, False, lines)


def _with(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The data source's further settings with ours among them."""
    return {**(found.get("jsonData") or {}), **wanted["jsonData"]}
