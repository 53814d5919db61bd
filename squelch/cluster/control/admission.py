"""Admission: decides when the tickets of a training step are issued, and which tasks they are for. Pure.

Steps are numbered from 1. `clock` counts completed steps: steps whose weights reached every rollout worker, and steps
for which the filter selected nothing, so that nothing was published. The tickets of step s are issued only while

    s - 1 - clock <= S                                                     (S = max_staleness)

and step s is trained only after each of its tickets has ended.

The staleness of a group is the version that the learner updates minus the oldest version that sampled any of its
tokens. It never exceeds S: let c be the clock when step s was issued, so c >= s - 1 - S. Rollout workers held
version(c) by then and never load an older one, so a version >= version(c) sampled every token of the group. Step s is
trained when the clock is s - 1. The version grows by at most one per tick of the clock, so
version(s - 1) - version(c) <= s - 1 - c <= S. With S = 0 the two versions are equal: training is on-policy.

The version grows in one other case: rebuilt weights that diverged from the lost ones are published under a higher
version (`renumber`). Every step that was issued and not trained is then retried from its beginning, after that version
has reached every rollout worker, so the proof holds with c the clock at that moment."""

from __future__ import annotations

from dataclasses import dataclass

from squelch.envs.mixture import Entry, Mixture
from squelch.kit.records.records import Task, Ticket
from squelch.kit.records.splits import Split


class Admission:
    """The clock of completed steps, the policy version, and the next step to be issued."""

    def __init__(self, max_staleness: int, last_step: int, clock: int = 0, version: int = 0) -> None:
        self.max_staleness = max_staleness
        self.last_step = last_step
        self.clock = clock
        self.version = version
        self.next_step = clock + 1

    def open(self) -> bool:
        """Whether the next step's tickets may be issued now."""
        return self.next_step <= self.last_step and self.next_step - 1 - self.clock <= self.max_staleness

    def issue(self) -> int:
        """Returns the number of the next step and counts it as issued. RuntimeError unless it is open."""
        if not self.open():
            raise RuntimeError(f"step {self.next_step} is not open: clock {self.clock}, S {self.max_staleness}")
        self.next_step += 1
        return self.next_step - 1

    def complete(self, step: int, version: int) -> None:
        """Completes step `step`. `version`: the version that every rollout worker has now; a step adds at most one."""
        if step != self.clock + 1:
            raise RuntimeError(f"step {step} completed out of order: clock {self.clock}")
        if version not in (self.version, self.version + 1):
            raise RuntimeError(f"step {step} was completed by version {version} after version {self.version}")
        self.clock, self.version = step, version

    def renumber(self, version: int) -> None:
        """Takes over the version under which a recovered learner's weights have reached every rollout worker."""
        if version < self.version:
            raise RuntimeError(f"rebuilt weights were published as version {version}, below {self.version}")
        self.version = version

    def check_staleness(self, version_min: int) -> int:
        """The staleness, in versions, of a group that is about to be trained on. RuntimeError if it exceeds the bound.

        Args:
            version_min: the oldest version that sampled one of the group's tokens.
        """
        staleness = self.version - version_min
        if not 0 <= staleness <= self.max_staleness:
            raise RuntimeError(
                f"staleness {staleness} (learner at version {self.version}, group sampled from {version_min}) "
                f"outside [0, {self.max_staleness}]"
            )
        return staleness


@dataclass
class TicketSource:
    """Hands out tickets: the k-th ticket of an environment is for its k-th training task, and the mixture's schedule
    says whose turn the run's next ticket is. `cursor`: the run's tickets so far."""

    mixture: Mixture
    group_size: int
    run_seed: int
    temperature: float
    cursor: int = 0

    def __post_init__(self) -> None:
        self._schedule = self.mixture.schedule()

    def take(self, step: int, count: int, first_index: int = 0) -> list[Ticket]:
        """`count` tickets of a step; `first_index` continues the numbering in a refill round."""
        tickets = [
            Ticket(
                ticket_id=f"{step:06d}-{first_index + i:03d}",
                step=step,
                task=self._task(self.cursor + i),
                group_size=self.group_size,
                seed=self.run_seed,
                temperature=self.temperature,
            )
            for i in range(count)
        ]
        self.cursor += count
        return tickets

    def _task(self, ticket: int) -> Task:
        turn = self._schedule.turn(ticket)
        entry = self.mixture.entries[turn.entry]
        return task_of(entry, entry.environment.train_seed + turn.before, "train")


def task_of(entry: Entry, seed: int, split: Split) -> Task:
    """The task with this seed in one of the run's environments."""
    chosen = entry.environment
    return Task(chosen.name, seed, split, tuple(sorted(chosen.options.items())), entry.label)


def validation_tickets(entry: Entry, count: int, run_seed: int, temperature: float, first: int = 0) -> list[Ticket]:
    """The fixed validation set of an environment: one trajectory per task, with the same tasks and request seeds at
    every validation. `first`: number of the first ticket."""
    seed = entry.environment.validation_seed
    return [
        Ticket(f"v-{first + i:05d}", 0, task_of(entry, seed + i, "validation"), 1, run_seed, temperature)
        for i in range(count)
    ]
