"""The shipped dashboards are drawn without Grafana: every type of panel, their own queries, whatever is answered."""

import dataclasses
import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.figures.boards import Board, Panel, Target, shipped
from cluster.figures.panels import DRAWINGS, Answers, expressions, panels, picture, written
from cluster.grafana.check import Series
from deploy.boards.panel import Kind

TIMES = tuple(float(1_700_000_000 + 10 * i) for i in range(8))


def answer(expr: str) -> list[Series]:
    """Two made-up series of an expression; those of a heat map are cumulative by `le`."""
    if "le" in expr and "label_replace" in expr:
        bounds = ("0", "0.1", "+Inf")
        return [Series({"le": bound}, TIMES, tuple(float(i + 1) for _ in TIMES)) for i, bound in enumerate(bounds)]
    names = ("scope", "bound", "state", "part", "worker", "regime", "actor", "le")
    labels = [{name: f"{name}-{i}" for name in names} for i in range(2)]
    return [Series(own, TIMES, tuple((i + j) / 10 for j in range(len(TIMES)))) for i, own in enumerate(labels)]


def answered(board_name: str) -> Answers:
    return {expr: answer(expr) for expr in expressions(shipped()[board_name])}


def test_every_type_of_a_shipped_panel_has_a_drawing_and_every_drawing_is_of_such_a_type() -> None:
    assert {panel.kind for board in shipped().values() for panel in board.panels} <= DRAWINGS.keys()
    assert DRAWINGS.keys() == set(get_args(Kind))


def test_the_queries_are_the_dashboards_own_with_grafanas_variables_filled_in() -> None:
    for board in shipped().values():
        asked = expressions(board, "127.0.0.1:9464")
        assert len(asked) == sum(len(panel.targets) for panel in board.panels) > 5
        assert not any(re.search(r"\$[a-z_]", expr) for expr in asked)
    assert any('instance=~"127.0.0.1:9464"' in expr for expr in asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(shipped()))
def test_every_panel_of_a_board_is_drawn_with_its_title_and_its_help(name: str) -> None:
    board = shipped()[name]
    drawn = panels(board, answered(name))
    assert [one.panel for one in drawn] == board.panels
    for one in drawn:
        texts = re.findall(r"<(?:title|desc)[^>]*>([^<]*)<", one.svg)
        assert len(texts) == 2 and "no data" not in one.svg
    assert len({re.search(r' id="([^"]*)-title"', one.svg)[1] for one in drawn}) == len(drawn)


def test_a_board_without_answers_says_so_in_every_panel_and_draws_the_rows_that_are_asked_for() -> None:
    board = shipped()["signal"]
    row = board.rows[0]
    whole = picture(board, {}, [row])
    assert whole.count("no data") == len(row.panels) and row.title in whole
    assert board.rows[1].title not in whole


def a_panel(kind: str, *legends: str) -> Panel:
    targets = tuple(Target(f"query_{i}", legend) for i, legend in enumerate(legends))
    return Panel("A panel", "Help.", kind, 0, 0, 8, 8, "short", None, None, kind == "timeseries", targets)


def one_board(panel: Panel) -> Board:
    board = shipped()["signal"]
    return dataclasses.replace(board, rows=(dataclasses.replace(board.rows[0], panels=(panel,)),))


POINTS = st.lists(st.tuples(st.integers(0, 500), st.floats(-1e9, 1e9)), max_size=6, unique_by=lambda p: p[0])


@settings(max_examples=12, deadline=None)
@given(kind=st.sampled_from(sorted(DRAWINGS)), found=st.lists(POINTS, max_size=4))
def test_whatever_prometheus_answers_is_drawn(kind: str, found: list[list[tuple[int, float]]]) -> None:
    ordered = [sorted(points) for points in found]
    series = [
        Series({"le": f"{i}"}, tuple(float(t) for t, _ in points), tuple(v for _, v in points))
        for i, points in enumerate(ordered)
    ]
    (drawn,) = panels(one_board(a_panel(kind, "{{le}}", "1")), {"query_0": series, "query_1": series[:1]})
    assert drawn.svg.startswith("<svg") and ("no data" in drawn.svg) >= (not any(found))


def test_a_label_that_a_hostile_exporter_names_stays_text() -> None:
    evil = "</text><script>alert(1)</script>"
    series = [Series({"le": evil}, TIMES, (1.0,) * len(TIMES)), Series({"le": "b"}, TIMES, (2.0,) * len(TIMES))]
    panel = a_panel("state-timeline", "{{le}}")
    (drawn,) = panels(one_board(panel), {"query_0": series})
    assert "<script" not in drawn.svg and "&lt;script&gt;" in drawn.svg


def test_an_interval_is_a_band_and_lines_on_one_another_share_a_label() -> None:
    series = {
        "query_0": [Series({}, TIMES, (0.5,) * 8)],
        "query_1": [Series({}, TIMES, (0.4,) * 8)],
        "query_2": [Series({}, TIMES, (0.6,) * 8)],
        "query_3": [Series({}, TIMES, (0.5,) * 8)],
    }
    legends = ("first turn", "first turn, low", "first turn, high", "copy")
    panel = dataclasses.replace(a_panel("timeseries", *legends), stacked=False)
    (drawn,) = panels(one_board(panel), series)
    assert "first turn (+1)" in drawn.svg and ", low" not in drawn.svg and "copy" not in drawn.svg
    assert 'fill-opacity="0.16"' in drawn.svg or 'opacity="0.16"' in drawn.svg


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
        (float("nan"), "short", "-"),
    ],
)
def test_values_are_written_in_the_panels_unit(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text
