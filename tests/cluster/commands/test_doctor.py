"""What the doctor says of a machine's processor."""

import pytest
import torch

from cluster.commands.doctor import diagnose


@pytest.mark.skipif(torch.cuda.is_available(), reason="the line names the GPU instead")
@pytest.mark.parametrize(("vectors", "emulates"), [("AVX2", True), ("AVX512", False)])
def test_a_processor_that_emulates_bfloat16_is_named(
    vectors: str, emulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr("cluster.commands.doctor._sandbox", list)
    (said,) = (one.line() for one in diagnose() if one.what == "accelerator")
    assert vectors in said
    assert ("emulates bfloat16" in said) == emulates
