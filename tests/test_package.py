"""The wheel, installed away from the checkout: what its commands read travels with them."""

import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.wheel import build, git, install, present_commit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LINKED = ("actors", "cluster", "envs", "learner")
ROOMS = (*LINKED, "deploy")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(present_commit(), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `squelch` of an environment that holds the wheel."""
    return install(wheel, tmp_path_factory.mktemp("environment")) / "squelch"


def outside(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the installed wheel in a folder that is no checkout."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run([str(installed), *words], cwd=folder, env=env, capture_output=True, text=True, timeout=180)


def test_the_wheel_of_an_archive_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    known = set(git("ls-files", "squelch").split())
    assert len(known) > 500
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == known


def test_no_link_lies_below_the_package() -> None:
    """In an archive that a program unpacks without links, the code beyond them would be missing."""
    links = [path for path in (ROOT / "squelch").rglob("*") if path.is_symlink()]
    assert links == [] and all((ROOT / room).resolve() == ROOT / "squelch" / room for room in LINKED)


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
    shipped = sorted(path.stem for path in (ROOT / "squelch" / "cluster" / "recipes").glob("[!_]*.yaml"))
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
    code = "import squelch.kit.base.package as package; print(package.__file__, package.checkout())"
    python = installed.with_name("python")
    found = subprocess.run(
        [python, "-P", "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=180
    )
    file, root = found.stdout.split()
    assert Path(file).is_relative_to(installed.parents[1]) and root == "None"
