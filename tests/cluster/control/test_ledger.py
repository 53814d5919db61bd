import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.ledger import (
    CANCELLED,
    DROPPED,
    ENDED,
    FAILED,
    IN_FLIGHT,
    OPEN,
    RETRIED,
    STATES,
    TRANSITIONS,
    Ledger,
)

AGAIN, WITHDRAW, COMMIT = "again", "withdraw", "commit"


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from((*STATES, AGAIN, WITHDRAW, COMMIT))), max_size=120))
def test_the_equation_holds_after_every_event_and_illegal_moves_change_nothing(events):
    ledger, known, gone = Ledger(), {}, []
    for number, state in events:
        ticket = f"t{number}"
        if ticket not in known:
            ledger.issue(ticket)
            known[ticket] = IN_FLIGHT
        elif state == COMMIT and known[ticket] in ENDED:
            ledger.commit([ticket])
            gone.append(known.pop(ticket))
        elif state == COMMIT:
            with pytest.raises(RuntimeError, match="after its step was completed"):
                ledger.commit([ticket])
        elif state == AGAIN and known[ticket] in RETRIED:
            ledger.retry(ticket)
            known[ticket] = IN_FLIGHT
        elif state == WITHDRAW and known[ticket] in RETRIED:
            ledger.withdraw(ticket)
            del known[ticket]
        elif state in (AGAIN, WITHDRAW):
            with pytest.raises(RuntimeError, match="cannot be retried"):
                ledger.retry(ticket) if state == AGAIN else ledger.withdraw(ticket)
        elif state in TRANSITIONS.get(known[ticket], set()):
            ledger.move(ticket, state, "cause")
            known[ticket] = state
        else:
            with pytest.raises(RuntimeError, match="cannot become"):
                ledger.move(ticket, state, "cause")
        counts = ledger.counts()
        every = [*known.values(), *gone]
        assert counts["issued"] == len(every) == sum(counts[s] for s in STATES)
        assert all(counts[s] == every.count(s) for s in STATES)
        restored, ended = Ledger.restore(json.loads(json.dumps(ledger.state()))), [s for s in every if s in ENDED]
        assert restored.issued == len(ended) and all(restored.count(s) == ended.count(s) for s in STATES)


def test_cancelling_leaves_nothing_open():
    ledger = Ledger()
    for i in range(4):
        ledger.issue(f"t{i}")
    ledger.move("t0", FAILED, "step_timeout")
    ledger.move("t1", "buffered")
    assert not ledger.balanced()
    assert ledger.cancel_open() == 3
    assert ledger.balanced() and ledger.count(CANCELLED) == 3 and ledger.reasons(FAILED) == {"step_timeout": 1}


def test_a_ticket_is_issued_once_and_a_drop_names_its_reason():
    ledger = Ledger()
    ledger.issue("t")
    with pytest.raises(RuntimeError, match="issued twice"):
        ledger.issue("t")
    ledger.move("t", "buffered")
    with pytest.raises(RuntimeError, match="without a reason"):
        ledger.move("t", DROPPED)


def test_counts_that_do_not_balance_are_an_error():
    ledger = Ledger()
    ledger.issued += 1
    with pytest.raises(RuntimeError, match="does not balance: issued 1"):
        ledger.check()
    less_than_none = Ledger.restore({"ended": [["trained", "", -1], [FAILED, "x", 2], [DROPPED, "x", -1]]})
    assert less_than_none.issued == 0
    with pytest.raises(RuntimeError, match="does not balance"):
        less_than_none.check()


def test_ended_tickets_survive_a_restore_and_open_ones_do_not():
    ledger = Ledger()
    for i in range(3):
        ledger.issue(f"t{i}")
    ledger.move("t0", FAILED, "x")
    again = Ledger.restore(ledger.state())
    assert again.counts()["issued"] == 1 and again.reasons(FAILED) == {"x": 1}
    assert not any(again.count(state) for state in OPEN)
    again.issue("t1")


def test_the_oldest_ticket_of_a_state_is_the_one_that_entered_it_first_whatever_its_number():
    times = iter(range(10))
    ledger = Ledger(now=lambda: float(next(times)))
    for name in "abc":
        ledger.issue(name)
    assert ledger.oldest() == {IN_FLIGHT: 0.0} | {state: None for state in OPEN if state != IN_FLIGHT}
    ledger.move("c", "buffered")
    ledger.retry("a")
    assert (ledger.oldest()[IN_FLIGHT], ledger.oldest()["buffered"]) == (1.0, 3.0), "a entered it again at 4"
    ledger.move("b", FAILED, "x")
    assert ledger.oldest()[IN_FLIGHT] == 4.0
