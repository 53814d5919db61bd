"""Arguments of the commands that read files of other trainers, and the checks of numbers. Loads no heavy package."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds FILE and `--json`, for the commands that read files of other trainers."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the file described above")
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of a table")


def add_format(parser: argparse.ArgumentParser) -> None:
    """Adds `--format`, for files that trainers write."""
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="the trainer's format, where its columns do not show it: trl, verl, verl_validation, verifiers (also "
        "prime-rl), nemo_rl, areal, slime, skyrl, or columns",
    )


def add_compat(parser: argparse.ArgumentParser, ragen: str) -> None:
    """Adds `--compat`. `ragen`: the differences of the authors' code, for the help text."""
    parser.add_argument(
        "--compat",
        choices=("paper", "ragen"),
        default="paper",
        help=f"paper: the definitions of the paper; ragen: those of the authors' code: {ragen} (default: paper)",
    )


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
