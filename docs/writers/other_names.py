"""The keys of TRL, verl, prime-rl and OpenRLHF and the settings that do the same, as docs/reference/other-trainers.md.

    python -m docs.writers.other_names    writes the page

The keys are in the tables of `squelch.kit.importing`, from which `squelch import` makes recipes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from docs.writers.tables import table
from squelch.cluster.settings_reference import of_run
from squelch.kit.importing.tables import ALWAYS, RELEASES, Row, every_row

PAGE = Path(__file__).resolve().parents[1] / "reference" / "other-trainers.md"
PREFIX = "actor_rollout_ref."
HEAD = f"""\
# Keys of other trainers

`python -m docs.writers.other_names` generates this page; do not edit it. It says which setting of Squelch does what you
set elsewhere ([settings.md](settings.md) explains each), and what has no counterpart and why.
[coming-from.md](../guide/coming-from.md) makes a recipe of your configuration. Releases:
{", ".join(f"{trainer} {release}" for trainer, release in RELEASES.items())}. verl's keys are shown without
`actor_rollout_ref.`, OpenRLHF's in their dotted form (the older flags are read, too). An empty cell means that the
trainer has no such key.

"""
TITLES = {
    "Model and task": ("name", "runs_dir", "seed", "model", "environment", "environment_actor"),
    "Batch and rollouts": ("loop", "sampling", "rollout"),
    "Objective": ("learner.algorithm", "learner.objective", "learner.critic"),
    "Filter": ("filter",),
    "Optimizer and model parallelism": ("learner",),
    "Validation and logs": ("validation", "recorder"),
}
"""The tables, and the beginnings of their settings; the first that fits counts."""


def page() -> str:
    """The page's text."""
    told = [row for row in every_row() if not row.pattern and row.key != ALWAYS]
    here = dict.fromkeys(setting for row in told for setting in row.settings)
    order = {one.key: place for place, one in enumerate(one for block in of_run() for one in block.settings)}
    settings = sorted(here, key=lambda setting: order.get(setting, order["environment.options"]))
    parts = [HEAD]
    for title in TITLES:
        rows = [_line(setting, told) for setting in settings if _title(setting) == title]
        parts += [f"## {title}\n\n", table(("Squelch", *RELEASES, "what differs"), rows), "\n"]
    lost = [(row.trainer, _shown([row]), row.note) for row in told if not row.settings and row.note]
    parts += ["## Without a counterpart\n\n", table(("trainer", "key", "why"), lost), "\n"]
    return "".join(parts)


def _title(setting: str) -> str:
    return next(
        title
        for title, beginnings in TITLES.items()
        if any(f"{setting}.".startswith(f"{beginning}.") for beginning in beginnings)
    )


def _line(setting: str, told: Iterable[Row]) -> tuple[str, ...]:
    own = [row for row in told if setting in row.settings]
    names = (_shown([row for row in own if row.trainer == trainer]) for trainer in RELEASES)
    notes = dict.fromkeys(f"{row.trainer}: {row.note}" for row in own if row.note)
    return f"`{setting}`", *names, " ".join(notes)


def _shown(rows: Iterable[Row]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(row.key.removeprefix(PREFIX) for row in rows))


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
