"""The wheel, installed away from the checkout: what its commands read travels with them, and what each of its
installations brings."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from squelch.cluster.cli import COMMANDS
from tests.earlier import lay
from tests.wheel import NoIndex, build, git, install, install_alone, present_commit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LINKED = ("actors", "cluster", "envs", "learner")
ROOMS = (*LINKED, "deploy")
NOT_OF_THE_KIT = re.compile(
    "ray|vllm.*|torch.*|triton.*|nvidia-.*|transformers|safetensors|gymnasium|matplotlib|accelerate|peft|datasets|rich"
    "|aiohttp|starlette|fastapi|uvicorn|flask|grpcio"
)
RUN, SAMPLES, OUT = "runs/run", "rows.jsonl", "out"
WITHOUT_TORCH = {
    "score": (SAMPLES, "--model", f"{RUN}/checkpoints/step-2/hf"),
    "monitor": (OUT, "--model", OUT),
}
OF_THE_SYSTEM = {
    "train": ("frozenlake",),
    "submit": ("frozenlake", "--address", "http://127.0.0.1:1"),
    "job": ("list", "--address", "http://127.0.0.1:1"),
    "watch": (RUN,),
    "inspect": (RUN,),
    "scale": (RUN, "--rollout-workers", "2"),
    "eval": (RUN,),
    "tiny": ("policy-of-mine",),
    "warmup": ("smollm2", "warm", "--env", "Sokoban"),
    "gradients": (RUN,),
    "report": (RUN,),
    "sweep": ("frozenlake", "--seeds", "0"),
    "plan": ("frozenlake",),
    "config": ("frozenlake",),
    "export": (RUN, OUT),
}
OF_THE_KIT = {
    "filter": ((SAMPLES,), "2 of 3"),
    "mi": (("m.npz",), "retrieval accuracy"),
    "status": ((RUN,), "finished, step 2/2"),
    "check": ((SAMPLES,), "finding"),
    "trace": ((RUN,), "perfetto"),
    "import": (("rl.toml", "loop.prompts=4", "sampling.group_size=4", "environment.options.data=x.jsonl"), "written: "),
    "dashboards": (("export", "boards"), "reasoning.json"),
}
"""Commands that need no other package, and words that they then print; some are of the system."""


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


# What `pip install squelch-rl` brings


@pytest.fixture(scope="module")
def kit(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `squelch` of an environment with the wheel and what pip installs with it."""
    try:
        return install_alone(wheel, tmp_path_factory.mktemp("kit")) / "squelch"
    except NoIndex as error:
        pytest.skip(f"the package index does not answer: {error}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a trainer's samples, a score matrix and a trainer's configuration."""
    folder = tmp_path_factory.mktemp("files")
    lay(folder)
    (folder / OUT).mkdir()
    rows = [
        {"prompt": f"p{n}", "completion": f"c{i} </think> a", "reward": n * i % 3} for n in range(3) for i in (0, 1)
    ]
    (folder / "rl.toml").write_text("max_steps = 10\n")
    (folder / SAMPLES).write_text("\n".join(map(json.dumps, rows)))
    np.savez(folder / "m.npz", log_likelihood=np.array([[[-1.0, -3.0]], [[-3.0, -1.0]]]), lengths=np.ones((2, 1)))
    return folder


def test_the_kit_brings_no_package_of_the_system(kit: Path) -> None:
    words = ["--python", str(kit.with_name("python")), "list", "--format=json"]
    listed = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=180)
    names = {one["name"].lower() for one in json.loads(listed.stdout)}
    assert {"squelch-rl", "numpy", "pyarrow"} <= names
    assert [name for name in names if NOT_OF_THE_KIT.fullmatch(name)] == []


def test_the_kits_python_api_needs_no_other_package(kit: Path, tmp_path: Path) -> None:
    code = "import squelch; assert squelch.filter([[0, 1], [1, 1]]).kept.tolist() == [True, False]; "
    code += "squelch.mi([[[-1.0, -3.0]], [[-3.0, -1.0]]], [[1], [1]]); squelch.Monitor(None); squelch.score"
    done = outside(kit.with_name("python"), tmp_path, "-P", "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", OF_THE_KIT)
def test_a_command_that_needs_no_other_package_runs_with_the_kit(command: str, kit: Path, files: Path) -> None:
    words, printed = OF_THE_KIT[command]
    done = outside(kit, files, command, *words)
    assert done.returncode == 0 and printed in done.stdout, done.stderr


@pytest.mark.parametrize("command", [*OF_THE_SYSTEM, *WITHOUT_TORCH])
def test_every_other_command_says_in_one_line_which_installation_it_needs(command: str, kit: Path, files: Path) -> None:
    extra = "score" if command in WITHOUT_TORCH else "train"
    done = outside(kit, files, command, *(OF_THE_SYSTEM | WITHOUT_TORCH)[command])
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        rf"squelch: .*the package \w+ is not installed: pip install 'squelch-rl\[{extra}\]'\n", done.stderr
    )


def test_the_doctor_alone_tells_of_every_missing_package(kit: Path, files: Path) -> None:
    assert {*OF_THE_KIT, *OF_THE_SYSTEM, *WITHOUT_TORCH} == COMMANDS.keys() - {"doctor"}
    done = outside(kit, files, "doctor")
    assert done.returncode == 1 and "squelch-rl[cpu]" in done.stdout and done.stderr == ""


def test_beside_trl_pip_installs_the_wheel_and_changes_no_package(wheel: Path) -> None:
    """Of the tests' environment, which has TRL's releases of everything."""
    beside = ROOT / ".cache" / "trl"
    if not beside.is_dir():
        pytest.skip("TRL is not installed: deploy/setup.sh trl")
    words = ["install", "--dry-run", "--quiet", "--no-index", "--report", "-", f"{wheel}[score]", "trl"]
    env = os.environ | {"PYTHONPATH": str(beside)}
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=180, env=env)
    assert done.returncode == 0, done.stderr
    assert [one["metadata"]["name"] for one in json.loads(done.stdout)["install"]] == ["squelch-rl"]
