"""The GPU's benchmark, but for the GPU."""

import json

import pytest
import torch

from benchmarks import common
from benchmarks.learner import gpu as learner_gpu
from benchmarks.learner.gpu import QUICK, WHOLE


def test_a_step_without_a_gpu_is_whole_and_counts_what_it_computes(capsys):
    """32 rows of 64 + 12 tokens, prompts once a group: 512 tokens fed, 416 sampled."""
    assert learner_gpu.main(["--quick", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192)
    pairs = 2 * (64 * 65 / 2 + 16 * (12 * 13 / 2 + 12 * 64))
    wanted = 6 * 512 * linear + 6 * 416 * 512 * 64 + 14 * pairs * 64 * 2
    assert found["tokens"] == QUICK.tokens == 512
    assert found["model_tflops"] * 1e12 == pytest.approx(wanted)
    assert found["model_tflops_per_second"] == pytest.approx(found["model_tflops"] / found["step_s"])
    assert found["share_of_peak"] is None


def test_the_whole_work_is_16k_tokens_in_one_micro_batch():
    assert WHOLE.tokens == 16_384
    config = learner_gpu.settings(WHOLE, "cuda", compiled=False)
    assert config.minibatches == 1 and config.token_budget >= WHOLE.tokens and config.num_gpus == 1
    assert learner_gpu.config_of(WHOLE.shape).hidden_size == 896


@pytest.mark.parametrize(
    ("card", "flops"), [("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA L4", None)]
)
def test_a_share_is_told_of_known_cards_only(card, flops):
    assert common.peak_of(card) == flops


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert learner_gpu.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err
