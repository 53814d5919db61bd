"""Local Hugging Face model folders: the checks before one is used, and the one way in which one is loaded.

A folder may come from anybody. Of a folder that passes `check_model_folder` holds:

- Its configuration is a bounded JSON object of a decoder-only causal language model, perhaps with a vision tower that
  is proven (`kit.pictures.geometry`), and asks for no code of its own, no quantisation, no adapter and no other
  source of weights.
- transformers and vLLM would read the same files of it: `model.safetensors` alone, or the files of its index, which are
  files of the folder. Nothing but safetensors is read.
- The files hold every weight of the model with its shape, as floating point numbers, and nothing else.

transformers itself decides which name belongs to which weight; it is asked with tensors that have no data. Left to
itself it fills a missing weight with random numbers, and vLLM leaves one of a linear layer as it was allocated; both go
on. The check reads headers only, and builds the model without storage: less than a second for most models.

`load_model_folder` also refuses weights that are not finite. vLLM reads the values itself, after the check.

torch and transformers are imported inside the functions that need them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.models.conversion import require_experts
from squelch.kit.models.tensor_files import TensorHeader, read_header
from squelch.kit.pictures.geometry import PROVEN, is_proven
from squelch.kit.untrusted.files import MIB, Unreadable, brief, decoding, is_file, is_folder, read_bytes
from squelch.kit.untrusted.text import parse_object

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_JSON = 16 * MIB
"""Bytes of one JSON file of the folder."""
MAX_FILES = 10_000
MAX_TENSORS = 200_000
MAX_LAYERS = 2_000
"""Layers of a model: the skeleton is built layer by layer, and the configuration could claim a billion."""
SHOWN = 3
"""Number of weights that an error names."""
REFUSED_FILES = {
    "adapter_config.json": "an adapter, which may name another folder as its base; merge it into the model",
    "hf_quant_config.json": "quantised; a model in float32, bfloat16 or float16 is needed",
}
"""Files that change what a folder means, whatever `config.json` says."""
FURTHER_JSON = ("generation_config.json",)
"""Files that transformers reads too, if they are there."""
REFUSED_KEYS = {
    "auto_map": "code of its own, which is never run",
    "quantization_config": "quantised weights; a model in float32, bfloat16 or float16 is needed",
    "transformers_weights": "weights in another file than model.safetensors",
    "fusion_config": "another implementation of its layers",
}
"""Keys of `config.json` that are refused when they have a value, and what a model with such a key needs."""
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
TOWER_KEYS = ("depth",)
"""The key of a vision tower's layers."""
NO_MODEL = "has a config.json that describes no model of this transformers"
FLOATING = frozenset({"F64", "F32", "F16", "BF16"})


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. Raises Unreadable, naming the folder, when it is not a decoder-only causal language
    model that can be loaded without code of its own."""
    config = _config_json(folder)
    for file, what in REFUSED_FILES.items():
        if (folder / file).exists():
            raise Unreadable(f"model folder {folder}: {file} makes it {what}")
    for path in (folder / file for file in FURTHER_JSON):
        if path.exists():
            parse_object(read_bytes(path, MAX_JSON), str(path))
    if not any(folder.glob("*.safetensors")):
        raise Unreadable(f"model folder {folder}: no *.safetensors file; other weight formats are refused")
    return config


def model_config(folder: Path) -> PreTrainedConfig:
    """The folder's configuration as transformers understands it; its weights need not be there. Raises Unreadable when
    there is none, transformers knows no such model, or it is refused by its architecture."""
    from transformers import AutoConfig

    _config_json(folder)
    with decoding(f"model folder {folder}", NO_MODEL):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _config_json(folder: Path) -> dict[str, Any]:
    """`config.json`, of a bounded size and with a bounded number of layers, and of no model that is refused."""
    path = folder / "config.json"
    if not is_folder(folder) or not is_file(path):
        raise Unreadable(f"model folder {folder}: no config.json; a local Hugging Face model folder is needed")
    config = parse_object(read_bytes(path, MAX_JSON), str(path))
    _check_layers(folder, config)
    name = _architecture(folder, config)
    for key, need in REFUSED_KEYS.items():
        if config.get(key) is not None:
            raise Unreadable(f"model folder {folder}: {name} needs {need} ({key} in config.json)")
    return config


def _architecture(folder: Path, config: dict[str, Any]) -> str:
    """The name of the model's class. Raises Unreadable unless it is a decoder-only causal language model, without a
    vision tower or with a proven one."""
    from transformers.models.auto import modeling_auto

    names = config.get("architectures") or ["(none named)"]
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise Unreadable(f"model folder {folder}: architectures in config.json must be a list of names")
    causal = is_proven(names) or names[0] in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    seen = names[0] in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values() and not is_proven(names)
    if seen and config.get("vision_config") is not None:
        raise Unreadable(
            f"model folder {folder}: the vision tower of {names[0]} is not proven; proven: {', '.join(PROVEN)}"
        )
    if not causal or config.get("is_encoder_decoder") or not config.get("is_decoder", True):
        name = names[0] if names[0].isprintable() else brief(names[0])
        raise Unreadable(
            f"model folder {folder}: {name[:200]} is not a decoder-only causal language model; one like "
            f"Qwen2ForCausalLM or LlamaForCausalLM is needed, or for pictures {' or '.join(PROVEN)}"
        )
    return names[0]


def _check_layers(folder: Path, config: dict[str, Any]) -> None:
    parts = (("", LAYER_KEYS), ("text_config", LAYER_KEYS), ("vision_config", TOWER_KEYS))
    for name, keys in parts:
        part = config.get(name) if name else config
        for key in keys:
            value = part.get(key) if isinstance(part, dict) else None
            if value is not None and not (isinstance(value, int) and 0 < value <= MAX_LAYERS):
                raise Unreadable(
                    f"model folder {folder}: {key} in config.json is {brief(value)}; a number from 1 to {MAX_LAYERS} "
                    "is needed"
                )


def has_tower(config: PreTrainedConfig) -> bool:
    """Whether the model of this configuration has a vision tower that can be fed pictures."""
    return is_proven(config.architectures)


def auto_model(config: PreTrainedConfig) -> Any:
    """The class of transformers that makes and loads the model of this configuration."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if has_tower(config) else AutoModelForCausalLM


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights, in order of their names. Raises Unreadable when transformers and
    vLLM would choose different ones, or the index names anything but files of the folder."""
    single, index = is_file(folder / WEIGHTS), is_file(folder / INDEX)
    if single and index:
        raise Unreadable(f"model folder {folder}: it has both {WEIGHTS} and {INDEX}; remove one of them")
    if index:
        return [folder / name for name in sorted(set(_weight_map(folder).values()))]
    others = sorted(path.name for path in folder.glob("*.safetensors") if path.name != WEIGHTS)
    if others or not single:
        found = f"{brief(others[0])} without {INDEX}" if others else f"no {WEIGHTS}"
        raise Unreadable(
            f"model folder {folder}: it has {found}, so that it is not said which files hold the weights; keep "
            f"{WEIGHTS} alone, or several files and their index"
        )
    return [folder / WEIGHTS]


def _weight_map(folder: Path) -> dict[str, str]:
    """The file of each weight as the index says."""
    path = folder / INDEX
    found = parse_object(read_bytes(path, MAX_JSON), str(path))
    files = found.get("weight_map")
    if not isinstance(found.get("metadata"), dict) or not isinstance(files, dict) or not files:
        raise Unreadable(f"{path}: the objects `metadata` and `weight_map` are needed")
    for name in files.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise Unreadable(f"{path}: {brief(name)} is no safetensors file of the folder itself")
    if len(set(files.values())) > MAX_FILES:
        raise Unreadable(f"{path}: more than {MAX_FILES} files")
    return files


def weight_headers(folder: Path) -> dict[str, TensorHeader]:
    """All tensors of the weight files by name. Raises Unreadable when one is in two files, is not floating point, or is
    not where the index says."""
    found: dict[str, TensorHeader] = {}
    places: dict[str, str] = {}
    for path in weight_files(folder):
        header = read_header(path)
        if twice := sorted(header.keys() & found.keys()):
            raise Unreadable(f"{path}: the weight {brief(twice[0])} is in another file too")
        found |= header
        places |= dict.fromkeys(header, path.name)
        if len(found) > MAX_TENSORS:
            raise Unreadable(f"model folder {folder}: more than {MAX_TENSORS} weights")
    if is_file(folder / INDEX) and (wrong := sorted(set(_weight_map(folder).items()) ^ set(places.items()))):
        raise Unreadable(f"{folder / INDEX}: the weight {brief(wrong[0][0])} is not where the index says")
    for name, header in found.items():
        if header.dtype not in FLOATING:
            raise Unreadable(
                f"model folder {folder}: the weight {brief(name)} has the type {header.dtype}; floating point is needed"
            )
    return found


def num_parameters(folder: Path) -> int:
    """The number of parameters in the weight files, by their headers. Raises as `weight_headers`."""
    return sum(math.prod(header.shape) for header in weight_headers(folder).values())


def check_model_folder(folder: Path) -> PreTrainedConfig:
    """The folder's configuration, after all checks of the module's docstring.

    Raises:
        Unreadable: a check failed; the text names folder, file or weight, and says what would be right.
    """
    names = read_config(folder)["architectures"]
    headers, config = weight_headers(folder), model_config(folder)
    with decoding(f"model folder {folder}", NO_MODEL):
        skeleton = _skeleton(config)
    require_experts(folder, skeleton, headers)
    with decoding(f"model folder {folder}", NO_MODEL):
        info = _matched(skeleton, headers)
    _require_all(folder, info)
    if vars(config).get("is_decoder") is False:
        raise Unreadable(
            f"model folder {folder}: {names[0]} attends in both directions; a decoder-only model is needed"
        )
    return config


def _skeleton(config: PreTrainedConfig) -> PreTrainedModel:
    """The model without storage."""
    import torch

    with torch.device("meta"):
        return auto_model(config).from_config(config)


def _matched(skeleton: PreTrainedModel, headers: dict[str, TensorHeader]) -> dict[str, Any]:
    """Report of transformers on loading tensors of these headers, without data, into a model like the skeleton."""
    import torch

    kind: Any = type(skeleton)
    dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    tensors = {
        name: torch.empty(header.shape, dtype=dtypes[header.dtype], device="meta") for name, header in headers.items()
    }
    with _without_reports():
        _, info = kind.from_pretrained(
            None,
            config=skeleton.config,
            state_dict=tensors,
            device_map="meta",
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
        )
    return info


@contextmanager
def _without_reports() -> Iterator[None]:
    """Keeps transformers from printing progress and tables of weights that did not fit: errors name them here."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _require_all(folder: Path, info: dict[str, Any]) -> None:
    """Raises Unreadable, naming weights, if some are missing, are of no use to the model, or have another shape."""
    faults = {
        "lacks weights of the model, which would be random": sorted(info["missing_keys"]),
        "holds weights that the model does not have": sorted(info["unexpected_keys"]),
        "holds weights of other shapes than config.json says": sorted(
            f"{name} {list(there)} instead of {list(needed)}" for name, there, needed in info["mismatched_keys"]
        ),
    }
    for what, names in faults.items():
        if names:
            shown = ", ".join(brief(name, 120) for name in names[:SHOWN])
            rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise Unreadable(f"model folder {folder} {what}: {shown}{rest}; copy the whole folder again")


def load_model_folder(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder on CPU, in evaluation mode, after all checks of the module's docstring.

    Raises:
        Unreadable: as `check_model_folder`, or a weight is not finite.
    """
    config = check_model_folder(folder)
    with _without_reports(), decoding(f"model folder {folder}", "cannot be loaded"):
        model, info = auto_model(config).from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    _require_all(folder, info)
    _require_tied(folder, model)
    _require_finite(folder, model)
    return model.eval()


def _require_tied(folder: Path, model: PreTrainedModel) -> None:
    """Raises Unreadable if two weights that the configuration makes one have different values: transformers would keep
    both, and vLLM one of them."""
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    if apart := sorted(tied.keys() - model.all_tied_weights_keys.keys()):
        raise Unreadable(
            f"model folder {folder}: config.json makes {apart[0]} and {tied[apart[0]]} one weight, but the files hold "
            "different values; set tie_word_embeddings to false if both are meant"
        )


def _require_finite(folder: Path, model: PreTrainedModel) -> None:
    """Raises Unreadable, naming the weight, if one of its values is infinite or not a number."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = (float(bound) for bound in tensor.aminmax())
            if not -float("inf") < low <= high < float("inf"):
                raise Unreadable(f"model folder {folder}: the weight {name} holds values that are not finite numbers")
