"""Restarts while a second signal ends the run. Budgets: tests/cluster/control/test_restart_budget.py; what is counted
and reported: tests/cluster/loop/test_the_loop.py."""

import threading
from typing import Any

from squelch.cluster.control.restart_budget import RestartBudget
from squelch.cluster.fleet import restart_counts
from squelch.cluster.fleet.restart_counts import Restarts
from squelch.kit.process.signals import Signals


def test_what_ends_with_the_run_is_not_said_to_be_replaced(monkeypatch, caplog) -> None:
    events, signals = list[Any](), Signals()
    restarts = Restarts(RestartBudget(3, 60.0, 1.0), (), lambda *args, **_: events.append(args))
    monkeypatch.setattr(restart_counts, "current", lambda: signals)
    monkeypatch.setattr(restart_counts, "loop_time", lambda: 0.0)
    restarts.allow("filter", "it died")
    signals._ends.set()
    late = threading.Thread(target=restarts.allow, args=["filter", "it is ended"], daemon=True)
    late.start()
    late.join(0.3)
    assert late.is_alive() and len(events) == 1 and restarts.counts == {"filter": 1}
    assert "it died" in caplog.text and "it is ended" not in caplog.text
