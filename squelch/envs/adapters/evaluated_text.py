"""Which scorers evaluate the text of an answer as a program.

Such a text is the policy's: it could read files, and change the scorer so that every later answer earns the reward.
Scorers are read, not run: from `score_answer` through the methods and functions of its module that it calls, a call of
an evaluator (`EVALUATORS`) counts unless all that it is given is the task's own (`OWN`).
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator

EVALUATORS = frozenset({"eval", "exec", "parse_expr", "sympify"})
"""Python's, and those of sympy, which use them."""
OWN = ("entry", "metadata", "problem")
SCORER = "score_answer"


def evaluates_text(scorer: type) -> bool:
    """Whether the class's `score_answer` evaluates what it is given; also if its source cannot be read."""
    owner = next(base for base in scorer.__mro__ if SCORER in vars(base))
    try:
        tree = ast.parse(inspect.getsource(sys.modules[owner.__module__]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return True
    known = dict(_functions(tree, owner.__name__))
    todo, seen = [SCORER], set[str]()
    while todo:
        name = todo.pop()
        seen.add(name)
        for called, given in _calls(known[name]):
            if called in known:
                todo += [] if called in seen else [called]
            elif called in EVALUATORS and not all(word.startswith(OWN) for word in given):
                return True
    return False


def _functions(tree: ast.Module, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions of the module and methods of the class, by name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and node.name == name:
            yield from ((inner.name, inner) for inner in node.body if isinstance(inner, ast.FunctionDef))


def _calls(function: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """The last name of each function that is called, and its positional arguments as text."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            yield name, [ast.unparse(argument) for argument in node.args]
