"""A GGUF file becomes an ordinary model folder, once, or is refused by name. Only two tests convert one for real."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from squelch.actors.play.codec import ChatCodec
from squelch.actors.pretrained import gguf_file
from squelch.actors.pretrained.gguf_file import STAMP, converted, intact
from squelch.actors.process.folders import file_digest
from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.untrusted.files import Unreadable
from tests.actors.pretrained.made_up import write_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "made-up.Q4_1.gguf")


@pytest.fixture(scope="module")
def folder(file: Path) -> tuple[Path, list[str]]:
    """The file, converted for real, and what was said."""
    said: list[str] = []
    return converted(file, file.parent / "cache", said.append), said


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the process that converts; holds the files that it was given."""
    asked: list[Path] = []

    def worked(file: Path, folder: Path) -> dict[str, object]:
        asked.append(file)
        (folder / "config.json").write_text("{}")
        return {"architecture": "llama", "quantisation": "Q4_1", "parameters": 7}

    monkeypatch.setattr(gguf_file, "_worked", worked)
    monkeypatch.setattr(gguf_file, "_check", lambda folder, file: None)
    return asked


@pytest.mark.slow
def test_a_converted_file_is_an_ordinary_model_that_can_be_prompted(folder: tuple[Path, list[str]]) -> None:
    model = load_model_folder(folder[0], torch.float32)
    assert "quantization_config" not in json.loads((folder[0] / "config.json").read_text())
    assert model.dtype == torch.float32
    codec = ChatCodec(folder[0])
    ids = codec.first_turn([{"role": "system", "content": "rules"}, {"role": "user", "content": "the state"}])
    assert codec.text(ids).endswith("assistant\n<think>")
    assert codec.token_bytes(int(codec.stop_ids[0])) == b""
    ends = model(input_ids=torch.tensor(ids)[None].long()).logits
    assert bool(ends.isfinite().all())


@pytest.mark.slow
def test_the_conversion_says_that_the_weights_were_quantised(folder: tuple[Path, list[str]], file: Path) -> None:
    assert "dequantised from 4 bits (Q4_1)" in folder[1][-1]
    stamp = json.loads((folder[0] / STAMP).read_text())
    assert stamp["sha256"] == file_digest(file) and stamp["quantisation"] == "Q4_1"


@pytest.mark.slow
def test_a_converted_value_is_the_dequantised_one(folder: tuple[Path, list[str]], file: Path) -> None:
    import gguf
    import numpy as np

    (raw,) = (tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == "blk.1.ffn_up.weight")
    wanted = gguf.quants.dequantize(raw.data, raw.tensor_type)
    found = load_model_folder(folder[0], torch.float32).get_parameter("model.layers.1.mlp.up_proj.weight")
    assert np.array_equal(found.detach().numpy(), wanted)


@pytest.mark.slow
def test_an_architecture_that_cannot_be_converted_is_named_with_those_that_can(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "other.gguf", architecture="wizard")
    with pytest.raises(Unreadable, match=r"other\.gguf cannot be converted \(its architecture 'wizard'.*llama"):
        converted(file, tmp_path / "cache", lambda _: None)
    assert not list((tmp_path / "cache").glob("other*"))


def test_a_second_start_converts_nothing(file: Path, tmp_path: Path, worker: list[Path]) -> None:
    first = converted(file, tmp_path, lambda _: None)
    assert converted(file, tmp_path, lambda _: None) == first
    assert worker == [file]


def test_a_damaged_folder_is_converted_again(file: Path, tmp_path: Path, worker: list[Path]) -> None:
    first = converted(file, tmp_path, lambda _: None)
    (first / "config.json").write_text("[]")
    assert converted(file, tmp_path, lambda _: None) == first
    assert len(worker) == 2 and (first / "config.json").read_text() == "{}"


def test_a_folder_to_which_a_file_was_added_is_converted_again(file: Path, tmp_path: Path, worker: list[Path]) -> None:
    """Found by a reviewer: an added chat template or generation_config.json would change prompts or stop ids."""
    first = converted(file, tmp_path, lambda _: None)
    (first / "generation_config.json").write_text("{}")
    assert converted(file, tmp_path, lambda _: None) == first
    assert len(worker) == 2 and not (first / "generation_config.json").exists()


@pytest.mark.parametrize(
    "stamp", ["{}", "", "[]", '{"sha256": "0', '{"sha256": 1, "files": []}', '{"files": [{"name": "../x"}]}']
)
def test_a_stamp_that_is_not_its_own_does_not_count(tmp_path: Path, stamp: str) -> None:
    (tmp_path / STAMP).write_text(stamp)
    assert not intact(tmp_path, "0" * 64)


def test_another_content_under_the_same_name_is_another_folder(file: Path, tmp_path: Path, worker: list[Path]) -> None:
    changed = tmp_path / file.name
    changed.write_bytes(file.read_bytes() + b"\0")
    assert converted(file, tmp_path, lambda _: None) != converted(changed, tmp_path, lambda _: None)


def test_a_file_with_another_digest_is_refused_before_it_is_read(
    file: Path, tmp_path: Path, worker: list[Path]
) -> None:
    with pytest.raises(Unreadable, match=r"its SHA-256 is .*, but the package P has 0000.*install it again"):
        converted(file, tmp_path, lambda _: None, sha256="0" * 64, origin="the package P")
    assert not worker and not list(tmp_path.iterdir())


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\3\4 and more")
    with pytest.raises(Unreadable, match=r"model\.gguf is no GGUF file"):
        converted(tmp_path / "model.gguf", tmp_path, lambda _: None)


def test_a_failed_conversion_leaves_nothing(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: Path, folder: Path) -> dict[str, object]:
        (folder / "half").write_text("a half")
        raise Unreadable("it is damaged")

    monkeypatch.setattr(gguf_file, "_worked", fails)
    with pytest.raises(Unreadable, match="it is damaged"):
        converted(file, tmp_path / "cache", lambda _: None)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_a_full_disk_is_found_before_the_conversion(
    file: Path, tmp_path: Path, worker: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1))
    with pytest.raises(Unreadable, match=r"its conversion may take .* GiB are free.*model\.pretrained_cache"):
        converted(file, tmp_path, lambda _: None)
    assert not worker


def test_a_missing_package_is_named_with_its_extra(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unreadable, match=r"needs the package gguf: pip install 'squelch-rl\[gguf\]'"):
        converted(file, tmp_path, lambda _: None)
