"""The pictures of the dashboards come from a real Prometheus that holds a run's metrics."""

import re
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cluster.errors import UserError
from cluster.figures.boards import shipped
from cluster.grafana.check import Prometheus
from deploy import board_pictures
from deploy.board_pictures import INTERVAL_S, prometheus_over, samples
from tests.cluster.report.synthetic import Made, write_run
from tests.prometheus import need_prometheus

RUN = {"run": "a", "environment": "FrozenLake", "filter": "top_p"}
DOCS = Path(__file__).parents[2] / "docs"
LINES = [
    {"step": step, "time": 1_700_000_000.0 + 20 * step, "success": step / 10, "tokens/sampled": 100.0, "gain": None}
    for step in range(6)
]


def test_every_series_has_a_sample_at_every_interval_in_order_of_time() -> None:
    text = samples(LINES, RUN)
    found = [line.split() for line in text.splitlines() if line.startswith("squelch_step{")]
    assert [float(value) for _, value, _ in found[:5]] == [0, 0, 0, 0, 1] and text.endswith("# EOF\n")
    times = [float(time) for *_, time in found]
    assert times == sorted(times) and {b - a for a, b in pairwise(times)} == {INTERVAL_S}
    assert "squelch_validation_gain_ratio" not in text, "not measured"


@pytest.mark.slow
def test_a_prometheus_holds_the_run_and_answers_over_its_time(tmp_path: Path) -> None:
    need_prometheus("promtool"), need_prometheus()
    with prometheus_over(LINES, RUN) as prometheus:
        (steps,) = prometheus.over("squelch_step", LINES[0]["time"], LINES[-1]["time"], points=5)
        assert list(zip(steps.times, steps.values, strict=True)) == [(line["time"], line["step"]) for line in LINES]
        (rate,) = prometheus.over("rate(squelch_tokens_total{kind='sampled'}[1m])", *(LINES[i]["time"] for i in (3, 5)))
        assert rate.values[-1] == pytest.approx(5, rel=0.2)
        with pytest.raises(UserError, match="refuses `nonsense"):
            prometheus.over("nonsense(", 0, 1)


@pytest.mark.slow
def test_the_command_draws_every_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_prometheus("promtool")
    run = write_run(tmp_path, Made("a", steps=8))
    monkeypatch.setattr(sys, "argv", ["board_pictures", str(run), str(tmp_path)])
    board_pictures.main()
    reasoning = (tmp_path / "dashboard-reasoning.svg").read_text()
    drawn = {f"dashboard-{name}.svg" for name in shipped()} | {"reasoning-view.svg"}
    assert {path.name for path in tmp_path.glob("*.svg")} == drawn
    assert "Retrieval accuracy" in reasoning and "first_turn" in reasoning


def test_an_address_where_nothing_answers_is_named() -> None:
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        Prometheus("http://127.0.0.1:9").over("up", 0, 1)


def test_the_committed_pictures_are_of_a_real_run_and_load_nothing() -> None:
    for name, board in shipped().items():
        text = (DOCS / f"dashboard-{name}.svg").read_text(encoding="utf-8")
        ElementTree.fromstring(text.encode())
        assert board.rows[0].title in text
        assert not re.search(r"(?:href|src)=\"http|url\(http|@import|<script", text)
