"""How a trainer's value becomes a setting's: the clauses of the tables' column `value`, one after another.

| clause | gives |
|---|---|
| `when KEY=VALUE ...` | the value if all these keys have these values (of a list: hold them), else nothing |
| `unless KEY=VALUE ...` | nothing if one of them has |
| `map A=B ...` | B for A, nothing for an empty B; any other value has no counterpart |
| `swap A=B ...` | B for A; any other value as it is |
| `positive`, `any` | the value, or true, if it is greater than 0, or true; else nothing |
| `divide KEY ...`, `of KEY ...` | value / product of the keys, product / value: whole numbers, else unknown |
| `times KEY ...`, `plus KEY`, `minus N`, `whole` | the product, the sum, the difference, rounded to a whole number |
| `pair KEY`, `item N`, `last` | both in a list; an entry of a list; the last one, or the value if it is none |
| `list`, `pick NAME ...`, `count` | a list of it; those entries; how many it has |
| `give VALUE` | that, if there is any value |
| `name` | the text as a run's name |
| `unknown REASON` | unknown |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import add, mul
from typing import Any

from squelch.kit.importing.tables import Row, scalar


@dataclass(frozen=True)
class Unknown:
    """A value that nobody can know without running a program. `why`: follows "unknown:"."""

    why: str


@dataclass(frozen=True)
class Lost:
    """A value that no setting expresses. `why`: as a clause."""

    why: str


class Nothing:
    """A row has nothing to say of a value."""


NOTHING = Nothing()
Look = Callable[[str], Any]
"""The value of another key of the trainer."""


def converted(row: Row, value: Any, look: Look) -> Any:
    """The setting's value; `NOTHING`, `Unknown` or `Lost` if there is none."""
    for clause in filter(None, (part.strip() for part in row.value.split(";"))):
        word, _, rest = clause.partition(" ")
        if word not in CONDITIONS and isinstance(value, Unknown):
            return value
        if word not in OF_NONE and value is None:
            return NOTHING
        value = CLAUSES[word](value, rest, look)
        if isinstance(value, Nothing | Lost) or (isinstance(value, Unknown) and word in CONDITIONS):
            return value
    return NOTHING if value is None else value


def same(value: Any, text: str) -> bool:
    """Whether a value is what the text says; of a list, whether it holds it."""
    if isinstance(value, list | tuple):
        return any(same(one, text) for one in value)
    wanted = scalar(text)
    if isinstance(value, bool) or isinstance(wanted, bool) or value is None or wanted is None:
        return value is wanted
    return value == wanted or str(value) == text


def _holds(conditions: str, look: Look) -> list[bool | Unknown]:
    pairs = (one.partition("=") for one in conditions.split())
    found = [(look(key), text) for key, _, text in pairs]
    return [value if isinstance(value, Unknown) else same(value, text) for value, text in found]


def _if(wanted: bool, value: Any, conditions: str, look: Look) -> Any:
    held = _holds(conditions, look)
    unknown = next((one for one in held if isinstance(one, Unknown)), None)
    return NOTHING if (not wanted) in held else unknown or value


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (one.partition("=") for one in text.split())]


def _map(value: Any, text: str, look: Look) -> Any:
    for left, right in _pairs(text):
        if same(value, left):
            return scalar(right) if right else NOTHING
    known = ", ".join(left for left, _ in _pairs(text) if left != "null")
    return Lost(f"of its values only {known} have a counterpart")


def _swap(value: Any, text: str, look: Look) -> Any:
    return next((scalar(right) for left, right in _pairs(text) if same(value, left)), value)


def _number(value: Any) -> float | Unknown:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value if isinstance(value, Unknown) else Unknown(f"{value!r} is no number")
    return value


def _product(keys: str, look: Look) -> float | Unknown:
    found = 1
    for key in keys.split():
        number = _number(look(key))
        if isinstance(number, Unknown):
            return Unknown(f"{key} is unknown: {number.why}")
        found *= number
    return found


def _joined(left: float | Unknown, right: float | Unknown, join: Callable[[float, float], Any]) -> Any:
    """What both numbers give; the first of them that is unknown."""
    if isinstance(left, Unknown):
        return left
    return right if isinstance(right, Unknown) else join(left, right)


def _quotient(above: float, below: float) -> int | Unknown:
    if not below or above % below:
        return Unknown(f"{above:g} / {below:g} is no whole number")
    return int(above // below)


def _divide(value: Any, keys: str, look: Look) -> Any:
    return _joined(_number(value), _product(keys, look), _quotient)


def _of(value: Any, keys: str, look: Look) -> Any:
    return _joined(_product(keys, look), _number(value), _quotient)


def _times(value: Any, keys: str, look: Look) -> Any:
    return _joined(_number(value), _product(keys, look), mul)


def _plus(value: Any, key: str, look: Look) -> Any:
    return _joined(_number(value), _number(look(key)), add)


def _positive(value: Any, _: str, look: Look) -> Any:
    number = _number(value)
    return number if isinstance(number, Unknown) or number > 0 else NOTHING


def _item(value: Any, place: str, look: Look) -> Any:
    return value[int(place)] if isinstance(value, list | tuple) and int(place) < len(value) else Unknown(f"{value!r}")


def _pair(value: Any, key: str, look: Look) -> Any:
    other = look(key)
    return other if isinstance(other, Unknown) else [value, other]


def _list(value: Any, _: str, look: Look) -> Any:
    """One entry stays alone."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not value:
        return NOTHING
    return value[0] if len(value) == 1 else list(value)


def _pick(value: Any, names: str, look: Look) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    return [one for one in given if one in names.split()] or NOTHING


def _name(value: Any, _: str, look: Look) -> Any:
    text = re.sub(r"[^A-Za-z0-9_+.-]+", "-", str(value)).lstrip(".-")[:200]
    return text or NOTHING


CONDITIONS = ("when", "unless", "unknown")
"""Clauses that ask other keys, so that the value may be unknown."""
OF_NONE = (*CONDITIONS, "map", "swap", "pair")
"""Clauses that make something of no value, too; of the others nothing comes."""
CLAUSES: Mapping[str, Callable[[Any, str, Look], Any]] = {
    "when": partial(_if, True),
    "unless": partial(_if, False),
    "unknown": lambda value, why, look: Unknown(f"{why} ({value} there)" if isinstance(value, int) else why),
    "map": _map,
    "swap": _swap,
    "positive": _positive,
    "any": lambda value, text, look: True if value else NOTHING,
    "divide": _divide,
    "of": _of,
    "times": _times,
    "plus": _plus,
    "minus": lambda value, text, look: value - int(text),
    "whole": lambda value, text, look: max(1, round(value)),
    "pair": _pair,
    "item": _item,
    "last": lambda value, text, look: value[-1] if isinstance(value, list) and value else value,
    "count": lambda value, text, look: len(value) if isinstance(value, list) else Unknown(f"{value!r} is no list"),
    "list": _list,
    "pick": _pick,
    "give": lambda value, text, look: scalar(text),
    "name": _name,
}
