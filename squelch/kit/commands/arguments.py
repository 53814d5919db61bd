"""Readers of the numbers that flags take. Loads no heavy package."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping


def natural(text: str) -> int:
    """Reads the value of a flag that takes a whole number of 0 or more; argparse names the flag in the error."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


NUMBERS: Mapping[Callable[[str], float], str] = {int: "whole number", float: "number"}


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """Returns a reader for a flag that takes a finite number above 0; `kind` (`int` or `float`) reads the number."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {NUMBERS[kind]} above 0")
        return value

    return read
