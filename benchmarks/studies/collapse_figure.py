"""The figure of the collapse study: one column per environment, one row per figure, one line per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.studies.collapse_runs import TITLES, Arm, Run, mean_series

COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#e08214", "#01665e", "#c51b7d", "#8c510a", "#4d4d4d", "#35978f")
WIDTH, HEIGHT, LEFT, TOP, GAP = 340, 150, 60, 40, 50
Point = tuple[float, float]


def figure(arms: Mapping[Arm, Sequence[Run]]) -> str:
    """The figure as an SVG; a panel without data says that nothing was recorded."""
    environments = sorted({arm.environment for arm in arms})
    labels = list(dict.fromkeys(arm.label for arm in arms))
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    width = LEFT + len(environments) * (WIDTH + GAP)
    bottom = TOP + len(TITLES) * (HEIGHT + GAP)
    height = bottom + 16 * len(labels) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for column, environment in enumerate(environments):
        chosen = {arm: runs for arm, runs in arms.items() if arm.environment == environment}
        for row, (name, title) in enumerate(TITLES.items()):
            x, y = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP)
            _panel(parts, x, y, f"{environment}: {title}", chosen, name, colours)
    for place, label in enumerate(labels):
        y = bottom + 16 * place
        parts.append(f'<rect x="{LEFT}" y="{y - 8}" width="18" height="4" fill="{colours[label]}"/>')
        parts.append(f'<text x="{LEFT + 26}" y="{y}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    parts: list[str],
    x: float,
    y: float,
    title: str,
    arms: Mapping[Arm, Sequence[Run]],
    name: str,
    colours: Mapping[str, str],
) -> None:
    parts.append(f'<text x="{x}" y="{y - 8}">{escape(title)}</text>')
    parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#333333"/>')
    lines = {arm: mean_series(runs, name) for arm, runs in arms.items()}
    points = [(step, found) for line in lines.values() for step, found in line]
    if not points:
        parts.append(f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT / 2}" text-anchor="middle">not recorded</text>')
        return
    last = max(1, *(run.steps for runs in arms.values() for run in runs))
    means = [found["mean"] for _, found in points]
    share = name in ("success", "judge", "alarm")
    low, high = (0.0, 1.0) if share else (min(0.0, *means), max(means) * 1.15 or 1.0)

    def place(step: float, value: float) -> Point:
        inside = min(max(value, low), high)
        return x + WIDTH * step / last, y + HEIGHT - HEIGHT * (inside - low) / (high - low)

    for mark in (low, (low + high) / 2, high):
        parts.append(f'<text x="{x - 5}" y="{place(0, mark)[1] + 4:.0f}" text-anchor="end">{mark:.2g}</text>')
    for mark in (0, last // 2, last):
        at = place(mark, low)
        parts.append(f'<text x="{at[0]:.0f}" y="{at[1] + 14:.0f}" text-anchor="middle">{mark}</text>')
    for arm, line in lines.items():
        banded = [(step, found) for step, found in line if found["low"] is not None]
        upper = [place(step, found["high"]) for step, found in banded]
        lower = [place(step, found["low"]) for step, found in reversed(banded)]
        if banded and name != "alarm":
            parts.append(f'<polygon points="{_path(upper + lower)}" fill="{colours[arm.label]}" fill-opacity="0.12"/>')
        mean = _path([place(step, found["mean"]) for step, found in line])
        parts.append(f'<polyline points="{mean}" fill="none" stroke="{colours[arm.label]}" stroke-width="1.6"/>')


def _path(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
