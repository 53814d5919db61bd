import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from learner import checkpoint
from learner.trainer import Trainer
from tests.learner.models import make_config, make_groups, make_model

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


def test_a_folder_that_is_no_checkpoint_is_named(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step-7: not a whole checkpoint"):
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
    assert Trainer(folder, make_config()).publish(1, lambda chunk: chunk).checksum == bundle.checksum


def test_a_failed_write_leaves_nothing_and_keeps_what_was_there(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.save(tmp_path / "step-1", {"old": True})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(ValueError, match=r"step-1 could not be written.*No space left on device"):
        trainer.save(tmp_path / "step-1", {"old": False})
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
    assert checkpoint.read_loop(tmp_path / "step-1") == {"old": True}
    assert trainer.train_step(1, make_groups()).updated


def test_the_state_is_sharded_and_says_whose_it_is(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, make_config())
    trainer.save(tmp_path / "step-1", {})
    assert list((tmp_path / "step-1" / "sharded").glob("*.distcp"))
    described = json.loads((tmp_path / "step-1" / "model.json").read_text())
    assert described["parameters"] == checkpoint.shapes(trainer.policy)
    assert torch.Size(described["parameters"]["model.norm.weight"]) == (32,)
