import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from squelch.learner.checkpoint import export as exporting
from squelch.learner.checkpoint import folder as checkpoint
from squelch.learner.checkpoint import shards
from squelch.learner.checkpoint.export import export
from squelch.learner.checkpoint.manifest import read_loop, read_manifest
from squelch.learner.checkpoint.seal import seal
from squelch.learner.checkpoint.state import shapes
from squelch.learner.policy.model import Policy, shard
from squelch.learner.publish import gathered
from squelch.learner.trainer import Trainer
from tests.disk import files_of_at_most
from tests.learner.models import VOCABULARY, load_model, make_config, make_groups, make_model

pytestmark = pytest.mark.usefixtures("alone")


def fingerprint(trainer: Trainer) -> str:
    return trainer.publish(0, lambda chunk: chunk).checksum


def test_a_loaded_run_continues_bit_for_bit(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {"cursor": 8})
    trainer.train_step(2, make_groups(seed=2))
    resumed = Trainer(model_dir, make_config())
    assert resumed.load(tmp_path / "step-1") == {"cursor": 8}
    assert resumed.optimizer_steps == 2
    resumed.train_step(2, make_groups(seed=2))
    assert fingerprint(resumed) == fingerprint(trainer)


def test_files_that_wait_for_their_disk_hold_the_step_although_training_has_gone_on(
    model_dir: Path, tmp_path: Path
) -> None:
    trainer, path = Trainer(model_dir, make_config(minibatches=1)), tmp_path / "step-1"
    trainer.train_step(1, make_groups())
    parts = trainer.save(path, {"cursor": 8}, sealed=False)
    assert parts.keys() == {"shards", "export"} and not path.exists()
    trainer.train_step(2, make_groups(seed=2))
    seal(path)
    assert [each.name for each in tmp_path.iterdir()] == ["step-1"] and (path / "hf" / "model.safetensors").is_file()
    resumed = Trainer(model_dir, make_config(minibatches=1), resumes=True)
    assert resumed.load(path) == {"cursor": 8}
    resumed.train_step(2, make_groups(seed=2))
    assert fingerprint(resumed) == fingerprint(trainer)


def test_a_checkpoint_before_the_first_update_loads(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.save(tmp_path / "step-0", {})
    other = Trainer(model_dir, make_config())
    other.train_step(1, make_groups())
    assert other.load(tmp_path / "step-0") == {} and other.optimizer_steps == 0
    assert fingerprint(other) == fingerprint(trainer)
    for learner in (trainer, other):
        learner.train_step(1, make_groups(seed=3))
    assert fingerprint(other) == fingerprint(trainer)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"vocabulary": 97}, r"model\.embed_tokens\.weight has shape \[61, 32\] there and \[97, 32\] here"),
        ({"layers": 3}, r"model\.layers\.2\..* exists only here \(12 such parameters\)"),
        ({"tied": False}, r"lm_head\.weight exists only here"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_untouched(
    model_dir: Path, tmp_path: Path, changes: dict, difference: str
) -> None:
    Trainer(model_dir, make_config()).save(tmp_path / "step-1", {})
    trainer = Trainer(make_model(tmp_path / "other", **changes), make_config())
    before = fingerprint(trainer)
    with pytest.raises(ValueError, match=difference) as error:
        trainer.load(tmp_path / "step-1")
    assert str(tmp_path / "step-1") in str(error.value) and "another model" in str(error.value)
    assert fingerprint(trainer) == before


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 4}, "num_attention_heads is 4 there and 8 here"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_parameters is .*10000.* there and"),
        (
            {"sliding_window": 6, "architectures": ["MistralForCausalLM"], "model_type": "mistral"},
            "architectures is .*Llama",
        ),
        ({"rms_norm_eps": 1e-3}, "rms_norm_eps is 1e-06 there and 0.001 here"),
    ],
)
def test_the_same_parameters_as_another_function_are_refused(tmp_path: Path, change: dict, difference: str) -> None:
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": VOCABULARY}
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(**size, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    )
    for name in ("one", "other"):
        model.save_pretrained(tmp_path / name)
    file = tmp_path / "other" / "config.json"
    config = json.loads(file.read_text()) | {"_name_or_path": "elsewhere", "pad_token_id": 3}
    file.write_text(json.dumps(config))
    trainer = Trainer(tmp_path / "one", make_config())
    trainer.save(tmp_path / "step-1", {})
    Trainer(tmp_path / "other", make_config()).load(tmp_path / "step-1")
    if "num_attention_heads" in change:  # of half the size, so that the matrices have the same shapes
        change = change | {"head_dim": 4}
    file.write_text(json.dumps(config | change))
    other = Trainer(tmp_path / "other", make_config())
    before = fingerprint(other)
    for load in (other.load, lambda path: checkpoint.load_weights(path, other.policy)):
        with pytest.raises(ValueError, match=f"is of another model: config.json: .*{difference}"):
            load(tmp_path / "step-1")
    assert fingerprint(other) == before


def test_another_tokenizer_or_another_scale_of_adapters_is_refused(model_dir: Path, tmp_path: Path) -> None:
    lora = {"rank": 4, "alpha": 8}
    Trainer(model_dir, make_config(lora=lora)).save(tmp_path / "step-1", {})
    with pytest.raises(ValueError, match=r"learner\.lora\.alpha is 8\.0 there and 64\.0 here"):
        Trainer(model_dir, make_config(lora=lora | {"alpha": 64})).load(tmp_path / "step-1")
    (model_dir / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"digest of the tokenizer is '.*' there and '.*' here"):
        Trainer(model_dir, make_config(lora=lora)).load(tmp_path / "step-1")


def test_a_folder_that_is_no_checkpoint_is_named(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step-7: not a complete checkpoint"):
        Trainer(model_dir, make_config()).load(tmp_path / "step-7")


def test_the_export_loads_in_transformers(model_dir: Path, tmp_path: Path) -> None:
    (model_dir / "tokenizer_config.json").write_text("{}")
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {})
    folder = tmp_path / "step-1" / "hf"
    assert AutoConfig.from_pretrained(folder).architectures == ["Qwen2ForCausalLM"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    bundle = trainer.publish(1, lambda chunk: chunk)
    exported = model.state_dict()
    assert all((exported[n].numpy() == a).all() for chunk in bundle.chunks for n, a in chunk.items())
    assert (folder / "tokenizer_config.json").read_text() == "{}"
    assert (folder / "generation_config.json").read_text() == (model_dir / "generation_config.json").read_text()
    assert Trainer(folder, make_config()).publish(1, lambda chunk: chunk).checksum == bundle.checksum


def test_a_failed_write_leaves_nothing_and_keeps_what_was_there(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.save(tmp_path / "step-1", {"old": True})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "save_tensors", full)
    with pytest.raises(ValueError, match=r"step-1 could not be written.*No space left on device"):
        trainer.save(tmp_path / "step-1", {"old": False})
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
    assert read_loop(tmp_path / "step-1") == {"old": True}
    assert trainer.train_step(1, make_groups()).updated


def test_the_state_is_sharded_and_says_whose_it_is(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.save(tmp_path / "step-1", {})
    assert [path.name for path in (tmp_path / "step-1" / "sharded").iterdir()] == ["00000-00000.safetensors"]
    policy = read_manifest(tmp_path / "step-1").modules["policy"]
    assert policy.parameters == shapes(trainer.policy) and policy.stepped == []
    assert policy.parameters["model.norm.weight"] == [32]


def test_saving_changes_nothing(model_dir: Path, tmp_path: Path) -> None:
    saved, plain = Trainer(model_dir, make_config()), Trainer(model_dir, make_config())
    saved.save(tmp_path / "step-0", {})
    for trainer in (saved, plain):
        trainer.train_step(1, make_groups())
    assert fingerprint(saved) == fingerprint(plain)


def test_the_optimizers_settings_are_the_configurations(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {})
    resumed = Trainer(model_dir, make_config(optimizer={"weight_decay": 0.25, "betas": [0.5, 0.6]}))
    resumed.load(tmp_path / "step-1")
    group = resumed.optimizer.param_groups[0]
    assert (group["weight_decay"], tuple(group["betas"])) == (0.25, (0.5, 0.6))


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [512, 60_000, 150_000])
def test_a_disk_that_fills_up_at_any_file_leaves_the_previous_checkpoint_whole(
    model_dir: Path, tmp_path: Path, num_bytes: int
) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {"step": 1})
    before = fingerprint(trainer)
    trainer.train_step(2, make_groups(seed=2))
    for name in ("step-1", "step-2"):
        with files_of_at_most(num_bytes), pytest.raises(ValueError, match=f"{name} could not be written"):
            trainer.save(tmp_path / name, {"step": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
    resumed = Trainer(model_dir, make_config())
    assert resumed.load(tmp_path / "step-1") == {"step": 1} and fingerprint(resumed) == before
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "step-1" / "hf")


def test_an_export_in_several_files_is_the_same_model(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    export(tmp_path / "hf", trainer.policy, model_dir, file_bytes=20_000)
    files = sorted(p.name for p in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    assert all((loaded[name] == tensor).all() for name, tensor in gathered(trainer.policy))
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for _, tensor in gathered(trainer.policy))


@pytest.mark.parametrize("dtype", ["bfloat16", None])
def test_the_export_may_be_smaller_or_absent_and_the_checkpoint_is_exact_all_the_same(
    model_dir: Path, tmp_path: Path, dtype: str | None
) -> None:
    trainer, path = Trainer(model_dir, make_config(export=dtype)), tmp_path / "step-1"
    trainer.train_step(1, make_groups())
    seconds = trainer.save(path, {})
    assert tuple(seconds) == checkpoint.PARTS and min(seconds.values()) >= 0
    assert (path / "hf").exists() == (dtype is not None)
    if dtype is not None:
        loaded = AutoModelForCausalLM.from_pretrained(path / "hf", dtype="auto")
        assert loaded.dtype == torch.bfloat16 == AutoConfig.from_pretrained(path / "hf").dtype
        assert all((loaded.state_dict()[n] == t.to(torch.bfloat16)).all() for n, t in gathered(trainer.policy))
    resumed = Trainer(model_dir, make_config())
    resumed.load(path)
    assert fingerprint(resumed) == fingerprint(trainer)


def critic(trainer: Trainer, model_dir: Path) -> tuple[Policy, torch.optim.Optimizer]:
    """Something else that is trained, two steps of its own taken."""
    module = shard(Policy(load_model(model_dir)), trainer.mesh, trainer.config)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for _ in range(2):
        sum(p.square().sum() for p in module.parameters()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer


@pytest.mark.slow
def test_whatever_else_is_trained_comes_back_with_its_optimizer(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    module, optimizer = critic(trainer, model_dir)
    mine = (tmp_path / "step-1", trainer.policy, trainer.optimizer)
    checkpoint.save(*mine, model_dir, 0, {}, {"critic": (module, optimizer)})
    other, its = critic(trainer, model_dir)
    sum(p.square().sum() for p in other.parameters()).backward()
    its.step()
    checkpoint.load(*mine, {"critic": (other, its)})
    for a, b in zip(module.parameters(), other.parameters(), strict=True):
        assert (a.to_local() == b.to_local()).all()
        assert (optimizer.state[a]["exp_avg"].to_local() == its.state[b]["exp_avg"].to_local()).all()
        assert optimizer.state[a]["step"] == its.state[b]["step"] == 2


def test_a_checkpoint_without_the_critic_is_refused_untouched(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    mine = (tmp_path / "step-1", trainer.policy, trainer.optimizer)
    checkpoint.save(*mine, model_dir, 0, {})
    trainer.train_step(1, make_groups())
    before = fingerprint(trainer)
    with pytest.raises(ValueError, match=r"step-1 is of another critic: .* exists only here"):
        checkpoint.load(*mine, {"critic": critic(trainer, model_dir)})
    assert fingerprint(trainer) == before


def test_a_checkpoint_of_another_algorithm_is_refused_by_name(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    mine = (tmp_path / "step-1", trainer.policy, trainer.optimizer)
    checkpoint.save(*mine, model_dir, 0, {}, algorithm="ppo")
    with pytest.raises(
        ValueError, match=r"step-1 was written under learner\.algorithm=ppo, and this run asks for grpo"
    ):
        checkpoint.load(*mine, algorithm="grpo")
    assert checkpoint.load(*mine, algorithm="ppo") == (0, {})


def test_who_only_measures_loads_weights_and_no_optimizer(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {})
    other = Trainer(model_dir, make_config())
    checkpoint.load_weights(tmp_path / "step-1", other.policy)
    assert fingerprint(other) == fingerprint(trainer) and not other.optimizer.state
    with pytest.raises(ValueError, match="step-9: not a complete checkpoint"):
        checkpoint.load_weights(tmp_path / "step-9", other.policy)


def test_with_a_reference_the_policy_is_what_comes_back_and_is_published(model_dir: Path, tmp_path: Path) -> None:
    config = make_config(objective={"kl": {"coefficient": 0.1}})
    trainer = Trainer(model_dir, config)
    initial = fingerprint(trainer)
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {})
    resumed = Trainer(model_dir, config)
    resumed.load(tmp_path / "step-1")
    assert fingerprint(resumed) == fingerprint(trainer) != initial
    untouched = Trainer(model_dir, make_config())
    references = zip(gathered(resumed.reference), gathered(untouched.policy), strict=True)
    assert all((kept == first).all() for (_, kept), (_, first) in references)


def test_what_a_resume_has_read_is_freed_tensor_by_tensor(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, read, found = Trainer(model_dir, make_config()), shards.read, []
    trainer.train_step(1, make_groups())
    trainer.save(tmp_path / "step-1", {})
    monkeypatch.setattr(shards, "read", lambda *own, **named: found.append(read(*own, **named)) or found[-1])
    resumed = Trainer(model_dir, make_config())
    resumed.load(tmp_path / "step-1")
    assert found == [{}] and fingerprint(resumed) == fingerprint(trainer)
