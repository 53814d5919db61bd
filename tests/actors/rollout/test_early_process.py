"""The process of an engine that begins before vLLM is imported. With vLLM: tests/actors/rollout/test_worker.py."""

import json
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from setproctitle import setproctitle

from squelch.actors.rollout.early_process import EarlyProcess, inspecting_here, serving

WITHIN_S = 180.0


def work(path: Path, number: int) -> None:
    """Stands in for vLLM's function, which gives its process a title."""
    setproctitle("VLLM::EngineCore")
    path.write_text(json.dumps([number, os.environ.get("SET_LATER"), os.getpid(), psutil.Process().cmdline()[0]]))


@pytest.fixture
def vllm() -> Any:
    """Stands in for the module in which vLLM makes the process."""
    return SimpleNamespace(get_mp_context=lambda: multiprocessing.get_context("spawn"))


def run(vllm: Any, path: Path) -> Any:
    """As vLLM does it; returns the process that has run."""
    process = vllm.get_mp_context().Process(target=work, name="EngineCore", kwargs={"path": path, "number": 7})
    process.start()
    process.join(WITHIN_S)
    return process


def test_the_process_runs_what_it_is_given_later_with_the_variables_of_that_time(vllm, tmp_path, monkeypatch) -> None:
    early = EarlyProcess(["colorsys"], os.environ.get("LD_PRELOAD", ""))
    early.start()
    monkeypatch.setenv("SET_LATER", "yes")
    original = vllm.get_mp_context
    with serving(early, vllm):
        assert run(vllm, tmp_path / "found") is early
    assert json.loads((tmp_path / "found").read_text()) == [7, "yes", early.pid, "VLLM::EngineCore"]
    assert early.exitcode == 0
    assert vllm.get_mp_context is original


def test_a_process_with_other_libraries_is_not_used_and_one_that_is_not_used_ends(vllm, tmp_path) -> None:
    early = EarlyProcess(["colorsys"], "")
    early.start()
    early.preloaded = "another"
    with serving(early, vllm):
        assert run(vllm, tmp_path / "found").exitcode == 0
    assert json.loads((tmp_path / "found").read_text())[2] != early.pid
    early.close()
    assert not early.is_alive()


def test_a_process_that_died_while_it_imported_does_not_raise_where_it_is_given_work(vllm, tmp_path) -> None:
    early = EarlyProcess(["no_such_module"], os.environ.get("LD_PRELOAD", ""))
    early.start()
    early.join(WITHIN_S)
    with serving(early, vllm):
        assert run(vllm, tmp_path / "found").exitcode == 1
    assert not (tmp_path / "found").exists()


def test_without_an_early_process_vllm_makes_its_own(vllm) -> None:
    original = vllm.get_mp_context
    with serving(None, vllm):
        assert vllm.get_mp_context is original


def test_a_class_is_looked_at_in_this_process_only_meanwhile() -> None:
    def elsewhere(look: Any) -> str:
        return "in another process"

    registry = SimpleNamespace(_run_in_subprocess=elsewhere)
    with pytest.raises(ValueError, match="no such class"), inspecting_here(registry):
        assert registry._run_in_subprocess(os.getpid) == os.getpid()
        raise ValueError("no such class")
    assert registry._run_in_subprocess is elsewhere
