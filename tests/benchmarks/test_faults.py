"""The fault study draws its faults before it runs, judges every ticket, and reports what the boots found."""

from collections import Counter

import pytest

from benchmarks.faults.report import rows, summary
from tests.e2e.faults.judge import verdict
from tests.e2e.faults.plan import ACTORS, KINDS, cells, draw

WANTED = {"000001-000", "000001-001"}
RIGHT = {"000001-000": Counter({(1, "kept"): 4}), "000001-001": Counter({(1, "dropped"): 4})}
LEDGER = {"trained": 1, "dropped": 1}
TWICE = (
    "trained or failed: 2 in the ledger, 1 in the archive",
    "trained: 2 in the ledger, 1 kept in the archive",
)


def test_a_hundred_faults_are_drawn_once_and_every_kind_and_actor_is_among_them() -> None:
    drawn = [fault for cell in cells(0, 10, 10) for fault in cell]
    assert drawn == [fault for cell in cells(0, 10, 10) for fault in cell] and len(drawn) == 100
    assert cells(0, 3, 10) == cells(0, 10, 10)[:3], "a cell's faults do not depend on the number of cells"
    assert {fault.kind for fault in drawn} == KINDS.keys() and {fault.target for fault in drawn} >= set(ACTORS)
    for fault in [*drawn, *draw(7, 500)]:
        shortest, longest = KINDS[fault.kind].lasts_s
        assert fault.target in KINDS[fault.kind].targets and 0 <= fault.moment <= 1
        assert shortest <= fault.lasts_s <= longest


def test_a_run_whose_ledger_agrees_with_its_archive_is_right() -> None:
    found = verdict(1, WANTED, 4, LEDGER, RIGHT)
    assert found.right and (found.tickets, found.trained) == (2, 1)


@pytest.mark.parametrize(
    ("ledger", "archived", "lost", "doubled"),
    [
        (LEDGER, {"000001-000": RIGHT["000001-000"]}, ("000001-001",), ("dropped: 1 in the ledger, 0 in the archive",)),
        ({"trained": 1}, RIGHT, (), ("dropped: 0 in the ledger, 1 in the archive",)),
        (LEDGER, RIGHT | {"000001-000": Counter({(1, "kept"): 8})}, (), ("000001-000",)),
        (LEDGER, RIGHT | {"000001-000": Counter({(1, "kept"): 4, (2, "kept"): 4})}, (), ("000001-000",)),
        (LEDGER | {"trained": 2}, RIGHT, (), TWICE),
    ],
)
def test_a_ticket_that_is_missing_or_twice_there_or_trained_on_in_secret_is_found(
    ledger, archived, lost, doubled
) -> None:
    found = verdict(1, WANTED, 4, ledger, archived)
    assert (found.lost, found.doubled, found.right) == (lost, doubled, False)


RETURNED = [{"actor": "rollout-0", "start_s": 20.0, "back_s": 21.5}]


def boot(code: int, *outcomes: tuple[str, str, float | None]) -> dict:
    faults = [
        {"fault": {"kind": kind}, "outcome": outcome, "detected_s": after, "seconds": 9.0, "returned": RETURNED}
        for kind, outcome, after in outcomes
    ]
    counts = {"steps": 1, "tickets": 2, "trained": 1, "lost": [], "doubled": []}
    return {"end": {"code": code}, "faults": faults, "verdict": counts if code == 143 else None, "machine": {}}


def test_the_report_counts_what_was_injected_and_calls_no_hung_boot_right() -> None:
    boots = [
        boot(143, ("kill", "went on", 0.2), ("kill", "went on", 0.4), ("kill", "no such process", None)),
        boot(-1, ("disk", "ended", None), ("stop", "hung", None)),
    ]
    found = summary(boots)
    assert (found["boots"], found["right"], found["faults"], found["lost"]) == (2, 1, 4, 0)
    assert rows(boots)[0][0] == "disk" and rows(boots)[-1][1:5] == (4, 2, 1, 1)
    assert found["kinds"]["kill"] == {
        "faults": 2,
        "went_on": 2,
        "ended": 0,
        "wrong": 0,
        "noticed_s": pytest.approx(0.3),
        "noticed_largest_s": 0.4,
        "seconds": 9.0,
        "returned": 2,
        "returned_late_s": 1.5,
    }
