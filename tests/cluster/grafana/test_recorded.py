"""A Prometheus over one run holds what the run recorded, at the times at which it recorded it."""

from itertools import pairwise
from pathlib import Path

import pytest

from actors.config import RecorderConfig
from actors.metrics.exporter import Recorder
from cluster.errors import UserError
from cluster.grafana.boards import Chosen
from cluster.grafana.prometheus import Prometheus, Span
from cluster.grafana.recorded import INTERVAL_S, MOST_SAMPLES, prometheus_over, samples
from cluster.metrics import REGISTRY
from tests.prometheus import need_prometheus, until

RUN = {"run": "a", "environment": "FrozenLake", "filter": "top_p"}
SETTINGS = {"environment.name": "FrozenLake", "filter.rule": "top_p", "recorder.port": 9464}
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
    need_prometheus("promtool")
    with prometheus_over(LINES, SETTINGS, "a") as prometheus:
        (steps,) = prometheus.over("squelch_step", Span(LINES[0]["time"], LINES[-1]["time"], points=5))
        assert list(zip(steps.times, steps.values, strict=True)) == [(line["time"], line["step"]) for line in LINES]
        late = Span(LINES[3]["time"], LINES[5]["time"])
        (rate,) = prometheus.over("rate(squelch_tokens_total{kind='sampled'}[1m])", late)
        assert rate.values[-1] == pytest.approx(5, rel=0.2)
        with pytest.raises(UserError, match="refuses `nonsense"):
            prometheus.over("nonsense(", Span(0, 1))
        (info,) = prometheus.over("squelch_run_info", late)
        assert info.labels.items() >= {"run": "a", "environment": "FrozenLake", "instance": "127.0.0.1:9464"}.items()
        assert prometheus.chosen(".*", late) == Chosen(".*", "20s"), "four of the intervals between its samples"


@pytest.mark.slow
def test_a_live_run_is_scraped_where_it_exports_and_another_run_on_its_port_is_not() -> None:
    need_prometheus("promtool"), need_prometheus()
    recorder = Recorder(RecorderConfig(port=0), REGISTRY)
    recorder.start()
    try:
        recorder.set("squelch_run_info", 1, **(RUN | {"run": 'a"b'}))
        recorder.step(7, {"step": 7.0})
        exported = SETTINGS | {"recorder.port": recorder.port}
        with prometheus_over(LINES, exported, 'a"b', live=True) as prometheus:
            until(lambda: prometheus.now("squelch_step") == [7.0], "the step that the run exports")
            assert prometheus.over("squelch_step", Span(LINES[0]["time"], LINES[-1]["time"])), "and what it recorded"
        with prometheus_over(LINES, exported, "another", live=True) as prometheus:
            assert prometheus.now("up") == []
    finally:
        recorder.close()


def test_a_long_run_has_no_more_samples_than_promtool_stores_soon() -> None:
    long = [{"step": step, "time": 1e9 + 1000.0 * step} for step in range(50)]
    steps = [line for line in samples(long, RUN).splitlines() if line.startswith("squelch_step{")]
    assert MOST_SAMPLES / 2 < len(steps) <= MOST_SAMPLES + len(long)


def test_without_prometheus_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="apt-get install prometheus"), prometheus_over(LINES, SETTINGS, "a"):
        pass


def test_an_address_where_nothing_answers_is_named() -> None:
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        Prometheus("http://127.0.0.1:9").over("up", Span(0, 1))
