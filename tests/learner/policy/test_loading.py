"""Loading shard by shard has the values of loading whole, and never holds the model."""

import json
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    conversion_mapping,
    modeling_utils,
)
from transformers.core_model_loading import Chunk, WeightConverter
from transformers.models.mixtral import MixtralConfig, MixtralForCausalLM

from squelch.kit.models.model_folder import load_model_folder
from squelch.learner import memory
from squelch.learner.policy import loading, packed_check
from squelch.learner.policy.loading import Unloaded
from squelch.learner.policy.lora import add_adapters
from squelch.learner.policy.model import Policy, shard
from squelch.learner.policy.packed_check import shrunken
from squelch.learner.publish import entries, gathered
from squelch.learner.trainer import Trainer
from tests.learner.models import load_model, make_config, make_groups, make_model
from tests.learner.ranks import run_ranks

WIDE = {"width": 64, "layers": 6, "vocabulary": 1000}


SMALL = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 4}
SHAPE: dict[str, Any] = {**SMALL, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 8}


LARGER = {"hidden_size": 64, "vocab_size": 2000, "num_hidden_layers": 4}


def mixture(kind: str, tied: bool = False, experts: int = 5, **sizes: Any) -> PreTrainedModel:
    """A mixture with random weights, whose published folders hold a matrix of each expert."""
    shape = {**SHAPE, "tie_word_embeddings": tied, **sizes}
    if kind == "mixtral":
        return MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=experts))
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**shape, moe_intermediate_size=24, num_experts=experts, num_experts_per_tok=2)
    )


def in_bfloat16(folder: Path) -> Path:
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def require_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    assert all(found[name].equal(wanted[name]) and found[name].dtype == wanted[name].dtype for name in wanted)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("tied", [True, False])
def test_one_rank_has_the_bits_and_buffers_of_the_whole_model(tmp_path: Path, tied: bool) -> None:
    folder = in_bfloat16(make_model(tmp_path, tied=tied))
    trainer, whole = Trainer(folder, make_config(algorithm="ppo")), load_model(folder)
    require_same(dict(gathered(trainer.policy)), dict(gathered(Policy(whole))))
    require_same(dict(trainer.policy.model.named_buffers()), dict(whole.named_buffers()))
    assert trainer.policy.model.config.to_dict() == whole.config.to_dict()
    assert trainer.critic is not None and not trainer.policy.model.training
    critic = {name: tensor.full_tensor() for name, tensor in entries(trainer.critic.module).items()}
    require_same({k: v for k, v in critic.items() if "head" not in k}, dict(whole.base_model.named_parameters()))
    assert not critic["head.weight"].any()


@pytest.mark.usefixtures("alone")
def test_models_of_other_kinds_load_alike_also_where_transformers_converts_their_tensors(tmp_path: Path) -> None:
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, layer_types=["sliding_attention", "full_attention"]))
    for model in (gemma, mixture("mixtral"), mixture("qwen", tied=True)):
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        unloaded, whole = Unloaded(folder), load_model_folder(folder, torch.float32)
        trainer = Trainer(folder, make_config())
        require_same(dict(gathered(trainer.policy)), dict(gathered(Policy(whole))))
        require_same(dict(unloaded.model.named_buffers()), dict(whole.named_buffers()))


@pytest.mark.usefixtures("alone")
def test_a_weight_that_is_converted_otherwise_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mapping(*_: Any, **__: Any) -> list[WeightConverter]:
        targets = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
        return [WeightConverter("mlp.both.weight", targets, [Chunk(dim=0)])]

    folder = make_model(tmp_path)
    wanted, weights = load_model(folder), load_file(folder / "model.safetensors")
    for name in [name for name in weights if ".gate_proj." in name]:
        both = weights.pop(name), weights.pop(name.replace("gate_proj", "up_proj"))
        weights[name.replace("gate_proj", "both")] = torch.cat(both)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for module in (conversion_mapping, modeling_utils):
        monkeypatch.setattr(module, "get_model_conversion_mapping", mapping)
    require_same(dict(gathered(Trainer(folder, make_config()).policy)), dict(gathered(Policy(wanted))))


@pytest.mark.usefixtures("alone")
def test_adapters_begin_as_on_a_whole_model(model_dir: Path) -> None:
    config = make_config(lora={"rank": 4})
    assert config.lora is not None
    whole = load_model(model_dir)
    add_adapters(whole, config.lora, seed=3)
    trainer = Trainer(model_dir, config, seed=3)
    found = {name: tensor.full_tensor() for name, tensor in entries(trainer.policy).items()}
    wanted = entries(Policy(whole))
    assert found.keys() == wanted.keys() and all(found[name].equal(wanted[name]) for name in wanted)
    trained = [name for name, own in trainer.policy.model.named_parameters() if own.requires_grad]
    assert trained == [name for name, own in whole.named_parameters() if own.requires_grad]


WAYS = {
    "plain": {},
    "lora": {"lora": {"rank": 2}},
    "critic": {"algorithm": "ppo"},
    "reference": {"objective": {"kl": {"coefficient": 0.1}}},
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("way", WAYS)
def test_a_resume_reads_the_folders_weights_for_the_reference_alone_and_goes_on_to_the_bit(
    model_dir: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, read = make_config(**WAYS[way]), []
    whole = Trainer(model_dir, config)
    whole.train_step(1, make_groups())
    whole.save(tmp_path / "step-1", {})
    reads = Unloaded._read
    monkeypatch.setattr(Unloaded, "_read", lambda own: (read.append(own.folder), reads(own))[1])
    resumed = Trainer(model_dir, config, resumes=True)
    assert read == [model_dir] * (way == "reference")
    assert resumed.train_step(2, make_groups(seed=2)).refused, "weights that were not loaded are no numbers"
    resumed.load(tmp_path / "step-1")
    for trainer in (whole, resumed):
        assert trainer.train_step(2, make_groups(seed=2)).updated
    for own, other in zip(modules(whole), modules(resumed), strict=True):
        require_same(whole_tensors(other), whole_tensors(own))
    assert resumed.optimizer_steps == whole.optimizer_steps


def modules(trainer: Trainer) -> list[torch.nn.Module]:
    critic, reference = trainer.critic, trainer.reference
    return [trainer.policy, *([critic.module] if critic else []), *([reference] if reference else [])]


def whole_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().full_tensor() for name, tensor in entries(module).items()}


@pytest.mark.usefixtures("alone")
def test_the_check_of_packed_rows_is_made_once_for_policy_reference_and_critic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    compare = packed_check._difference
    monkeypatch.setattr(packed_check, "_difference", lambda *given: (compared.append(1), compare(*given))[1])
    folder = make_model(tmp_path, width=48)
    Trainer(folder, make_config(algorithm="ppo", **WAYS["reference"]))
    assert compared == [1]


@pytest.mark.usefixtures("alone")
def test_weights_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_model(tmp_path, tied=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.norm\.weight holds values that are not finite"):
        Trainer(folder, make_config())
    weights["model.norm.weight"][3] = 1.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(ValueError, match="one weight, but the files hold different values"):
        Trainer(folder, make_config())


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that operations create, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in args if type(x) is torch.Tensor}  # a view of a mapped file is none
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if type(tensor) is torch.Tensor and not tensor.is_meta and tensor.untyped_storage()._cdata not in given:
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


@pytest.mark.parametrize(("kind", "tied", "ranks"), [("qwen", True, 4), ("mixtral", False, 2)])
def test_experts_are_merged_by_each_rank_for_itself_and_never_whole(
    tmp_path: Path, kind: str, tied: bool, ranks: int
) -> None:
    folder = tmp_path / "model"
    mixture(kind, tied, experts=8, **LARGER).bfloat16().save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    require_shards(folder, ranks, tmp_path)


@pytest.mark.parametrize("kind", ["qwen", "mixtral"])
def test_a_missing_or_further_expert_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    mixture(kind).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if ".1." in name and ".experts.3." in name)
    further = name.replace("experts.3", "experts.7")
    without, one = {other: tensor for other, tensor in weights.items() if other != name}, weights[name].clone()
    for changed, message in (
        (without, rf"lacks '{name}', one of the 5 experts"),
        ({**weights, further: one}, rf"holds '{further}', and the model has 5 experts, from 0, each once"),
        ({**without, further: one}, rf"holds '{further}', and the model has 5 experts, from 0, each once"),
    ):
        save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=message):
            Unloaded(tmp_path)


@pytest.mark.usefixtures("alone")
def test_experts_named_with_and_without_the_models_prefix_are_joined_by_their_numbers(tmp_path: Path) -> None:
    mixture("qwen").save_pretrained(tmp_path)
    wanted = dict(gathered(Trainer(tmp_path, make_config()).policy))
    weights = load_file(tmp_path / "model.safetensors")
    mixed = {re.sub(r"^model\.(.*\.experts\.[23]\.)", r"\1", name): tensor for name, tensor in weights.items()}
    assert mixed.keys() != weights.keys()
    save_file(mixed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    require_same(dict(gathered(Trainer(tmp_path, make_config()).policy)), wanted)


def load_counted(trainer: Trainer, out: Path) -> None:
    whole = dict(gathered(trainer.policy))
    loading.CHUNK_BYTES = 4096
    unloaded = Unloaded(trainer.model_dir)
    with Live() as live:
        policy = shard(Policy(unloaded.model), trainer.mesh, trainer.config)
        unloaded.fill(policy, trainer.device)
    require_same(dict(gathered(policy)), whole)
    torch.save(whole, out / f"{trainer.rank}.pt")
    (out / f"{trainer.rank}.json").write_text(json.dumps(live.peak))


def require_shards(folder: Path, ranks: int, out: Path) -> None:
    """Each of the ranks has the bits of the whole model, and held little more than its shards while it loaded them."""
    run_ranks(ranks, folder, make_config(min_num_params=0), load_counted, out)
    wanted = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    size = 4 * sum(p.numel() for p in wanted.values())
    for rank in range(ranks):
        found = torch.load(out / f"{rank}.pt")
        require_same({name: found[name] for name in wanted}, {name: p.data for name, p in wanted.items()})
        peak = json.loads((out / f"{rank}.json").read_text())
        assert peak <= 1.1 * size / ranks, (peak, size)


def test_two_ranks_have_the_same_bits_and_never_more_than_their_shards_and_a_chunk(tmp_path: Path) -> None:
    require_shards(make_model(tmp_path / "model", **WIDE), 2, tmp_path)


def test_the_copy_that_is_checked_has_every_kind_of_layer_and_is_small() -> None:
    kinds = ["full_attention"] * 4 + ["sliding_attention"] * 24
    config = Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152064, layer_types=kinds, pad_token_id=151643,
    )  # fmt: skip
    small = shrunken(config)
    assert small.layer_types == ["full_attention", "full_attention", "sliding_attention"]
    assert (small.hidden_size, small.num_attention_heads, small.num_key_value_heads) == (128 * 14, 14, 2)
    assert config.num_hidden_layers == 28 and sum(p.numel() for p in memory.skeleton(small).parameters()) < 40e6
