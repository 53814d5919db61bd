"""A Prometheus over one run holds what the run recorded, at the times at which it recorded it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from squelch.cluster.grafana import run_prometheus
from squelch.cluster.grafana.boards import Chosen
from squelch.cluster.grafana.prometheus import Prometheus, Span
from squelch.cluster.grafana.run_prometheus import INTERVAL_S, MOST_SAMPLES, _addresses, prometheus_over, samples
from squelch.cluster.metrics import REGISTRY
from squelch.kit.base.errors import UserError
from squelch.kit.metrics import exporter
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.settings import RecorderConfig
from tests.prometheus import free_ports, need_prometheus, until

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


def test_a_metric_of_an_earlier_release_that_is_gone_is_left_out() -> None:
    assert samples([line | {"policy_variance_mean": 0.5} for line in LINES], RUN) == samples(LINES, RUN)


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


def last(prometheus: Prometheus, expr: str) -> list[float]:
    """The newest value of each series of the last ten seconds."""
    return [series.values[-1] for series in prometheus.over(expr, Span(time.time() - 10, time.time()))]


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
            until(lambda: last(prometheus, "squelch_step") == [7.0], "the step that the run exports")
            assert prometheus.over("squelch_step", Span(LINES[0]["time"], LINES[-1]["time"])), "and what it recorded"
        with prometheus_over(LINES, exported, "another", live=True) as prometheus:
            assert last(prometheus, "up") == []
    finally:
        recorder.close()


@contextmanager
def configured(
    monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, Any], name: str = "a"
) -> Iterator[tuple[Path, list[dict[str, Any]], list[str]]]:
    """The folder of a Prometheus over a live run, the scrapes in its configuration, and what was said; no program of
    Prometheus is started."""

    @contextmanager
    def serving(_: str, folder: Path) -> Iterator[str]:
        yield str(folder)

    said: list[str] = []
    monkeypatch.setattr(run_prometheus, "_program", str)
    monkeypatch.setattr(run_prometheus, "_serving", serving)
    with prometheus_over([], settings, name, live=True, say=said.append) as prometheus:
        folder = Path(prometheus.url)
        yield folder, yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"], said


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Any]]:
    """The settings of a live run whose metrics ask for a token."""
    monkeypatch.setenv("SQUELCH_METRICS_TOKEN", "a-token-of-20-letters")
    recorder = Recorder(RecorderConfig(host="0.0.0.0", port=0), REGISTRY)
    recorder.start()
    recorder.set("squelch_run_info", 1, **RUN)
    yield SETTINGS | {"recorder.host": "0.0.0.0", "recorder.port": recorder.port}
    recorder.close()


def test_a_run_that_asks_for_a_token_is_scraped_with_it_and_nobody_else_can_read_it(monkeypatch, guarded) -> None:
    with configured(monkeypatch, guarded) as (folder, [job], said):
        assert job["static_configs"] == [{"targets": [f"127.0.0.1:{guarded['recorder.port']}"]}] and said == []
        assert (folder / job["authorization"]["credentials_file"]).read_text() == "a-token-of-20-letters"
        assert folder.stat().st_mode & 0o777 == 0o700 and "a-token" not in (folder / "prometheus.yml").read_text()
    with configured(monkeypatch, guarded, "another") as (_, jobs, _):
        assert jobs == []


@pytest.mark.parametrize(
    ("token", "why"), [("", "asks for a token; set"), ("of-another-run-altogether", "refuses the")]
)
def test_a_run_whose_token_is_not_at_hand_is_said_to_be_left_out(monkeypatch, guarded, token, why) -> None:
    monkeypatch.setenv("SQUELCH_METRICS_TOKEN", token)
    with configured(monkeypatch, guarded) as (_, jobs, [said]):
        assert jobs == [] and said.startswith(f"a is not scraped: 127.0.0.1:{guarded['recorder.port']} {why}")
        assert "SQUELCH_METRICS_TOKEN" in said


@pytest.mark.parametrize("port", ["1@evil.example", "9464", 0, -1, 70_000, 1.5])
def test_a_port_that_is_no_number_is_no_address(port) -> None:
    assert _addresses({"recorder.host": "127.0.0.1", "recorder.port": port}) == _addresses({}) == []
    assert _addresses({"recorder.port": 9464}) == ["127.0.0.1:9464"]


def test_a_run_that_took_the_first_free_port_is_found_by_its_name(monkeypatch) -> None:
    monkeypatch.setattr(exporter, "PORTS", free_ports(3))
    monkeypatch.setattr(run_prometheus, "PORTS", exporter.PORTS)
    recorders = [Recorder(RecorderConfig(), REGISTRY) for _ in range(2)]
    for recorder, name in zip(recorders, ("another", "a"), strict=True):
        recorder.start()
        recorder.set("squelch_run_info", 1, **(RUN | {"run": name}))
    with configured(monkeypatch, SETTINGS | {"recorder.port": None}) as (_, [job], said):
        assert job["static_configs"] == [{"targets": [f"127.0.0.1:{exporter.PORTS[1]}"]}] and said == []
    for recorder in recorders:
        recorder.close()


def test_the_token_is_not_sent_to_an_address_elsewhere_that_a_runs_folder_names(monkeypatch) -> None:
    def asked(_: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        assert headers is None
        return 401, ""

    monkeypatch.setenv("SQUELCH_METRICS_TOKEN", "a-token-of-20-letters")
    monkeypatch.setattr(run_prometheus, "_answer", asked)
    with configured(monkeypatch, SETTINGS | {"recorder.host": "192.0.2.7"}) as (_, jobs, said):
        assert jobs == []
        assert said == [
            "a is not scraped: SQUELCH_METRICS_TOKEN is sent to this machine alone, and 192.0.2.7 is no address of it"
        ]


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
