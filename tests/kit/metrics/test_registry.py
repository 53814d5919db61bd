"""The registry names every metric once, and a step's dict lands in the right series."""

import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.ledger import Ledger
from squelch.cluster.metrics import LEDGER_STATES, REGISTRY
from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.series import MetricStore
from squelch.kit.metrics.specification import MetricSpec, Section


def test_every_module_that_declares_metrics_is_composed() -> None:
    root = Path(__file__).parents[3] / "squelch"
    modules = [path for room in ("actors", "cluster", "kit", "learner") for path in (root / room).rglob("*.py")]
    declaring = [path for path in modules if re.search(r"^METRICS = declared\(", path.read_text(), re.MULTILINE)]
    written = [yaml.safe_load(path.with_suffix(".yaml").read_text()).values() for path in declaring]
    assert len(declaring) > 5 and {name for found in written for section in found for name in section} <= set(
        REGISTRY.specs
    )


def test_the_ledgers_states_are_those_that_it_exports() -> None:
    assert tuple(Ledger().counts()) == LEDGER_STATES


def test_a_metric_that_two_components_declare_is_refused_by_name() -> None:
    table = {Section.HEALTH: (MetricSpec("squelch_x", "gauge", "X", "x"),)}
    with pytest.raises(ValueError, match="squelch_x is declared twice"):
        _ = Registry(lambda: table, lambda: table).specs


def test_a_section_holds_its_metrics_in_the_order_of_the_tables() -> None:
    one, other = MetricSpec("squelch_one", "gauge", "1"), MetricSpec("squelch_other", "gauge", "2")
    registry = Registry(lambda: {Section.TIME: (other,)}, lambda: {Section.TIME: (one,)})
    assert registry.sections[Section.TIME] == (other, one)


def test_names_follow_prometheus_conventions() -> None:
    for spec in REGISTRY.specs.values():
        assert re.fullmatch(r"squelch_[a-z0-9_]+", spec.name)
        assert not spec.help.endswith(".")


def test_no_two_families_share_a_base_name() -> None:
    bases = [name.removesuffix("_total") for name in REGISTRY.specs]
    assert len(set(bases)) == len(bases)


def test_every_seeded_series_exists_from_the_start_gauges_nan_and_counters_zero() -> None:
    store = MetricStore(REGISTRY, {"worker": ["rollout-0"]})
    for spec in REGISTRY.specs.values():
        if spec.kind == "histogram":
            assert spec.name in store.histograms
            continue
        series = store.scalars[spec.name]
        assert set(series) >= set(spec.seeds if spec.labels else ((),))
        for value in series.values():
            assert value == 0 if spec.kind == "counter" else math.isnan(value)
    assert ("rollout-0",) in store.scalars["squelch_weight_parity_nats"]


def test_every_known_key_lands_in_each_series_that_it_feeds() -> None:
    store = MetricStore(REGISTRY)
    keys = list(REGISTRY.known_keys)
    store.step({key: i + 1 for i, key in enumerate(keys)})
    for i, key in enumerate(keys):
        for spec, values in REGISTRY.series_of(key):
            if spec.kind != "histogram":
                assert store.scalars[spec.name][values] == i + 1, key


def test_no_series_is_fed_by_two_keys() -> None:
    fed = [(spec.name, values) for key in REGISTRY.known_keys for spec, values in REGISTRY.series_of(key)]
    assert len(set(fed)) == len(fed)


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_counters_add_up_what_the_steps_report(amounts: list[int]) -> None:
    store = MetricStore(REGISTRY)
    for amount in amounts:
        store.step({"tokens/sampled": amount, "kept_groups": amount})
    assert store.scalars["squelch_tokens_total"][("sampled",)] == sum(amounts)
    assert store.scalars["squelch_groups_total"][("kept",)] == sum(amounts)
    if amounts:
        assert store.scalars["squelch_step_groups"][("kept",)] == amounts[-1]


@given(st.lists(st.floats(0, 2000), max_size=30))
def test_histogram_buckets_are_cumulative_and_end_at_the_count(seconds: list[float]) -> None:
    store = MetricStore(REGISTRY)
    for value in seconds:
        store.step({"seconds/step": value})
    histogram = store.histograms["squelch_step_duration_seconds"]
    rows = histogram.cumulative()
    assert rows[-1] == ("+Inf", len(seconds))
    for bound, count in rows[:-1]:
        assert count == sum(value <= float(bound) for value in seconds)
    assert histogram.total == pytest.approx(sum(seconds))


def test_open_keys_take_new_workers_and_reasons() -> None:
    store = MetricStore(REGISTRY)
    store.step({"weights/rollout-7/seconds_paused": 0.5, "ledger/failed/worker_died": 2, "wait/learner/scorer": 1.5})
    assert store.scalars["squelch_weight_update_seconds"][("rollout-7", "paused")] == 0.5
    assert store.scalars["squelch_ended_tickets"][("failed", "worker_died")] == 2
    assert store.scalars["squelch_wait_seconds_total"][("learner", "scorer")] == 1.5


def test_null_makes_a_gauge_nan_and_leaves_a_counter() -> None:
    store = MetricStore(REGISTRY)
    store.step({"kept_mass": 0.9, "tokens/sampled": 5})
    store.step({"kept_mass": None, "tokens/sampled": None})
    assert math.isnan(store.scalars["squelch_kept_mass_ratio"][()])
    assert store.scalars["squelch_tokens_total"][("sampled",)] == 5


@pytest.mark.parametrize(
    ("key", "hint"),
    [("kept_mas", "kept_mass"), ("first_turn/retrieval_acuracy", "retrieval_accuracy"), ("ledger/isued", "issued")],
)
def test_an_unknown_key_names_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        MetricStore(REGISTRY).step({key: 1})


def test_a_wrong_key_or_value_changes_nothing() -> None:
    store = MetricStore(REGISTRY)
    for bad in ({"no_such_key_at_all": 1}, {"trajectories": -1}, {"kept_mass": "much"}):
        with pytest.raises(ValueError):
            store.step({"tokens/sampled": 7, **bad})
    assert store.scalars["squelch_tokens_total"][("sampled",)] == 0


def test_a_wrong_name_or_label_is_refused_with_the_nearest() -> None:
    store = MetricStore(REGISTRY)
    with pytest.raises(ValueError, match="squelch_kept_mass_ratio"):
        store.observe("squelch_kept_mass", 1.0)
    with pytest.raises(ValueError, match="did you mean `scope`"):
        store.observe("squelch_mi_zscore", 1.0, scop="first_turn")
    with pytest.raises(ValueError, match="missing"):
        store.observe("squelch_mi_zscore", 1.0)
    with pytest.raises(ValueError, match="did you mean `first_turn`"):
        store.observe("squelch_mi_zscore", 1.0, scope="first-turn")


def test_a_step_of_a_thousand_workers_looks_no_key_up_twice() -> None:
    registry, names = Registry(lambda: REGISTRY.sections), range(1000)
    workers = {
        f"weights/rollout-{n}/{key}" for n in names for key in ("version", "parity", "parity_max", "seconds_probe")
    }
    step = dict.fromkeys(workers | {f"{kind}/rollout-{n}" for n in names for kind in ("up", "restarts")}, 1.0)
    for _ in range(2):
        MetricStore(registry).step(step)
    assert registry._found.cache_info().misses == len(step)


def test_workers_that_come_and_go_leave_no_series_and_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squelch.kit.metrics.registry.KEYS", 64)
    registry = Registry(lambda: REGISTRY.sections)
    store = MetricStore(registry)
    for number in range(128):
        name = f"rollout-{number}"
        store.step({f"weights/{name}/version": 1.0, f"up/{name}": 1.0})
        store.forget("worker", {name})
        store.forget("actor", {name})
    assert not store.scalars["squelch_worker_policy_version"] and not store.scalars["squelch_actor_up"]
    assert registry._found.cache_info().currsize <= 64


def test_a_gauge_is_replaced_as_a_whole_and_only_by_its_own_labels() -> None:
    store = MetricStore(REGISTRY)
    store.replace("squelch_actor_state", {("a", "healthy"): 1.0, ("b", "dead"): None})
    store.replace("squelch_actor_state", {("c", "dead"): 1.0})
    assert store.scalars["squelch_actor_state"] == {("c", "dead"): 1.0}
    with pytest.raises(ValueError):
        store.replace("squelch_actor_state", {("c",): 1.0})


def test_the_section_of_a_key_is_that_of_its_metric() -> None:
    assert REGISTRY.section_of("kept_mass") is Section.FILTER
    assert REGISTRY.section_of("weights/rollout-7/version") is Section.HEALTH
