"""What each process of a run imports: a package of thousands of modules more is seconds of every start."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from squelch.actors.process.imports import importing

HEAVY = frozenset({"accelerate", "gymnasium", "matplotlib", "scipy", "torch", "transformers", "vllm"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("squelch.cluster.loop.run", set()),
        ("squelch.actors.filter.service", set()),
        ("squelch.actors.play.actor", set()),
        ("squelch.actors.rollout.worker", set()),  # vLLM comes with its engine
        ("squelch.actors.scorer.actor", {"torch", "transformers", "accelerate"}),
        ("squelch.learner.rank", {"torch", "transformers", "accelerate"}),
    ],
)
def test_a_process_imports_of_the_heavy_packages_only_those_that_it_needs(module: str, needs: set[str]) -> None:
    code = f"import sys; import {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, check=True)
    assert HEAVY & set(done.stdout.split()) <= needs


def test_the_collector_is_paused_while_modules_are_imported_and_goes_on_also_after_an_error() -> None:
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_import_reads_no_settings_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with importing():
        with importing():  # of another thread
            assert os.getcwd() == "/"
        assert os.getcwd() == "/" and not gc.isenabled()
    assert os.getcwd() == str(tmp_path) and gc.isenabled()
