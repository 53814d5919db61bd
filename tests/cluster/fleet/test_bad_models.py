"""A model folder that cannot be trained, served or spoken to is refused before anything starts."""

import json
import re
import shutil
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, Llama4TextConfig

from squelch.cluster.cli import main
from squelch.cluster.config import load
from squelch.cluster.sweep.cells import prepare
from squelch.envs.config import EnvironmentConfig
from squelch.envs.registry import resolved
from squelch.kit.base.errors import UserError
from squelch.learner.warmup.tiny import write_tokenizer
from squelch.learner.warmup.tiny_model import new_model, write_configs
from squelch.learner.warmup.tiny_recipe import TinyRecipe, TinyTower


@pytest.fixture
def model(tiny_policy, tmp_path):
    return shutil.copytree(tiny_policy, tmp_path / "model")


def refused(tmp_path, capsys, *overrides):
    """The error of a `train` that must end with code 2 and leave no run behind."""
    words = ["train", "frozenlake", f"runs_dir={tmp_path / 'runs'}", "recorder.port=0", *overrides]
    assert main(words) == 2
    assert not (tmp_path / "runs").exists()
    return capsys.readouterr().err


def test_without_a_chat_template(model, tmp_path, capsys):
    (model / "chat_template.jinja").unlink()
    assert "chat template" in refused(tmp_path, capsys, f"model.path={model}")


def test_a_tokenizer_that_lacks_needed_words(model, tmp_path, capsys):
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    words["zzz"] = words.pop("Ġgoal")
    path.write_text(json.dumps(tokenizer))
    assert "goal" in refused(tmp_path, capsys, f"model.path={model}")


def test_a_word_tokenizer_of_another_environment(model, tmp_path, capsys):
    taxi = ("environment.name=Gymnasium", "environment.options={id: Taxi-v4}", "environment.format.max_turns=2")
    assert "cannot express" in refused(tmp_path, capsys, f"model.path={model}", *taxi)


def test_a_context_too_small_for_the_first_turn(model, tmp_path, capsys):
    small = ("rollout.max_model_len=64", "sampling.max_tokens_per_turn=8")
    assert "exceeds rollout.max_model_len=64" in refused(tmp_path, capsys, f"model.path={model}", *small)


def test_a_context_longer_than_the_models(model, tmp_path, capsys):
    assert "model's context" in refused(tmp_path, capsys, f"model.path={model}", "rollout.max_model_len=4096")


def test_an_encoder_decoder_by_name(model, tmp_path, capsys):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["T5ForConditionalGeneration"]}))
    assert "T5ForConditionalGeneration" in refused(tmp_path, capsys, f"model.path={model}")


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
UNTRAINABLE = [
    (GPT2Config(n_embd=32, n_layer=2, n_head=4, **IDS), "GPT2LMHeadModel cannot be trained .*intermediate_size"),
    (
        Llama4TextConfig(**SMALL, **IDS, intermediate_size_mlp=48, num_local_experts=2),
        "Llama4ForCausalLM cannot be trained",
    ),
    (Gemma2Config(**SMALL, **IDS), "Gemma2ForCausalLM cannot be trained .Gemma2Attention asks for softcap"),
]


@pytest.mark.parametrize(("config", "words"), UNTRAINABLE, ids=lambda given: type(given).__name__)
def test_an_architecture_that_cannot_be_trained_by_name_in_plan_and_train(model, tmp_path, capsys, config, words):
    config.vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    supported = "; take a decoder-only model with attention over all tokens, such as Llama"
    assert re.search(words + ".*" + supported, refused(tmp_path, capsys, f"model.path={model}"))
    assert main(["plan", "frozenlake", f"model.path={model}"]) == 2
    assert re.search(words + ".*" + supported, capsys.readouterr().err)


def test_weights_that_are_not_safetensors(model, tmp_path, capsys):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "safetensors" in refused(tmp_path, capsys, f"model.path={model}")


def test_weights_that_are_missing(model, tmp_path, capsys):
    weights = load_file(model / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert "lacks weights of the model" in refused(tmp_path, capsys, f"model.path={model}")


def test_a_fixed_scorer_with_a_weight_too_many(tiny_policy, model, tmp_path, capsys):
    weights = load_file(model / "model.safetensors") | {"extra": torch.zeros(1)}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    error = refused(tmp_path, capsys, f"model.path={tiny_policy}", f"scorer.model={model}")
    assert f"model folder {model} holds weights that the model does not have: 'extra'" in error


def test_a_cluster_that_is_not_there_is_said_before_any_warm_up(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cache = tmp_path / "cache"
    error = refused(tmp_path, capsys, f"cluster.address={address}", f"model.cache={cache}")
    assert address in error and "ray start" in error and not cache.exists()


def test_a_port_in_use(model, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused(tmp_path, capsys, f"model.path={model}", f"recorder.port={port}")
    assert "recorder.port" in error and str(port) in error


def test_a_model_without_a_tower_where_pictures_are_shown(model, tmp_path, capsys):
    seen = "environment.options={observation_format: picture}"
    error = refused(tmp_path, capsys, f"model.path={model}", seen)
    assert "FrozenLake shows pictures, and the model of model.path has no vision tower" in error


def of_recipe(folder, tower):
    """A random policy for FrozenLake, with a tower or without one."""
    recipe = TinyRecipe(width=32, layers=1, tower=tower)
    folder.mkdir()
    codec = write_tokenizer(folder, resolved(EnvironmentConfig(name="FrozenLake")), 0, recipe)
    model = new_model(codec, recipe, 0)
    model.save_pretrained(folder)
    write_configs(model, folder)
    return folder


TOWER = TinyTower(width=32, layers=1, heads=1, rope_sections=(0, 2, 2))


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """A random policy that can be shown pictures whose sides are multiples of 8."""
    return of_recipe(tmp_path_factory.mktemp("seeing") / "model", TOWER)


def without_a_block(model):
    weights = load_file(model / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "visual.blocks" not in name}
    save_file(kept, model / "model.safetensors", metadata={"format": "pt"})


def named(**changes):
    def change(model):
        for file in (model / "config.json", model / "preprocessor_config.json"):
            config = json.loads(file.read_text())
            file.write_text(json.dumps(config | {key: value for key, value in changes.items() if key in config}))

    return change


@pytest.mark.parametrize(
    ("damage", "cell_pixels", "words"),
    [
        (named(), 9, "36 x 36 pixels does not fit the model in .*: both sides must be multiples of 8"),
        (named(max_pixels=1000), 8, "32 x 32 pixels does not fit .* more than 1000 pixels"),
        (
            named(),
            80,
            r"the longest first prompt of FrozenLake has 1\d\d\d tokens .* exceeds rollout.max_model_len=512",
        ),
        (named(patch_size=2), 8, "patch_size in config.json is 4, but .* is 2"),
        (named(architectures=["Qwen2VLForConditionalGeneration"]), 8, "of Qwen2VLFor.* not proven; proven: Qwen2_5_VL"),
        (without_a_block, 8, r"lacks weights of the model, .*visual\.blocks"),
    ],
)
def test_a_model_that_cannot_be_shown_the_environments_pictures(seeing, tmp_path, capsys, damage, cell_pixels, words):
    model = shutil.copytree(seeing, tmp_path / "model")
    damage(model)
    shows = f"environment.options={{observation_format: picture, cell_pixels: {cell_pixels}}}"
    room = ("rollout.max_model_len=512", "sampling.max_tokens_per_turn=64")
    assert re.search(words, refused(tmp_path, capsys, f"model.path={model}", shows, *room))


@pytest.mark.parametrize(
    ("tower", "damage", "words"),
    [
        (
            None,
            named(),
            "shown the policy's pictures: it has no vision tower, the policy a vision tower of 8 pixels a token",
        ),
        (
            TOWER.model_copy(update={"patch": 2}),
            named(),
            "it has a vision tower of 4 pixels a token, .* the policy a vision tower of 8 pixels a token",
        ),
        (TOWER, named(max_pixels=1000), "64 to 1000 pixels a picture .* the policy .* 64 to \\d+ pixels a picture"),
    ],
)
def test_a_fixed_scorer_that_is_not_shown_pictures_as_the_policy_is(seeing, tmp_path, capsys, tower, damage, words):
    fixed = of_recipe(tmp_path / "fixed", tower)
    shutil.copy(seeing / "tokenizer.json", fixed)
    if tower:
        damage(fixed)
    shows = "environment.options={observation_format: picture, cell_pixels: 8}"
    small = ("rollout.max_model_len=512", "sampling.max_tokens_per_turn=64")
    given = (f"model.path={seeing}", f"scorer.model={fixed}", shows, *small)
    assert re.search(words, refused(tmp_path, capsys, *given))
    with pytest.raises(UserError, match=words):
        prepare([load("frozenlake", given)], 1, print)
