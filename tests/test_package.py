"""The wheel, installed away from the checkout: what its commands read travels with them."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.wheel import build, install

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ROOMS = ("actors", "cluster", "deploy", "envs", "learner")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that neither an older build's leftovers get in nor new ones into the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source, built = folder / "source", folder / "built"
    for room in (*ROOMS, "squelch", "tests", "benchmarks"):
        shutil.copytree(ROOT / room, source / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source / file)
    return build(source, built)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `squelch` of an environment that holds the wheel."""
    return install(wheel, tmp_path_factory.mktemp("environment")) / "squelch"


def outside(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the installed wheel in a folder that is no checkout."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run([str(installed), *words], cwd=folder, env=env, capture_output=True, text=True, timeout=180)


def test_the_wheel_holds_the_rooms_and_what_they_read(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"squelch"}, "no bare name is installed"
    kinds = {".yaml", ".yml", ".json", ".csv", ".txt", ".html", ".j2", ".js", ".css", ".svg"}
    read = [p.relative_to(ROOT) for room in ROOMS for p in (ROOT / room).rglob("*") if p.suffix in kinds]
    assert len(read) > 20 and {f"squelch/{path}" for path in read} <= names
    assert {"squelch/py.typed", "squelch/api/scoring.py", "squelch/trl/observer.py"} <= names


def test_the_wheel_registers_the_command_and_the_plugin_of_vllm(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        text = archive.read(name).decode()
    assert "squelch = squelch.cluster.entry:main" in text
    assert "[vllm.general_plugins]\nsquelch = squelch.actors.rollout.weight_transfer:register" in text


def test_packages_of_the_users_own_with_the_rooms_names_are_neither_loaded_nor_hidden(
    installed: Path, tmp_path: Path
) -> None:
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("MINE = True\n")
    code = f"import {', '.join(ROOMS)}; from squelch.cluster import config; from squelch.envs import base; "
    code += "import squelch; assert squelch.filter([[0, 1]]).kept.all() and squelch.Monitor and squelch.score; "
    code += f"print(all(room.MINE for room in ({', '.join(ROOMS)})), config.RECIPES.parent.name, base.NAMESPACE)"
    words = [str(installed.with_name("python")), "-c", code]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=180, env={"PATH": os.environ["PATH"]}
    )
    assert done.stdout.split() == ["True", "cluster", "squelch"], done.stderr
    shown = outside(installed, tmp_path, "config", "frozenlake")
    assert shown.returncode == 0 and "FrozenLake" in shown.stdout, shown.stderr


def test_installed_commands_run_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "rewards.npz", rewards=np.array([[0.0, 1.0], [1.0, 1.0]]))
    np.savez(tmp_path / "m.npz", log_likelihood=np.array([[[-1.0, -3.0]], [[-3.0, -1.0]]]), lengths=np.ones((2, 1)))
    listed = outside(installed, tmp_path, "config", "--list")
    shipped = sorted(path.stem for path in (ROOT / "cluster" / "recipes").glob("[!_]*.yaml"))
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == shipped
    kept = outside(installed, tmp_path, "filter", "rewards.npz")
    assert kept.returncode == 0 and "1 of 2" in kept.stdout, kept.stderr
    written = outside(installed, tmp_path, "dashboards", "export", "boards")
    assert written.returncode == 0 and list((tmp_path / "boards").rglob("reasoning.json")), written.stderr
    proxies = outside(installed, tmp_path, "mi", "m.npz")
    assert proxies.returncode == 0 and "retrieval accuracy" in proxies.stdout, proxies.stderr
    health = outside(installed, tmp_path, "doctor")
    assert health.returncode == 0 and "vLLM plugin: registered" in health.stdout, health.stdout + health.stderr


def test_installed_code_is_no_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import squelch.cluster.package as package; print(package.__file__, package.checkout())"
    python = installed.with_name("python")
    found = subprocess.run(
        [python, "-P", "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=180
    )
    file, root = found.stdout.split()
    assert Path(file).is_relative_to(installed.parents[1]) and root == "None"
