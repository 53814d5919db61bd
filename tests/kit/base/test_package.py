"""Which installation brings a package; what commands do without it: tests/test_package.py."""

import tomllib
from pathlib import Path

from squelch.kit.base.package import NEEDED_BY, needs_installation

ROOT = Path(__file__).parents[3]


def test_the_table_of_packages_is_that_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("score", "train"):
        named = {one.partition("[")[0].partition(">")[0].partition("=")[0].replace("-", "_") for one in extras[extra]}
        assert {name for name, brought in NEEDED_BY.items() if brought == extra} == named - {"squelch_rl"}


def test_only_packages_of_extras_are_named() -> None:
    torch = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert str(needs_installation(torch, of_kit=True)).endswith("pip install 'squelch-rl[score]'")
    assert needs_installation(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
