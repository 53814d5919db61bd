"""Every alert rule fires on recorded series when it should and is silent when it should not, and has a section in the
runbook. Once for real: a collapse at the real exporter reaches a webhook through Prometheus and Alertmanager."""

import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from squelch.cluster.metrics import REGISTRY
from squelch.deploy.dashboards import ROOT
from squelch.kit.findings.catalogue import catalogue
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.served import serve
from squelch.kit.metrics.settings import RecorderConfig
from tests.prometheus import (
    ALERTS,
    RULES,
    alerts,
    need_prometheus,
    query,
    running_alertmanager,
    running_prometheus,
    scrapes,
    until,
)

DEPLOY = ROOT / "deploy"
RUNBOOK = "docs/guide/runbook.md"
"""Path in the repository; whoever serves the docs puts their address before it."""
LONG = "x90"
"""Samples of a recorded series, one a minute."""
FIRST = 'scope="first_turn"'
RUNNING = {"squelch_step": f"3+0{LONG}", "squelch_planned_steps": f"9+0{LONG}", "squelch_run_info": f"1+0{LONG}"}
LAST = {"squelch_last_step_timestamp_seconds": f"0+0{LONG}"}
BEFORE = {"squelch_step": f"NaN+0{LONG}", "squelch_last_step_timestamp_seconds": f"NaN+0{LONG}"}
WAITS = {
    'squelch_wait_seconds_total{waiter="coordinator",waited_for="learner"}': f"400+0{LONG}",
    'squelch_wait_seconds_total{waiter="coordinator",waited_for="environment"}': f"90+0{LONG}",
    'squelch_wait_seconds_total{waiter="learner",waited_for="environment"}': f"900+0{LONG}",
}
SILENT = {
    'squelch_without_progress_seconds{actor="env-1"}': f"0+60{LONG}",
    'squelch_without_progress_seconds{actor="rollout-0"}': f"2+0{LONG}",
}
CHANCE = {f"squelch_retrieval_chance_ratio{{{FIRST}}}": f"0.1+0{LONG}"}
RETRIEVAL = f"squelch_retrieval_accuracy_ratio{{{FIRST}}}"
PARITY = 'squelch_weight_parity_nats{worker="r0"}'
SOUND = {"squelch_weight_parity_limit_nats": "0.05+0x9"}
STALE = {
    "squelch_staleness_limit_versions": "4+0x20",
    "squelch_staleness_mean_versions": "3.8+0x20",
    "squelch_learner_effective_sample_size_ratio": "0.7+0x20",
}
RESTARTS = 'squelch_actor_restarts_total{actor="rollout-1"}'
SIZE = {"squelch_disk_size_bytes": f"100+0{LONG}"}
FREE = "squelch_disk_free_bytes"
POD = {"job": "squelch/squelch", "instance": "10.0.0.9:9464", "pod": "head-1"}
ENDED = 'squelch_run_ended{job="squelch/squelch",instance="10.0.0.9:9464",pod="head-1"}'
BUSY = 'squelch_gpu_busy_ratio{{actor="{}"}}'

CASES: dict[str, list[tuple[dict[str, str], str, dict[str, str] | None]]] = {
    "SquelchTemplateCollapseSuspected": [
        (
            {f'squelch_reasoning_regime{{{FIRST},regime="template"}}': "0 1 1 1"},
            "3m",
            {"scope": "first_turn", "regime": "template"},
        ),
        ({f'squelch_reasoning_regime{{{FIRST},regime="template"}}': "0 1 0 1"}, "3m", None),
        ({f'squelch_reasoning_regime{{{FIRST},regime="unused"}}': "1+0x9"}, "5m", None),
    ],
    "SquelchReasoningBlind": [
        ({"squelch_reasoning_blind": "0 1 1 1"}, "3m", {}),
        ({"squelch_reasoning_blind": "0 1 0 1"}, "3m", None),
        ({f'squelch_reasoning_regime{{{FIRST},regime="blind"}}': "1+0x9"}, "5m", None),  # text shows the task too
    ],
    "SquelchReasoningUnused": [
        (
            {f'squelch_reasoning_regime{{{FIRST},regime="unused"}}': "0 1 1 1"},
            "3m",
            {"scope": "first_turn", "regime": "unused"},
        ),
        ({f'squelch_reasoning_regime{{{FIRST},regime="unused"}}': "0 1 0 1"}, "3m", None),
        ({f'squelch_reasoning_regime{{{FIRST},regime="private_code"}}': "1+0x9"}, "5m", None),
        ({'squelch_reasoning_regime{scope="trajectory",regime="unused"}': "1+0x9"}, "5m", None),
    ],
    "SquelchReasoningMute": [
        (
            {f'squelch_reasoning_regime{{{FIRST},regime="mute"}}': "0 1 1 1"},
            "3m",
            {"scope": "first_turn", "regime": "mute"},
        ),
        ({f'squelch_reasoning_regime{{{FIRST},regime="mute"}}': "0 1 0 1"}, "3m", None),
        ({f'squelch_reasoning_regime{{{FIRST},regime="used"}}': "1+0x9"}, "5m", None),
    ],
    "SquelchReasoningPrivateCode": [
        (
            {f'squelch_reasoning_regime{{{FIRST},regime="private_code"}}': "0 1 1 1"},
            "3m",
            {"scope": "first_turn", "regime": "private_code"},
        ),
        ({f'squelch_reasoning_regime{{{FIRST},regime="private_code"}}': "0 1 0 1"}, "3m", None),
        ({f'squelch_reasoning_regime{{{FIRST},regime="used"}}': "1+0x9"}, "5m", None),
    ],
    "SquelchReasoningUntrue": [
        ({"squelch_reasoning_untrue": "0 1 1 1"}, "3m", {}),
        ({"squelch_reasoning_untrue": "0 1 0 1"}, "3m", None),
        ({"squelch_reasoning_untrue": f"NaN+0{LONG}"}, "5m", None),
        (
            {
                "squelch_reasoning_untrue": "1+0x9",
                f'squelch_reasoning_regime{{{FIRST},regime="private_code"}}': "1+0x9",
            },
            "5m",
            None,
        ),
        (
            {
                "squelch_reasoning_untrue": "1+0x9",
                f'squelch_reasoning_regime{{{FIRST},regime="private_code"}}': "0+0x9",
            },
            "5m",
            {},
        ),
    ],
    "SquelchReasoningIgnoresInput": [
        ({RETRIEVAL: f"0.12+0{LONG}", **CHANCE}, "10m", {"scope": "first_turn"}),
        ({RETRIEVAL: f"0.12+0{LONG}", **CHANCE}, "2m", None),
        ({RETRIEVAL: f"0.4+0{LONG}", **CHANCE}, "10m", None),
        ({RETRIEVAL: f"NaN+0{LONG}", **CHANCE}, "10m", None),
    ],
    "SquelchDependenceFalling": [
        ({"squelch_dependence_alarm": "0 0 1"}, "2m", {}),
        ({"squelch_dependence_alarm": "0 0 1"}, "1m", None),
    ],
    "SquelchProbeFalling": [
        ({'squelch_probe_alarm{figure="dependence"}': "0 0 1"}, "2m", {"figure": "dependence"}),
        ({'squelch_probe_alarm{figure="mi"}': "0 0 1"}, "1m", None),
    ],
    "SquelchRewardVarianceCollapsed": [
        ({"squelch_low_spread_streak": "3 4 5"}, "2m", {}),
        ({"squelch_low_spread_streak": "3 4 0"}, "2m", None),
    ],
    "SquelchNoSignal": [
        ({"squelch_no_signal_streak": "0 1 2 3"}, "3m", {}),
        ({"squelch_no_signal_streak": "0 1 2 3"}, "2m", None),
    ],
    "SquelchCriterionGamed": [
        ({"squelch_gaming_suspected": "0 1"}, "1m", {}),
        ({"squelch_gaming_suspected": "1 0"}, "1m", None),
    ],
    "SquelchFindingCritical": [
        ({'squelch_finding{name="kl_high",severity="critical"}': "0 1"}, "1m", {"name": "kl_high"}),
        ({'squelch_finding{name="kl_high",severity="warning"}': "0 1"}, "1m", None),
        ({'squelch_finding{name="success_collapsed",severity="critical"}': "0 1"}, "1m", None),
    ],
    "SquelchFindingWarning": [
        ({'squelch_finding{name="kl_high",severity="warning"}': "0 1"}, "1m", {"name": "kl_high"}),
        ({'squelch_finding{name="kl_high",severity="notice"}': "0 1"}, "1m", None),
        ({'squelch_finding{name="kl_high",severity="warning"}': "1 0"}, "1m", None),
    ],
    "SquelchCollapsed": [
        ({"squelch_collapsed": "0 1"}, "1m", {}),
        ({"squelch_collapsed": "0 1"}, "0m", None),
    ],
    "SquelchValidationTasksFailed": [
        ({"squelch_validation_failed_tasks": "0 6"}, "1m", {}),
        ({"squelch_validation_failed_tasks": "6 0"}, "1m", None),
    ],
    "SquelchEvaluationRegressed": [
        ({"squelch_validation_success_high_ratio": "0.4", "squelch_validation_best_ratio": "0.6"}, "0m", {}),
        ({"squelch_validation_success_high_ratio": "0.65", "squelch_validation_best_ratio": "0.6"}, "0m", None),
        ({"squelch_validation_success_high_ratio": "NaN", "squelch_validation_best_ratio": "NaN"}, "0m", None),
    ],
    "SquelchFormatInvalid": [
        ({"squelch_format_valid_ratio": "0.4+0x20"}, "6m", {}),
        ({"squelch_format_valid_ratio": "0.6+0x20"}, "6m", None),
    ],
    "SquelchActorDown": [
        ({'squelch_actor_up{actor="env-0"}': "1 0 0 0"}, "3m", {"actor": "env-0"}),
        ({'squelch_actor_up{actor="env-0"}': "1 0 1 1"}, "3m", None),
        ({'squelch_actor_up{actor="env-0"}': "1 1 stale stale"}, "3m", None),
    ],
    "SquelchWeightsDiffer": [
        ({PARITY: "0.001 0.03", **SOUND}, "1m", {"worker": "r0"}),
        ({PARITY: "0.001 0.02", **SOUND}, "1m", None),
    ],
    "SquelchStalenessNearLimit": [
        (STALE, "6m", {}),
        (STALE | {"squelch_staleness_mean_versions": "3+0x20"}, "6m", None),
        (STALE | {"squelch_learner_effective_sample_size_ratio": "0.99+0x20"}, "6m", None),
        (
            STALE | {"squelch_staleness_limit_versions": "0+0x20", "squelch_staleness_mean_versions": "0+0x20"},
            "6m",
            None,
        ),
    ],
    "SquelchWorkersFlapping": [
        ({RESTARTS: f"0x10 1x10 2{LONG}"}, "25m", {"actor": "rollout-1"}),
        ({RESTARTS: f"0x10 1{LONG}"}, "25m", None),
        ({RESTARTS: f"0x10 1x10 2{LONG}"}, "95m", None),
    ],
    "SquelchStalled": [
        (RUNNING | LAST | WAITS, "20m", {"party": "learner"}),
        (
            RUNNING | LAST | WAITS | SILENT,
            "20m",
            {"party": "env-1"},
        ),
        (RUNNING | LAST | WAITS, "10m", None),
        (RUNNING | LAST | WAITS | {"squelch_step": f"9+0{LONG}"}, "20m", None),
        (RUNNING | BEFORE | WAITS | {"process_start_time_seconds": f"0+0{LONG}"}, "20m", {"party": "learner"}),
        (RUNNING | BEFORE | WAITS | {"process_start_time_seconds": f"600+0{LONG}"}, "20m", None),
    ],
    "SquelchCardStarved": [
        ({BUSY.format("learner-0"): f"0.1+0{LONG}", BUSY.format("rollout-0"): f"0.1+0{LONG}"}, "20m", {}),
        ({BUSY.format("learner-0"): f"0.1+0{LONG}", BUSY.format("rollout-0"): f"0.1+0{LONG}"}, "10m", None),
        ({BUSY.format("learner-0"): f"0.1+0{LONG}", BUSY.format("rollout-0"): f"0.5+0{LONG}"}, "60m", None),
        ({BUSY.format("learner-0"): f"NaN+0{LONG}"}, "60m", None),
    ],
    "SquelchDiskFilling": [
        ({FREE: f"4+0{LONG}", **SIZE}, "15m", {}),
        ({FREE: f"90-1{LONG}", **SIZE}, "60m", {}),
        ({FREE: f"50+0{LONG}", **SIZE}, "60m", None),
        ({FREE: f"90-1x20 70+0{LONG}", **SIZE}, "90m", None),
    ],
    "SquelchEndpointDown": [
        ({ENDED: "0 0 stale"}, "5m", POD),
        ({ENDED: "0 0 stale"}, "3m", None),
        ({ENDED: "0 1 stale"}, "5m", None),
        ({ENDED: "0+0x9"}, "5m", None),
        ({ENDED: "0 1 0 stale"}, "6m", POD),
        ({ENDED: "0 stale", ENDED.replace("head-1", "head-2"): "_ 0+0x9"}, "5m", None),  # the next at this address
    ],
}
"""By rule: recorded series, the time, and the labels of the alert that then fires; None if none may fire."""


def anchor(rule: str) -> str:
    return f"{RUNBOOK}#{rule.lower()}"


def case(name: str, series: dict[str, str], at: str, labels: dict[str, str] | None) -> dict[str, object]:
    rule = next(rule for rule in RULES if rule["alert"] == name)
    summary, advice = rule["annotations"]["summary"], rule["annotations"]["description"]
    for label, value in (labels or {}).items():
        summary = summary.replace(f"{{{{ $labels.{label} }}}}", value)
    fired = {
        "exp_labels": {**rule["labels"], **(labels or {})},
        "exp_annotations": {"summary": summary, "description": advice, "runbook_url": anchor(name)},
    }
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": [fired] if labels is not None else []}],
    }


def test_every_rule_is_tried_firing_and_silent() -> None:
    assert CASES.keys() == {rule["alert"] for rule in RULES}
    for name, cases in CASES.items():
        assert {labels is None for _, _, labels in cases} == {True, False}, name


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "cases.yml"
    cases = [case(name, *tried) for name, tries in CASES.items() for tried in tries]
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": cases}))
    run = subprocess.run(
        [need_prometheus("promtool"), "test", "rules", str(path)], capture_output=True, text=True, timeout=180
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("promtool", ("check", "rules", ALERTS)),
        ("promtool", ("check", "config", "prometheus.yml")),
        ("amtool", ("check-config", "alertmanager.yml")),
    ],
)
def test_prometheus_and_alertmanager_accept_the_files(program: str, words: tuple[str, ...]) -> None:
    check = subprocess.run([need_prometheus(program), *words], cwd=DEPLOY, capture_output=True, text=True, timeout=180)
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_rule_has_a_section_of_the_runbook_and_every_section_a_rule() -> None:
    headings = re.findall(r"^## (Squelch\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in RULES)
    linked = [rule["annotations"]["runbook_url"] for rule in RULES]
    assert linked == [anchor(rule["alert"]) for rule in RULES]


def test_findings_with_a_rule_of_their_own_are_left_out_of_the_rules_by_severity() -> None:
    own = "|".join(name for name, entry in catalogue().items() if entry.alert)
    by_severity = [rule for rule in RULES if rule["alert"].startswith("SquelchFinding")]
    assert [rule["expr"] for rule in by_severity] == [
        f'squelch_finding{{severity="{severity}",name!~"{own}"}} == 1' for severity in ("critical", "warning")
    ]
    assert [rule["labels"]["severity"] for rule in by_severity] == ["critical", "warning"]
    assert {entry.alert for entry in catalogue().values() if entry.alert} <= {rule["alert"] for rule in RULES}


def test_every_section_of_the_runbook_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    for section in re.split(r"^## (?=Squelch)", (ROOT / RUNBOOK).read_text(), flags=re.MULTILINE)[1:]:
        assert all(f"**{part}**" in section for part in ("Meaning.", "Look at.", "Do.")), section.splitlines()[0]


def impatient(folder: Path) -> Path:
    """The rules, each of which fires as soon as its expression holds. That of the endpoint keeps its patience: a scrape
    that comes too late would fire it, and while it fires Alertmanager holds every other page back, its end included."""
    path = folder / "alerts.yml"
    rules = [rule | ({} if rule["alert"] == "SquelchEndpointDown" else {"for": "0s"}) for rule in RULES]
    path.write_text(yaml.safe_dump({"groups": [{"name": "squelch", "interval": "200ms", "rules": rules}]}))
    return path


HEALTHY = {
    "first_turn/retrieval_accuracy": 0.7,
    "first_turn/retrieval_chance": 0.125,
    "first_turn/regime/used": 1.0,
    "first_turn/regime/template": 0.0,
    "no_signal_streak": 0.0,
    "total_steps": 100.0,
}
COLLAPSED = {
    "first_turn/retrieval_accuracy": 0.13,
    "first_turn/regime/used": 0.0,
    "first_turn/regime/template": 1.0,
}


@pytest.mark.slow
def test_a_collapse_at_the_real_exporter_pages_a_webhook(tmp_path: Path) -> None:
    recorder = Recorder(RecorderConfig(port=0), REGISTRY)
    recorder.start()
    try:
        with (
            running_alertmanager(tmp_path, DEPLOY / "alertmanager.yml") as (manager, pages),
            running_prometheus(tmp_path, recorder.port, "200ms", rules=impatient(tmp_path), manager=manager) as url,
        ):
            recorder.step(1, HEALTHY)
            until(lambda: alerts(url) == {}, "no alert of the healthy run")
            recorder.step(2, HEALTHY | COLLAPSED)
            both = {"SquelchTemplateCollapseSuspected", "SquelchReasoningIgnoresInput"}
            until(lambda: both <= paged(pages, "firing").keys(), "the page of the collapse")
            page = paged(pages, "firing")["SquelchTemplateCollapseSuspected"]
            assert page["labels"]["severity"] == "critical" and page["annotations"]["runbook_url"].startswith(RUNBOOK)
            recorder.step(3, HEALTHY)
            until(lambda: "SquelchTemplateCollapseSuspected" in paged(pages, "resolved"), "the end of the alarm")
    finally:
        recorder.close()


@pytest.mark.slow
def test_a_real_prometheus_tells_the_end_of_a_run_from_its_death(tmp_path: Path) -> None:
    """Two runs one after another at one address; the second vanishes as a killed one does."""
    (rule,) = (rule["expr"] for rule in RULES if rule["alert"] == "SquelchEndpointDown")
    first = serve(RecorderConfig(port=0), REGISTRY, "0", run="first", environment="e", filter="f")
    with running_prometheus(tmp_path, first.port, "500ms") as url:
        until(lambda: scrapes(url) >= 2, "two scrapes of the first run")
        first.set("squelch_run_ended", 1)
        first.close()
        until(lambda: query(url, "squelch_run_ended") == [], "the end of the first run's series")
        assert [value for _, value in query(url, "last_over_time(squelch_run_ended[6h])")] == [1]
        assert query(url, rule) == []
        with closing(serve(RecorderConfig(port=first.port), REGISTRY, "0", run="2", environment="e", filter="f")):
            until(lambda: [value for _, value in query(url, "squelch_run_ended")] == [0], "the second run")
            assert query(url, rule) == []
        until(lambda: len(query(url, rule)) == 1, "the death of the second run")


def paged(pages: list[dict], status: str) -> dict[str, dict]:
    """The alerts of all pages so far that have this status, by name."""
    alerts = [alert for page in list(pages) for alert in page["alerts"]]
    return {alert["labels"]["alertname"]: alert for alert in alerts if alert["status"] == status}
