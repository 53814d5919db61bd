"""Folders that hold a LoRA adapter without its model, as PEFT writes them: TRL's and verl's checkpoints of a LoRA run.

The base model is a local model folder (`model_folder`), or in the Hugging Face cache; nothing is downloaded. PEFT
merges the adapter into it, in memory. Of what PEFT knows, LoRA is merged; an adapter is refused by name if it is of
another kind, or changed its base when it was made, so that its weights do not say what was trained.

torch, transformers and PEFT are imported inside the functions that need them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from squelch.kit.models.model_folder import FLOATING, INDEX, MAX_JSON, SHOWN, WEIGHTS, load_model_folder
from squelch.kit.models.tensor_files import read_header
from squelch.kit.text.tokenizer import TOKENIZER_FILE
from squelch.kit.untrusted.files import Unreadable, brief, decoding, is_file, is_folder, read_bytes
from squelch.kit.untrusted.text import parse_object

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
INITIAL = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base as it is."""
REFUSED = ("loftq_config", "megatron_config", "corda_config", "arrow_config")
"""Keys that change the base, or its layers, when they have a value."""


class Checkpoint(NamedTuple):
    """A policy's weights. `model`: the folder of the model, or of the adapter's base; `adapter`: its folder, if it is
    one; `tokenizer`: the folder with its tokenizer."""

    model: Path
    adapter: Path | None
    tokenizer: Path


def checkpoint_of(folder: Path, base: Path | None = None, option: str = "--base") -> Checkpoint:
    """What a folder holds. `base`: the folder of an adapter's base model, if it is not where the adapter says;
    `option`: gives it, as errors name it. Raises Unreadable if the base is not found."""
    whole = is_file(folder / WEIGHTS) or is_file(folder / INDEX) or not is_file(folder / CONFIG)
    if whole and base is not None:
        raise Unreadable(f"{folder} is no LoRA adapter ({CONFIG} beside {ADAPTER}); leave {option} out")
    if whole:
        return Checkpoint(folder, None, folder)
    name = _settings(folder).get("base_model_name_or_path")
    found = base or _found(name)
    if found is None:
        raise Unreadable(
            f"{folder} is an adapter of {brief(name)}, which is neither a folder here nor in the Hugging Face cache; "
            f"give the folder of its base model with {option}"
        )
    return Checkpoint(found, folder, folder if is_file(folder / TOKENIZER_FILE) else found)


def load_checkpoint(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """The model on CPU, in evaluation mode, with the adapter merged. Raises Unreadable as `load_model_folder`, and if
    the adapter does not fit the model."""
    model = load_model_folder(checkpoint.model, dtype)
    return model if checkpoint.adapter is None else _merged(model, checkpoint.adapter).eval()


def _settings(folder: Path) -> dict[str, Any]:
    """The adapter's configuration, if it can be merged."""
    path = folder / CONFIG
    found = parse_object(read_bytes(path, MAX_JSON), str(path))
    if (kind := found.get("peft_type")) != "LORA":
        raise Unreadable(f"{path}: the adapter is of the kind {brief(kind)}; only LORA is merged, so merge it yourself")
    if (initial := found.get("init_lora_weights")) not in INITIAL:
        raise Unreadable(
            f"{path}: `init_lora_weights` is {brief(initial)}, which changes the base model; merge the adapter yourself"
        )
    for key in REFUSED:
        if found.get(key):
            raise Unreadable(f"{path}: `{key}` has a value, with which no adapter is merged; merge it yourself")
    if not is_file(folder / ADAPTER):
        raise Unreadable(f"{folder}: no {ADAPTER} beside {CONFIG}; other weight formats are refused")
    return found


def _found(name: Any) -> Path | None:
    """The folder of a base model by its path or its name on the hub; None if it is not here."""
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    if is_folder(Path(name)):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def _merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    settings, headers = _settings(folder), read_header(folder / ADAPTER)
    for name, header in headers.items():
        if header.dtype not in FLOATING:
            raise Unreadable(f"{folder / ADAPTER}: {brief(name)} has the type {header.dtype}; floating point is needed")
    with warnings.catch_warnings(), decoding(str(folder), "is no adapter of this base model"):
        warnings.simplefilter("ignore")  # about training it further, and about --base
        adapted: Any = get_peft_model(model, LoraConfig(**_known(settings)))
        tensors = load_file(folder / ADAPTER)
        result = set_peft_model_state_dict(adapted, tensors)
        missing = [name for name in result.missing_keys if "lora_" in name or "modules_to_save" in name]
        if amiss := sorted([*result.unexpected_keys, *missing]):
            shown = ", ".join(brief(name, 120) for name in amiss[:SHOWN])
            raise Unreadable(f"{folder}: the adapter and its base model do not fit; the first weights amiss: {shown}")
        _untie(model)
        return adapted.merge_and_unload(safe_merge=True)


def _untie(model: PreTrainedModel) -> None:
    """Gives the output head a weight of its own if it shares that of the input embeddings and either has an adapter:
    PEFT runs the adapter on one of them, and merging would change both."""
    from peft.tuners.lora import LoraLayer
    from torch import nn

    ends: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    if not any(isinstance(end, LoraLayer) for end in ends):
        return
    bases: list[Any] = [end.get_base_layer() if isinstance(end, LoraLayer) else end for end in ends]
    inputs, head = bases
    if inputs.weight is head.weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that this PEFT knows, for reading only."""
    from dataclasses import fields

    from peft import LoraConfig

    names = {field.name for field in fields(LoraConfig) if field.init}
    return {key: value for key, value in settings.items() if key in names} | {"inference_mode": True}
