"""A client of the application in process; the browser's tests start a server of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from squelch.cluster.inspector.app import application
from squelch.cluster.inspector.guard import Access
from squelch.cluster.runs.folder import RunFolder
from tests.cluster.inspector.small_run import small_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that nobody writes to."""
    return small_run(tmp_path_factory.mktemp("inspected") / "small")


@pytest.fixture(scope="session")
def open_run() -> Callable[[Path], TestClient]:
    """A client that browses a run folder."""
    return lambda folder: TestClient(
        application(RunFolder(folder), Access(frozenset({"testserver"}), 80), now=lambda: 2000.0)
    )


@pytest.fixture(scope="session")
def client(finished: Path, open_run: Callable[[Path], TestClient]) -> TestClient:
    """A client that browses `finished`."""
    return open_run(finished)
