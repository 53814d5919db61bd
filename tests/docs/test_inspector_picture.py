"""The docs' picture of the inspector is taken of a run's page."""

import shutil
import sys
from pathlib import Path

import pytest

from docs.writers import inspector_picture
from tests.cluster.inspector.small_run import small_run


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium is installed")
def test_a_page_of_a_run_becomes_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = small_run(tmp_path / "small", 1), tmp_path / "out.png"
    monkeypatch.setattr(sys, "argv", ["inspector_picture", str(run), "/group?step=1&group=000001-000", str(out)])
    inspector_picture.main()
    assert out.read_bytes().startswith(b"\x89PNG")
