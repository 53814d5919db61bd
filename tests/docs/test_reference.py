"""The generated pages of commands and of public names are what the code says, and the guide names nothing else."""

import importlib
import re
from pathlib import Path

import pytest

from docs.writers import commands, public_names
from tests.docs.test_pages import ROOT

EXAMPLES = [ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md"), *(ROOT / "docs" / "examples").glob("*.py")]
IMPORT = re.compile(r"^ *from (squelch[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)
NAMED = re.compile(r"`(?:squelch\.)?((?:envs|trl)\.(?:[a-z_]+\.)*)([A-Z]\w+)[`(.:]")


def names_in(text: str) -> set[tuple[str, str]]:
    """(module, name) of what a text imports of Squelch, or names by its place."""
    imported = {(module, name) for module, names in IMPORT.findall(text) for name in re.findall(r"\w+", names)}
    return imported | {(f"squelch.{place.rstrip('.')}", name) for place, name in NAMED.findall(text)}


def test_the_pages_are_what_the_code_says() -> None:
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run: python -m docs.writers.commands"
    assert public_names.PAGE.read_text(encoding="utf-8") == public_names.page(), (
        "run: python -m docs.writers.public_names"
    )


@pytest.mark.parametrize("module", sorted(public_names.NAMES.keys() - {"squelch.trl"}))
def test_every_public_name_exists(module: str) -> None:
    """Those of `squelch.trl` need TRL."""
    assert [name for name in public_names.NAMES[module] if not hasattr(importlib.import_module(module), name)] == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_what_the_guide_imports_or_names_is_public(file: Path) -> None:
    public = {(module, name) for module, names in public_names.NAMES.items() for name in names}
    assert names_in(file.read_text(encoding="utf-8")) <= public


def test_what_a_page_names_is_found_in_each_form() -> None:
    several = "from squelch.envs.a import (\n    B,\n    c,\n)\n    from squelch.trl import D  # why\n"
    assert names_in(several) == {("squelch.envs.a", "B"), ("squelch.envs.a", "c"), ("squelch.trl", "D")}
    assert names_in("`envs.e.Fox(x)` or `squelch.envs.g.Hen`") == {("squelch.envs.e", "Fox"), ("squelch.envs.g", "Hen")}
