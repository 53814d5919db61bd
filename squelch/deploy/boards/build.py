"""Builds Grafana's JSON of a board with the typed builders of grafana-foundation-sdk, in dashboard schema version 1.

Grafana 12 and 13 load this schema; the builders place the panels. They validate nothing, so the tests hold the result
against Grafana's JSON schema. Every board has the variables of `_variables`; a panel links to the page that explains
its row, below the constant `docs`, which names the address at which the docs are served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.builders import heatmap, prometheus, statetimeline, timeseries, xychart
from grafana_foundation_sdk.builders import stat as statistic
from grafana_foundation_sdk.cog.builder import Builder as AnyBuilder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode
from grafana_foundation_sdk.models.xychart import SeriesMapping, XYSeriesConfig, XYShowMode

from squelch.deploy.boards import ANNOTATIONS, colors
from squelch.deploy.boards.panel import Annotation, Board, Kind, Panel, Query

TAG = "squelch"
DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
DOCS = "/public/squelch-docs"
"""Path at which `deploy/compose/compose.yaml` mounts the docs in Grafana."""
WIDTH, HEIGHT = 8, 8
STAT_WIDTH, STAT_HEIGHT = 4, 4
"""Size of a panel, in Grafana's grid of 24 columns."""

Builder = timeseries.Panel | statistic.Panel | heatmap.Panel | statetimeline.Panel | xychart.Panel


def text(board: Board) -> str:
    """The board as Grafana's JSON."""
    return JSONEncoder(indent=2).encode(_dashboard(board)) + "\n"


def _dashboard(board: Board) -> dashboard.Dashboard:
    built = (
        grafana.Dashboard(f"Squelch: {board.name.title()}")
        .uid(f"squelch-{board.name}")
        .description(board.question)
        .tags([TAG])
        .timezone("browser")
        .editable()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh("5s")
        .version(1)
        .link(_to_other_boards())
        .variables(_variables())
        .annotations([_annotation(annotation) for annotation in ANNOTATIONS])
    )
    numbers = count(1)
    for row in board.rows:
        built = built.with_row(grafana.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            built = built.with_panel(_panel(panel, next(numbers), row.page))
    return built.build()


def _to_other_boards() -> grafana.DashboardLink:
    link = grafana.DashboardLink("Squelch").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).include_vars(True).keep_time(True)


def _variables() -> list[AnyBuilder[dashboard.VariableModel]]:
    """Data source, environment and run. The instances of the chosen runs follow from them, and select the series."""
    chosen = 'environment=~"$environment"'
    return [
        grafana.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _labels("environment", "Environment", "label_values(squelch_run_info, environment)"),
        _labels("run", "Run", f"label_values(squelch_run_info{{{chosen}}}, run)"),
        _labels("instance", "Instance", f'label_values(squelch_run_info{{{chosen},run=~"$run"}}, instance)').hide(
            dashboard.VariableHide.HIDE_VARIABLE
        ),
        grafana.ConstantVariable("docs").label("Address of the docs").value(DOCS),
    ]


def _labels(name: str, label: str, query: str) -> grafana.QueryVariable:
    """A variable with all values of a label. "All" stands for the listed values, so that each variable narrows the
    next."""
    return (
        grafana.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .definition(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .current(dashboard.VariableOption(text=["All"], value=["$__all"]))
    )


def _annotation(annotation: Annotation) -> grafana.AnnotationQuery:
    return (
        grafana.AnnotationQuery()
        .name(annotation.name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(annotation.color)
        .expr(annotation.expr)
        .title_format(annotation.name)
        .text_format(annotation.legend)
        .step("10s")
    )


def _panel(panel: Panel, number: int, page: str) -> Builder:
    width, height = (STAT_WIDTH, STAT_HEIGHT) if panel.kind == "stat" else (WIDTH, HEIGHT)
    built = BUILDERS[panel.kind](panel).id(number).title(panel.title).description(panel.help).datasource(DATASOURCE)
    built = built.span(width).height(height).unit(panel.unit).links([_explanation(page)])
    if panel.low is not None:
        built = built.min(panel.low)
    if panel.high is not None:
        built = built.max(panel.high)
    for query in _targets(panel):
        built = built.with_target(query)
    return built


def _explanation(page: str) -> grafana.DashboardLink:
    link = grafana.DashboardLink("What this shows").type(dashboard.DashboardLinkType.LINK)
    return link.url(f"${{docs}}/{page}").target_blank(True)


def _targets(panel: Panel) -> Iterator[prometheus.Dataquery]:
    form = PromQueryFormat.HEATMAP if panel.kind == "heatmap" else PromQueryFormat.TIME_SERIES
    for letter, query in zip("ABCDEFGHIJ", panel.queries, strict=False):
        yield _target(query, letter).format(form)


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    built = prometheus.Dataquery().ref_id(letter).datasource(DATASOURCE).editor_mode(QueryEditorMode.CODE)
    return built.expr(query.expr).legend_format(query.legend).range()


def _time_series(panel: Panel) -> timeseries.Panel:
    stacking = common.StackingMode.NORMAL if panel.stack else common.StackingMode.NONE
    built = timeseries.Panel().draw_style(common.GraphDrawStyle.LINE).line_width(2).span_nulls(True)
    built = built.fill_opacity(40 if panel.stack else 0).stacking(options.StackingConfig().mode(stacking).group("A"))
    return built.legend(_legend()).tooltip(_tooltip())


def _legend() -> options.VizLegendOptions:
    built = options.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST).show_legend(True)
    return built.placement(common.LegendPlacement.BOTTOM)


def _tooltip() -> options.VizTooltipOptions:
    return options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)


def _stat(panel: Panel) -> statistic.Panel:
    built = statistic.Panel().color_mode(common.BigValueColorMode.NONE).graph_mode(common.BigValueGraphMode.AREA)
    return built.reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]))


def _heat_map(panel: Panel) -> heatmap.Panel:
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme(colors.HEAT_MAP).steps(32)
    return heatmap.Panel().calculate(False).color(color).cell_gap(1).show_legend()


def _state_timeline(panel: Panel) -> statetimeline.Panel:
    """Each series is a line of the timeline."""
    shown = {"0": dashboard.ValueMappingResult(text=" ", color=colors.NO_STATE, index=0)}
    for index, (state, color) in enumerate(zip(panel.states or (" ",), colors.STATES, strict=False), 1):
        shown[str(index)] = dashboard.ValueMappingResult(text=state, color=color, index=index)
    built = statetimeline.Panel().mappings([dashboard.ValueMap(shown)]).show_value(common.VisibilityMode.NEVER)
    return built.legend(options.VizLegendOptions().show_legend(bool(panel.states))).row_height(0.8)


def _xy_chart(panel: Panel) -> xychart.Panel:
    """Each further query over the first, one point for each time at which both have a value."""
    across, *up = (query.legend for query in panel.queries)
    lines: list[AnyBuilder[XYSeriesConfig]] = [_points(across, legend) for legend in up]
    joined = dashboard.DataTransformerConfig(id_val="joinByField", options={"byField": "Time", "mode": "outer"})
    built = xychart.Panel().mapping(SeriesMapping.MANUAL).series(lines).with_transformation(joined)
    return built.show(XYShowMode.POINTS).legend(_legend())


def _points(across: str, up: str) -> xychart.XYSeriesConfig:
    line = xychart.XYSeriesConfig().x(xychart.XychartXYSeriesConfigX().matcher(_by_name(across)))
    return line.y(xychart.XychartXYSeriesConfigY().matcher(_by_name(up)))


def _by_name(legend: str) -> xychart.MatcherConfig:
    return xychart.MatcherConfig().id("byName").options(legend)


BUILDERS: dict[Kind, Callable[[Panel], Builder]] = {
    "timeseries": _time_series,
    "stat": _stat,
    "heatmap": _heat_map,
    "state-timeline": _state_timeline,
    "xychart": _xy_chart,
}
"""How each kind of panel is built."""
