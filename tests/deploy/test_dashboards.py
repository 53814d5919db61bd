"""What is generated from the registry is committed, names only what exists, and a real Prometheus can evaluate it."""

import importlib.util
import json
import math
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml
from jsonschema import validators

from docs.writers import filter, metrics
from squelch.cluster.config import load
from squelch.cluster.control.ledger import Ledger
from squelch.cluster.control.membership import WORKER_MOVES, Membership, MemberState
from squelch.cluster.loop.heartbeat import Heartbeat, limits
from squelch.cluster.metrics import REGISTRY
from squelch.deploy import dashboards
from squelch.deploy.boards import BOARDS
from squelch.deploy.boards.build import BUILDERS
from squelch.deploy.boards.panel import Kind, checked, read_board
from squelch.deploy.dashboards import ROOT
from squelch.kit.diagnosis.metrics import REGIMES
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.settings import RecorderConfig
from tests.prometheus import (
    INTERVAL_S,
    RULES,
    alerts,
    dashboard_queries,
    filled_in,
    need_prometheus,
    prometheus_over,
    query,
    query_over,
    rules_without_input,
    running_prometheus,
    scrapes,
    unfilled_queries,
    until,
)

GRAFANA_SCHEMA = "SQUELCH_GRAFANA_SCHEMA"
WORKER_KEYS = ("seconds_paused", "seconds_loaded", "seconds_probe", "parity", "parity_max", "version")


def expressions() -> list[str]:
    return [expr for _, expr, _ in dashboard_queries()] + [rule["expr"] for rule in RULES]


def one_step(step: int) -> dict[str, float]:
    """Every metric that a step can report, with plausible values: shares at 0.5."""
    worker = {f"weights/rollout-0/{key}": 1.0 for key in WORKER_KEYS} | {"up/learner-0": 1.0}
    worker |= {"weights/rollout-0/parity": 1e-6} | {f"gpu/learner-0/{key}": 0.5 for key in ("busy", "memory_used")}
    flat = dict.fromkeys(REGISTRY.known_keys, 0.5) | worker | {"total_steps": 10.0, "step": step, "time": time.time()}
    quiet = dict.fromkeys(("no_signal_streak", "collapsed", "validation/failed"), 0.0)  # alerts fire on these
    return flat | quiet | {"first_turn/retrieval_chance": 0.25}


def test_the_committed_files_are_what_the_code_generates() -> None:
    texts = dashboards.artefacts()
    differ = [path for path, text in texts.items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert differ == [], "run: python -m squelch.deploy.dashboards"


def test_the_committed_pages_are_what_the_code_generates() -> None:
    assert metrics.PAGE.read_text() == metrics.page(), "run: python -m docs.writers.metrics"
    tables = filter.PAGE.read_text()
    assert filter.with_tables(tables) == tables, "run: python -m docs.writers.filter"


def test_a_page_without_the_marks_of_a_table_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="begin statistics"):
        filter.with_tables("# The filter")


def test_every_metric_named_in_an_expression_is_in_the_registry() -> None:
    known = set(REGISTRY.specs) | {
        f"{s.name}_{suffix}" for s in REGISTRY.specs.values() for suffix in ("bucket", "count", "sum")
    }
    named = {name for expr in expressions() for name in re.findall(r"\bsquelch_\w+", expr)}
    assert named <= known and len(named) > 50


def test_every_metric_of_a_run_is_shown_or_alerted_on() -> None:
    text = " ".join(expressions())
    silent = {
        "squelch_build_info",
        "squelch_validation_step",
        "squelch_scorer_step",
        "squelch_scorer_version",
        "squelch_format_penalty_mean",
        "squelch_learner_ratio_max",
        "squelch_learner_learning_rate",
        "squelch_learner_mismatch_k3_nats",
        "squelch_learner_advantage_std",
        "squelch_weight_bundle_bytes",
    }
    unseen = {name for name in REGISTRY.specs if not re.search(rf"\b{name}(_bucket|_sum|_count)?\b", text)}
    assert unseen == silent


@pytest.mark.parametrize("wrong", ["squelch_stepp", 'squelch_step{scope="x"}', 'squelch_mi_zscore{scope="x"}'])
def test_a_selector_with_a_wrong_name_label_or_value_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        checked(f"1 + {wrong}")


def test_every_selector_of_an_alert_rule_is_in_the_registry() -> None:
    for rule in RULES:
        assert checked(rule["expr"]) == rule["expr"]


def test_a_field_that_no_panel_has_is_refused(tmp_path: Path) -> None:
    panel = {"title": "T", "help": "H.", "queries": {"step": "squelch_step"}}
    path = tmp_path / "board.yaml"
    rows = [{"title": "R", "page": "p.md", "panels": [panel]}]
    path.write_text(yaml.safe_dump({"question": "?", "rows": rows}))
    assert read_board(path).rows[0].panels[0].title == "T"
    panel["untt"] = "s"
    path.write_text(yaml.safe_dump({"question": "?", "rows": rows}))
    with pytest.raises(TypeError, match="untt"):
        read_board(path)


def test_a_panel_has_by_default_what_its_metrics_say(tmp_path: Path) -> None:
    given = {"title": "T", "help": "H."}
    panels = [
        given | {"queries": "squelch_mi_est_nats"},
        given | {"queries": "squelch_mi_est_nats", "alone": True, "unit": "s"},
        given | {"queries": {"share": "squelch_kept_mass_ratio"}},
        given | {"queries": "squelch_step"},
        given | {"queries": "squelch_step", "scale": "number"},
    ]
    path = tmp_path / "board.yaml"
    path.write_text(yaml.safe_dump({"question": "?", "rows": [{"title": "R", "page": "p.md", "panels": panels}]}))
    mi, alone, share, step, number = read_board(path).rows[0].panels
    assert [one.legend for one in mi.queries] == ["{{scope}}", "{{scope}}, {{bound}}", "{{scope}}, null"]
    assert mi.queries[1].expr == 'squelch_mi_est_interval_nats{instance=~"$instance"}' and mi.unit == "suffix: nats"
    assert len(alone.queries) == 1 and alone.unit == "s"
    assert (share.unit, share.low, share.high) == ("percentunit", 0, 1)
    assert [(one.queries[0].legend, one.unit, one.low) for one in (step, number)] == [
        ("T", "short", 0),
        ("T", "short", None),
    ]


def test_the_timeline_of_members_has_every_state_in_its_order() -> None:
    (panel,) = (panel for board in BOARDS for row in board.rows for panel in row.panels if panel.states)
    states = [state.value for state in MemberState]
    assert list(panel.states) == states == re.findall(r'state="(\w+)"', panel.queries[0].expr)


def boards() -> dict[str, dict[str, Any]]:
    """The committed dashboards, by file name."""
    return {path.stem: json.loads(path.read_text()) for path in (ROOT / "squelch/deploy/grafana").glob("*.json")}


def test_there_are_four_dashboards_that_lead_to_one_another() -> None:
    found = boards()
    assert found.keys() == {"training", "signal", "reasoning", "system"}
    assert {board["uid"] for board in found.values()} == {f"squelch-{name}" for name in found}
    assert all(board["tags"] == ["squelch"] == board["links"][0]["tags"] for board in found.values())


@pytest.mark.parametrize("name", ["training", "signal", "reasoning", "system"])
def test_no_panel_overlaps_another(name: str) -> None:
    panels = boards()[name]["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", ["training", "signal", "reasoning", "system"])
def test_every_dashboard_matches_grafanas_schema(name: str) -> None:
    path = os.environ.get(GRAFANA_SCHEMA)
    if not path:
        pytest.skip(f"{GRAFANA_SCHEMA} names no file with Grafana's schema of dashboards (version 1)")
    schema = json.loads(Path(path).read_text())
    validator = validators.validator_for(schema)(schema)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(boards()[name])] == []
    broken = boards()[name] | {"refresch": "5s"}
    assert not validator.is_valid(broken)


def test_panels_of_ray_and_vllm_name_metrics_that_these_export() -> None:
    expressions = " ".join(expr for _, expr, _ in dashboard_queries())
    vllm = {name.removeprefix("ray_vllm_") for name in re.findall(r"\bray_vllm_\w+", expressions)}
    ray = {name.removeprefix("ray_") for name in re.findall(r"\bray_(?!vllm)\w+", expressions)}
    declared = set(re.findall(r'"vllm:(\w+)"', source("vllm", "v1/metrics/loggers.py")))
    assert {re.sub(r"_(total|bucket)$", "", name) for name in vllm} <= declared and len(vllm) >= 10
    metrics = source("ray", "dashboard/modules/reporter/reporter_agent.py")
    boards = source("ray", "dashboard/modules/metrics/dashboards/default_dashboard_panels.py")
    assert {name for name in ray if f'"{name}"' not in metrics and f"ray_{name}" not in boards} == set() and len(
        ray
    ) > 6


def source(package: str, path: str) -> str:
    """The text of a module of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return (Path(found.origin).parent / path).read_text()


def test_every_board_chooses_among_environments_and_runs_and_marks_events() -> None:
    for board in boards().values():
        variables = {variable["name"]: variable for variable in board["templating"]["list"]}
        assert list(variables) == ["datasource", "environment", "run", "instance", "docs"]
        assert "$environment" in variables["run"]["definition"] and "$run" in variables["instance"]["definition"]
        marks = [annotation["name"] for annotation in board["annotations"]["list"]]
        assert marks == ["Checkpoints", "Validations", "Alarms", "Faults", "Scaling"]


def test_every_panel_leads_to_a_page_that_exists() -> None:
    assert {row.page for board in BOARDS for row in board.rows if not (ROOT / "docs" / row.page).is_file()} == set()
    links = [
        panel["links"][0]["url"] for board in boards().values() for panel in board["panels"] if panel["type"] != "row"
    ]
    assert links and all(link.startswith("${docs}/") and link.endswith(".md") for link in links)


def test_the_plane_and_the_heat_map_have_the_series_that_they_need() -> None:
    panels = {panel["title"]: panel for board in boards().values() for panel in board["panels"]}
    plane = panels["Entropy and mutual information"]
    across, *up = [target["legendFormat"] for target in plane["targets"]]
    axes = [(line["x"]["matcher"]["options"], line["y"]["matcher"]["options"]) for line in plane["options"]["series"]]
    assert axes == [(across, regime) for regime in up] and tuple(up) == REGIMES
    assert all(f"{regime}: " in panels["Regime"]["description"] for regime in REGIMES)
    heat = panels["Groups by reward variance"]["targets"]
    assert [target["format"] for target in heat] == ["heatmap"] and "'le'" in heat[0]["expr"]


def test_every_kind_of_panel_is_built_and_shown() -> None:
    shown = {panel.kind for board in BOARDS for row in board.rows for panel in row.panels}
    assert shown == BUILDERS.keys() == set(get_args(Kind))


def test_every_panel_says_what_it_shows() -> None:
    panels = [panel for board in BOARDS for row in board.rows for panel in row.panels]
    assert all(panel.help.endswith(".") for panel in panels)
    assert len({panel.title for panel in panels}) == len(panels)


@pytest.mark.parametrize("step_s", [6.0, 60.0, 1500.0])
def test_shares_of_time_hold_whatever_a_step_takes(step_s: float, tmp_path: Path) -> None:
    """Steps that end between two scrapes, between two windows of a rate, and between several of them."""
    need_prometheus()
    lines = [recorded_step(number, 1e9 + number * 1.5 * step_s, step_s) for number in range(1, 21)]
    start, end, points = lines[4]["time"], lines[-1]["time"], 240
    window = f"{math.ceil(max((end - start) / points + INTERVAL_S, 4 * INTERVAL_S))}s"
    with prometheus_over(lines, tmp_path) as url:
        drawn = {
            (panel.title, asked.legend.replace("{{", "{").replace("}}", "}").format(**labels)): (labels, values)
            for board in BOARDS
            for row in board.rows
            for panel in row.panels
            for asked in panel.queries
            if panel.title in ("Share of wall time", "Waiting times", "Tokens", "Step duration")
            for labels, values in query_over(url, filled_in(asked.expr, window), start, end, points)
        }
    for name, value in (
        (("Share of wall time", "train"), 0.2),
        (("Share of wall time", "validation"), 1 / 3),
        (("Share of wall time", "score"), 1),
        (("Waiting times", "coordinator for environment"), 0.4),
        (("Tokens", "sampled"), 100.0),
        (("Step duration", "mean"), step_s),
    ):
        values = [one for one in drawn[name][1] if math.isfinite(one)]
        assert values == pytest.approx([value] * len(values), rel=0.01) and values, name
    assert all(labels["instance"] for labels, _ in drawn.values()), "runs must not be mixed"
    assert all(not value <= 0.8 * step_s for value in drawn["Step duration", "90%"][1])


def recorded_step(number: int, at: float, step_s: float) -> dict[str, float]:
    """A step that takes `step_s`, a validation of half as long, and the end of a scorer step that took six steps."""
    seconds = {"step": step_s, "train": 0.3 * step_s, "validation": 0.5 * step_s, "score": 6 * step_s}
    flat = {f"seconds/{part}": value for part, value in seconds.items()}
    waits = {"wait/coordinator/environment": 0.6 * step_s}
    return flat | waits | {"step": number, "time": at, "tokens/sampled": 150.0 * step_s}


def values(url: str, expr: str) -> list[float]:
    """Of every series that it has now; none after a scrape that came too late."""
    return [value for _, value in query(url, expr)]


def beat_once(folder: Path, recorder: Recorder) -> None:
    """Exports what is true between steps, of a run with one rollout worker and one ticket."""
    workers, ledger = Membership("rollout worker", WORKER_MOVES), Ledger()
    workers.join("rollout-0", None)
    ledger.issue("t0")
    limits(load("frozenlake"), recorder)
    fleet = SimpleNamespace(members=workers.members, up=lambda: {"learner": True})
    Heartbeat(fleet, ledger, folder, recorder).beat()


@pytest.mark.slow
def test_a_real_prometheus_scrapes_the_endpoint_and_fills_every_query(tmp_path: Path) -> None:
    recorder = Recorder(RecorderConfig(port=0), REGISTRY, seeds={"worker": ["rollout-0"], "actor": ["learner-0"]})
    recorder.start()
    try:
        with running_prometheus(tmp_path, recorder.port, interval="200ms") as url:
            until(lambda: scrapes(url) >= 1, "first scrape")
            beat_once(tmp_path, recorder)
            assert len(unfilled_queries(url)) > len(dashboard_queries()) // 3, "unmeasured must show as unmeasured"
            for step in (1, 2):
                recorder.step(step, one_step(step))
                seen = scrapes(url)
                until(lambda seen=seen: scrapes(url) >= seen + 2, "a scrape after the step")
            until(lambda: unfilled_queries(url) == [], "a value for every query")
            recorder.set("squelch_run_info", 1, run="made-up", environment="FrozenLake", filter="top_p")
            recorder.set("squelch_run_ended", 0)
            recorder.set("squelch_without_progress_seconds", 1, actor="rollout-0")
            until(lambda: rules_without_input(url) == [], "a value for every metric of an alert rule")
            until(lambda: values(url, "squelch_step") == [2], "the step that was recorded")
            until(lambda: values(url, 'squelch_tokens_total{kind="sampled"}') == [1.0], "the tokens that were sampled")
            until(lambda: alerts(url) == {}, "no alert")
            recorder.set("squelch_collapsed", 1)
            until(lambda: alerts(url).get("SquelchCollapsed") == "firing", "the collapse alert fires")
    finally:
        recorder.close()
