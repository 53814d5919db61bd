"""The application: routes, templates, static files, and the page for errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp

from squelch.cluster.inspector import template_filters
from squelch.cluster.inspector.guard import Access, Guard
from squelch.cluster.inspector.pages import Pages, address, group_path
from squelch.cluster.inspector.texts import shown
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.files import Unreadable

HERE = Path(__file__).parent
_FORMATS = (
    template_filters.number,
    template_filters.compact,
    template_filters.whole,
    template_filters.percent,
    template_filters.levels,
    template_filters.spread,
)


def application(
    folder: RunFolder, access: Access, now: Callable[[], float] = time.time, others: Sequence[RunFolder] = ()
) -> ASGIApp:
    """The guarded application that shows a run, and the metrics of `others` beside its own. UserError if the run's
    index or metrics, or those of the others, cannot be read."""
    pages = Pages(folder, templates(), now, others)
    for other in pages.others.values():
        other.refresh()
    pages.groups.refresh()  # here rather than with the first page, which would wait for it in a large run
    pages.run_metrics.refresh()
    app = Starlette(
        routes=[
            Route("/", pages.overview),
            Route("/groups", pages.group_list),
            Route("/group", pages.group),
            Route("/compare", pages.compare),
            Route("/search", pages.search),
            Route("/scores", pages.scores),
            Route("/scores/cell", pages.cell),
            Route("/scores/values", pages.values),
            Route("/templates", pages.template_list),
            Route("/timeline", pages.lanes),
            Route("/timeline/spans", pages.spans),
            Route("/trace.json", pages.trace),
            Route("/figures", pages.charts),
            Route("/figures/numbers", pages.numbers),
            Route("/where", pages.where),
            Route("/status-line", pages.status_line),
            Mount("/static", Static(directory=HERE / "static"), name="static"),
        ],
        exception_handlers={UserError: pages.refused, Unreadable: pages.refused, 404: _not_found(pages)},
    )
    return Guard(app, access)


def _not_found(pages: Pages) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, _: Exception) -> Response:
        missing = f"there is no page {request.url.path}"
        if "/" in request.url.path[1:]:  # the links of a page would lead below that path
            return PlainTextResponse(f"{missing}\n", status_code=404)
        response = pages.refused(request, UserError(missing))
        response.status_code = 404
        return response

    return answer


class Static(StaticFiles):
    """Static files; their addresses hold the version, so that browsers may keep them."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        """As `StaticFiles.file_response`."""
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "max-age=86400"
        return response


def templates() -> Jinja2Templates:
    """The templates: everything is escaped, and an unknown name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {function.__name__: function for function in _FORMATS} | {"shown": shown}
    files = sorted((HERE / "static").iterdir())
    version = f"{max(int(path.stat().st_mtime) for path in files):x}"
    functions: dict[str, Any] = {"address": address, "group_path": group_path, "versions": template_filters.versions}
    functions["static"] = lambda name: f"static/{name}?{version}"
    environment.globals.update(functions)
    return Jinja2Templates(env=environment)
