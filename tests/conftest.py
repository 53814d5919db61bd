"""What several rooms' tests share, the guard of the marker `ray`, and which tests two processes share out."""

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from envs.config import EnvironmentConfig

# Before a test imports torch: threads that wait must not burn the cores that other tests' processes need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _own_folder(variable: str, prefix: str) -> Path:
    """A temporary folder for this process and its children, named by an environment variable; removed at exit."""
    os.environ[variable] = folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


if "SQUELCH_CACHE" not in os.environ:  # indices that tests build, theirs and their processes'
    _own_folder("SQUELCH_CACHE", "squelch-cache-")
RAY_FOLDER = _own_folder("RAY_TMPDIR", "ray-")
"""Ray puts one folder a session here, whichever process of a test starts it. Sockets lie in it: the path is short."""

# Other processes may have the cores for seconds: how long one example takes says nothing.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

LONGEST_FIRST = tuple(f"tests/e2e/test_{name}.py" for name in ("whole_run", "faults", "cluster", "sweep", "hosts"))
SHARES_THE_RUN_OF = {"tests/e2e/test_stop_and_resume.py": "tests/e2e/test_whole_run.py"}
"""A module that needs the fixture `whole`, and the one whose process has it."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two processes share out modules, not tests: most of a module's time is an engine or a cluster that it boots."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # a machine with a GPU may have pytest without xdist

    class LongestFirst(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = super()._split_scope(nodeid)
            return SHARES_THE_RUN_OF.get(module, module)

    return LongestFirst(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest modules come first, so that no process begins one when the other is done."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


HEAVY_BEFORE = pytest.StashKey[set[str]]()


def heavy() -> set[str]:
    """What the marker `ray` is about: sessions of Ray that were ever started, and vLLM once it is loaded."""
    sessions = (path.name for place in ("ray", "squelch-*/*") for path in RAY_FOLDER.glob(f"{place}/session_2*"))
    return set(sessions) | ({"vllm"} & sys.modules.keys())


@pytest.fixture(scope="module", autouse=True)
def environment_of_its_own() -> Iterator[None]:
    """A module's tests leave the environment as it was: an engine in this process sets variables (Gloo's interface)
    that a later module's processes must not inherit."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Every process collects every test: none may load vLLM before it is chosen to run."""
    before = heavy()
    report = yield
    if heavy() - before:
        report.outcome, report.longrepr = "failed", f"{collector.nodeid} loads vLLM when it is imported"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[HEAVY_BEFORE] = heavy()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """`make check` leaves out tests that are marked `ray`; one that belongs among them must not slip through."""
    yield
    started = heavy() - item.stash[HEAVY_BEFORE]
    if started and item.get_closest_marker("ray") is None:
        pytest.fail(f"started {', '.join(sorted(started))} without the marker: add @pytest.mark.ray", pytrace=False)


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FrozenLake policy after a very short warm-up: it knows the format and little else. All processes of one test
    run share it."""
    from learner.warmup.tiny import build_tiny
    from learner.warmup.tiny_recipe import recipe_for

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    recipe = recipe_for("FrozenLake").model_copy(update={"tokens": 60_000})
    with (shared / "tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_tiny(shared / "tiny", EnvironmentConfig(), 0, recipe)
    return shared / "tiny"
