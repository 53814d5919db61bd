"""Writes the tables of every setting, a page for each section: `python -m docs.writers.settings`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import markdown_table
from docs.writers.tables import linked
from squelch.cluster.settings_reference import OPTIONS, Block, of_environment, of_run
from squelch.envs.registry import ADAPTERS, environment_names

INDEX = Path(__file__).resolve().parents[1] / "reference" / "settings.md"
FOLDER = INDEX.with_suffix("")
OF_ENVIRONMENTS = "options"
"""The page of the options of all environments."""

HEAD = """\
# Settings

Every setting of a run by its key, with its default, what it may be, and what it means.
`python -m docs.writers.settings` writes these pages from the settings' classes; do not edit them. A recipe sets some of
them differently: `squelch config RECIPE` prints a recipe's values, and `squelch config RECIPE --explain WORD` explains
the settings whose key contains a word. Set one on the command line (`squelch train frozenlake filter.rho=0.5`), or in
a YAML file of the same tree that says `extends: RECIPE`.

A key that does not exist, a value of another kind and settings that contradict each other are refused before a run
starts, by name.
"""


def pages() -> dict[Path, str]:
    """The text of every page: the index with the settings of no section, and a page for each section."""
    (top, *blocks), names = of_run(), [*environment_names(), *sorted(ADAPTERS)]
    sections = dict[str, list[Block]]()
    for block in blocks:
        sections.setdefault(block.title.removesuffix("s[N]"), []).append(block)
    sections[OF_ENVIRONMENTS] = [of_environment(name) for name in names]
    texts = {name: _page(_title(name), own) for name, own in sections.items()}
    about = {name: blocks[0].about for name, blocks in sections.items()}
    about[OF_ENVIRONMENTS] = "What one environment alone has."
    links = [f"- [{_title(name)}](settings/{name}.md): {linked(text, '..')}" for name, text in about.items()]
    index = [HEAD, *links, "", *_section(top, "..")]
    return {INDEX: "\n".join(index), **{FOLDER / f"{name}.md": text for name, text in texts.items()}}


def _title(name: str) -> str:
    return f"`{OPTIONS}`, by environment" if name == OF_ENVIRONMENTS else f"`{name}`"


def _page(title: str, blocks: list[Block]) -> str:
    return "\n".join([f"# Settings: {title}\n", *(line for block in blocks for line in _section(block, "../.."))])


def _section(block: Block, docs: str) -> Iterator[str]:
    """The lines of a block, on a page from which `docs` leads to the pages."""
    yield from (f"## {block.title}", "", linked(block.about, docs), "")
    rows = ((f"`{one.key}`", f"`{one.default}`", one.values, linked(one.meaning, docs)) for one in block.settings)
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in rows)
    yield from (*markdown_table(("key", "default", "values", "meaning"), escaped), "")


def main() -> None:
    """Writes the pages, and removes those of sections that are gone."""
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for gone in {*FOLDER.glob("*.md")} - written.keys():
        gone.unlink()
    for file, text in written.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
