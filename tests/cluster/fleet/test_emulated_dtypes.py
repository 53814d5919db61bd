"""Whether a run reports that its processor emulates the type of numbers that it would compute with."""

import pytest
import torch

from squelch.cluster.config import load
from squelch.cluster.fleet import emulated_dtypes
from squelch.cluster.fleet.emulated_dtypes import emulated

BFLOAT16 = ["learner.dtype=bfloat16", "rollout.dtype=bfloat16"]


@pytest.mark.parametrize(
    ("vectors", "flags", "settings", "named"),
    [
        (
            "AVX2",
            "avx2",
            BFLOAT16,
            "learner.dtype=bfloat16 and rollout.dtype=bfloat16: this processor has AVX2 without",
        ),
        ("AVX2", "avx2", ["scorer.dtype=bfloat16"], "scorer.dtype=bfloat16: "),
        ("AVX2", "avx2", ["scorer.dtype=bfloat16", "scorer.enabled=false"], ""),
        ("AVX2", "avx2", [*BFLOAT16, "learner.num_gpus=1", "rollout.num_gpus=1"], ""),
        ("AVX2", "avx2", [], ""),
        ("AVX512", "avx512f avx512vl", BFLOAT16, "learner.dtype=bfloat16 and rollout.dtype=bfloat16: "),
        ("AVX512", "avx512f avx512_bf16", BFLOAT16, ""),
        ("AVX512", "avx512f amx_bf16", BFLOAT16, ""),
        ("AVX512", "", BFLOAT16, ""),
    ],
    ids=["both", "scorer", "no scorer", "GPUs", "float32", "AVX-512 alone", "AVX-512 BF16", "AMX", "not listed"],
)
def test_16_bit_numbers_on_a_processor_that_emulates_them_are_reported_at_the_start(
    monkeypatch: pytest.MonkeyPatch, vectors: str, flags: str, settings: list[str], named: str
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr(emulated_dtypes, "flags", lambda: frozenset(flags.split()))
    found = emulated(load("frozenlake", settings))
    assert found.startswith(named) and bool(found) == bool(named)
