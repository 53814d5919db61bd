"""The plugin that makes engines know how weights reach them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config

from squelch.actors.gpu_weights import GpuWeights
from squelch.actors.messages import GroupMember, TensorEntry, WeightBundle
from squelch.actors.process.interfaces import listen
from squelch.actors.weight_group import WeightGroup
from squelch.actors.weights import checksum
from squelch.actors.weights_file import read_arrays, written_arrays
from tests.fakes.gpus import FakeGpu


@pytest.mark.ray
def test_bfloat16_travels_as_its_own_bits():
    from squelch.actors.rollout import weight_transfer

    values = torch.tensor([1.0, -2.5, 3.1415927], dtype=torch.bfloat16)
    with written_arrays([("w", values.view(torch.uint16).numpy())], frozenset({"w"})) as (path, table):
        (spec,) = weight_transfer.UpdateInfo(0, "", "", table).specs()
        tensor = weight_transfer._as_tensor(read_arrays(path, [spec])["w"], spec.bfloat16)
    assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, values)


def test_every_engine_process_finds_the_plugin():
    found = {point.name: point.value for point in importlib.metadata.entry_points(group="vllm.general_plugins")}
    assert found["squelch"] == "squelch.actors.rollout.weight_transfer:register"


@pytest.mark.ray
def test_registering_twice_is_harmless():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from squelch.actors.rollout import weight_transfer

    weight_transfer.register()
    weight_transfer.register()
    found = WeightTransferEngineFactory._registry[weight_transfer.BACKEND]()
    assert found is weight_transfer.SquelchWeightTransferEngine


class Small(torch.nn.Module):
    """Two layers in place of vLLM's model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, bias=False)

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> set[str]:
        own, loaded = dict(self.named_parameters()), set()
        for name, tensor in weights:
            own[name].data.copy_(tensor)
            loaded.add(name)
        return loaded


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    return Small()


@pytest.fixture
def plugin(model: Small):
    """The back end as vLLM makes it in an engine's process; vLLM's reload does nothing to such a small model."""
    from squelch.actors.rollout import weight_transfer

    of_model = SimpleNamespace(hf_config=Qwen2Config())
    config = SimpleNamespace(parallel_config=SimpleNamespace(rank=1), model_config=of_model)
    made = weight_transfer.SquelchWeightTransferEngine(None, config, torch.device("cpu"), model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_transfer, "initialize_layerwise_reload", lambda model: None)
        patch.setattr(weight_transfer, "finalize_layerwise_reload", lambda model, config: None)
        yield made
    made.shutdown()


def new_weights(model: Small) -> list[tuple[str, torch.Tensor]]:
    named = enumerate(model.named_parameters(), start=1)
    return [(name, torch.full_like(parameter, float(i))) for i, (name, parameter) in named]


@pytest.mark.ray
def test_weights_come_from_a_file_once_their_checksum_is_right(plugin, model):
    weights = new_weights(model)
    arrays = [(name, tensor.numpy()) for name, tensor in weights]
    with written_arrays(arrays, frozenset()) as (path, table):
        info = {"path": str(path), "version": 3, "checksum": "other", "arrays": table}
        with pytest.raises(RuntimeError, match=r"version 3 arrived with checksum .* nothing was loaded"):
            plugin.update_weights(info)
        for fault in ({"path": "/no/such/file"}, {"arrays": [{**table[0], "offset": 2**40}]}):
            with pytest.raises(RuntimeError, match=r"version 3 cannot be read \(.+\); nothing was loaded"):
                plugin.update_weights(info | fault)
        assert not torch.equal(model.head.weight, weights[-1][1])
        plugin.update_weights(info | {"checksum": checksum(arrays)})
    assert all(torch.equal(dict(model.named_parameters())[name], tensor) for name, tensor in weights)


@pytest.mark.ray
def test_weights_come_from_the_gpu_that_the_learner_shares(plugin, model, monkeypatch: pytest.MonkeyPatch):
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from squelch.actors.rollout import weight_transfer
    from squelch.actors.rollout.engine import VllmEngine

    monkeypatch.setattr(weight_transfer, "GpuMemory", FakeGpu)
    weights, gpu = new_weights(model), FakeGpu()
    table = tuple(TensorEntry(name, "float32", tuple(tensor.shape)) for name, tensor in weights)
    writer = GpuWeights(gpu, table)
    writer.begin(0.0)
    for name, tensor in weights:
        writer.add(name, tensor)
    digest = checksum((name, tensor.numpy()) for name, tensor in weights)
    bundle = WeightBundle(6, (), digest, np.zeros(1), np.zeros(0), table=table, shared=writer.seal())
    info = MsgpackDecoder(dict).decode(MsgpackEncoder().encode(VllmEngine.mapped(bundle, Path())))
    for fault, reason in [({"checksum": "other"}, "have digest"), ({"gpu": info["gpu"] | {"gpu": "B"}}, "on B, and")]:
        with pytest.raises(RuntimeError, match=rf"{reason} .*; nothing was loaded"):
            plugin.update_weights(info | fault)
    assert not torch.equal(model.head.weight, weights[-1][1])
    plugin.update_weights(info)
    assert all(torch.equal(dict(model.named_parameters())[name], tensor) for name, tensor in weights)
    gpu.close()


@pytest.mark.ray
def test_weights_come_from_the_group_of_which_the_engine_is_a_member(plugin, model):
    weights = new_weights(model)
    table = [(name, "float32", list(tensor.shape)) for name, tensor in weights]
    info = {"version": 4, "checksum": checksum((name, tensor.numpy()) for name, tensor in weights), "table": table}
    with pytest.raises(RuntimeError, match="in no weight group; nothing was loaded"):
        plugin.update_weights(info)
    listener = listen("127.0.0.1")
    # The engine's first process would have rank 1; this is the second of a tensor-parallel pair.
    member = GroupMember(1, "127.0.0.1", listener.getsockname()[1], 1, 3, "gloo", 30.0)
    with ThreadPoolExecutor() as pool:
        joined = pool.submit(lambda: plugin.init_transfer_engine(plugin.parse_init_info({"member": vars(member)})))
        first = pool.submit(WeightGroup, member, "cpu")
        sender = WeightGroup(replace(member, rank=0), "cpu", listener)
        joined.result()
        sent = pool.submit(sender.send, weights, plugin.parse_update_info(info).entries())
        received = pool.submit(lambda: list(first.result().receive(plugin.parse_update_info(info).entries())))
        plugin.update_weights(info)
        sent.result(), received.result()
        again = pool.submit(sender.send, weights, plugin.parse_update_info(info).entries())
        received = pool.submit(lambda: list(first.result().receive(plugin.parse_update_info(info).entries())))
        with pytest.raises(RuntimeError, match=r"version 4 were received with digest \w+, published was other"):
            plugin.update_weights(info | {"checksum": "other"})
        again.result(), received.result()
    assert all(torch.equal(dict(model.named_parameters())[name], tensor) for name, tensor in weights)
    with pytest.raises(RuntimeError, match=r"do not hold 1 parameters, such as head\.weight"):
        plugin._load(iter(weights[:-1]), 5)
    sender.close()
    with pytest.raises(RuntimeError):
        plugin.update_weights(info)
    with pytest.raises(RuntimeError, match="in no weight group"):
        plugin.update_weights(info)
