"""A watcher rides on training steps: it measures, warns, and may end the run. Training needs none of them.

The coordinator holds a list of watchers (`cluster.loop.wiring`) and calls each method on one after the other, in the
order of the list. It waits for every call. Each watcher that waits for an actor names the actor in its module's head,
and what ends the wait.

    method         called
    restore        once, before anything else, with the state of the process before; not in a new run
    begin          once, when the weights of the first step are with the rollout workers
    before_train   when the filter has decided on a step and its rows have arrived, before the learner trains on it
    after_train    when the step is trained on, published and given to the archive, and the next tickets are issued
    metrics        when the step is recorded, after every `after_train`
    rewind         when groups or weights were lost, before the tickets of the open steps are retried
    end            once, after the last step, or after a stop
    state          for each checkpoint, and after `end`
    verdict        once, for the summary

Rules:

- `before_train` may be called again for a step: after `rewind`, with the groups that were played then.
- The ending that `after_train` returns makes this step the run's last. The watchers that follow see `Step.is_last`.
- `metrics` is called once a step, so it may return values that must be recorded only once. `Step.metrics` holds the
  metrics of the watchers before it.
- A stop cancels `begin`, and no other method: the step in training is finished.
- `state` is plain JSON; a watcher without one returns None. `rewind` does not change what `state` held before the step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.cluster.loop.tickets.window import Window
from squelch.cluster.runs.ending import Ending
from squelch.kit.filter.decisions import StepDecision


@dataclass
class Step:
    """A step on which the filter has decided. `version`: that of the weights before the step trains them."""

    number: int
    window: Window
    decision: StepDecision
    version: int
    is_last: bool
    """Whether the run ends with this step."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of its record, as far as they are known."""

    @property
    def groups(self) -> list[PlayedGroup]:
        """Its groups in the order of their tickets, those that the filter dropped too."""
        return self.window.played()

    @property
    def kept(self) -> list[PlayedGroup]:
        """The groups that the filter kept."""
        return [self.window.groups[item.group_id] for item in self.decision.kept]

    @property
    def valid(self) -> list[PlayedGroup]:
        """The groups that the filter kept or dropped, in the order of their tickets."""
        refused = {item.group_id for item in self.decision.refused}
        return [group for group in self.groups if group.ticket.ticket_id not in refused]


class Watcher:
    """Does nothing; a watcher overrides what it needs. `name`: the key of its state in a checkpoint."""

    name = ""

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Takes the state of an earlier process. `anew`: the keys of `state.ANEW` whose measurement has changed."""

    async def begin(self, clock: int) -> None:
        """`clock`: the steps that are complete; 0 in a new run."""

    async def before_train(self, step: Step) -> None:
        """Looks at a step before it is trained on."""

    async def after_train(self, step: Step) -> Ending | None:
        """Looks at a step that was trained on; returns why the run ends with it, or None."""

    def metrics(self, step: Step) -> dict[str, float]:
        """The metrics of the step's record, by flat key of the registry."""
        return {}

    def rewind(self, steps: Collection[int]) -> None:
        """Forgets these steps: their tickets are retried."""

    async def end(self) -> None:
        """Finishes what is under way."""

    def verdict(self) -> str:
        """What the summary warns of at the end of the run; empty for nothing."""
        return ""

    def state(self) -> dict[str, Any] | None:
        """For the checkpoint; plain JSON, None without a state."""
        return None
