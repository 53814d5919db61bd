"""Arguments that several commands take, and the checks of their values. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from cluster.errors import UserError

JOB_SERVER = "http://127.0.0.1:8265"


def add_recipe(parser: argparse.ArgumentParser, of_what: str = "dotted overrides, e.g. filter.rho=0.5") -> None:
    """The positional arguments RECIPE and key=value ..."""
    parser.add_argument("recipe", help="a shipped recipe (see `squelch config --list`) or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=of_what)


def add_job_server(parser: argparse.ArgumentParser) -> None:
    """`--address` of the server that takes jobs."""
    parser.add_argument("--address", default=JOB_SERVER, help="the cluster's dashboard address")


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    """The positional argument RUN_DIR."""
    parser.add_argument("run_dir", type=Path, help="the run's folder, e.g. runs/frozenlake")


def add_file(parser: argparse.ArgumentParser) -> None:
    """FILE and `--json` of the commands that read other trainers' files."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the file described above")
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of a table")


def add_compat(parser: argparse.ArgumentParser, ragen: str) -> None:
    """`--compat`; `ragen` says what the authors' code does differently."""
    parser.add_argument(
        "--compat",
        choices=("paper", "ragen"),
        default="paper",
        help=f"paper: the definitions of the paper; ragen: those of the authors' code: {ragen} (default: paper)",
    )


def run_folder(path: Path) -> Path:
    """The folder, if it holds a run; UserError otherwise."""
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} holds no run: it has no config.yaml; give a folder such as runs/frozenlake")
    return path


def natural(text: str) -> int:
    """The value of a flag that takes a whole number from 0 on; argparse names the flag when it is not one."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """The value of a flag that takes a finite number above 0, read by `int` or `float`."""

    def read(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} must be above 0")
        return value

    return read
