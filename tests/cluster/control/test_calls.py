"""The rows of the calls to remote actors fit the functions that they call."""

import ast
import importlib
import inspect

import pytest

from squelch.cluster.control import calls
from squelch.cluster.control.calls import Call, Signs, Table

TABLES = {name: table for name, table in vars(calls).items() if isinstance(table, Table)}
ROWS = {name: row for name, row in vars(calls).items() if isinstance(row, Call)}


def num_arguments(name: str) -> int:
    """The number of arguments that the row's type declares."""
    (row,) = ast.parse(calls.__annotations__[name]).body
    return len(row.value.slice.elts[0].elts)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_names_a_function_that_takes_as_many_arguments_as_the_row_declares(name: str) -> None:
    table = TABLES[name]
    module, _, title = table.target.partition(":")
    held = getattr(importlib.import_module(module), title)
    for row in table.rows:
        declared = next(key for key, one in ROWS.items() if one is row)
        inspect.signature(getattr(held, row.method)).bind(None, *[None] * num_arguments(declared))
    assert all(callable(getattr(held, method)) for method in (*table.direct, "progress")), "each is supervised"


def test_every_row_belongs_to_an_actor_and_watches_the_learner_alone() -> None:
    owned = [row for table in TABLES.values() for row in table.rows]
    assert all(any(row is one for one in owned) for row in ROWS.values())
    others = [row for name, table in TABLES.items() if name != "LEARNER_RANK" for row in table.rows]
    assert all(row.signs is Signs.NONE and not row.all_ranks for row in others)
