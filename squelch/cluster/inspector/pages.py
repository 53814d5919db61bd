"""The pages: each function takes a request and answers with a template, filled from the run's folder.

A function runs in a worker thread, so that reading a file holds up no other request. Every page is at the same level,
and every address in it is relative: behind a proxy that puts a prefix before them, all links lead to the same server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.templating import Jinja2Templates

from squelch.cluster.inspector import course, curves, matrices, overview
from squelch.cluster.inspector.by_kind_and_turn import HEIGHT, WIDTH
from squelch.cluster.inspector.conversations import OwnFormat
from squelch.cluster.inspector.groups import GroupIndex, Query
from squelch.cluster.inspector.previews import Preview, Previews
from squelch.cluster.inspector.run_metrics import CHARTS, CURVES, SMOOTHED, RunMetrics
from squelch.cluster.inspector.search import search
from squelch.cluster.inspector.small_matrices import Small, small, spaced
from squelch.cluster.inspector.template_filters import FILTERS, strip_of
from squelch.cluster.inspector.texts import SHARES, Pieces
from squelch.cluster.inspector.trajectories import GroupView, group_view
from squelch.cluster.runs.by_kind_and_turn import DIMENSIONS
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.timing.perfetto import trace_events
from squelch.cluster.runs.timing.timeline import Timeline
from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.files import Unreadable, brief

SHOWS = ("posterior", "gap")
ALONE = "-"
"""What the address says where no second run is shown."""
STEPS_SHOWN = 6
"""Steps that the lane view shows first."""


class Pages:
    """The pages of one run. `now`: the clock, unix seconds; `others`: the runs that it can be compared with."""

    def __init__(
        self,
        folder: RunFolder,
        templates: Jinja2Templates,
        now: Callable[[], float] = time.time,
        others: Sequence[RunFolder] = (),
    ) -> None:
        self.folder, self.templates, self.now = folder, templates, now
        self.groups = GroupIndex(folder.store)
        self.run_metrics = RunMetrics(folder)
        self.others = {other.name: RunMetrics(other) for other in others}
        self.timeline = Timeline(folder.store)
        self.own_format = OwnFormat(folder)
        self.previews = Previews(folder)
        self._pieces: Pieces | None = None

    @property
    def pieces(self) -> Pieces:
        """The tokenizer; looked for again until there is one, because a live run may write it later."""
        if self._pieces is None or not self._pieces.known:
            self._pieces = Pieces(self.folder.tokenizer(), f"the tokenizer of {self.folder.store.where()}")
        return self._pieces

    # --- the first page ---

    def overview(self, request: Request) -> Response:
        """What is wrong with the run, its course, its score matrices in small, and what to do next."""
        self.run_metrics.refresh()
        problems = list[str]()
        with _said(problems):
            self.timeline.refresh()
        run, scored = self.run_metrics.status(self.now()), self.folder.scored()
        held = self.run_metrics.findings()
        found = overview.notes(held, self.timeline.told, scored)
        columns = dict(zip(course.KEYS, self.run_metrics.table(course.KEYS).T, strict=True))
        span, kept = course.ends(columns["step"]), list(self.folder.checkpoints())
        marks = [course.mark("checkpoint", step, span) for step in kept]
        marks += course.marks([(one.kind, one.step, one.number) for one in found], span)
        rewarded = any("reward_mean" in one.entry.evidence for one, _ in held)
        smalls, place = self._smalls(scored, problems), self.folder.store.where()
        return self._page(
            request, "overview.html",
            verdict=overview.verdict(run, held, columns["success"], columns["validation/success"]),
            tone=overview.tone(run, held), next=overview.next_step(run, held, place), notes=found,
            plots=course.plots(columns, rewarded), span=span, marks=marks, checkpoints=kept, smalls=smalls,
            regimes=self.run_metrics.regimes, problems=problems,
        )  # fmt: skip

    def _smalls(self, scored: Sequence[int], problems: list[str]) -> list[Small]:
        found = []
        for step in spaced(scored):
            with _said(problems):
                found += [small(step, matrix) for matrix in list(self.folder.scores(step).values())[:1]]
        return found

    # --- the list of groups ---

    def group_list(self, request: Request) -> Response:
        """The groups that the address asks for, a page of them."""
        query = Query.of(request.query_params)
        self.groups.refresh()
        found = self.groups.select(query)
        values = {name: self.groups.values(column) for name, column in FILTERS.items()}
        strip, rows = strip_of(self.groups.table, found.rows), found.page()
        return self._page(
            request, "groups.html", query=query, found=found, rows=rows, values=values, strip=strip,
            previews=self._previews(rows),
        )  # fmt: skip

    def _previews(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Preview]:
        """Those of these groups that there was time for; empty ones if the tokenizer is damaged, so that the list goes
        on."""
        try:
            return self.previews.of(rows, self.pieces)
        except Unreadable:
            return {row["group_id"]: Preview("", "") for row in rows}

    # --- one group, and two ---

    def group(self, request: Request) -> Response:
        """One group with its trajectories side by side."""
        step, group_id = self._number(request, "step", 2**31), request.query_params.get("group", "")
        query = Query.of(request.query_params)
        self.groups.refresh()
        view = self._view(step, group_id, "whole" in request.query_params)
        listed = self.groups.select(query)
        before, after, place = listed.beside(step, group_id)
        same = [one for one in self.groups.same_task(view.facts["task_key"]) if one["group_id"] != group_id]
        return self._page(
            request, "group.html", view=view, query=query, before=before, after=after, place=place, same=same[:40],
            num_found=len(listed.rows), shares=SHARES, scored=step in self.folder.scored(),
            problem=self.own_format.problem,
        )  # fmt: skip

    def compare(self, request: Request) -> Response:
        """Two groups, one above the other: the same task at two steps."""
        self.groups.refresh()
        sides = [self._side(request, name) for name in ("a", "b")]
        keys = {side.facts["task_key"] for side in sides}
        same = self.groups.same_task(keys.pop()) if len(keys) == 1 else []
        return self._page(request, "compare.html", sides=sides, same=same, shares=SHARES)

    def _side(self, request: Request, name: str) -> Any:
        text = request.query_params.get(name, "")
        step, mark, group_id = text.partition(":")
        if not (mark and step.isdecimal() and len(step) < 10):
            raise UserError(f"`{name}` is {brief(text)} in the address; it must be STEP:GROUP, such as 12:000012-003")
        return self._view(int(step), group_id)

    def _view(self, step: int, group_id: str, whole: bool = False) -> GroupView:
        conversations = self.own_format.conversations(self.pieces)
        return group_view(self.folder.group(step, group_id), self.pieces, whole, conversations)

    def search(self, request: Request) -> Response:
        """The trajectories whose sampled text contains the words in the address."""
        text = request.query_params.get("text", "").strip()
        newest = self._number(request, "newest", 2**31) if "newest" in request.query_params else None
        found = search(self.folder, self.pieces, text, newest) if text else None
        self.groups.refresh()
        rows = self.groups.rows({(hit.step, hit.group_id) for hit in found.hits}) if found else []
        return self._page(request, "search.html", text=text, found=found, previews=self._previews(rows))

    # --- score matrices ---

    def scores(self, request: Request) -> Response:
        """The heat map of a step's score matrix, and the cell that the address names."""
        scored = self.folder.scored()
        if not scored:
            return self._page(request, "scores.html", step=None, scored=[], cell=None)
        step, scope, heat, scopes = self._heat(request, scored)
        shows = request.query_params.get("show", SHOWS[0])
        if shows not in SHOWS:
            raise UserError(f"`show` is {brief(shows)} in the address; it must be one of: {', '.join(SHOWS)}")
        cell = self._cell(request, step, heat) if heat is not None and "row" in request.query_params else None
        judged = None if heat is None else matrices.judged(heat.matrix)
        return self._page(
            request, "scores.html", step=step, scored=scored, scope=scope, scopes=scopes, heat=heat, shows=shows,
            cell=cell, shares=SHARES, scales=matrices.SCALES, judged=judged, regimes=self.run_metrics.regimes,
        )  # fmt: skip

    def cell(self, request: Request) -> Response:
        """The side panel of a cell alone."""
        step, scope, heat, _ = self._heat(request, self.folder.scored())
        if heat is None:
            raise UserError(f"step {step} has no score matrix of the scope {scope}")
        return self._page(
            request, "cell.html", step=step, scope=scope, cell=self._cell(request, step, heat), shares=SHARES
        )

    def values(self, request: Request) -> Response:
        """The numbers of the heat map: float32, row by row."""
        step, scope, heat, _ = self._heat(request, self.folder.scored())
        if heat is None:
            raise UserError(f"step {step} has no score matrix of the scope {scope}")
        data = matrices.as_bytes(heat.values("gap" if request.query_params.get("show") == "gap" else "posterior"))
        return Response(data, media_type="application/octet-stream")

    def template_list(self, request: Request) -> Response:
        """The reasonings nearest to every prompt, and those nearest to the prompt that the address names."""
        scored = self.folder.scored()
        if not scored:
            return self._page(request, "templates.html", step=None, scored=[])
        step, scope, heat, scopes = self._heat(request, scored)
        texts = matrices.Texts(self.folder, step, self.pieces)
        found = matrices.templates(heat.matrix, texts) if heat is not None else []
        prompts = [texts.prompt(place) for place in heat.matrix.prompts] if heat is not None else []
        chosen = self._number(request, "prompt", len(prompts)) if "prompt" in request.query_params else None
        near = [] if chosen is None or heat is None else matrices.nearest(heat.matrix, chosen)
        return self._page(
            request, "templates.html", step=step, scored=scored, scope=scope, scopes=scopes, heat=heat, found=found,
            prompts=prompts, chosen=chosen, near=near, texts=texts, text_of=matrices.template_text,
        )  # fmt: skip

    def _heat(self, request: Request, scored: list[int]) -> tuple[int, str, matrices.Heatmap | None, list[str]]:
        """(step, scope, its heat map or None, scopes that the step has) that the address asks for; the newest scored
        step if it names none."""
        named = request.query_params.get("step")
        step = scored[-1] if named is None and scored else self._number(request, "step", 2**31)
        found = self.folder.scores(step)
        scope = request.query_params.get("scope", next(iter(found), "first_turn"))
        matrix = found.get(scope)
        return step, scope, None if matrix is None else matrices.heatmap(matrix), list(found)

    def _cell(self, request: Request, step: int, heat: matrices.Heatmap) -> matrices.Cell:
        row, column = (self._number(request, name, 2**31) for name in ("row", "column"))
        return matrices.cell(heat, matrices.Texts(self.folder, step, self.pieces), row, column)

    @staticmethod
    def _number(request: Request, name: str, limit: int) -> int:
        return Pages._whole(request.query_params.get(name, ""), f"`{name}`", limit)

    @staticmethod
    def _whole(text: str, what: str, limit: int) -> int:
        if not (text.isdecimal() and len(text) < 10 and int(text) < limit):
            raise UserError(f"{what} is {brief(text)} in the address; it must be a whole number below {limit}")
        return int(text)

    # --- spans ---

    def lanes(self, request: Request) -> Response:
        """The lane view; its spans are fetched by the page."""
        self.timeline.refresh()
        self.run_metrics.refresh()
        return self._page(request, "timeline.html", extent=self.timeline.extent, first=self._first_window(request))

    def _first_window(self, request: Request) -> tuple[float, float] | None:
        """(start, end), seconds since the run's first span, that the address asks for, or the last steps."""
        extent = self.timeline.extent
        if extent is None:
            return None
        origin, times = extent[0], dict(self.run_metrics.times())
        if "step" in request.query_params:
            step = self._number(request, "step", 2**31)
            if step not in times:
                raise UserError(f"step {step} is not recorded; the newest recorded step is {max(times, default=0)}")
            return max(0.0, times.get(step - 1, origin) - origin), times[step] - origin
        named = [self._seconds(request, name) for name in ("from", "to")]
        if None not in named:
            return named[0], named[1]  # type: ignore[return-value]
        since = times.get(max(times, default=0) - STEPS_SHOWN, origin)
        return max(0.0, since - origin), max(extent[1] - origin, since - origin + 1e-3)

    @staticmethod
    def _seconds(request: Request, name: str) -> float | None:
        text = request.query_params.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = np.nan
        if not -1e9 < value < 1e9:
            raise UserError(f"`{name}` is {brief(text)} in the address; it must be seconds since the run's first span")
        return value

    def spans(self, request: Request) -> Response:
        """The lanes, bubbles and steps of an interval, seconds since the run's first span."""
        self.timeline.refresh()
        self.run_metrics.refresh()
        extent = self.timeline.extent
        start, end = self._seconds(request, "from"), self._seconds(request, "to")
        if extent is None or start is None or end is None or end <= start:
            raise UserError("`from` and `to` must be seconds since the run's first span, `from` the smaller one")
        origin = extent[0]
        window = self.timeline.window(origin + start, origin + end)
        steps = [[step, when - origin] for step, when in self.run_metrics.times() if start <= when - origin <= end]
        return JSONResponse(
            {
                "lanes": [
                    {
                        "actor": lane.actor,
                        "busy": lane.busy,
                        "spans": [[a - origin, b - origin, name, step] for a, b, name, step in lane.spans],
                    }
                    for lane in window.lanes
                ],
                "bubbles": [[one.start - origin, one.end - origin, one.filled] for one in window.bubbles],
                "waiting": window.waiting,
                "steps": steps[:: max(1, len(steps) // 200)],
                "extent": [0.0, extent[1] - origin],
            }
        )

    def trace(self, request: Request) -> Response:
        """The trace for Perfetto, as a download."""
        self.timeline.refresh()
        names = ("actor", "name", "start", "end", "step")
        spans = [{k: v for k, v in zip(names, span, strict=True) if v is not None} for span in self.timeline.spans()]
        events = (json.dumps(event, separators=(",", ":")) for event in trace_events(self.folder.name, spans))
        parts = (('{"traceEvents":[\n' if number == 0 else ",\n") + text for number, text in enumerate(events))
        name = quote(f"{self.folder.name}-trace.json")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return StreamingResponse(_closed(parts), media_type="application/json", headers=headers)

    # --- figures ---

    def charts(self, request: Request) -> Response:
        """The charts; their numbers are fetched by the page."""
        window, other = self._window(request), self._other(request)
        chosen = {"smooth": None if window == 1 else window, "with": request.query_params.get("with")}
        return self._page(
            request, "figures.html", charts=CHARTS, windows=curves.WINDOWS, window=window, others=list(self.others),
            other=other, alone=ALONE, chosen=chosen, name=self.folder.name,
        )  # fmt: skip

    def where(self, request: Request) -> Response:
        """MI, D, kept share and success of each kind of task and of each turn."""
        self.run_metrics.refresh()
        rows = {dimension: self.run_metrics.part_rows(dimension) for dimension in DIMENSIONS}
        return self._page(request, "where.html", dimensions=DIMENSIONS, rows=rows, width=WIDTH, height=HEIGHT)

    def numbers(self, request: Request) -> Response:
        """The curves of every chart, of the run and of the one that it is compared with."""
        window, other = self._window(request), self._other(request)
        shown = {self.folder.name: self.run_metrics} | ({other: self.others[other]} if other else {})
        for run in shown.values():
            run.refresh()
        tables = {name: run.table(("step", *CURVES)) for name, run in shown.items()}
        return JSONResponse(curves.over_steps(tables, CURVES, SMOOTHED, window))

    def _window(self, request: Request) -> int:
        text = request.query_params.get("smooth", "1")
        if text not in map(str, curves.WINDOWS):
            allowed = ", ".join(map(str, curves.WINDOWS))
            raise UserError(f"`smooth` is {brief(text)} in the address; it must be one of: {allowed}")
        return int(text)

    def _other(self, request: Request) -> str | None:
        """The name of the run to compare with: that in the address, or the first that was given."""
        name = request.query_params.get("with", next(iter(self.others), ALONE))
        if name == ALONE:
            return None
        if name not in self.others:
            allowed = ", ".join((ALONE, *self.others))
            raise UserError(f"`with` is {brief(name)} in the address; it must be one of: {allowed}")
        return name

    # --- all pages ---

    def status_line(self, request: Request) -> Response:
        """The line at the top of the page if the run has changed since `seen`; else 204."""
        if request.query_params.get("seen") == self._stamp():
            return Response(status_code=204)
        response = self._page(request, "status_line.html")
        response.headers["HX-Trigger"] = "run-changed"
        return response

    def _stamp(self) -> str:
        """Changes whenever the run does."""
        found = self.folder.metrics_stamp()
        self.groups.refresh()
        return f"{found.modified_ns if found else 0}-{self.groups.version}"

    def _page(self, request: Request, template: str, status: int = 200, **facts: Any) -> Response:
        self.run_metrics.refresh()
        common = {"run": self.run_metrics.status(self.now()), "stamp": self._stamp(), "path": request.url.path}
        return self.templates.TemplateResponse(request, template, common | facts, status_code=status)

    def refused(self, request: Request, error: Exception) -> Response:
        """The page that says what is wrong with the address or with a file; it reads no file itself."""
        facts = {"message": str(error), "run": None, "stamp": "", "path": request.url.path}
        return self.templates.TemplateResponse(request, "error.html", facts, status_code=422)


@contextmanager
def _said(problems: list[str]) -> Iterator[None]:
    """Adds what is wrong with a file to the problems, so that the page shows the rest."""
    try:
        yield
    except UserError as error:
        problems.append(str(error))


def _closed(parts: Any) -> Any:
    yield from parts
    yield "\n]}\n"


def address(path: str, params: dict[str, Any], **changes: Any) -> str:
    """A path with parameters, relative to the address of every page, since a proxy may have put a prefix before it;
    None removes a parameter."""
    merged = {name: value for name, value in (params | changes).items() if value not in (None, "")}
    mark = "&" if "?" in path else "?"
    return (path.removeprefix("/") or "./") + (f"{mark}{urlencode(merged)}" if merged else "")


def group_path(step: int, group_id: str) -> str:
    """The path of a group's page, with its parameters."""
    return address("/group", {"step": step, "group": group_id})
