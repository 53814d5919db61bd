"""The kit's commands run without the packages of the extras; every other says in one line what to install."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from squelch.kit.base.package import NEEDED_BY, needs_installation

ROOT = Path(__file__).parents[3]
ALONE = """
import sys
from squelch.kit.base.package import NEEDED_BY
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NEEDED_BY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from squelch.cluster.cli import main
sys.exit(main(sys.argv[1:]))
"""


def alone(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command where no package of an extra is installed."""
    command = [sys.executable, "-c", ALONE, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180)


def test_the_table_of_packages_is_that_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("score", "train"):
        named = {one.partition("[")[0].partition(">")[0].partition("=")[0].replace("-", "_") for one in extras[extra]}
        assert {name for name, brought in NEEDED_BY.items() if brought == extra} == named - {"squelch_rl"}


def test_a_command_of_the_kit_needs_no_package_of_an_extra(tmp_path: Path) -> None:
    rows = [{"group_id": group, "reward": reward} for group, reward in ((0, 0), (0, 1), (1, 1), (1, 1))]
    (tmp_path / "rewards.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = alone(tmp_path, "filter", "rewards.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    assert '"kept"' in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("train", "frozenlake"), "the package gymnasium is not installed: pip install 'squelch-rl[train]'"),
        (("inspect", "."), "squelch: inspect: the package uvicorn is not installed: pip install 'squelch-rl[train]'"),
        (("tiny", "out"), "squelch: tiny: the package safetensors is not installed: pip install 'squelch-rl[train]'"),
    ],
)
def test_a_command_of_the_system_says_what_to_install(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    done = alone(tmp_path, *words)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.strip().endswith(line) and len(done.stderr.splitlines()) == 1


def test_only_packages_of_extras_are_named() -> None:
    torch = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert str(needs_installation(torch, of_kit=True)).endswith("pip install 'squelch-rl[score]'")
    assert needs_installation(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
