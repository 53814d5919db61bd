"""The ledger: where every ticket is. Pure.

After every event

    issued = in_flight + buffered + kept_waiting + training + trained + dropped{reason} + failed{reason} + cancelled

where each term is counted by itself and none is a remainder. A ticket moves only along `TRANSITIONS`; anything else is
a broken invariant. At the end of a run the first four are 0.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

IN_FLIGHT, BUFFERED, KEPT_WAITING, TRAINING = "in_flight", "buffered", "kept_waiting", "training"
TRAINED, DROPPED, FAILED, CANCELLED = "trained", "dropped", "failed", "cancelled"
OPEN = (IN_FLIGHT, BUFFERED, KEPT_WAITING, TRAINING)
ENDED = (TRAINED, DROPPED, FAILED, CANCELLED)
STATES = OPEN + ENDED

TRANSITIONS = {
    IN_FLIGHT: {BUFFERED, FAILED, CANCELLED},  # played, unplayable, or the run stops
    BUFFERED: {KEPT_WAITING, DROPPED, FAILED, CANCELLED},  # the filter kept, dropped or refused it
    KEPT_WAITING: {TRAINING, CANCELLED},
    TRAINING: {TRAINED, FAILED, CANCELLED},  # the learner's step was made, or refused
}


class Ledger:
    """States of all tickets of a run, and the counts of the equation kept beside them."""

    def __init__(self) -> None:
        self._state: dict[str, tuple[str, str]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self.issued = 0

    def issue(self, ticket_id: str) -> None:
        """A new ticket is in flight. An id is issued once."""
        if ticket_id in self._state:
            raise RuntimeError(f"ticket {ticket_id} was issued twice")
        self.issued += 1
        self._enter(ticket_id, IN_FLIGHT, "")

    def move(self, ticket_id: str, state: str, reason: str = "") -> None:
        """Moves a ticket; `reason` is a short cause, needed for dropped and failed."""
        old, old_reason = self._state.get(ticket_id, ("not issued", ""))
        if state not in TRANSITIONS.get(old, set()):
            raise RuntimeError(f"ticket {ticket_id} is {old} and cannot become {state}")
        if state in (DROPPED, FAILED) and not reason:
            raise RuntimeError(f"ticket {ticket_id} becomes {state} without a reason")
        self._counts[old, old_reason] -= 1
        self._enter(ticket_id, state, reason)
        self.check()

    def _enter(self, ticket_id: str, state: str, reason: str) -> None:
        self._state[ticket_id] = (state, reason)
        self._counts[state, reason] += 1

    def in_state(self, *states: str) -> list[str]:
        """Ids in any of the states, in order of issue."""
        return [ticket_id for ticket_id, (state, _) in self._state.items() if state in states]

    def count(self, state: str) -> int:
        return sum(number for (name, _), number in self._counts.items() if name == state)

    def reasons(self, state: str) -> dict[str, int]:
        """Counts by reason of a state."""
        return {reason: n for (name, reason), n in self._counts.items() if name == state and reason and n}

    def counts(self) -> dict[str, int]:
        """Tickets by state, and `issued`."""
        return {"issued": self.issued, **{state: self.count(state) for state in STATES}}

    def check(self) -> None:
        """Raises RuntimeError with the numbers when the equation does not hold."""
        total = sum(self._counts.values())
        if total != self.issued or min(self._counts.values(), default=0) < 0:
            raise RuntimeError(f"ledger does not balance: issued {self.issued}, states {self.counts()}")

    def cancel_open(self) -> int:
        """Cancels whatever is not ended; returns how many."""
        open_tickets = self.in_state(*OPEN)
        for ticket_id in open_tickets:
            self.move(ticket_id, CANCELLED)
        return len(open_tickets)

    def balanced(self) -> bool:
        """Whether the equation holds and nothing is open."""
        self.check()
        return all(self.count(state) == 0 for state in OPEN)

    def state(self) -> dict[str, Any]:
        """JSON-able; only ended tickets outlive a process, open ones are played again after a resume."""
        return {"tickets": [[t, s, r] for t, (s, r) in self._state.items() if s in ENDED]}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Ledger:
        ledger = cls()
        for ticket_id, name, reason in state["tickets"]:
            ledger.issued += 1
            ledger._enter(ticket_id, name, reason)
        return ledger
