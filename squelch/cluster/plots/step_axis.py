"""An axis of time that is read in training steps: equal steps are equally wide, however long each took. Pure.

What is drawn keeps its place in minutes; the axis maps minutes to steps, so that a pause between two steps takes no
room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class StepClock:
    """When steps were recorded. `minutes`, `steps`: (num_points,) each, at least two, both rising; beyond them a step
    takes as long as the mean of all."""

    minutes: tuple[float, ...]
    steps: tuple[float, ...]

    @staticmethod
    def of(times: Sequence[tuple[int, float]], start: float) -> StepClock | None:
        """The clock of (step, unix seconds) of each record, on an axis that begins at `start`; None of fewer than two
        steps that follow one another in time."""
        minutes, steps = list[float](), list[float]()
        for step, when in times:
            if not steps or (step > steps[-1] and (when - start) / 60 > minutes[-1]):
                minutes.append((when - start) / 60)
                steps.append(float(step))
        return StepClock(tuple(minutes), tuple(steps)) if len(steps) > 1 else None

    def step_at(self, minutes: Any) -> np.ndarray:
        """The step, in parts of one too, at each of these minutes."""
        return _mapped(np.asarray(minutes, float), self.minutes, self.steps)

    def minute_of(self, steps: Any) -> np.ndarray:
        """The minute of each of these steps."""
        return _mapped(np.asarray(steps, float), self.steps, self.minutes)


def _mapped(values: np.ndarray, known: Sequence[float], wanted: Sequence[float]) -> np.ndarray:
    slope = (wanted[-1] - wanted[0]) / (known[-1] - known[0])
    beyond = np.minimum(values - known[0], 0.0) + np.maximum(values - known[-1], 0.0)
    return np.interp(values, known, wanted) + slope * beyond


def mark_steps(axes: Axes, clock: StepClock) -> None:
    """Makes the axis of time one of steps, marked at whole ones."""
    from matplotlib.ticker import MaxNLocator

    limits = axes.get_xlim()
    axes.set_xscale("function", functions=(clock.step_at, clock.minute_of))
    axes.set_xlim(limits)
    low, high = np.clip(clock.step_at(limits), clock.steps[0], clock.steps[-1])
    found = MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]).tick_values(low, high)
    shown = [step for step in found if low <= step <= high]
    axes.set_xticks(clock.minute_of(shown), [f"step {step:.0f}" for step in shown])
