"""Arithmetic expressions of integers: read by a grammar, valued exactly, never evaluated as code.

expression := term (("+" | "-") term)*        term := factor (("*" | "/") factor)*
factor := number | "(" expression ")"         `×`, `÷` and the minus sign U+2212 are read as `*`, `/` and `-`
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

MAX_LENGTH = 96
"""Most characters of an expression, with one space between tokens; six numbers need fewer than 60."""

_SHAPE = re.compile(r"[0-9+\-*/() ]+")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_SIGNS = str.maketrans({"×": "*", "÷": "/", "−": "-"})
_PRIORITY = {"+": 1, "-": 1, "*": 2, "/": 2}
_INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}

Value = int | Fraction


def read_expression(text: str) -> str | None:
    """The expression with spaces between tokens; None if the text is no expression."""
    text = text.strip()
    if len(text) > MAX_LENGTH:
        return None
    text = text.translate(_SIGNS)
    spaced = " ".join(_TOKEN.findall(text))
    return spaced if _SHAPE.fullmatch(text) and parse_expression(spaced) is not None else None


@lru_cache(maxsize=8192)
def parse_expression(text: str) -> tuple[str, ...] | None:
    """The expression in postfix order, with numbers without leading zeros; None if the text does not fit the grammar.

    Precedence parsing with two explicit lists: no recursion, time linear in the text, at most `MAX_LENGTH` characters.
    """
    if len(text) > MAX_LENGTH or not _SHAPE.fullmatch(text):
        return None
    output: list[str] = []
    waiting: list[str] = []  # operators and opening brackets
    operand_next = True
    for token in _TOKEN.findall(text):
        if token.isdigit() != operand_next and token not in "()":
            return None
        if token.isdigit():
            output.append(str(int(token)))
            operand_next = False
        elif token == "(":
            if not operand_next:
                return None
            waiting.append(token)
        elif token == ")":
            if operand_next or not _close(output, waiting):
                return None
        else:
            while waiting and _PRIORITY.get(waiting[-1], 0) >= _PRIORITY[token]:
                output.append(waiting.pop())
            waiting.append(token)
            operand_next = True
    if operand_next or "(" in waiting:
        return None
    return (*output, *reversed(waiting))


def _close(output: list[str], waiting: list[str]) -> bool:
    """Move the operators back to the matching bracket; False if there is none."""
    while waiting:
        operator = waiting.pop()
        if operator == "(":
            return True
        output.append(operator)
    return False


def numbers_in(postfix: Sequence[str]) -> list[int]:
    """The numbers of an expression, in order."""
    return [int(token) for token in postfix if token.isdigit()]


def value_of(postfix: Sequence[str]) -> Value | None:
    """The exact value of a parsed expression; None if it divides by zero."""
    stack: list[Value] = []
    for token in postfix:
        if token.isdigit():
            stack.append(int(token))
            continue
        right, left = stack.pop(), stack.pop()
        if token == "/" and right == 0:
            return None
        stack.append(_apply(left, token, right))
    return stack[0]


def _apply(left: Value, sign: str, right: Value) -> Value:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    return left * right if sign == "*" else Fraction(left) / right


def normal_form(postfix: Sequence[str]) -> str:
    """The expression up to the order of terms and factors and up to brackets: its signed terms, or factors, sorted;
    a sum within a sum, and a product within a product, are taken apart."""
    stack: list[tuple[str, ...]] = []  # terms or factors with their signs; a number has none
    for token in postfix:
        if token.isdigit():
            stack.append((token,))
            continue
        right, left = stack.pop(), stack.pop()
        first = "+" if token in "+-" else "*"
        stack.append(tuple(sorted((*_parts(left, first), *_parts(right, token)))))
    return " ".join(stack[0])


def _parts(form: tuple[str, ...], sign: str) -> tuple[str, ...]:
    """The terms, or factors, that a form contributes after `sign`."""
    if _PRIORITY.get(form[0][0]) != _PRIORITY[sign]:
        return (f"{sign}({' '.join(form)})",)
    return form if sign in "+*" else tuple(_INVERSE[part[0]] + part[1:] for part in form)


def uses_numbers(postfix: Sequence[str], numbers: Sequence[int], rule: str) -> bool:
    """Whether the expression uses only the task's numbers, and as often as the rule requires."""
    used, given = Counter(numbers_in(postfix)), Counter(numbers)
    return used == given if rule == "exactly_once" else used <= given
