"""The JSON files of a checkpoint: `model.json`, which says what its tensors are, and the caller's `loop.json`.

A checkpoint without `format`, or of another format, is refused by name. Before format 2 the tensors were files of
torch.distributed.checkpoint, whose reader unpickles them, and unpickling runs whatever code the writer of a file chose.

Imports neither Ray, torch, vLLM nor transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from squelch.envs.untrusted.files import MIB, Unreadable, brief, is_file, read_bytes
from squelch.envs.untrusted.text import parse_object

FORMAT = 2
MANIFEST, LOOP, SHARDED, EXPORT = "model.json", "loop.json", "sharded", "hf"
"""Names in the folder of a checkpoint."""
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
