"""What several rooms' tests share, the guard of the marker `ray`, and the order of tests in several processes.

In several processes (`pytest -n 3 --dist loadscope --no-loadscope-reorder`), the real runs of `tests/e2e` are one unit,
which the first process gets: they take longest, so that they begin first, one cluster at a time. The second process
begins with the other files with tests that start Ray or load vLLM. The rest are a unit each, in processes of a lower
priority. With `--reruns 1` what fails is tried again; its first failure is kept."""

import atexit
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from squelch.envs.config import EnvironmentConfig

# Before a test imports torch: threads that wait must not burn the cores that other tests' processes need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Ray kills a frozen actor after 5 s by default.
os.environ.setdefault("RAY_kill_worker_timeout_milliseconds", "1000")
# Ray starts its actors at niceness 15 by default: each process of other tests would get nine times an actor's time.
os.environ.setdefault("RAY_worker_niceness", "0")
# Each of a run's processes would compile the packages anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


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

ROOT = Path(__file__).parents[1]
SLOW = frozenset((ROOT / "tests" / "slow.txt").read_text().split())
"""Tests that `make check` leaves out to take a minute; `python -m tests.slow` writes the list from a run's times."""

HEAVY_FILES = frozenset(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests").rglob("test_*.py")
    if "mark.ray" in path.read_text(encoding="utf-8")
)
"""Files with tests that start Ray or load vLLM."""
RUNS = "tests/e2e/"
BESIDE_RAY = pytest.StashKey[bool]()
BESIDE_RAY_NICENESS = 5
"""Ray's processes then get three times the time of one of these, which still meets every bound of its tests."""
FIRST_TRIES = "build/first-try-failures.txt"
"""Each failure after which a test was run again, with its trace."""
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


@pytest.fixture
def hangups_count() -> Iterator[None]:
    """SIGHUP is not ignored, as it is where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `slow.txt`; real runs come first, then what else starts Ray or loads vLLM."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW:
            item.add_marker("slow")
    items.sort(key=lambda item: (not item.nodeid.startswith(RUNS), not is_heavy(item.nodeid)))


def is_heavy(nodeid: str) -> bool:
    return nodeid.partition("::")[0] in HEAVY_FILES


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The units of several processes; None leaves every other `--dist` to xdist."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if is_heavy(nodeid):
                return "real runs" if nodeid.startswith(RUNS) else "actors"
            return nodeid.partition("::")[0]

    return Units(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Notes whether this is one of several processes of which one runs Ray."""
    several = "PYTEST_XDIST_WORKER" in os.environ and sys.platform == "linux"
    session.config.stash[BESIDE_RAY] = several and any(item.get_closest_marker("ray") for item in session.items)


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
    if item.config.stash.get(BESIDE_RAY, False) and not is_heavy(item.nodeid):
        os.setpriority(os.PRIO_PROCESS, 0, BESIDE_RAY_NICENESS)  # for good: no test of Ray's comes later
    item.stash[HEAVY_BEFORE] = heavy()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """`make check` leaves out tests that are marked `ray`; one that belongs among them must not slip through."""
    yield
    started = heavy() - item.stash[HEAVY_BEFORE]
    if started and item.get_closest_marker("ray") is None:
        pytest.fail(f"started {', '.join(sorted(started))} without the marker: add @pytest.mark.ray", pytrace=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The process that collects the reports forgets the failures of the session before."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        (ROOT / FIRST_TRIES).unlink(missing_ok=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keeps a failure whose test is run again; pytest itself would show nothing of it."""
    if report.outcome == "rerun" and "PYTEST_XDIST_WORKER" not in os.environ:
        (ROOT / FIRST_TRIES).parent.mkdir(exist_ok=True)
        with open(ROOT / FIRST_TRIES, "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}, {report.when}\n{report.longreprtext}\n\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows the failures of first tries."""
    if (ROOT / FIRST_TRIES).exists():
        terminalreporter.section(f"failed at the first try ({FIRST_TRIES})")
        terminalreporter.write((ROOT / FIRST_TRIES).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rendered_here() -> Iterator[None]:
    """A module's templates are rendered in its process: `tests.kit.text.made.rendering_here`."""
    from tests.kit.text.made import rendering_here

    with rendering_here():
        yield


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Our own format over a small byte-level tokenizer."""
    from squelch.actors.play.codec import ChatCodec
    from tests.actors.play.test_codec import byte_level_bpe, save_model

    return ChatCodec(save_model(tmp_path_factory.mktemp("bpe"), byte_level_bpe()))


@pytest.fixture(scope="session")
def seeing_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a vision tower (`tests.seeing`); not to be changed."""
    from tests.seeing import make_seeing_model

    return make_seeing_model(tmp_path_factory.mktemp("seeing") / "model")


@pytest.fixture(scope="session")
def vision(seeing_dir: Path) -> Any:
    """How that model is fed pictures."""
    from squelch.kit.pictures.geometry import vision_of

    found = vision_of(seeing_dir)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def tiny_policy() -> Path:
    """A FrozenLake policy after a very short warm-up: it knows the format and little else. It is built once for all
    processes and runs of the tests, and anew when what it is made from has changed."""
    from squelch.learner.warmup.tiny import build_tiny
    from squelch.learner.warmup.tiny_recipe import recipe_for

    folder = ROOT / ".cache" / "tests" / "tiny"
    folder.parent.mkdir(parents=True, exist_ok=True)
    recipe = recipe_for("FrozenLake").model_copy(update={"tokens": 60_000})
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_tiny(folder, EnvironmentConfig(), 0, recipe)
    return folder
