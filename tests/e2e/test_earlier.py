"""A run that was written before the kit's modules moved goes on from its checkpoint (`tests/earlier`)."""

from pathlib import Path

import pytest

from tests.e2e.support import Run, assert_sound, steps, summary
from tests.earlier import lay

pytestmark = pytest.mark.ray


def test_a_run_of_earlier_code_is_resumed_with_its_own_configuration(tmp_path: Path) -> None:
    folder = lay(tmp_path)
    before = steps(folder)
    overrides = (f"runs_dir={tmp_path / 'runs'}", f"model.path={tmp_path / 'policy'}", "loop.steps=3")
    run = Run("train", str(folder / "config.yaml"), "--resume", *overrides)
    assert run.finish() == 0, run.text
    assert any("resumed from" in line and "step-2 after step 2" in line for line in run.lines)
    recorded = steps(folder)
    assert recorded[: len(before)] == before and len(recorded) == len(before) + 1
    assert_sound(folder)
    assert summary(folder)["steps"] == 3 and summary(folder)["ledger"]["balanced"]
