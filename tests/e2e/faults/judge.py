"""What became of every ticket of a run that has ended: the ledger in its last checkpoint against its archive. Pure.

A ticket is lost if a completed step should have it and the archive lacks it; it is doubled if the archive has it twice.
The ledger keeps counts of ended tickets, which must be those of the archive: a group that was trained on twice, or in
secret, is in the ledger once more than in the archive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from squelch.cluster.control.ledger import DROPPED, FAILED, SPARED, TRAINED, Ledger
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.persistence.state import read_state
from squelch.kit.archive.reader import read_groups

Rows = Counter[tuple[int, str]]
"""Number of rows of a ticket by (step of the part, decision)."""


@dataclass(frozen=True)
class Verdict:
    """The counts of one run. `steps`: completed steps; `tickets`: theirs. `doubled` ends with the ledger's counts that
    differ from the archive's, in words."""

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
    wanted = {f"{step:06d}-{k:03d}" for step in range(1, steps + 1) for k in range(prompts)}
    ended = Ledger.restore(read_state(folder).ledger).counts()
    return verdict(steps, wanted, group_size, ended, _archived(run_dir, steps))


def verdict(
    steps: int, wanted: set[str], group_size: int, ended: Mapping[str, int], archived: Mapping[str, Rows]
) -> Verdict:
    """The verdict on the tickets `wanted` of `steps` steps, from the number of ended tickets by state and the rows
    archived of each ticket."""
    often = sorted(ticket for ticket, rows in archived.items() if rows.total() != group_size or len(rows) != 1)
    trained = ended.get(TRAINED, 0)
    astray = _astray(ended, Counter(next(iter(rows))[1] for rows in archived.values()))
    return Verdict(steps, len(wanted), trained, tuple(sorted(wanted - archived.keys())), (*often, *astray))


def _astray(ended: Mapping[str, int], decided: Mapping[str, int]) -> list[str]:
    """The ledger's counts that differ from those of the archive's decisions. A kept group has failed if the learner
    refused its update."""
    kept_or_failed = decided["kept"] + decided["refused"]
    pairs = {
        "dropped": (ended.get(DROPPED, 0) + ended.get(SPARED, 0), decided["dropped"]),
        "trained or failed": (ended.get(TRAINED, 0) + ended.get(FAILED, 0), kept_or_failed),
    }
    found = [
        f"{what}: {reported} in the ledger, {seen} in the archive"
        for what, (reported, seen) in pairs.items()
        if reported != seen
    ]
    if ended.get(TRAINED, 0) > decided["kept"]:
        found.append(f"trained: {ended[TRAINED]} in the ledger, {decided['kept']} kept in the archive")
    return found


def _archived(run_dir: Path, steps: int) -> dict[str, Rows]:
    """The rows of each ticket."""
    names = ("group_id", "step", "decision")
    table = read_groups(run_dir, list(range(1, steps + 1)), names)
    found: defaultdict[str, Rows] = defaultdict(Counter)
    for ticket, step, decision in zip(*(table.column(name).to_pylist() for name in names), strict=True):
        found[ticket][step, decision] += 1
    return found
