"""The JSON files of a checkpoint: `model.json`, which says what its tensors are, and the caller's `loop.json`.

A checkpoint without `format`, or of another format, is refused by name. Before format 2 the tensors were files of
torch.distributed.checkpoint, whose reader unpickles them, and unpickling runs whatever code the writer of a file chose.

Imports neither Ray, torch, vLLM nor transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from squelch.kit.untrusted.files import MIB, Unreadable, brief, is_file, read_bytes
from squelch.kit.untrusted.text import parse_object

FORMAT = 2
MANIFEST, LOOP, SHARDED, EXPORT = "model.json", "loop.json", "sharded", "hf"
"""Names in the folder of a checkpoint."""
CONFIG, TOKENIZER = "config.json", "digest of the tokenizer"
"""Names in `Manifest.identity`: of the configuration's keys the beginning, and of the tokenizer."""
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
"""Keys of a model's configuration that are the same in its file and in the loaded model."""
VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")
"""The tokenizer files that map ids to texts."""
MANIFEST_BYTES = 64 * MIB
LOOP_BYTES = 256 * MIB
"""Most bytes of `loop.json`; a ticket of the run takes about 40."""
MAX_DIMENSIONS = 16
MAX_NAME = 200
"""Characters of a name out of a file that an error shows."""
Shape = Annotated[list[NonNegativeInt], Field(max_length=MAX_DIMENSIONS)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Module(_Strict):
    """A trained module: the policy, or another such as the critic."""

    parameters: dict[str, Shape]
    """Unsharded shape of every parameter and persistent buffer, by name."""
    stepped: list[str]
    """Names of the parameters that the optimizer has moments of."""


class Manifest(_Strict):
    """The content of `model.json`."""

    format: Literal[2]
    optimizer_steps: NonNegativeInt
    algorithm: str
    """`learner.algorithm` of the run."""
    identity: dict[str, Any]
    """Properties that distinguish models whose parameters have equal shapes, by name."""
    modules: dict[str, Module]


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint `path`. Raises Unreadable when there is none, or one of an older format."""
    file = path / MANIFEST
    if not is_file(file) or not (path / SHARDED).is_dir():
        raise Unreadable(
            f"checkpoint {path}: not a complete checkpoint of the learner (no {MANIFEST} and {SHARDED}/ in it)"
        )
    found = parse_object(read_bytes(file, MANIFEST_BYTES), str(file))
    if found.get("format") != FORMAT:
        raise Unreadable(_of_another_format(path, found.get("format")))
    try:
        return Manifest.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Unreadable(f"{file}: {brief(place)}: {first['msg']} ({error.error_count()} such faults)") from error


def require_same_algorithm(path: Path, saved: str, own: str) -> None:
    """Raises ValueError if both algorithms are known and differ."""
    if saved and own and saved != own:
        name = shown(saved)
        raise ValueError(
            f"checkpoint {path} was written under learner.algorithm={name}, and this run asks for {own}. Resume with "
            f"learner.algorithm={name}, or start a new run from its weights: model.path={path / EXPORT}"
        )


def require_same_identity(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises ValueError when a property differs. Properties that only one side has (because of another version of
    transformers, or no `model_dir`) are not compared."""
    differing = [name for name in own if name in saved and saved[name] != own[name]]
    if differing:
        name = differing[0]
        raise ValueError(
            f"checkpoint {path} is of another model: {name} is {brief(saved[name])} there and {brief(own[name])} here. "
            f"Resume with the model and adapters that wrote it (its weights are in {path / EXPORT}), or start a new "
            "run."
        )


def require_same_folder(path: Path, saved: Mapping[str, Any], model_dir: Path) -> None:
    """Raises ValueError if the model in `model_dir` is surely another than the checkpoint's; nothing is loaded. What
    only the loaded model shows is compared by `require_same_identity`."""
    config = parse_object(read_bytes(model_dir / CONFIG, MANIFEST_BYTES), str(model_dir / CONFIG))
    sizes = {} if "text_config" in config else {key: config[key] for key in SIZES if type(config.get(key)) is int}
    own = {f"{CONFIG}: {key}": value for key, value in sizes.items()}
    require_same_identity(path, saved, own | {TOKENIZER: tokenizer_digest(model_dir)})


def tokenizer_digest(model_dir: Path) -> str:
    """A digest of the files that map ids to texts, hexadecimal."""
    digest = hashlib.sha256()
    for file in (model_dir / name for name in VOCABULARY_FILES):
        digest.update(file.name.encode() + file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()[:16]


def read_loop(path: Path) -> dict[str, Any]:
    """The caller's data in the checkpoint `path`. Raises Unreadable, naming the file, if it is damaged."""
    file = path / LOOP
    return parse_object(read_bytes(file, LOOP_BYTES), str(file))


def _of_another_format(path: Path, found: Any) -> str:
    remedy = (
        f"Its weights are usable: start a new run from them with model.path={path / EXPORT}, or measure them with "
        "`squelch eval`"
    )
    if found is None:
        return (
            f"checkpoint {path} was written by an older Squelch, as files that can run code when they are read; it is "
            f"not read. {remedy}"
        )
    return f"checkpoint {path} has the format {brief(found)}, and this Squelch reads format {FORMAT}. {remedy}"


def shown(name: str) -> str:
    """A name out of a file: as it is if it is printable and short, else escaped and cut."""
    return name if name.isprintable() and len(name) <= MAX_NAME else brief(name, MAX_NAME)
