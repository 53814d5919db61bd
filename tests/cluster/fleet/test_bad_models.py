"""A model folder that cannot be trained, served or spoken to is refused before anything starts."""

import json
import shutil
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file

from squelch.cluster.cli import main


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
