"""The shipped dashboards are drawn without Grafana: every type of panel, their own queries, whatever is answered."""

import dataclasses
import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.grafana.boards import EVERYTHING, Board, Chosen, Mark, Panel, State, Target, expressions, shipped
from squelch.cluster.grafana.prometheus import Series, Span
from squelch.cluster.plots.panel_drawings import COLOURS, DRAWINGS, WITH_TIME, stretches, written
from squelch.cluster.plots.panels import Answered, one_panel, picture, values
from squelch.cluster.plots.step_axis import StepClock
from squelch.deploy.boards.panel import Kind

TIMES = tuple(float(1_700_000_000 + 10 * i) for i in range(8))


def answer(expr: str) -> list[Series]:
    """Two made-up series of an expression; those of a heat map are cumulative by `le`."""
    if "le" in expr and "label_replace" in expr:
        bounds = ("0", "0.1", "+Inf")
        return [Series({"le": bound}, TIMES, tuple(float(i + 1) for _ in TIMES)) for i, bound in enumerate(bounds)]
    names = ("scope", "bound", "state", "part", "worker", "regime", "actor", "le")
    labels = [{name: f"{name}-{i}" for name in names} for i in range(2)]
    return [Series(own, TIMES, tuple((i + j) / 10 for j in range(len(TIMES)))) for i, own in enumerate(labels)]


def answered(series: dict[str, list[Series]]) -> Answered:
    return Answered(series, EVERYTHING, Span(TIMES[0], TIMES[-1], len(TIMES) - 1))


def made_up(board_name: str) -> Answered:
    return answered({expr: answer(expr) for expr in expressions(shipped()[board_name])})


def drawn_alone(panel: Panel, series: dict[str, list[Series]], *marks: Mark) -> str:
    return one_panel(one_board(panel, *marks), panel, answered(series))


def test_every_type_of_a_shipped_panel_has_a_drawing_and_every_drawing_is_of_such_a_type() -> None:
    assert {panel.kind for board in shipped().values() for panel in board.panels} <= DRAWINGS.keys()
    assert DRAWINGS.keys() == set(get_args(Kind))


def test_the_queries_are_the_dashboards_own_with_grafanas_variables_filled_in() -> None:
    for board in shipped().values():
        asked = list(expressions(board, Chosen("127.0.0.1:9464", "20s")))
        assert len(asked) == sum(len(panel.targets) for panel in board.panels) + len(board.marks) > 10
        assert not any(re.search(r"\$[a-z_]", expr) for expr in asked)
        assert any('instance=~"127.0.0.1:9464"' in expr for expr in asked) and any("[20s]" in expr for expr in asked)


def test_every_colour_of_a_state_or_mark_is_one_of_ours() -> None:
    boards = shipped().values()
    named = {mark.colour for board in boards for mark in board.marks}
    named |= {state.colour for board in boards for panel in board.panels for state in panel.states.values()}
    assert named - {"transparent"} <= COLOURS.keys() and len(named) > 6


@pytest.mark.slow
@pytest.mark.parametrize("name", list(shipped()))
def test_every_panel_of_a_board_is_drawn_with_its_title_and_its_help(name: str) -> None:
    board, answers = shipped()[name], made_up(name)
    drawn = [one_panel(board, panel, answers) for panel in board.panels]
    for svg in drawn:
        texts = re.findall(r"<(?:title|desc)[^>]*>([^<]*)<", svg)
        assert len(texts) == 2 and "no data" not in svg
    assert len({re.search(r' id="([^"]*)-title"', svg)[1] for svg in drawn}) == len(drawn)


def test_a_board_without_answers_says_so_in_every_panel_and_draws_the_rows_that_are_asked_for() -> None:
    board = shipped()["signal"]
    row = board.rows[0]
    whole = picture(board, answered({}), [row])
    assert whole.count("no data") == len(row.panels) and row.title in whole
    assert board.rows[1].title not in whole


def a_panel(kind: str, *legends: str) -> Panel:
    targets = tuple(Target(f"query_{i}", legend) for i, legend in enumerate(legends))
    states = {0: State("", "transparent"), 1: State("starting", "orange"), 3: State("healthy", "green")}
    return Panel("A panel", "Help.", kind, 0, 0, 8, 8, "short", None, None, kind == "timeseries", targets, states)


def one_board(panel: Panel, *marks: Mark) -> Board:
    board = shipped()["signal"]
    return dataclasses.replace(board, rows=(dataclasses.replace(board.rows[0], panels=(panel,)),), marks=marks)


POINTS = st.lists(st.tuples(st.integers(0, 500), st.floats(-1e9, 1e9)), max_size=6, unique_by=lambda p: p[0])


@settings(max_examples=12, deadline=None)
@given(kind=st.sampled_from(sorted(DRAWINGS)), found=st.lists(POINTS, max_size=4))
def test_whatever_prometheus_answers_is_drawn(kind: str, found: list[list[tuple[int, float]]]) -> None:
    ordered = [sorted(points) for points in found]
    series = [
        Series({"le": f"{i}"}, tuple(float(t) for t, _ in points), tuple(v for _, v in points))
        for i, points in enumerate(ordered)
    ]
    answers = {"query_0": series, "query_1": series[:1], "event": series}
    svg = drawn_alone(a_panel(kind, "{{le}}", "1"), answers, Mark("Events", "event", "red"))
    assert svg.startswith("<svg") and ("no data" in svg) >= (not any(found))


def test_a_label_that_a_hostile_exporter_names_stays_text() -> None:
    evil = "</text><script>alert(1)</script>"
    series = [Series({"le": evil}, TIMES, (1.0,) * len(TIMES)), Series({"le": "b"}, TIMES, (2.0,) * len(TIMES))]
    panel = a_panel("state-timeline", "{{le}}")
    svg = drawn_alone(panel, {"query_0": series})
    assert "<script" not in svg and "&lt;script&gt;" in svg


def test_a_state_timeline_shows_each_stretch_in_its_states_colour_and_names_the_states_that_occur() -> None:
    healthy_again = Series({"le": "env-0"}, TIMES, (3.0, 3.0, 1.0, 1.0, 3.0, 3.0, 0.0, 0.0))
    svg = drawn_alone(a_panel("state-timeline", "{{le}}"), {"query_0": [healthy_again]})
    assert svg.count(f'fill="{COLOURS["green"]}"') == 3, "two stretches and the key"
    assert svg.count(f'fill="{COLOURS["orange"]}"') == 2 and ">healthy<" in svg
    always = Series({"le": "env-0"}, TIMES, (3.0,) * 8)
    assert ">starting<" not in drawn_alone(a_panel("state-timeline", "{{le}}"), {"query_0": [always]})


def test_a_stretch_ends_where_a_value_is_missing() -> None:
    assert stretches([0, 1, 2, 5, 6, 9], 1.0) == [(0, 2), (5, 6), (9, 9)] and stretches([], 1.0) == []


def test_events_are_marked_on_time_axes_alone() -> None:
    answers = {"query_0": [Series({}, TIMES, (1.0,) * 8)], "event": [Series({}, TIMES[2:3], (1.0,))]}
    mark = Mark("Alarms", "event", "red")
    assert COLOURS["red"] in drawn_alone(a_panel("timeseries", "a"), answers, mark)
    assert COLOURS["red"] not in drawn_alone(a_panel("stat", "a"), answers, mark)
    marked = one_board(a_panel("timeseries", "a"), mark)
    assert "Alarms" in picture(marked, answered(answers), marked.rows), "the key below the rows"
    never = answers | {"event": [Series({}, TIMES, (0.0,) * 8)]}
    assert "Alarms" not in picture(marked, answered(never), marked.rows)


def test_an_interval_is_a_band_and_lines_on_one_another_share_a_label() -> None:
    series = {
        "query_0": [Series({}, TIMES, (0.5,) * 8)],
        "query_1": [Series({}, TIMES, (0.4,) * 8)],
        "query_2": [Series({}, TIMES, (0.6,) * 8)],
        "query_3": [Series({}, TIMES, (0.5,) * 8)],
    }
    legends = ("first turn", "first turn, low", "first turn, high", "copy")
    panel = dataclasses.replace(a_panel("timeseries", *legends), stacked=False)
    svg = drawn_alone(panel, series)
    assert "first turn (+1)" in svg and ">0.5<" in svg and ", low" not in svg and "copy" not in svg
    assert 'fill-opacity="0.16"' in svg or 'opacity="0.16"' in svg


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.414, "percentunit", "41.4%"),
        (1.0, "percentunit", "100%"),
        (2.5, "s", "2.5 s"),
        (600.0, "s", "10 min"),
        (1.5e9, "bytes", "1.5 GB"),
        (12_000.0, "short", "12 k"),
        (0.12, "suffix: nats", "0.12"),
        (float("nan"), "short", "n/a"),
    ],
)
def test_values_are_written_in_the_panels_unit(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text


def lines_panel(*legends: str) -> Panel:
    return dataclasses.replace(a_panel("timeseries", *legends), stacked=False)


def test_a_lines_label_says_its_last_value_with_its_unit() -> None:
    rising = [Series({}, TIMES, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75))]
    alone = dataclasses.replace(lines_panel("success"), unit="percentunit")
    assert ">75%<" in drawn_alone(alone, {"query_0": rising})
    seconds = dataclasses.replace(lines_panel("a", "b"), unit="s")
    svg = drawn_alone(seconds, {"query_0": rising, "query_1": [Series({}, TIMES, (2.5,) * 8)]})
    assert ">a 0.75\u00a0s<" in svg and ">b 2.5\u00a0s<" in svg


@pytest.mark.parametrize(("value", "marks"), [(0.0, ["0", "1"]), (4.0, ["0", "4", "8"]), (-1e9, ["-2 G", "0"])])
def test_a_constant_has_an_axis_from_0_and_not_at_its_rounding_error(value: float, marks: list[str]) -> None:
    nearly = (value,) * 7 + (value * (1 + 1e-12),)
    svg = drawn_alone(lines_panel("a"), {"query_0": [Series({}, TIMES, nearly)]})
    assert {f">{mark}<" in svg for mark in marks} == {True}


def test_the_table_of_a_panel_has_each_series_and_counts_of_a_heat_map_by_bucket() -> None:
    rising = {"query_0": [Series({"le": "0.1"}, TIMES, tuple(float(i) for i in range(8)))]}
    rising["query_0"].append(Series({"le": "+Inf"}, TIMES, tuple(float(3 * i) for i in range(8))))
    (low, high) = values(a_panel("timeseries", "{{le}}"), answered(rising))
    assert (low.name, low.last, low.least, low.most, low.mean) == ("0.1", "7", "0", "7", "3.5") and high.last == "21"
    assert [(one.name, one.last) for one in values(a_panel("heatmap", "{{le}}"), answered(rising))] == [
        ("\u2264 0.1", "7"),
        ("\u2264 +Inf", "14"),
    ]
    state = {"query_0": [Series({"le": "env-0"}, TIMES, (1.0,) * 7 + (3.0,))]}
    (one,) = values(a_panel("state-timeline", "{{le}}"), answered(state))
    assert (one.name, one.last, one.mean) == ("env-0", "healthy", "")
    assert values(a_panel("heatmap", "{{le}}"), answered({})) == []


@pytest.mark.parametrize("kind", sorted(DRAWINGS))
def test_every_type_with_a_time_axis_is_drawn_over_steps_too(kind: str) -> None:
    clock = StepClock((0.0, 0.2, 1.0), (10.0, 20.0, 30.0))
    answers = answered({"query_0": answer("le label_replace"), "event": [Series({}, TIMES[2:3], (1.0,))]})
    svg = one_panel(
        one_board(a_panel(kind, "{{le}}"), Mark("Events", "event", "red")), a_panel(kind, "{{le}}"), answers, clock
    )
    assert (">step 20<" in svg) == (kind in WITH_TIME) and " min<" not in svg
