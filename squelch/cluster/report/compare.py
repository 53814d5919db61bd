"""Which arms share a panel, and in which colours. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squelch.cluster.plots.style import BASELINE, PALETTE
from squelch.cluster.report.runs import Arm, Study

TOGETHER = 4
"""Arms that share one panel; with more, each has a panel in which it is compared with the first."""
MOST_PANELS = 12
"""Comparisons of one environment that are drawn; the data holds all."""


@dataclass(frozen=True)
class Comparison:
    """The arms of one panel. `title`: what is compared, empty if it is all that there is."""

    environment: str
    title: str
    arms: tuple[str, ...]
    colours: tuple[str, ...]


def comparisons(study: Study) -> list[Comparison]:
    """The panels' arms, by environment: all arms in one, or, where that is too many, each beside the first."""
    found = []
    for environment, arms in study.environments.items():
        colours = arm_colours(arms)
        labels = [arm.label for arm in arms]
        if len(arms) <= TOGETHER:
            title = environment if len(study.environments) > 1 else ""
            found.append(Comparison(environment, title, tuple(labels), tuple(colours)))
            continue
        for label, colour in list(zip(labels, colours, strict=True))[1 : MOST_PANELS + 1]:
            title = f"{environment}: {label}" if len(study.environments) > 1 else label
            found.append(Comparison(environment, title, (labels[0], label), (BASELINE, colour)))
    return found


def arm_colours(arms: Sequence[Arm]) -> list[str]:
    """Grey for an unfiltered first arm that others are compared with; the palette for the others, in order."""
    grey = len(arms) > 1 and not arms[0].filtered
    return [BASELINE if grey and i == 0 else PALETTE[(i - grey) % len(PALETTE)] for i in range(len(arms))]
