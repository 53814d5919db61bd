"""How well HumanEval's recorded tests tell right programs from wrong ones, in the sandbox.

python -m benchmarks.human_eval [--quick] [--json]

For each of the 164 problems (`envs.deep_coder.human_eval`): whether the canonical solution passes all tests; the share
of tests that a program passes whose function returns None, or raises; and of mutants of the canonical solution, the
share that fails at least one test (the kill rate, with its 95% interval). A mutant differs in one place: a comparison,
an arithmetic or boolean operator, a constant, a condition, or a returned value. Some mutants compute the same, so the
rate stays below 1 for perfect tests, too. `--quick` takes every eighth problem.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from typing import Any

from benchmarks.common import arguments, print_figures
from squelch.actors.diagnosis.uncertainty import wilson_interval
from squelch.envs.deep_coder.human_eval import HumanEvalProblem, problems, read_human_eval
from squelch.envs.deep_coder.tasks import Problem
from squelch.envs.sandbox import Limits, Pool, SandboxConfig, judge, shared_pool

MAX_TESTS = 15
MUTANTS = 8
"""Mutants of one problem, drawn with a fixed seed."""
LIMITS = Limits(wall_s=4, cpu_s=4, total_s=16)
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutants(program: str, function: str) -> Iterator[str]:
    """Programs that differ from `program` in one place of the function, in the order of the places."""
    places = len(list(_places(ast.parse(program), function)))
    for place in range(places):
        tree = ast.parse(program)
        node = list(_places(tree, function))[place]
        _change(node)
        yield ast.unparse(ast.fix_missing_locations(tree))


def _places(tree: ast.AST, function: str) -> Iterator[ast.AST]:
    (body,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function][-1:]
    docstring = body.body[0].value if ast.get_docstring(body) and isinstance(body.body[0], ast.Expr) else None
    for node in ast.walk(body):
        if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp):
            operators = node.ops if isinstance(node, ast.Compare) else [node.op]
            if type(operators[0]) in SWAPS:
                yield node
        elif (
            (isinstance(node, ast.Constant) and node is not docstring and type(node.value) in (int, bool, str))
            or isinstance(node, ast.If)
            or (isinstance(node, ast.Return) and node.value is not None)
        ):
            yield node


def _change(node: ast.AST) -> None:
    match node:
        case ast.Compare():
            node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
        case ast.BinOp() | ast.BoolOp():
            node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int(number)):
            node.value = number + 1
        case ast.Constant(value=str(text)):
            node.value = f"{text}x"
        case ast.If():
            node.test = ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))
        case ast.Return():
            node.value = ast.Constant(None)


def passed(pool: Pool, problem: Problem, program: str) -> float:
    """The share of the problem's tests that a program passes."""
    verdicts = judge(pool, program, problem.tests, LIMITS, problem.function, problem.prelude)
    return sum(verdict.passed for verdict in verdicts) / len(verdicts)


def measure(pool: Pool, row: HumanEvalProblem) -> dict[str, Any]:
    """The figures of one problem."""
    problem = read_human_eval(row, pool, MAX_TESTS)
    drawn = list(mutants(row.solution, row.entry_point))
    drawn = random.Random(row.task_id).sample(drawn, min(MUTANTS, len(drawn)))
    shares = [passed(pool, problem, program) for program in drawn]
    head = f"def {row.entry_point}(*arguments):\n    "
    return {
        "problem": row.task_id,
        "tests": len(problem.tests),
        "canonical": passed(pool, problem, row.solution),
        "returns_none": passed(pool, problem, f"{head}return None"),
        "raises": passed(pool, problem, f"{head}raise ValueError"),
        "mutants": len(shares),
        "killed": sum(share < 1 for share in shares),
    }


def main() -> None:
    """Prints the figures."""
    given = arguments(__doc__, "every eighth problem")
    pool = shared_pool(SandboxConfig())
    rows = [measure(pool, row) for row in problems(None)[:: 8 if given.quick else 1]]
    made, killed = (sum(row[name] for row in rows) for name in ("mutants", "killed"))
    low, high = wilson_interval(killed, made)
    figures = {
        "problems": len(rows),
        "tests": sum(row["tests"] for row in rows),
        "canonical_passed": sum(row["canonical"] == 1 for row in rows),
        "returns_none_passed": sum(row["returns_none"] == 1 for row in rows),
        "raises_passed": sum(row["raises"] == 1 for row in rows),
        "mutants": made,
        "killed": killed,
        "kill_rate": killed / made,
        "kill_rate_interval": [low, high],
        "weakest": [row["problem"] for row in rows if row["mutants"] and row["killed"] < row["mutants"] / 2],
    }
    names = list(rows[0])
    table = [[f"{row[name]:.2f}" if isinstance(row[name], float) else row[name] for name in names] for row in rows]
    notes = [f"{name} {value}" for name, value in figures.items()]
    print_figures({**figures, "by_problem": rows}, given.json, names, table, notes)


if __name__ == "__main__":
    main()
