"""A model folder that somebody else wrote is refused by name, or is exactly the model that it says."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from squelch.actors.config import RolloutConfig
from squelch.actors.rollout.engine import VllmEngine
from squelch.kit.models.model_folder import INDEX, WEIGHTS, check_model_folder, has_tower, load_model_folder
from squelch.kit.packed.vision import tower
from squelch.kit.pictures.geometry import vision_of
from tests.learner.checkpoint.hostile import pickle_forbidden
from tests.learner.models import make_model
from tests.seeing import make_seeing_model

NORM, DOWN = "model.norm.weight", "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("good") / "model")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(good, tmp_path / "model")


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    """Changes the weights of the folder."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def configured(**changes: object) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


def split(folder: Path, weight_map: Callable[[dict[str, str]], object] = lambda _: None) -> None:
    """Makes two files and an index of the only file; `weight_map` changes the index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    files = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    weight_map(files)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))


def pointing(to: str) -> Callable[[Path], object]:
    return lambda folder: split(folder, lambda files: files.update({NORM: to}))


def elsewhere(folder: Path) -> None:
    """An index that names a whole file outside of the folder."""
    split(folder)
    shutil.move(folder / "model-00001-of-00002.safetensors", folder.parent / "away.safetensors")
    index = (folder / INDEX).read_text().replace("model-00001-of-00002.safetensors", "../away.safetensors")
    (folder / INDEX).write_text(index)


def pipe(name: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def resized(tensors: dict[str, torch.Tensor]) -> None:
    tensors[DOWN] = tensors[DOWN][:, :-1].contiguous()


DAMAGE = {
    "a weight is missing": (rewrite(lambda t: t.pop(NORM)), f"lacks weights .*'{NORM}'"),
    "a layer is missing": (
        rewrite(lambda t: [t.pop(name) for name in list(t) if ".layers.1." in name]),
        r"lacks weights .*'model\.layers\.1\..* and 9 more",
    ),
    "a weight is surplus": (
        rewrite(lambda t: t.update(x=torch.zeros(2))),
        "holds weights that the model does not .*'x'",
    ),
    "a bias that is not used": (
        rewrite(lambda t: t.update({DOWN.replace("weight", "bias"): torch.zeros(32)})),
        r"does not have: 'model\.layers\.1\.mlp\.down_proj\.bias'",
    ),
    "another shape": (rewrite(resized), rf"of other shapes .*{DOWN} \[32, 63\] instead of \[32, 64\]"),
    "integers": (rewrite(lambda t: t.update({NORM: t[NORM].long()})), f"'{NORM}' has the type I64; floating point"),
    "another width": (configured(hidden_size=64), "of other shapes than config.json says"),
    "more layers": (configured(num_hidden_layers=3), "describes no model|lacks weights"),
    "a billion layers": (configured(num_hidden_layers=10**9), "num_hidden_layers .* is 1000000000; a number from 1 to"),
    "layers of text": (configured(num_hidden_layers="many"), "num_hidden_layers .* is 'many'"),
    "no heads": (configured(num_attention_heads=0), "describes no model"),
    "an unknown activation": (configured(hidden_act="none such"), "describes no model"),
    "a width of text": (configured(hidden_size="wide"), "describes no model"),
    "code of its own": (configured(auto_map={"AutoModel": "evil.Model"}), "needs code of its own"),
    "quantised": (configured(quantization_config={"quant_method": "gptq"}), "needs quantised weights"),
    "weights elsewhere": (configured(transformers_weights="other.safetensors"), "another file than model"),
    "an adapter": (
        lambda d: (d / "adapter_config.json").write_text('{"base_model_name_or_path": "/etc"}'),
        "adapter_config.json makes it an adapter",
    ),
    "a pipe for the settings of generation": (pipe("generation_config.json"), "generation_config.json is a named pipe"),
    "names that are no list": (configured(architectures="Qwen2ForCausalLM"), "must be a list of names"),
    "a configuration that is no object": (lambda d: (d / "config.json").write_text("[]"), "one JSON object"),
    "deep nesting": (lambda d: (d / "config.json").write_text("[" * 10**5), r"config\.json"),
    "a pipe for the configuration": (pipe("config.json"), "no config.json"),
    "a pipe for the weights": (pipe(WEIGHTS), "it has no model.safetensors"),
    "weights cut short": (lambda d: os.truncate(d / WEIGHTS, 5000), "not a whole safetensors file"),
    "weights of a terabyte": (lambda d: os.truncate(d / WEIGHTS, 2**40), "not a whole safetensors file"),
    "a header of 2^60 bytes": (lambda d: (d / WEIGHTS).write_bytes(struct.pack("<Q", 2**60)), "claims a header"),
    "two sets of weights": (
        lambda d: shutil.copy(d / WEIGHTS, d / "consolidated.safetensors"),
        "'consolidated.safetensors' without model.safetensors.index.json",
    ),
    "a file and an index": (lambda d: (d / INDEX).write_text("{}"), "it has both"),
    "an index of nothing": (lambda d: (split(d), (d / INDEX).write_text("{}")), "`metadata` and `weight_map`"),
    "an index out of the folder": (elsewhere, r"'\.\./away\.safetensors' is no safetensors file of the folder itself"),
    "an index to an absolute path": (pointing("/etc/passwd"), "'/etc/passwd' is no safetensors file"),
    "an index to the wrong file": (pointing("model-00001-of-00002.safetensors"), f"'{NORM}' is not where"),
    "an index to a missing file": (pointing("none.safetensors"), "none.safetensors does not exist"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_a_folder_that_is_not_the_whole_model_is_refused_by_name(
    folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(folder)
    for use in (check_model_folder, lambda folder: load_model_folder(folder, torch.float32)):
        with pytest.raises(ValueError, match=said) as error:
            use(folder)
        assert str(folder) in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 1000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(folder: Path, value: float) -> None:
    rewrite(lambda t: t[DOWN].view(-1)[7].fill_(value))(folder)
    check_model_folder(folder)
    with pytest.raises(ValueError, match=f"the weight {DOWN} holds values that are not finite"):
        load_model_folder(folder, torch.float32)


def test_a_head_that_differs_from_the_embedding_to_which_it_is_tied_is_refused(folder: Path) -> None:
    rewrite(lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))(folder)
    with pytest.raises(ValueError, match=r"makes lm_head\.weight and model\.embed_tokens\.weight one weight"):
        load_model_folder(folder, torch.float32)


def test_a_head_that_equals_the_embedding_to_which_it_is_tied_is_no_fault(folder: Path) -> None:
    rewrite(lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))(folder)
    model = load_model_folder(folder, torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("prepare", [lambda _: None, split], ids=["one file", "two files"])
def test_a_whole_folder_is_loaded_without_an_unpickler(good: Path, folder: Path, prepare: Callable) -> None:
    prepare(folder)
    with pickle_forbidden():
        assert check_model_folder(folder).hidden_size == 32
        model = load_model_folder(folder, torch.float32)
    saved = load_file(good / WEIGHTS)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in saved.items())


def test_files_that_no_index_names_do_not_matter(folder: Path) -> None:
    split(folder)
    (folder / "consolidated.safetensors").write_bytes(b"anything")
    check_model_folder(folder)


def test_an_engine_is_not_started_on_weights_that_vllm_would_leave_unset(folder: Path) -> None:
    rewrite(lambda t: t.pop(DOWN))(folder)
    with pytest.raises(ValueError, match=f"lacks weights of the model, which would be random: '{DOWN}'"):
        VllmEngine("rollout-0", folder, RolloutConfig(), [])._create()


def test_a_text_model_whose_configuration_describes_a_tower_has_none_for_anybody(folder: Path) -> None:
    configured(vision_config={"depth": 2, "patch_size": 14})(folder)
    config = check_model_folder(folder)
    assert config.vision_config and not has_tower(config) and vision_of(folder) is None
    assert tower(load_model_folder(folder, torch.float32)) is None


def without_the_tower(folder: Path) -> None:
    rewrite(lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("visual.blocks.1")])(folder)


def of_other_patches(folder: Path) -> None:
    vision = json.loads((folder / "config.json").read_text())["vision_config"]
    configured(vision_config=vision | {"patch_size": 8})(folder)


def of_a_billion_blocks(folder: Path) -> None:
    vision = json.loads((folder / "config.json").read_text())["vision_config"]
    configured(vision_config=vision | {"depth": 10**9})(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_the_tower, "lacks weights of the model, .*model.visual.blocks.1"),
        (configured(architectures=["Qwen2VLForConditionalGeneration"]), "of Qwen2VL.* not proven; proven: Qwen2_5_VL"),
        (configured(architectures=["Gemma3ForConditionalGeneration"]), "of Gemma3.* not proven; proven: Qwen2_5_VL"),
        (of_other_patches, r"of other shapes .*patch_embed\.proj\.weight \[32, 3, 2, 4, 4\]"),
        (of_a_billion_blocks, "depth in config.json is 1000000000"),
    ],
)
def test_a_model_with_a_tower_is_loaded_whole_or_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    folder = make_seeing_model(tmp_path / "seeing")
    assert "model.visual.merger.ln_q.weight" in load_model_folder(folder, torch.float32).state_dict()
    damage(folder)
    with pytest.raises(ValueError, match=words) as refused:
        load_model_folder(folder, torch.float32)
    assert str(folder) in str(refused.value)
