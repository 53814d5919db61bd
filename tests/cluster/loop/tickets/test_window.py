"""What a step exports of its groups."""

import math
from types import SimpleNamespace

from hypothesis import given, settings

from squelch.actors.play.metrics import trajectory_metrics, turn_metrics
from squelch.cluster.control.autoscaling import StepTimes
from squelch.cluster.loop.tickets.window import Window
from squelch.cluster.metrics import REGISTRY
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.records.records import Task, Ticket
from tests.kit.filter.test_metrics import CONFIGS, GROUPS, decide


@given(GROUPS, CONFIGS)
@settings(max_examples=50, deadline=None)
def test_what_a_step_exports_of_its_groups_is_what_the_filter_says(rows: list, config: FilterConfig) -> None:
    summaries, decision = decide(rows, config)
    tickets = [Ticket(s.group_id, 3, Task("E", 0), s.group_size, 0) for s in summaries]
    groups = {s.group_id: SimpleNamespace(summary=s) for s in summaries}
    exported = Window(3, 0.0, len(tickets), StepTimes(0.0), tickets, groups=groups).metrics(decision)
    by_turn = turn_metrics(summaries, {one.group_id for one in decision.kept})
    parts = (trajectory_metrics(summaries), by_turn, decision.metrics)
    expected = {key: value for part in parts for key, value in part.items()}
    assert len(expected) == sum(map(len, parts)), "one metric has one definition"
    assert exported.keys() == expected.keys()
    for key, value in expected.items():
        assert exported[key] == value or (math.isnan(exported[key]) and math.isnan(value))
    assert all(REGISTRY.series_of(key) for key in exported)
