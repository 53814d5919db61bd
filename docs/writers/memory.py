"""Generates docs/reference/memory.md: what every recipe's actors need on devices of several sizes, and what to set.

    python -m docs.writers.memory

The figures are those of `squelch plan RECIPE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill

from squelch.cluster.commands.plan_memory import DEVICES_GIB, TINY_GIB, Need, needs_of
from squelch.cluster.config import load, recipe_names

SETTING = re.compile(r"[a-z_]+\.[a-z_]+=[a-z0-9.]*[a-z0-9]")
"""A setting in the text of an advice."""
PAGE = Path(__file__).resolve().parents[1] / "reference" / "memory.md"

HEAD = """\
# Memory of every recipe

`python -m docs.writers.memory` generates this page; do not edit it. It shows what `squelch plan RECIPE`
estimates from the shapes of the model, with the recipe's own settings. `squelch plan RECIPE --device-gib N` does the
same for a device of another size and for changed settings, and says of which parts a figure consists.
`python -m benchmarks.memory` prints the estimates of one model beside peaks that it measures on a CPU
([results.md](../research/results.md)).

"""
GPUS = """\
## Recipes on GPUs

The column GiB is what the actor needs with the recipe's settings: a learner rank at the peak of a step, a rollout
worker with all sequences that the recipe gives it at once, the scorer at its largest batch. A column of a device says
whether the actor fits, or which settings make it fit. A rollout worker with a smaller `rollout.max_num_seqs` decodes
fewer sequences at once, which is slower. The actors of `one-card` share a GPU, and its columns are of their shares;
in the other recipes each has GPUs of its own, and can share one: [real-models.md](../guide/real-models.md#on-one-gpu).

"""
HOST = """\
## Recipes on CPUs with a language model

`squelch plan RECIPE --device-gib N` plans them for GPUs.

The runtime of a rollout worker holds what its engine grows by (`PRIMITIVES` in `squelch/actors/rollout/memory.py`).

| recipe | actor | GiB of host memory | consists of | what helps |
|---|---|---|---|---|
"""
TINY_TITLE = "\n## Recipes with the tiny policy\n\n"
TINY = f"Each actor needs less than {TINY_GIB} GiB of host memory: "


def page() -> str:
    """The page's text."""
    found = {name: needs_of(load(name), DEVICES_GIB) for name in recipe_names()}
    devices = "".join(f" {gib:g} GiB |" for gib in DEVICES_GIB)
    head = f"| recipe | actor | GiB |{devices}\n|---|---|---|{'---|' * len(DEVICES_GIB)}\n"
    on_gpus = {name: needs for name, needs in found.items() if any(need.device_gib is not None for need in needs)}
    on_host = {name: needs for name, needs in found.items() if needs and name not in on_gpus}
    tiny = [f"`{name}`" for name, needs in found.items() if not needs]
    parts = [HEAD, GPUS, head, *(_row(name, role) for name, needs in on_gpus.items() for role in _roles(needs))]
    if on_host:
        parts += ["\n", HOST, *(_host_row(name, need) for name, needs in on_host.items() for need in needs)]
    return "".join([*parts, TINY_TITLE, fill(TINY + ", ".join(tiny), 120, break_on_hyphens=False), ".\n"])


def _roles(needs: Iterable[Need]) -> list[list[Need]]:
    """The needs by role, in order."""
    roles: dict[str, list[Need]] = {}
    for need in needs:
        roles.setdefault(need.role, []).append(need)
    return list(roles.values())


def _row(name: str, role: Sequence[Need]) -> str:
    most = max(need.needs_gib for need in role)
    cells = [_cell(need) for need in role] if len(role) == len(DEVICES_GIB) else ["host memory"] * len(DEVICES_GIB)
    return f"| `{name}` | {role[0].count} x {role[0].role} | {most:.1f} | {' | '.join(cells)} |\n"


def _cell(need: Need) -> str:
    settings = SETTING.findall(need.advice)
    return " ".join(f"`{setting}`" for setting in settings) or need.advice or "fits"


def _host_row(name: str, need: Need) -> str:
    return f"| `{name}` | {need.count} x {need.role} | {need.needs_gib:.1f} | {need.parts} | {need.advice or '-'} |\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
