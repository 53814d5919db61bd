"""The table of ways is whole, no other module tells ways apart by name, and a row and a class are a new way."""

from __future__ import annotations

import ast
from pathlib import Path
from pkgutil import resolve_name

import pytest

from docs.writers import weight_ways as page
from squelch.actors import weight_ways
from squelch.actors.weight_ways import WAYS, Way
from squelch.cluster.config import load
from squelch.learner.published_copy import Copies, Copy, HostCopy
from tests.fakes.gpus import FakeGpu

ROOT = Path(__file__).parents[2] / "squelch"
SOURCES = [file for file in ROOT.rglob("*.py") if file != ROOT / "actors" / "weight_ways.py"]
NAMES = {*WAYS, weight_ways.BROADCAST}
LISTS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_each_row_is_complete(way: Way) -> None:
    assert way.words and way.terms and WAYS[way.otherwise].name == way.otherwise
    assert way.otherwise != way.name or not (way.copy or way.group), "the last one fails for nobody"
    assert not (way.copy and way.group)
    assert not way.copy or issubclass(resolve_name(way.copy), Copy)
    assert not way.group or callable(resolve_name(way.group))
    assert way.unfit(load("frozenlake", [])) == "" or way.fits
    assert not way.mend or way.fits, "what to do about settings that rule nothing out"


def told_apart(source: str) -> list[str]:
    """Names of ways to which a module compares, and of those that it lists, two or more at once."""
    if not any(name in source for name in NAMES):
        return []
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Compare, ast.MatchValue, *LISTS)):
            texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and one.value in NAMES]
            found += texts if len(set(texts)) > isinstance(node, LISTS) else []
    return found


@pytest.mark.parametrize(
    "source", ['way == "ipc"', 'way in ("nccl", "gloo")', "match way:\n case 'ipc': pass", 'Literal["ipc", "nccl"]']
)
def test_a_module_that_tells_ways_apart_by_name_is_found(source: str) -> None:
    assert told_apart(source)


def test_no_other_module_tells_ways_apart_by_name() -> None:
    assert {file: found for file in SOURCES if (found := told_apart(file.read_text(encoding="utf-8")))} == {}


def test_the_guides_table_is_that_of_the_code() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_table(text) == text, "run: python -m docs.writers.weight_ways"


class Mine(HostCopy):
    """A way of one's own, which reads as shared memory does."""


def test_a_row_and_a_class_are_a_new_way(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Way("mine", "by my own", "needs nothing", copy=f"{__name__}:Mine", otherwise="shared_memory")
    monkeypatch.setitem(weight_ways.WAYS, "mine", row)
    copies = Copies("mine", FakeGpu(), 1.0, pytest.fail)
    copy = copies.next(())
    assert isinstance(copy, Mine) and copy.seal().way == "mine"
    monkeypatch.setattr(Mine, "begun", classmethod(lambda cls, copies, table: None))
    other = copies.next(())
    assert not isinstance(other, Mine) and other.seal().way == "shared_memory"
