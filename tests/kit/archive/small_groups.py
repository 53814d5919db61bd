"""Small groups to archive."""

import dataclasses

import numpy as np

from squelch.kit.archive.rows import to_table
from squelch.kit.archive.writer import Archive
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn


def small_group(step: int = 1, number: int = 0, returns: tuple[float, ...] = (0.0, 1.0, 1.0)) -> Group:
    """One-turn trajectories of 5 tokens, the last 3 sampled; the last one failed."""
    ticket = Ticket(f"{step:06d}-{number:03d}", step, Task("FrozenLake", seed=number), len(returns), seed=0)
    members = []
    for i, value in enumerate(returns):
        turn = Turn(2, 5, 2, 4, value, 0.0, True, False, 1, step - 1, step - 1)
        failure = Failure(FailureCause.STEP_TIMEOUT, "late") if i == len(returns) - 1 else None
        mask, zeros = np.arange(5) > 1, np.zeros(5, np.float32)
        members.append(Trajectory(i, np.arange(5, dtype=np.int32), mask, zeros, [turn], bool(value), False, failure))
    return Group(ticket, "key", members, "easy")


def decided(group_ids: list[str]) -> dict[str, object]:
    @dataclasses.dataclass(frozen=True)
    class Decided:
        score: float = 0.5
        decision: str = "kept"
        reason: str = ""

    return {group_id: Decided() for group_id in group_ids}


def archive_step(archive: Archive, step: int, count: int) -> None:
    made = [small_group(step, number) for number in range(count)]
    archive.write_groups(step, [to_table(g) for g in made], decided([g.ticket.ticket_id for g in made]))
