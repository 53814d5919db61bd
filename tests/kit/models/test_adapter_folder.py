"""A LoRA adapter's folder is scored as the model that PEFT would run, or refused with what would do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from squelch.kit.models.adapter_folder import Checkpoint, checkpoint_of, load_checkpoint
from squelch.kit.untrusted.files import Unreadable

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


@pytest.fixture(scope="module")
def adapters(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """Folders of trained adapters by name, and the logits that PEFT gives with each."""
    folder, logits = tmp_path_factory.mktemp("adapters"), {}
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"target_modules": "all-linear"},
        "rslora": {"target_modules": ["q_proj", "v_proj"], "use_rslora": True},
        "saved": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        "head": {"target_modules": ["lm_head"]},
        "embeddings": {"target_modules": ["embed_tokens"]},
    }
    for name, settings in kinds.items():
        torch.manual_seed(3)
        base = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(r=4, lora_alpha=12, init_lora_weights=False, **settings))
        for parameter in (one for one in model.parameters() if one.requires_grad):
            parameter.data += 0.05 * torch.randn_like(parameter)
        model.save_pretrained(folder / name)
        with torch.inference_mode():
            logits[name] = model.eval()(IDS).logits
    return folder, logits


@pytest.mark.parametrize("name", ["plain", "rslora", "saved", "head", "embeddings"])
def test_an_adapter_is_merged_into_the_base_that_it_names(adapters, tiny_policy, name) -> None:
    folder, logits = adapters
    found = checkpoint_of(folder / name)
    assert found == Checkpoint(Path(tiny_policy), folder / name, Path(tiny_policy))
    model = load_checkpoint(found, torch.float32)
    with torch.inference_mode():
        assert model(IDS).logits == pytest.approx(logits[name], abs=1e-4)
        plain = load_checkpoint(checkpoint_of(tiny_policy), torch.float32)
        assert (plain(IDS).logits - logits[name]).abs().max() > 0.01
    assert not any("lora" in key for key in model.state_dict()) and not model.training


def copy_of(adapters: Any, to: Path, **changes: Any) -> Path:
    shutil.copytree(adapters[0] / "plain", to)
    config = json.loads((to / "adapter_config.json").read_text())
    (to / "adapter_config.json").write_text(json.dumps(config | changes))
    return to


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"base_model_name_or_path": "nobody/has-this"},
            "'nobody/has-this', which is neither a folder here nor",
        ),
        ({"base_model_name_or_path": "/none/at/all"}, "give the folder of its base model with --base"),
        ({"base_model_name_or_path": None}, "is an adapter of None"),
        ({"peft_type": "IA3"}, "the adapter is of the kind 'IA3'; only LORA is merged"),
        ({"init_lora_weights": "pissa"}, "`init_lora_weights` is 'pissa', which changes the base model"),
        ({"corda_config": {"cache_file": "x"}}, "`corda_config` has a value"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused_by_name(adapters, tmp_path, changes, says) -> None:
    with pytest.raises(Unreadable, match=says):
        checkpoint_of(copy_of(adapters, tmp_path / "a", **changes))


def test_the_base_can_be_given_and_goes_with_adapters_alone(adapters, tmp_path, tiny_policy) -> None:
    folder = copy_of(adapters, tmp_path / "a", base_model_name_or_path="nobody/has-this")
    assert checkpoint_of(folder, tiny_policy).model == tiny_policy
    shutil.copy(Path(tiny_policy) / "tokenizer.json", folder)
    assert checkpoint_of(folder, tiny_policy).tokenizer == folder
    with pytest.raises(Unreadable, match=r"is no LoRA adapter .*leave --base out"):
        checkpoint_of(tiny_policy, folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(Unreadable, match=r"no adapter_model\.safetensors beside adapter_config\.json"):
        checkpoint_of(folder, tiny_policy)


@pytest.mark.parametrize("fault", ["lacks", "more", "shape", "not finite"])
def test_weights_that_do_not_fit_the_base_are_refused(adapters, tmp_path, fault) -> None:
    folder = copy_of(adapters, tmp_path / "a")
    weights = load_file(folder / "adapter_model.safetensors")
    name = sorted(weights)[0]
    if fault == "lacks":
        del weights[name]
    elif fault == "more":
        weights["base_model.model.other.lora_A.weight"] = torch.zeros(4, 4)
    else:
        weights[name] = torch.zeros(2, 2) if fault == "shape" else torch.full_like(weights[name], torch.nan)
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(Unreadable, match=r"the adapter and its base model do not fit|is no adapter of this base model"):
        load_checkpoint(checkpoint_of(folder), torch.float32)
