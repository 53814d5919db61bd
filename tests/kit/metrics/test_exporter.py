"""The endpoint serves every series from the start, cleanly, on loopback, and refuses a port in use."""

import select
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from socketserver import ThreadingMixIn
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from squelch.cluster.metrics import REGISTRY
from squelch.deploy.dashboards import ROOT
from squelch.kit.metrics import exporter
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.settings import RecorderConfig
from tests.connections import ends
from tests.prometheus import free_ports


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder(RecorderConfig(port=0), REGISTRY, seeds={"worker": ["rollout-0"], "actor": ["learner-0"]})
    recorder.start()
    yield recorder
    recorder.close()


def test_beyond_loopback_it_answers_only_to_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RecorderConfig(host="0.0.0.0", port=0)
    for token in ("", "short"):
        monkeypatch.setenv("SQUELCH_METRICS_TOKEN", token)
        with pytest.raises(ValueError, match=r"recorder\.host='0\.0\.0\.0' opens /metrics.*SQUELCH_METRICS_TOKEN"):
            Recorder(config, REGISTRY).start()
    monkeypatch.setenv("SQUELCH_METRICS_TOKEN", "a-token-of-20-letters\n")
    recorder = Recorder(config, REGISTRY)
    recorder.start()
    try:
        url = f"http://127.0.0.1:{recorder.port}/metrics"
        for header in ({}, {"Authorization": "Bearer another-token-here"}, {"Authorization": "a-token-of-20-letters"}):
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                urllib.request.urlopen(urllib.request.Request(url, headers=header), timeout=180)
            assert b"squelch" not in refused.value.read()
        request = urllib.request.Request(url, headers={"Authorization": "Bearer a-token-of-20-letters"})
        with urllib.request.urlopen(request, timeout=180) as reply:
            assert b"squelch_" in reply.read()
    finally:
        recorder.close()


def scrape(recorder: Recorder) -> str:
    with urllib.request.urlopen(recorder.url, timeout=180) as reply:
        return reply.read().decode()


def samples(recorder: Recorder) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by (name, label values in order of the labels' names)."""
    families = text_string_to_metric_families(scrape(recorder))
    return {
        (s.name, tuple(s.labels[name] for name in sorted(s.labels))): s.value
        for family in families
        for s in family.samples
    }


def test_every_metric_of_the_registry_is_served_before_the_first_step(recorder: Recorder) -> None:
    text = scrape(recorder)
    assert [name for name in REGISTRY.specs if f"# TYPE {name} " not in text] == []
    assert "process_resident_memory_bytes" in text and "_created" not in text


def test_a_step_is_served_as_the_registry_maps_it(recorder: Recorder) -> None:
    recorder.step(3, {"success": 0.4, "kept_groups": 5, "first_turn/recall@4": 0.9, "seconds/step": 2.0, "time": 50.0})
    recorder.step(4, {"success": 0.5, "kept_groups": 6, "time": 60.0})
    got = samples(recorder)
    assert got["squelch_step", ()] == 4
    assert got["squelch_last_step_timestamp_seconds", ()] == 60.0
    assert got["squelch_success_ratio", ()] == 0.5
    assert got["squelch_groups_total", ("kept",)] == 11
    assert got["squelch_recall_ratio", ("4", "first_turn")] == 0.9
    assert got["squelch_step_duration_seconds_count", ()] == 1
    assert got["squelch_step_duration_seconds_bucket", ("2.0",)] == 1


def test_set_is_for_gauges_and_add_for_counters(recorder: Recorder) -> None:
    recorder.set("squelch_actor_up", 1, actor="learner-0")
    recorder.add("squelch_actor_restarts_total", 2, actor="learner-0")
    recorder.add("squelch_actor_restarts_total", 1, actor="learner-0")
    got = samples(recorder)
    assert got["squelch_actor_up", ("learner-0",)] == 1
    assert got["squelch_actor_restarts_total", ("learner-0",)] == 3
    with pytest.raises(ValueError, match="is a counter"):
        recorder.set("squelch_actor_restarts_total", 1, actor="learner-0")
    with pytest.raises(ValueError, match="did you mean `squelch_actor_up`"):
        recorder.set("squelch_actr_up", 1, actor="learner-0")


def test_a_port_in_use_is_refused_by_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"recorder\.port={port}.*another number"):
            Recorder(RecorderConfig(port=port), REGISTRY).start()


def test_without_a_set_port_the_next_run_takes_the_next_free_one_and_the_shipped_prometheus_scrapes_it(
    monkeypatch,
) -> None:
    for file in ("prometheus.yml", "compose/prometheus.yml"):
        job = next(iter(yaml.safe_load((ROOT / "deploy" / file).read_text())["scrape_configs"]))
        assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}" for port in exporter.PORTS]}]
    first, second = free_ports(2)
    monkeypatch.setattr(exporter, "PORTS", (first, second))
    with closing(Recorder(RecorderConfig(), REGISTRY)) as one, closing(Recorder(RecorderConfig(), REGISTRY)) as two:
        one.start()
        two.start()
        assert ((one.port, one.has_moved), (two.port, two.has_moved)) == ((first, False), (second, True))
        with pytest.raises(ValueError, match=rf"all ports from {first} to {second} .* recorder\.port"):
            Recorder(RecorderConfig(), REGISTRY).start()


def test_the_default_listens_on_loopback_only(recorder: Recorder) -> None:
    assert RecorderConfig().host == "127.0.0.1"
    assert recorder.url.startswith("http://127.0.0.1:") and recorder.port > 0


def test_closing_frees_the_port_and_may_be_repeated() -> None:
    recorder = Recorder(RecorderConfig(port=0), REGISTRY)
    recorder.start()
    recorder.close()
    recorder.close()
    with socket.create_server(("127.0.0.1", recorder.port)):
        pass


class Scraper:
    """A clock by which Prometheus scrapes every 20 s, up to its last scrape. Only `sleep` moves it."""

    def __init__(self, recorder: Recorder, last_s: float) -> None:
        self.recorder, self.last_s, self.now, self.found = recorder, last_s, 100.0, list[bool]()
        self.scrape()

    def scrape(self) -> None:
        """Notes whether it found the end of the run."""
        header = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
        with urllib.request.urlopen(urllib.request.Request(self.recorder.url, headers=header), timeout=180) as reply:
            self.found.append(b"squelch_run_ended 1.0" in reply.read())

    def sleep(self, seconds: float) -> None:
        scrapes = self.now // 20
        self.now += seconds
        if self.now // 20 > scrapes and self.now <= self.last_s:
            self.scrape()


@pytest.mark.parametrize(
    ("last_s", "ended", "waited_s", "saw_the_end"),
    [(1e9, 1, 16, True), (1e9, 0, 0, False), (120, 1, 26, False), (100, 1, 0, False)],
)
def test_closing_waits_until_a_prometheus_that_scrapes_has_read_the_end_unless_the_run_failed(
    monkeypatch: pytest.MonkeyPatch, last_s: float, ended: int, waited_s: float, saw_the_end: bool
) -> None:
    """Last scraped at 120 s, once, or never again before the run ends at 124 s: the next scrape is at 140 s, the wait
    for it ends at 150 s, and one scrape tells of no interval. A failed run leaves its end at 0."""
    recorder = Recorder(RecorderConfig(port=0), REGISTRY)
    clock = SimpleNamespace(time=time.time, monotonic=lambda: scraper.now, sleep=lambda s: scraper.sleep(s))
    scraper = SimpleNamespace(now=100.0)
    monkeypatch.setattr(exporter, "time", clock)
    recorder.start()
    scraper = Scraper(recorder, last_s)
    for _ in range(24):
        scraper.sleep(1)
    recorder.set("squelch_run_ended", ended)
    recorder.close()
    assert scraper.found[-1] == saw_the_end
    assert scraper.now - 124 == pytest.approx(waited_s, abs=0.2)


def test_closing_waits_for_nobody_who_only_looks(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        scrape(recorder)
    recorder.set("squelch_run_ended", 1)
    monkeypatch.setattr(exporter.time, "sleep", lambda _: pytest.fail("it waits"))
    recorder.close()


def test_concurrent_writers_lose_nothing(recorder: Recorder) -> None:
    def work() -> None:
        for _ in range(200):
            recorder.add("squelch_tokens_total", 1, kind="sampled")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=180)
    assert samples(recorder)["squelch_tokens_total", ("sampled",)] == 800


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
def test_promtool_finds_nothing_to_complain_about(recorder: Recorder) -> None:
    recorder.step(1, {"weights/rollout-0/seconds_paused": 0.1, "wait/learner/filter": 1.0, "success": 0.5})
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(recorder), capture_output=True, text=True, timeout=180
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_silent_connections_are_closed_and_only_so_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a reviewer: each held a thread and a file descriptor of the driver for as long as it liked."""
    monkeypatch.setattr(exporter, "MOST_CLIENTS", 3)
    monkeypatch.setattr(exporter._Quiet, "timeout", 4.0)
    recorder = Recorder(RecorderConfig(port=0), REGISTRY)
    recorder.start()
    try:
        silent = [socket.create_connection(("127.0.0.1", recorder.port), timeout=180) for _ in range(8)]
        deadline, ended = time.monotonic() + 180, []
        while len(ended) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
            ended, _, _ = select.select(silent, [], [], 0.0)
        assert len(ended) == 5, "at once"
        assert all(ends(one, within_s=60.0) for one in silent), "after a while"
        assert samples(recorder), "and serves on"
    finally:
        recorder.close()


def test_a_client_that_sends_byte_by_byte_or_opens_many_connections_keeps_no_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter, "MOST_OF_ONE", 2)
    monkeypatch.setattr(exporter, "REQUEST_S", 3.0)
    recorder = Recorder(RecorderConfig(port=0), REGISTRY)
    recorder.start()
    try:
        where = ("127.0.0.1", recorder.port)
        many = [socket.create_connection(where, timeout=180, source_address=("127.0.0.2", 0)) for _ in range(6)]
        assert samples(recorder), "another address is answered"
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and not all(ends(one, within_s=0.01) for one in many):
            for one in many:
                with suppress(OSError):
                    one.send(b"G")
        assert time.monotonic() < deadline
    finally:
        recorder.close()


def test_a_thread_that_cannot_be_started_costs_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MOST_CLIENTS", 2)
    recorder = Recorder(RecorderConfig(port=0), REGISTRY)
    recorder.start()
    try:
        with monkeypatch.context() as patch:

            def none(*_: object) -> None:
                raise RuntimeError("can't start new thread")

            patch.setattr(ThreadingMixIn, "process_request", none)
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", recorder.port), timeout=180) as one:
                    assert ends(one, within_s=30.0)
        assert samples(recorder)
    finally:
        recorder.close()
