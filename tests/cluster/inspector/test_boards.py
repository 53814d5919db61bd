"""The page of the dashboards: panels drawn from a Prometheus, or in words why they are not."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from squelch.cluster.grafana.boards import shipped
from squelch.cluster.grafana.prometheus import Prometheus
from squelch.cluster.inspector import boards
from squelch.cluster.inspector.app import application
from squelch.cluster.inspector.boards import REFRESH_S, SILENT_S, Boards, Recorded
from squelch.cluster.inspector.guard import Access
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError
from tests.cluster.inspector.stand_in import Asked

NOW = 10_000.0
LIVE, OVER = Recorded(1000.0, 9990.0, True), Recorded(1000.0, 5000.0, False)


def over_run(prometheus: Prometheus | None, clock: Mapping[str, float] | None = None) -> Boards:
    return Boards("demo", prometheus, lambda: NOW if clock is None else clock["now"])


def test_a_panel_is_asked_for_the_runs_own_addresses_and_drawn_once_for_all_readers() -> None:
    asked = Asked(("gpu7:9464", "127.0.0.1:9464"))
    page = over_run(asked)
    panel = shipped()["reasoning"].panels[0]
    first = page.panel("reasoning", 0, OVER)
    questions = len(asked.expressions)
    assert panel.title in first.svg and questions == 1 + len(panel.targets) + len(shipped()["reasoning"].marks)
    assert r'instance=~"127\\.0\\.0\\.1:9464|gpu7:9464"' in asked.expressions[1]
    assert page.panel("reasoning", 0, OVER) == first and len(asked.expressions) == questions
    page.panel("system", 1, OVER)
    assert len(asked.expressions) == questions + len(shipped()["system"].panels[1].targets), "marks are shared"


def test_a_live_panel_is_drawn_again_after_a_while_and_old_drawings_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boards, "MOST_DRAWINGS", 2)
    asked, clock = Asked(), {"now": NOW}
    page = over_run(asked, clock)
    for _ in range(4):
        page.panel("signal", 0, LIVE)
        before = len(asked.expressions)
        page.panel("signal", 0, LIVE)
        assert len(asked.expressions) == before
        clock["now"] += REFRESH_S
    assert len(page._drawings) == 2


@pytest.mark.parametrize(
    ("recorded", "window", "start", "end"),
    [
        (LIVE, "all", 970.0, 9990.0),
        (LIVE, "15m", 9090.0, 9990.0),
        (OVER, "all", 970.0, 5030.0),
        (OVER, "1h", 1430.0, 5030.0),
        (Recorded(1000.0, NOW - SILENT_S, True), "all", 970.0, NOW - SILENT_S + 30),
    ],
)
def test_the_span_ends_now_for_a_live_run_and_with_the_run_for_one_that_is_over(
    recorded: Recorded, window: str, start: float, end: float
) -> None:
    found = over_run(None).span(recorded, window)
    assert (found.start, found.end) == (start, end)


def test_a_prometheus_that_is_down_is_asked_once_and_then_left_alone_for_a_while() -> None:
    asked, clock = Asked(), {"now": NOW}
    page = over_run(asked, clock)
    asked.error = "Prometheus at http://stand-in cannot be reached"
    for _ in range(3):
        with pytest.raises(UserError, match="cannot be reached"):
            page.panel("reasoning", 0, LIVE)
    assert len(asked.expressions) == 1
    asked.error, clock["now"] = "", NOW + REFRESH_S
    assert "<svg" in page.panel("reasoning", 0, LIVE).svg


def test_a_prometheus_that_never_saw_the_run_is_told_so() -> None:
    with pytest.raises(UserError, match=r"nothing of a run named .?demo.*deploy/prometheus.yml"):
        over_run(Asked(())).panel("reasoning", 0, OVER)


def client_of(folder: Path, prometheus: Prometheus | None) -> TestClient:
    access = Access(frozenset({"testserver"}), 80)
    return TestClient(application(RunFolder(folder), access, lambda: 2000.0, prometheus))


def test_the_page_has_every_row_and_panel_of_the_board_with_its_place(finished: Path) -> None:
    client = client_of(finished, Asked())
    for name, board in shipped().items():
        text = client.get(f"/boards?board={name}&window=1h").text
        said = text.replace("&#39;", "'")
        assert all(f"<h2>{row.title}</h2>" in said for row in board.rows)
        places = re.findall(r'class="panel x(\d+) w(\d+) h(\d+)" data-panel="(\d+)"', text)
        wanted = [(p.x, p.width, p.height, number) for number, p in enumerate(board.panels)]
        assert [tuple(map(int, place)) for place in places] == wanted
        assert "boards/panel?board=" + name in text and "from http://stand-in" in text
    css = (Path(boards.__file__).parent / "static" / "inspector.css").read_text()
    used = {f".{kind}{n} {{" for b in shipped().values() for p in b.panels for kind, n in (("x", p.x), ("w", p.width))}
    used |= {f".h{p.height} {{" for b in shipped().values() for p in b.panels}
    used |= {f".mark-{mark.colour} {{" for b in shipped().values() for mark in b.marks}
    assert {rule for rule in used if rule not in css} == set()


def test_a_panel_is_an_image_that_needs_no_inline_style_and_its_colours_have_dark_ones(finished: Path) -> None:
    client = client_of(finished, Asked())
    answer = client.get("/boards/panel?board=reasoning&panel=0")
    assert answer.status_code == 200 and answer.text.startswith("<svg")
    assert "style=" not in answer.text and "<script" not in answer.text
    assert "prefers-color-scheme" in client.get("/boards/colours.css").text


def test_a_panel_has_a_table_of_its_values_which_the_address_can_open(finished: Path) -> None:
    client = client_of(finished, Asked())
    closed = client.get("/boards/panel?board=reasoning&panel=0").text
    assert '<details class="values">' in closed and "mean</th>" in closed
    row = r"<td>first_turn</td><td class=\"num\">50%</td><td class=\"num\">25%</td>"
    assert re.search(row, closed), "the last value and the least"
    assert '<details class="values" open>' in client.get("/boards/panel?board=reasoning&panel=0&values=1").text
    page = client.get("/boards?values=1&axis=steps").text
    assert "boards/panel?board=reasoning&amp;window=all&amp;axis=steps&amp;values=1" in page


def test_a_name_that_a_hostile_exporter_gives_stays_text_in_the_table(finished: Path) -> None:
    asked = Asked()
    asked.scope = "<script>w()</script>"
    text = client_of(finished, asked).get("/boards/panel?board=reasoning&panel=0").text
    assert "<script" not in text and text.count("&lt;script&gt;") > 1


def test_panels_are_drawn_over_time_or_over_steps(finished: Path) -> None:
    client = client_of(finished, Asked())
    assert " min<" in client.get("/boards/panel?board=reasoning&panel=0").text
    over_steps = client.get("/boards/panel?board=reasoning&panel=0&axis=steps").text
    assert ">step 2<" in over_steps and " min<" not in over_steps
    assert " min<" in over_run(Asked()).panel("reasoning", 0, OVER, axis="steps").svg, "of no step yet"


def test_without_a_prometheus_the_page_names_the_command_that_gives_one(finished: Path) -> None:
    client = client_of(finished, None)
    text = client.get("/boards").text
    assert f"squelch inspect {finished} --prometheus own" in text and "data-panel" not in text
    answer = client.get("/boards/panel?panel=0")
    assert answer.status_code == 422 and "no Prometheus" in answer.text
    assert client.get("/figures").status_code == 200


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/boards?board=%3Cscript%3E", "`board` is"),
        ("/boards?window=2w", "`window` is"),
        ("/boards?axis=tokens", "`axis` is"),
        ("/boards/panel?panel=99", "`panel` is 99"),
        ("/boards/panel?panel=x", "`panel` is"),
        ("/boards/panel?board=x&panel=1", "`board` is"),
    ],
)
def test_a_wrong_address_is_answered_in_words(finished: Path, path: str, said: str) -> None:
    answer = client_of(finished, Asked()).get(path)
    assert answer.status_code == 422 and said in answer.text.replace("&#39;", "'") and "<script>" not in answer.text
