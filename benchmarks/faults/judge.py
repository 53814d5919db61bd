"""What became of every ticket of a run that has ended: the ledger in its last checkpoint against its archive. Pure.

A ticket is lost if a completed step should have it and the archive or the ledger lacks it; it is doubled if the archive
has it twice, or if it was trained on although the ledger says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from actors.archive.reader import read_groups
from cluster.control.ledger import CANCELLED, DROPPED, FAILED, TRAINED
from cluster.loop.state import checkpoints, read_state

Rows = Counter[tuple[int, str]]
"""Number of rows of a ticket by (step of the part, decision)."""
ENDINGS = {"kept": {TRAINED, FAILED}, "dropped": {DROPPED}, "refused": {FAILED}}
"""The states of a ticket in the ledger that agree with the archive's decision. A kept group has failed if the learner
refused its update."""


@dataclass(frozen=True)
class Verdict:
    """The counts of one run. `steps`: completed steps; `tickets`: theirs."""

    steps: int
    tickets: int
    trained: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether no ticket was lost and none doubled."""
        return not self.lost and not self.doubled


def judge(run_dir: Path, prompts: int, group_size: int) -> Verdict:
    """The verdict on a run that was stopped in good order and plays `prompts` tickets of `group_size` trajectories a
    step, without refill."""
    (steps, folder) = checkpoints(run_dir)[-1]
    ledger = {ticket: state for ticket, state, _ in read_state(folder).ledger["tickets"] if state != CANCELLED}
    wanted = {f"{step:06d}-{k:03d}" for step in range(1, steps + 1) for k in range(prompts)}
    return verdict(steps, wanted, group_size, ledger, _archived(run_dir, steps))


def verdict(
    steps: int, wanted: set[str], group_size: int, ledger: Mapping[str, str], archived: Mapping[str, Rows]
) -> Verdict:
    """The verdict on the tickets `wanted` of `steps` steps, from the state of each ended ticket and the rows archived
    of each."""
    lost = (wanted - archived.keys()) | (wanted - ledger.keys())
    often = {ticket for ticket, rows in archived.items() if rows.total() != group_size or len(rows) != 1}
    decided = {ticket: next(iter(rows))[1] for ticket, rows in archived.items()}
    wrong = {ticket for ticket, decision in decided.items() if ledger.get(ticket) not in ENDINGS[decision]}
    trained = sum(state == TRAINED for state in ledger.values())
    return Verdict(steps, len(wanted), trained, tuple(sorted(lost)), tuple(sorted(often | wrong)))


def _archived(run_dir: Path, steps: int) -> dict[str, Rows]:
    """The rows of each ticket."""
    names = ("group_id", "step", "decision")
    table = read_groups(run_dir, list(range(1, steps + 1)), names)
    found: defaultdict[str, Rows] = defaultdict(Counter)
    for ticket, step, decision in zip(*(table.column(name).to_pylist() for name in names), strict=True):
        found[ticket][step, decision] += 1
    return found
