"""What the doctor says of a machine's processor."""

import pytest
import torch

from squelch.cluster.commands.doctor import _compiler, diagnose
from squelch.cluster.fleet.processor import PRODUCTS


@pytest.mark.skipif(torch.cuda.is_available(), reason="the line names the GPU instead")
@pytest.mark.parametrize(("vectors", "emulates"), [("AVX2", True), ("AVX512", False)])
def test_a_processor_that_emulates_bfloat16_is_named(
    vectors: str, emulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr("squelch.cluster.fleet.processor.flags", lambda: PRODUCTS)
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
