"""The plugin that makes engines know how weights reach them."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch

from actors.rollout.weights_file import read_arrays, written_arrays


@pytest.mark.ray
def test_bfloat16_travels_as_its_own_bits():
    from actors.rollout import weight_transfer

    values = torch.tensor([1.0, -2.5, 3.1415927], dtype=torch.bfloat16)
    with written_arrays([("w", values.view(torch.uint16).numpy())], frozenset({"w"})) as (path, table):
        (spec,) = weight_transfer.UpdateInfo(0, "", "", table).specs()
        tensor = weight_transfer._as_tensor(read_arrays(path, [spec])["w"], spec.bfloat16)
    assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, values)


def test_every_engine_process_finds_the_plugin():
    found = {point.name: point.value for point in importlib.metadata.entry_points(group="vllm.general_plugins")}
    assert found["squelch"] == "actors.rollout.weight_transfer:register"


@pytest.mark.ray
def test_registering_twice_is_harmless():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from actors.rollout import weight_transfer

    weight_transfer.register()
    weight_transfer.register()
    found = WeightTransferEngineFactory._registry[weight_transfer.BACKEND]()
    assert found is weight_transfer.SquelchWeightTransferEngine
