"""Weights that transformers merges are published as the folders of their models hold them."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import PreTrainedConfig, Qwen2ForCausalLM

from squelch.kit.models.conversion import published
from tests.actors.rollout.vllm_support import make_mixture, make_policy


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_a_mixtures_weights_are_published_under_the_names_and_with_the_bits_of_its_folder(
    tmp_path: Path, kind: str
) -> None:
    model = make_mixture(kind, 0)
    model.save_pretrained(tmp_path)
    wanted = load_file(tmp_path / "model.safetensors")
    found = {name: tensor.detach() for name, tensor in published(model.config, model.named_parameters())}
    assert found.keys() == wanted.keys() and any(".experts.3." in name for name in found)
    assert all(found[name].equal(wanted[name]) for name in wanted)


def test_weights_that_are_not_converted_are_published_as_they_are() -> None:
    model: Qwen2ForCausalLM = make_policy(0)
    config: PreTrainedConfig = model.config
    assert list(published(config, model.named_parameters())) == list(model.named_parameters())
