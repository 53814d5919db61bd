"""The scorer on a GPU gives what it gives on a CPU. Imports little, so that it runs where little is installed."""

import pathlib

import numpy as np
import pytest
import torch

from benchmarks.cross_scoring.work import random_policy, random_rows, small_shape
from squelch.actors.config import ScorerConfig
from squelch.kit.scoring.cross_scoring import CrossScorer
from squelch.kit.scoring.token_trees import Path

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICE = "cuda"


BOUNDS = [(torch.float32, 1e-3), (torch.bfloat16, 0.1)]
"""Nats per token."""


@pytest.mark.parametrize(("dtype", "bound"), BOUNDS, ids=str)
def test_the_matrix_is_that_of_the_cpu(dtype: torch.dtype, bound: float) -> None:
    shape = small_shape("0.8 M")
    prompts = [np.concatenate([np.arange(30), row]) for row in random_rows(6, 50, shape.vocab_size, 0)]
    reasonings = random_rows(24, 9, shape.vocab_size, 1) + random_rows(4, 31, shape.vocab_size, 2)
    models = random_policy(shape), random_policy(shape).to(DEVICE, dtype)
    cpu, gpu = (CrossScorer(model, 4096, 0.7).matrix(prompts, reasonings) for model in models)
    lengths = np.array([len(reasoning) for reasoning in reasonings])[:, None]
    assert np.abs((cpu - gpu) / lengths).max() < bound


@pytest.mark.parametrize(("dtype", "bound"), BOUNDS, ids=str)
def test_answers_after_reasonings_are_those_of_the_cpu(dtype: torch.dtype, bound: float) -> None:
    shape = small_shape("0.8 M")
    prompts, reasonings, answers = (random_rows(3, size, shape.vocab_size, size) for size in (50, 20, 6))
    paths = [[Path(np.concatenate([z, a]), len(z)) for a in answers] for z in reasonings]
    models = random_policy(shape), random_policy(shape).to(DEVICE, dtype)
    cpu, gpu = (np.array(CrossScorer(model, 4096).path_sums(prompts, [paths] * 3)) for model in models)
    assert np.abs((cpu - gpu) / 6).max() < bound


def test_the_actors_model_is_on_the_gpu(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("ray")
    from squelch.actors.scorer.actor import load_model

    random_policy(small_shape("0.8 M")).save_pretrained(tmp_path)
    model = load_model(tmp_path, ScorerConfig(num_gpus=1))
    assert {parameter.device.type for parameter in model.parameters()} == {DEVICE}
