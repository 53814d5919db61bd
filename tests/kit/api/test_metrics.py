"""A trainer of other people exports the metrics of a run under the same names."""

from squelch.cluster import metrics
from squelch.kit.api.filtering import filter
from squelch.kit.api.metrics import REGISTRY
from squelch.kit.trl.exported import LOGGED_BY_TRL
from squelch.kit.trl.groups import filter_metrics


def test_each_metric_of_another_trainers_run_is_one_of_a_run() -> None:
    assert {name: metrics.REGISTRY.spec(name) for name in REGISTRY.specs} == REGISTRY.specs


def test_what_trl_logs_and_what_its_filter_decides_have_a_metric() -> None:
    decided = filter_metrics(filter([[0.0, 1.0], [1.0, 1.0]]), 0)
    for key in (*LOGGED_BY_TRL.values(), *decided, "total_steps", "optimizer_steps", "step", "time"):
        assert REGISTRY.series_of(key), key
