"""What the doctor says of a machine."""

import pytest
import torch

from squelch.cluster.commands.doctor import _compiler, _surroundings, diagnose
from squelch.cluster.fleet.emulated_dtypes import PRODUCTS


@pytest.mark.skipif(torch.cuda.is_available(), reason="the line names the GPU instead")
@pytest.mark.parametrize(("vectors", "emulates"), [("AVX2", True), ("AVX512", False)])
def test_a_processor_that_emulates_bfloat16_is_named(
    vectors: str, emulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr("squelch.cluster.fleet.emulated_dtypes.flags", lambda: PRODUCTS)
    monkeypatch.setattr("squelch.cluster.commands.doctor._sandbox", list)
    (said,) = (one.line() for one in diagnose() if one.what == "accelerator")
    assert vectors in said
    assert ("emulates bfloat16" in said) == emulates


@pytest.mark.parametrize(("found", "mend"), [("/usr/bin/gcc", ""), (None, "apt-get install g++")])
def test_a_gpu_set_up_needs_a_compiler(found: str | None, mend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(
        "squelch.cluster.commands.doctor._version", lambda package: "0.32.0" if package == "vllm" else None
    )
    monkeypatch.setattr("shutil.which", lambda _: found)
    (said,) = _compiler()
    assert mend in said.mend and bool(mend) == bool(said.mend)
    monkeypatch.setattr("squelch.cluster.commands.doctor._version", lambda _: None)
    assert not list(_compiler())


def test_variables_that_a_child_would_mistake_are_named_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"VLLM_PORT": "tcp://10.0.0.1:8000", "WANDB_RUN_ID": "a1", "ANTHROPIC_AUTH_TOKEN": "t0"}.items():
        monkeypatch.setenv(name, value)
    said = {one.what: one.line() for one in _surroundings()}
    assert "left out of a run's processes" in said["VLLM_PORT"] and "Kubernetes" in said["VLLM_PORT"]
    assert "sweep" in said["WANDB_RUN_ID"] and "t0" not in said["ANTHROPIC_AUTH_TOKEN"]
    assert all(one.startswith("ok") for one in said.values())
