"""Writes docs/reference/settings.md, a table of every setting: `python -m docs.writers.settings`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from squelch.cluster.settings_reference import Block, of_environment, of_run
from squelch.envs.registry import ADAPTERS, environment_names

PAGE = Path(__file__).resolve().parents[1] / "reference" / "settings.md"

HEAD = """\
# Settings

Every setting of a run by its key, with its default, what it may be, and what it means.
`python -m docs.writers.settings` writes this page from the settings' classes; do not edit it. A recipe sets some of
them differently: `squelch config RECIPE` prints a recipe's values, and `squelch config RECIPE --explain WORD` explains
the settings whose key contains a word. Set one on the command line (`squelch train frozenlake filter.rho=0.5`), or in
a YAML file of the same tree that says `extends: RECIPE`.

A key that does not exist, a value of another kind and settings that contradict each other are refused before a run
starts, by name.
"""


def page() -> str:
    """The text of docs/reference/settings.md."""
    names = [*environment_names(), *sorted(ADAPTERS)]
    blocks = [*of_run(), *(of_environment(name) for name in names)]
    return "\n".join([HEAD, *(line for block in blocks for line in _section(block))])


def _section(block: Block) -> Iterator[str]:
    yield from (f"## {block.title}", "", block.about, "")
    yield from ("| key | default | values | meaning |", "|---|---|---|---|")
    for one in block.settings:
        cells = (f"`{one.key}`", f"`{one.default}`", one.values, one.meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
