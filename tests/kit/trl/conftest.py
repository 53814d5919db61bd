"""TRL's runs of these tests, made once for all processes of a session."""

import fcntl
import os
import warnings
from pathlib import Path

import pytest

from benchmarks.common import finished, without_vllm
from tests.kit.api.conftest import model, samples, texts, tokenizer  # noqa: F401  # fixtures

ROOT = Path(__file__).parents[3]
SITE = ROOT / ".cache" / "trl"
ROOMS = ("actors", "cluster", "deploy", "envs", "learner")
RUN_S = 900.0


def in_trl(folder: Path, module: str) -> None:
    """Runs a module in TRL's environment, beside packages of the user with the names of our rooms."""
    for room in ROOMS:
        (folder / "users" / room).mkdir(parents=True, exist_ok=True)
        (folder / "users" / room / "__init__.py").write_text("MINE = True\n")
    path = os.pathsep.join(map(str, (folder / "users", ROOT, SITE)))
    variables = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    finished(without_vllm(module, str(folder)), variables, folder / "log", module, RUN_S, folder)


@pytest.fixture(scope="session")
def trl_site() -> Path:
    """The folder of TRL's packages."""
    if not (SITE / "squelch-setup.txt").is_file():
        warnings.warn("TRL is not installed: its integration is NOT TESTED; run deploy/setup.sh trl", stacklevel=2)
        pytest.skip("TRL is not installed: run deploy/setup.sh trl")
    return SITE


@pytest.fixture(scope="session")
def runs(trl_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `tests.kit.trl.runs`."""
    return _made_once("runs", tmp_path_factory)


@pytest.fixture(scope="session")
def scripts(trl_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `tests.kit.trl.scripts`."""
    return _made_once("scripts", tmp_path_factory)


def _made_once(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"trl-{name}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            in_trl(folder, f"tests.kit.trl.{name}")
            (folder / "done").touch()
    return folder
