"""The ledger: the state of every ticket of a run. Pure.

After every event

    issued = in_flight + buffered + kept_waiting + training
             + trained + dropped{reason} + spared{reason} + failed{reason} + cancelled

where each term is counted separately and none is computed as the remainder. Spared are groups that the filter dropped
and that the learner gets but for one term of the loss (`filter.target`). A ticket moves only along `TRANSITIONS`; any
other move raises RuntimeError. There are two ways back, for the tickets of a step that was not trained on when its
groups, or the weights that sampled them, were lost: `retry`, and for those of its refill rounds, which start over,
`withdraw`. At the end of a run the first four terms on the right are 0.

Once a step is complete its tickets are committed: they are counted, but no longer known by their ids, so that neither
the ledger nor a checkpoint grows with the run. Admission issues no step twice, so a committed id does not come back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

IN_FLIGHT, BUFFERED, KEPT_WAITING, TRAINING = "in_flight", "buffered", "kept_waiting", "training"
TRAINED, DROPPED, SPARED, FAILED, CANCELLED = "trained", "dropped", "spared", "failed", "cancelled"
OPEN = (IN_FLIGHT, BUFFERED, KEPT_WAITING, TRAINING)
ENDED = (TRAINED, DROPPED, SPARED, FAILED, CANCELLED)
STATES = OPEN + ENDED

TRANSITIONS = {
    IN_FLIGHT: {BUFFERED, FAILED, CANCELLED},  # it was played, could not be played, or the run stopped
    BUFFERED: {KEPT_WAITING, DROPPED, SPARED, FAILED, CANCELLED},  # the filter kept, dropped or refused the group
    KEPT_WAITING: {TRAINING, CANCELLED},
    TRAINING: {TRAINED, FAILED, CANCELLED},  # the learner made or refused the step
}
RETRIED = {IN_FLIGHT, BUFFERED, KEPT_WAITING, TRAINING, DROPPED, SPARED, FAILED}
"""States of a step that is retried from its beginning (`Ledger.retry`)."""


class RetrySteps(Exception):
    """Open steps must be retried: groups are lost, or lost weights sampled them."""


class Ledger:
    """The states of all tickets of a run, and the counts of the equation, which are kept separately.

    `now`: the clock (unix seconds) that says since when a ticket is in its state.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._since: dict[str, float] = {}
        """When each open ticket entered its state."""
        self._state: dict[str, tuple[str, str]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self.issued = 0

    def issue(self, ticket_id: str) -> None:
        """Adds a new ticket, in flight. RuntimeError if the id was issued before."""
        if ticket_id in self._state:
            raise RuntimeError(f"ticket {ticket_id} was issued twice")
        self.issued += 1
        self._enter(ticket_id, IN_FLIGHT, "")

    def move(self, ticket_id: str, state: str, reason: str = "") -> None:
        """Moves a ticket to `state`; `reason` is a short cause, required for dropped, spared and failed tickets."""
        old, _ = self._state.get(ticket_id, ("not issued", ""))
        if state not in TRANSITIONS.get(old, set()):
            raise RuntimeError(f"ticket {ticket_id} is {old} and cannot become {state}")
        if state in (DROPPED, SPARED, FAILED) and not reason:
            raise RuntimeError(f"ticket {ticket_id} becomes {state} without a reason")
        self._change(ticket_id, state, reason)

    def retry(self, ticket_id: str) -> None:
        """Puts a ticket back in flight, because its group or the weights that sampled it are lost. RuntimeError if it
        was trained on or cancelled."""
        state, _ = self._state.get(ticket_id, ("not issued", ""))
        if state not in RETRIED:
            raise RuntimeError(f"ticket {ticket_id} is {state} and cannot be retried")
        self._change(ticket_id, IN_FLIGHT, "")

    def withdraw(self, ticket_id: str) -> None:
        """Takes a ticket back as if it had never been issued, so that its id may be issued again. RuntimeError if it
        was trained on or cancelled."""
        self.retry(ticket_id)
        self._counts[self._state.pop(ticket_id)] -= 1
        del self._since[ticket_id]
        self.issued -= 1
        self.check()

    def commit(self, ticket_ids: Iterable[str]) -> None:
        """Forgets the ids of tickets of a complete step; their counts stay. RuntimeError if one of them is open."""
        for ticket_id in ticket_ids:
            state, _ = self._state[ticket_id]
            if state in OPEN:
                raise RuntimeError(f"ticket {ticket_id} is {state} after its step was completed")
            del self._state[ticket_id]

    def _change(self, ticket_id: str, state: str, reason: str) -> None:
        self._counts[self._state[ticket_id]] -= 1
        self._enter(ticket_id, state, reason)
        self.check()

    def _enter(self, ticket_id: str, state: str, reason: str) -> None:
        self._state[ticket_id] = (state, reason)
        self._counts[state, reason] += 1
        if state in OPEN:
            self._since[ticket_id] = self._now()
        else:
            self._since.pop(ticket_id, None)

    def in_state(self, *states: str) -> list[str]:
        """Ids of the uncommitted tickets in any of the states, in order of issue."""
        return [ticket_id for ticket_id, (state, _) in self._state.items() if state in states]

    def oldest(self) -> dict[str, float | None]:
        """When (unix seconds) the ticket that is in each open state for longest entered it; None if it has none."""
        found: dict[str, float | None] = dict.fromkeys(OPEN)
        for ticket_id, since in self._since.items():
            state = self._state[ticket_id][0]
            earlier = found[state]
            found[state] = since if earlier is None else min(earlier, since)
        return found

    def count(self, state: str) -> int:
        """Number of tickets in a state, whatever the reason."""
        return sum(number for (name, _), number in self._counts.items() if name == state)

    def reasons(self, state: str) -> dict[str, int]:
        """Number of tickets in a state, by reason."""
        return {reason: n for (name, reason), n in self._counts.items() if name == state and reason and n}

    def counts(self) -> dict[str, int]:
        """Number of tickets by state, and their total as `issued`."""
        return {"issued": self.issued, **{state: self.count(state) for state in STATES}}

    def check(self) -> None:
        """Raises RuntimeError with the counts if the equation does not hold."""
        total = sum(self._counts.values())
        if total != self.issued or min(self._counts.values(), default=0) < 0:
            raise RuntimeError(f"ledger does not balance: issued {self.issued}, states {self.counts()}")

    def cancel_open(self) -> int:
        """Cancels every ticket that has not ended; returns their number."""
        open_tickets = self.in_state(*OPEN)
        for ticket_id in open_tickets:
            self.move(ticket_id, CANCELLED)
        return len(open_tickets)

    def balanced(self) -> bool:
        """Whether the equation holds and every ticket has ended."""
        self.check()
        return all(self.count(state) == 0 for state in OPEN)

    def state(self) -> dict[str, Any]:
        """The numbers of ended tickets by state and reason as JSON-able data. Open tickets are left out: a resumed run
        retries them."""
        return {"ended": [[s, r, n] for (s, r), n in sorted(self._counts.items()) if s in ENDED and n]}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Ledger:
        """The ledger of a checkpoint, from the data of `state`."""
        ledger = cls()
        for name, reason, number in state["ended"]:
            ledger.issued += number
            ledger._counts[name, reason] = number
        return ledger
