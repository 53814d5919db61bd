"""The course of a run on its first page: a few curves over the steps as SVG, with the steps of what was told marked.
Pure.

Curves are drawn in a square of `SIZE` units that the page stretches to its width, so lines keep their thickness
(`vector-effect`), and words stand beside the drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SIZE = 1000.0
MOST_POINTS = 400
"""Points of a curve; a longer run shows means of neighbouring steps."""
TOPS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper ends of an axis of shares."""


@dataclass(frozen=True)
class Drawn:
    """One curve. `points`: an SVG path; `role`: `line`, `dots` or `reference`; `first`, `last`: its end values; `now`:
    the step of the last one."""

    label: str
    role: str
    points: str
    first: float
    last: float
    now: int


@dataclass(frozen=True)
class Plot:
    """Curves over one axis. `low`, `high`: its ends."""

    title: str
    unit: str
    low: float
    high: float
    curves: tuple[Drawn, ...]

    @property
    def words(self) -> str:
        """The plot in words, for readers who do not see it."""
        ends = (f"{one.label} from {one.first:.3g} to {one.last:.3g} at step {one.now}" for one in self.curves)
        return f"{self.title}, {self.unit}: {'; '.join(ends)}"


@dataclass(frozen=True)
class Mark:
    """A step that is marked, `at` percent of the width. `kind`: as `Note.kind`, or `checkpoint`; `text`: its number, or
    nothing."""

    kind: str
    step: int
    at: float
    text: str = ""


KEYS = (
    *("step", "success", "validation/success", "first_turn/mi_est", "first_turn/mi_est_null_95", "probe/mi"),
    *("probe/link/dependence_share", "reward_mean"),
)
"""The columns that are drawn."""
Wanted = tuple[str, str, str]
"""(label, role, key) of a curve."""


def plots(columns: Mapping[str, np.ndarray], reward: bool = False) -> list[Plot]:
    """Success, with `reward` the training reward, MI and D over the steps, as far as they were measured. `columns`:
    (num_steps,) by `KEYS`."""
    success = [("training", "line", "success"), ("validation", "dots", "validation/success")]
    first = [
        ("first turn", "line", "first_turn/mi_est"),
        ("unrelated prompts, 95%", "reference", "first_turn/mi_est_null_95"),
    ]
    mi, d = "MI: does the reasoning depend on its prompt?", "D: does the answer follow from it?"
    link = [("fixed probe", "line", "probe/link/dependence_share")]
    found = [
        plot("Success", "share of the trajectories", columns, success, share=True),
        plot("Reward", "mean of the trajectories", columns, [("training", "line", "reward_mean")]) if reward else None,
        plot(mi, "nats per token", columns, first)
        or plot(mi, "nats per reasoning", columns, [("fixed probe", "line", "probe/mi")]),
        plot(d, "share of the answer's surprise", columns, link, share=True),
    ]
    return [one for one in found if one is not None]


def plot(
    title: str, unit: str, columns: Mapping[str, np.ndarray], wanted: Sequence[Wanted], share: bool = False
) -> Plot | None:
    """The curves that have a value; None without one. `columns`: as of `plots`; `share`: the values are in [0, 1]."""
    known = [one for one in wanted if np.isfinite(columns[one[2]]).any()]
    if not any(role != "reference" for _, role, _ in known):
        return None
    every = np.concatenate([columns[key][np.isfinite(columns[key])] for _, _, key in known])
    low, high = min(0.0, float(every.min())), float(every.max())
    high = next((top for top in TOPS if high <= top), high) if share else max(high, low + 1e-9)
    span = ends(columns["step"])
    curves = tuple(_drawn(label, role, columns["step"], columns[key], span, (low, high)) for label, role, key in known)
    return Plot(title, unit, low, high, curves)


def ends(steps: np.ndarray) -> tuple[int, int]:
    """The first and the last step of the axis."""
    return (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)


def mark(kind: str, step: int, span: tuple[int, int], text: str = "") -> Mark:
    """The mark of a step; one beyond an end of the axis stands there."""
    share = (step - span[0]) / max(1, span[1] - span[0])
    return Mark(kind, step, 100 * min(1.0, max(0.0, share)), text)


def marks(notes: Sequence[tuple[str, int, int]], span: tuple[int, int]) -> list[Mark]:
    """The marks of notes, each (kind, step, number); those of one step are one mark, of the first one's kind."""
    steps: dict[int, list[tuple[str, int]]] = {}
    for kind, step, number in notes:
        steps.setdefault(step, []).append((kind, number))
    return [
        mark(those[0][0], step, span, ", ".join(str(number) for _, number in those)) for step, those in steps.items()
    ]


def _drawn(
    label: str, role: str, steps: np.ndarray, values: np.ndarray, span: tuple[int, int], axis: tuple[float, float]
) -> Drawn:
    has = np.isfinite(values)
    at, height = steps[has].astype(float), values[has]
    facts = float(height[0]), float(height[-1]), int(at[-1])
    if len(at) > MOST_POINTS:
        at, height = (np.array([part.mean() for part in np.array_split(one, MOST_POINTS)]) for one in (at, height))
    x = SIZE * (at - span[0]) / max(1, span[1] - span[0])
    y = SIZE * (1 - (height - axis[0]) / (axis[1] - axis[0]))
    places = [f"{one:.0f} {other:.0f}" for one, other in zip(x, y, strict=True)]
    if role == "dots":  # a line of no length with round ends
        return Drawn(label, role, " ".join(f"M{place}h0.01" for place in places), *facts)
    return Drawn(label, role, f"M{' '.join(places)}" + ("h0.01" if len(places) == 1 else ""), *facts)
