"""DeepCoder's published problems, with the tests of agentica-org/DeepCoder-Preview-Dataset and its three sources.

A row has `problem`, `tests` (JSON text, or the value itself) and, by source, `solutions`, `starter_code`, `metadata`.

| source | tests |
|---|---|
| TACO | `{"inputs": [...], "outputs": [...]}`, for calls with `"fn_name"`; inputs are then lists of arguments |
| PrimeIntellect | `[{"type": "stdin_stdout" or "function_call", "fn_name", "input", "output"}, ...]` |
| LiveCodeBench | `[{"testtype": "stdin" or "functional", "input", "output", "metadata": {"func_name"}}, ...]` |

LiveCodeBench's function name may also be in the row's `metadata`; the input of its calls is one JSON value per line,
the output is a JSON value.

Invariants: a bad row, such as one without tests, raises a ValueError that names file, row and column. If the expected
value of a call is `[v]`, both `[v]` and `v` pass, because the sources wrap only some values. If there are more than
`max_tests` tests, those with the longest inputs are kept, as DeepCoder's authors do. A test of more than `LARGEST_TEST`
characters is excluded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from squelch.envs.data.rows import Part, split_rows
from squelch.envs.deep_coder.tasks import Problem
from squelch.envs.sandbox import Question, Test
from squelch.kit.records.splits import Split, task_key_of
from squelch.kit.untrusted.files import Unreadable, brief
from squelch.kit.untrusted.text import parse_json

LARGEST_TEST = 4_000_000
PRELUDE = "from typing import *\nimport collections, functools, heapq, itertools, math, re, string\n"
PRELUDE += "from collections import *\nfrom functools import *\nfrom heapq import *\nfrom itertools import *\n"
"""Imports that starter code expects, as on LeetCode."""
CALLS = ("function_call", "functional")
_FENCED = re.compile(r"```(?:python|py)?[^\S\n]*\n(.*?)```", re.DOTALL)


class PublishedProblem(BaseModel):
    """A row with the published names of its columns."""

    problem: str
    tests: Any
    solutions: Any = None
    starter_code: str | None = None
    metadata: Any = None


@lru_cache(maxsize=4)
def published(data: str, split: Split, subset: str | None) -> Part[PublishedProblem]:
    """The split's rows, opened once per process. A published `test` is never read."""
    return split_rows(data, split, PublishedProblem, group_by="problem", subset=subset)


def read_problem(row: PublishedProblem, where: str, max_tests: int) -> Problem:
    """The problem of a row. Raises ValueError, with a message that begins with `where`, for a bad row."""
    raw = _unpacked(row.tests, f"{where}, column tests")
    if isinstance(raw, dict) and "inputs" in raw:
        function, tests = _of_lists(raw, f"{where}, column tests")
    elif isinstance(raw, list):
        named = _function_of(row.metadata, f"{where}, column metadata")
        function, tests = _of_records(raw, named, f"{where}, column tests")
    else:
        raise ValueError(
            f"{where}, column tests: an object with inputs and outputs or a list is needed ({_brief(raw)})"
        )
    kept = list(kept_tests(tests, f"{where}, column tests", max_tests))  # a list: keys are digests of its text
    starter = f"\n{row.starter_code.strip()}" if row.starter_code and row.starter_code.strip() else ""
    text = row.problem.strip() + starter
    if function is not None and function not in text:
        text += f"\nThe function is called {function} ."
    prelude = PRELUDE if function is not None else ""
    key = task_key_of("DeepCoder", f"{text}\n{kept}")
    return Problem(text, tuple(kept), function, where, key, prelude, _first_program(row.solutions))


def kept_tests(tests: Sequence[Test], where: str, max_tests: int) -> tuple[Test, ...]:
    """At most `max_tests` tests, those with the longest inputs. Raises ValueError if there are none."""
    kept = [test for test in tests if _size(test) <= LARGEST_TEST]
    if not kept:
        raise ValueError(f"{where}: there are no tests")
    return tuple(sorted(kept, key=_size, reverse=True)[:max_tests])


def _unpacked(value: Any, where: str) -> Any:
    return parse_json(value.encode(), where) if isinstance(value, str) else value


def _of_lists(raw: dict[str, Any], where: str) -> tuple[str | None, list[Test]]:
    """Function name and tests in TACO's form."""
    inputs, outputs, function = raw.get("inputs"), raw.get("outputs"), _name(raw.get("fn_name"), where)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError(f"{where}: inputs and outputs must be lists of one length")
    pairs = zip(inputs, outputs, strict=True)
    if function:
        return function, [_call(given, wanted, f"{where}, test {k}") for k, (given, wanted) in enumerate(pairs, 1)]
    return None, [_stream(given, wanted, f"{where}, test {k}") for k, (given, wanted) in enumerate(pairs, 1)]


def _of_records(raw: list[Any], row_function: str | None, where: str) -> tuple[str | None, list[Test]]:
    """Function name and tests in the form of PrimeIntellect and LiveCodeBench."""
    tests, functions = [], set()
    for number, record in enumerate(raw, 1):
        here = f"{where}, test {number}"
        if not isinstance(record, dict) or "input" not in record or "output" not in record:
            raise ValueError(f"{here}: an object with input and output is needed ({_brief(record)})")
        kind = str(record.get("type") or record.get("testtype"))
        function = (
            _name(record.get("fn_name"), here)
            or _function_of(record.get("metadata"), f"{here}, metadata")
            or row_function
        )
        if kind in CALLS and not function:
            raise ValueError(f"{here}: a call, but neither fn_name nor metadata.func_name names the function")
        functions.add(function if kind in CALLS else None)
        read = _call if kind in CALLS else _stream
        tests.append(read(record["input"], record["output"], here))
    if len(functions) > 1:
        raise ValueError(f"{where}: tests of one problem must call one function, or none (got {functions})")
    return next(iter(functions), None), tests


def _function_of(metadata: Any, where: str) -> str | None:
    found = _unpacked(metadata, where) if str(metadata).startswith("{") else metadata
    return _name(found.get("func_name"), where) if isinstance(found, dict) else None


def _name(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    raise ValueError(f"{where}: a function's name must be text ({_brief(value)})")


def _stream(given: Any, wanted: Any, where: str) -> Test:
    """A test of standard input and output; lists become lines."""
    texts = ["\n".join(map(str, part)) if isinstance(part, list) else part for part in (given, wanted)]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{where}: input and output must be text or lists of lines ({_brief(given)}, {_brief(wanted)})"
        )
    return Test(Question(stdin=texts[0]), (texts[1],))


def _call(given: Any, wanted: Any, where: str) -> Test:
    """A test of a call. `given`: the arguments as a list, or as text with one JSON value per line; `wanted`: the
    expected value, or its JSON text."""
    if isinstance(given, str):
        arguments = [_value(line) for line in given.splitlines() if line.strip()]
        wanted = _value(wanted) if isinstance(wanted, str) else wanted
    elif isinstance(given, list):
        arguments = given
    else:
        raise ValueError(f"{where}: arguments must be a list or JSON values on lines ({_brief(given)})")
    unwrapped = (wanted[0],) if isinstance(wanted, list) and len(wanted) == 1 else ()
    return Test(Question(arguments=tuple(arguments)), (wanted, *unwrapped))


def _value(text: str) -> Any:
    try:
        return parse_json(text.encode(), "a value")
    except Unreadable:
        return text


def _size(test: Test) -> int:
    return len(test.question.stdin) + len(repr(test.question.arguments))


def _first_program(solutions: Any) -> str | None:
    """The first published solution, without a Markdown fence around it."""
    found = _value(solutions) if isinstance(solutions, str) else solutions
    first = found[0] if isinstance(found, list) and found else found
    if not isinstance(first, str) or not first.strip():
        return None
    fenced = _FENCED.search(first)
    return (fenced[1] if fenced else first).strip()


def _brief(value: Any) -> str:
    return f"got {brief(value, 60)}"
