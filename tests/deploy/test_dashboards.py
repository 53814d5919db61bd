"""What is generated from the registry is committed, names only what exists, and a real Prometheus can evaluate it."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from jsonschema import validators

from actors.config import RecorderConfig
from actors.metrics.exporter import Recorder
from cluster.metrics import REGISTRY
from deploy import dashboards
from deploy.alert_rules import RULES
from deploy.boards import BOARDS
from deploy.boards.build import BUILDERS
from deploy.boards.panel import Kind, selector
from deploy.filter_tables import with_tables
from deploy.generated import ROOT, stale
from tests.prometheus import (
    alerts,
    dashboard_queries,
    need_prometheus,
    query,
    running_prometheus,
    scrapes,
    unfilled_queries,
    until,
)

GRAFANA_SCHEMA = "SQUELCH_GRAFANA_SCHEMA"
ALERTS = ROOT / "deploy" / "alerts.yml"
WORKER_KEYS = ("seconds_paused", "seconds_loaded", "seconds_probe", "parity", "parity_max", "checksum_ok", "version")


def expressions() -> list[str]:
    return [expr for _, expr, _ in dashboard_queries()] + [rule.expr for rule in RULES]


def one_step(step: int) -> dict[str, float]:
    """Every figure that a step can report, with plausible values: shares at 0.5."""
    worker = {f"weights/rollout-0/{key}": 1.0 for key in WORKER_KEYS} | {"up/learner-0": 1.0}
    flat = dict.fromkeys(REGISTRY.known_keys, 0.5) | worker | {"total_steps": 10.0, "step": step, "time": time.time()}
    return flat | {"first_turn/retrieval_chance": 0.25, "no_signal_streak": 0.0, "collapsed": 0.0}


def test_the_committed_files_are_what_the_code_generates() -> None:
    assert stale(dashboards.artefacts()) == [], "run: python -m deploy.dashboards --write"


def test_a_page_without_the_marks_of_a_table_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="begin statistics"):
        with_tables("# The filter")


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
        "squelch_run_info",
        "squelch_optimizer_steps_total",
        "squelch_trajectories_total",
        "squelch_groups_total",
        "squelch_validation_best_ratio",
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


def test_a_selector_with_a_wrong_name_label_or_value_is_refused() -> None:
    for name, labels in (
        ("squelch_stepp", {}),
        ("squelch_step", {"scope": "x"}),
        ("squelch_mi_zscore", {"scope": "x"}),
    ):
        with pytest.raises(ValueError):
            selector(name, **labels)


def boards() -> dict[str, dict[str, Any]]:
    """The committed dashboards, by file name."""
    return {path.stem: json.loads(path.read_text()) for path in (ROOT / "deploy" / "grafana").glob("*.json")}


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
    axes = [plane["options"]["series"][0][axis]["matcher"]["options"] for axis in ("x", "y")]
    assert axes == [target["legendFormat"] for target in plane["targets"]]
    heat = panels["Groups by reward variance"]["targets"]
    assert [target["format"] for target in heat] == ["heatmap"] and "'le'" in heat[0]["expr"]


def test_every_kind_of_panel_is_built_and_shown() -> None:
    shown = {panel.kind for board in BOARDS for row in board.rows for panel in row.panels}
    assert shown == BUILDERS.keys() == set(get_args(Kind))


def test_every_panel_says_what_it_shows() -> None:
    panels = [panel for board in BOARDS for row in board.rows for panel in row.panels]
    assert all(panel.help.endswith(".") for panel in panels)
    assert len({panel.title for panel in panels}) == len(panels)


def test_promtool_accepts_the_rules_and_the_scrape_configuration() -> None:
    promtool = need_prometheus("promtool")
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        check = subprocess.run(
            [promtool, "check", kind, name], cwd=ALERTS.parent, capture_output=True, text=True, timeout=30
        )
        assert check.returncode == 0, check.stdout + check.stderr


def rule_case(series: dict[str, str], at: str, name: str, labels: dict[str, str] | None) -> dict:
    """A promtool case: `name` fires at `at` with `labels`, or does not fire (None)."""
    rule = next(rule for rule in RULES if rule.name == name)
    summary = rule.summary
    for label, value in (labels or {}).items():
        summary = summary.replace(f"{{{{ $labels.{label} }}}}", value)
    fired = {
        "exp_labels": {"severity": rule.severity, **(labels or {})},
        "exp_annotations": {"summary": summary, "description": rule.advice},
    }
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": [fired] if labels is not None else []}],
    }


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    accuracy = 'squelch_retrieval_accuracy_ratio{scope="first_turn"}'
    chance = {'squelch_retrieval_chance_ratio{scope="first_turn"}': "0.1+0x20"}
    scope = {"scope": "first_turn"}
    running = {"squelch_step": "3+0x60", "squelch_planned_steps": "9+0x60"}
    last = {"squelch_last_step_timestamp_seconds": "0+0x60"}
    cases = [
        rule_case({accuracy: "0.12+0x20", **chance}, "10m", "SquelchReasoningIgnoresInput", scope),
        rule_case({accuracy: "0.12+0x20", **chance}, "2m", "SquelchReasoningIgnoresInput", None),
        rule_case({accuracy: "0.4+0x20", **chance}, "10m", "SquelchReasoningIgnoresInput", None),
        rule_case({accuracy: "NaN+0x20", **chance}, "10m", "SquelchReasoningIgnoresInput", None),
        rule_case({"squelch_dependence_alarm": "0 0 1"}, "1m", "SquelchDependenceFalling", None),
        rule_case({"squelch_dependence_alarm": "0 0 1"}, "2m", "SquelchDependenceFalling", {}),
        rule_case({"squelch_no_signal_streak": "0 1 2 3"}, "2m", "SquelchNoSignal", None),
        rule_case({"squelch_no_signal_streak": "0 1 2 3"}, "3m", "SquelchNoSignal", {}),
        rule_case({"squelch_collapsed": "0 1"}, "1m", "SquelchCollapsed", {}),
        rule_case({"squelch_format_valid_ratio": "0.4+0x20"}, "6m", "SquelchFormatInvalid", {}),
        rule_case({'squelch_actor_up{actor="env-0"}': "1 0 0 0"}, "3m", "SquelchActorDown", {"actor": "env-0"}),
        rule_case({'squelch_weight_checksum_ok{worker="r0"}': "1 0"}, "1m", "SquelchWeightsDiffer", {"worker": "r0"}),
        rule_case(running | last, "10m", "SquelchStalled", None),
        rule_case(running | last, "20m", "SquelchStalled", {}),
        rule_case(running | last | {"squelch_step": "9+0x60"}, "20m", "SquelchStalled", None),
        rule_case({'up{job="squelch"}': "0+0x9"}, "3m", "SquelchEndpointDown", {"job": "squelch"}),
    ]
    assert {case["alert_rule_test"][0]["alertname"] for case in cases} == {rule.name for rule in RULES}
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": cases}))
    run = subprocess.run(
        [need_prometheus("promtool"), "test", "rules", str(path)], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def values(url: str, expr: str) -> list[float]:
    """Of every series that it has now; none after a scrape that came too late."""
    return [value for _, value in query(url, expr)]


@pytest.mark.slow
def test_a_real_prometheus_scrapes_the_endpoint_and_fills_every_query(tmp_path: Path) -> None:
    recorder = Recorder(RecorderConfig(port=0), REGISTRY, seeds={"worker": ["rollout-0"], "actor": ["learner-0"]})
    recorder.start()
    try:
        with running_prometheus(tmp_path, recorder.port, interval="200ms") as url:
            until(lambda: scrapes(url) >= 1, "first scrape")
            assert len(unfilled_queries(url)) > len(dashboard_queries()) // 2, "unmeasured must show as unmeasured"
            for step in (1, 2):
                recorder.step(step, one_step(step))
                seen = scrapes(url)
                until(lambda seen=seen: scrapes(url) >= seen + 2, "a scrape after the step")
            until(lambda: unfilled_queries(url) == [], "a value for every query")
            until(lambda: values(url, "squelch_step") == [2], "the step that was recorded")
            until(lambda: values(url, 'squelch_tokens_total{kind="sampled"}') == [1.0], "the tokens that were sampled")
            until(lambda: alerts(url) == {}, "no alert")
            recorder.set("squelch_collapsed", 1)
            until(lambda: alerts(url).get("SquelchCollapsed") == "firing", "the collapse alert fires")
    finally:
        recorder.close()
