"""What a checkpoint that somebody else wrote can do: be refused by name."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from squelch.learner import process_group
from squelch.learner.checkpoint.folder import load_weights
from squelch.learner.checkpoint.state import shapes
from squelch.learner.trainer import Trainer
from tests.learner.checkpoint.hostile import pickle_forbidden, plant, write_older
from tests.learner.models import make_config, make_groups

pytestmark = pytest.mark.usefixtures("alone")

NORM = "policy/parameter/model.norm.weight"
FIRST = "00000-00000.safetensors"


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """This process as the only learner rank, for all of these tests, which share a trainer."""
    torch.set_num_threads(1)
    process_group.start(0, 1, "127.0.0.1", 0, 60, "cpu")
    yield
    process_group.stop()


@pytest.fixture(scope="module")
def good(alone: None, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after two optimizer steps."""
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    path = tmp_path_factory.mktemp("good") / "step-1"
    trainer.save(path, {"clock": 1})
    return path


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(good, tmp_path / "step-1")


def fingerprint(trainer: Trainer) -> str:
    return trainer.publish(0, lambda chunk: chunk).checksum


def test_an_older_checkpoint_is_refused_and_its_payload_does_not_run(model_dir: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    trainer = Trainer(model_dir, make_config())
    older = write_older(tmp_path / "step-1", mark, shapes(trainer.policy))
    for load in (trainer.load, lambda path: load_weights(path, trainer.policy)):
        with pytest.raises(ValueError, match=r"step-1 was written by an older Squelch.*model\.path=\S*step-1/hf"):
            load(older)
    assert not mark.exists()


def test_a_payload_beside_the_shards_is_refused_and_does_not_run(model_dir: Path, path: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    plant(path / "sharded", mark)
    trainer = Trainer(model_dir, make_config())
    for load in (trainer.load, lambda path: load_weights(path, trainer.policy)):
        with pytest.raises(ValueError, match=r"sharded holds '\.metadata'; .*\.safetensors files and nothing else"):
            load(path)
    assert not mark.exists()


def test_nothing_of_a_checkpoint_is_unpickled(model_dir: Path, tmp_path: Path) -> None:
    trainer, other = Trainer(model_dir, make_config()), Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups())
    with pickle_forbidden():
        trainer.save(tmp_path / "step-1", {"clock": 1})
        assert other.load(tmp_path / "step-1") == {"clock": 1}
        load_weights(tmp_path / "step-1", other.policy)
    assert fingerprint(other) == fingerprint(trainer)


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    """Changes the tensors of the only file of shards."""

    def damage(path: Path) -> None:
        tensors = load_file(path / "sharded" / FIRST)
        change(tensors)
        save_file(tensors, path / "sharded" / FIRST)

    return damage


def manifest(**changes: object) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        file = path / "model.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


def set_to(name: str, value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[name].view(-1)[0].fill_(value)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def claim(file: Path, length: int) -> None:
    """A header that claims this length."""
    file.write_bytes(struct.pack("<Q", length) + b"{}")


DAMAGE = {
    "a tensor is missing": (rewrite(lambda t: t.pop(NORM)), "norm.weight' is missing"),
    "a tensor is surplus": (rewrite(lambda t: t.update(x=torch.zeros(2))), "'x' is in no tensor of this model"),
    "a row is missing": (rewrite(lambda t: t.update({NORM: t[NORM][:-1].clone()})), "no tensor of shape"),
    "a dimension is surplus": (rewrite(lambda t: t.update({NORM: t[NORM][None].clone()})), "no tensor of shape"),
    "another type": (rewrite(lambda t: t.update({NORM: t[NORM].half()})), "has the type F16, not F32"),
    "not a number": (rewrite(set_to(NORM, float("nan"))), "holds values from nan"),
    "infinite": (rewrite(set_to(NORM, float("inf"))), "to inf"),
    "a negative square": (rewrite(set_to("policy/exp_avg_sq/model.norm.weight", -1.0)), "holds values from -1"),
    "no step taken": (rewrite(set_to("policy/step/model.norm.weight", 0.0)), "holds values from 0 to 0"),
    "no shards": (lambda p: (p / "sharded" / FIRST).unlink(), "sharded holds 0 files"),
    "a file twice": (
        lambda p: shutil.copy(p / "sharded" / FIRST, p / "sharded" / "00001-00000.safetensors"),
        "no tensor of shape",
    ),
    "a file cut": (lambda p: os.truncate(p / "sharded" / FIRST, 5000), "not a whole safetensors file"),
    "a file grown": (lambda p: os.truncate(p / "sharded" / FIRST, 10**6), "not a whole safetensors file"),
    "a header of 2^60 bytes": (lambda p: claim(p / "sharded" / FIRST, 2**60), "claims a header of"),
    "a pipe for a file": (lambda p: pipe(p / "sharded" / FIRST), "a regular file is needed"),
    "a pipe for the manifest": (lambda p: pipe(p / "model.json"), "not a complete checkpoint"),
    "another format": (manifest(format=3), "has the format 3, and this Squelch reads format 2"),
    "an unknown key": (manifest(surprise=1), "surprise"),
    "negative steps": (manifest(optimizer_steps=-1), "optimizer_steps"),
    "a huge number": (
        lambda p: (p / "model.json").write_text('{"format": ' + "9" * 5000 + "}"),
        r"model\.json.*digits",
    ),
    "deep nesting": (lambda p: (p / "model.json").write_text("[" * 10**5), r"model\.json"),
    "no moments": (
        manifest(modules={"policy": {"parameters": {}, "stepped": []}}),
        "another model",
    ),
    "the caller's data is no object": (
        lambda p: (p / "loop.json").write_text("[]"),
        r"loop\.json: one JSON object is needed",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_refused_by_name_and_changes_nothing(
    trained: Trainer, path: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(path)
    before = fingerprint(trained)
    with pytest.raises(ValueError, match=said) as error:
        trained.load(path)
    assert "step-1" in str(error.value) and "\n" not in str(error.value)
    assert fingerprint(trained) == before and trained.optimizer_steps == 2


def test_a_tensor_that_a_checkpoint_lacks_is_not_taken_from_the_model(model_dir: Path, path: Path) -> None:
    rewrite(lambda tensors: tensors.pop(NORM))(path)
    resumed = Trainer(model_dir, make_config(), resumes=True)
    with pytest.raises(ValueError, match=r"policy/parameter/model\.norm\.weight' is missing"):
        resumed.load(path)
    assert resumed.train_step(1, make_groups()).refused


@pytest.fixture(scope="module")
def trained(alone: None, model_dir: Path) -> Trainer:
    """What refuses every damaged checkpoint and stays as it was, which each test compares."""
    trainer = Trainer(model_dir, make_config())
    trainer.train_step(1, make_groups(seed=5))
    return trainer


def test_moments_of_other_parameters_are_refused(trained: Trainer, path: Path) -> None:
    file = path / "model.json"
    found = json.loads(file.read_text())
    for stepped, said in (([], "has no moments of the policy"), (["no.such"], r"has moments of no\.such")):
        found["modules"]["policy"]["stepped"] = stepped
        file.write_text(json.dumps(found))
        with pytest.raises(ValueError, match=said):
            trained.load(path)
