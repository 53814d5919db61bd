"""Tensors of FSDP2 ranks as safetensors files: each rank writes its own shards, and any number of ranks reads them.

    00000-00000.safetensors    rank 0, part 0
    00000-00001.safetensors    rank 0, part 1; a part holds about `PART_BYTES`
    00001-00000.safetensors    rank 1, part 0

FSDP2 divides a tensor's first dimension among the ranks, in order. Hence a whole tensor is its shards, one below the
other, in the order of the files' names; no file states an offset. A tensor that every rank holds whole, such as the
step count of an optimizer, is written by rank 0 alone, in files of its own: all ranks read them, and nothing else that
another rank wrote if there are as many ranks as then.

Invariants:

- No code in a file can run: safetensors is a JSON header and plain numbers, and nothing here is unpickled.
- Nothing is read before the headers of all files fit the caller's tensors: every expected tensor is there with all of
  its rows and with its type, and there is no other. The names of those that differ are in the error.
- What is returned is finite, and within the bounds of its kind (`LEAST`).
- The parts bound the host memory that a rank on a GPU needs to write its shards; shards in host memory are written from
  where they are.

torch.distributed.checkpoint can store safetensors too (`HuggingFaceStorageWriter`). It is not used: its reader accepts
files in which rows are missing and leaves the tensor as it was, its writer holds all of a rank's bytes in memory a
second time, and its planner exchanges pickled plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from squelch.actors.process.folders import Whole, as_it_is
from squelch.kit.base.disk import sync
from squelch.kit.models.tensor_files import TensorHeader, read_header
from squelch.kit.models.written import save_tensors
from squelch.kit.untrusted.files import Unreadable, brief, decoding, is_folder

PART_BYTES = 1 << 30
MAX_FILES = 100_000
LEAST = {"step": 1.0, "exp_avg_sq": 0.0}
"""The least value of a tensor of each kind; the kind is the second part of its name. AdamW divides by the square root
of `exp_avg_sq`, and its corrections divide by 0 at step 0."""
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The code of safetensors of every type that a tensor of a checkpoint may have."""


@dataclass(frozen=True)
class Piece:
    """The part of a tensor that this rank holds: `num_rows` rows from row `start` of a tensor of this `shape`. A tensor
    without dimensions has no rows and is held whole."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int = 0
    num_rows: int = 0

    @classmethod
    def of(cls, tensor: Tensor) -> Piece:
        """The piece of a parameter or buffer that is in memory."""
        shape = tuple(tensor.shape)
        if not isinstance(tensor, DTensor):
            return cls(tensor.dtype, shape, 0, shape[0] if shape else 0)
        mesh = tensor.device_mesh
        if tuple(tensor.placements) != (Shard(0),):
            raise RuntimeError(
                f"a tensor has the placements {tensor.placements}; only tensors sharded on dimension 0 can be saved"
            )
        num_rows, start = Shard.local_shard_size_and_offset(shape[0], mesh.size(), mesh.get_local_rank())
        return cls(tensor.dtype, shape, int(start), int(num_rows))


STEP = Piece(torch.float32, ())
"""AdamW's count of the steps that it has taken with one parameter."""


def held(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, as a plain tensor that shares its memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def numbered(sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """The number, from 0, of the file that holds each tensor, when files are filled in order with up to `most` bytes. A
    larger tensor has a file of its own."""
    numbers, number, filled = {}, 0, 0
    for name, size in sizes.items():
        if filled and filled + size > most:
            number, filled = number + 1, 0
        numbers[name], filled = number, filled + size
    return numbers


def write(
    folder: Path, tensors: Mapping[str, Tensor], rank: int, part_bytes: int = PART_BYTES, synced: bool = True
) -> None:
    """Writes this rank's shards, and syncs them unless the caller does. Raises OSError or SafetensorError when it
    cannot."""
    folder.mkdir(parents=True, exist_ok=True)  # the disk may be another than rank 0's, which made the folder
    own = {
        name: held(tensor)
        for name, tensor in tensors.items()
        if rank == 0 or (isinstance(tensor, DTensor) and held(tensor).numel())
    }
    sizes = {name: tensor.nbytes for name, tensor in own.items()}
    sharded = numbered({name: size for name, size in sizes.items() if _is_shard(tensors[name])}, part_bytes)
    shared = numbered({name: size for name, size in sizes.items() if name not in sharded}, part_bytes)
    first = len(set(sharded.values()))
    numbers = sharded | {name: first + number for name, number in shared.items()}
    for part in sorted(set(numbers.values())):
        path = folder / f"{rank:05d}-{part:05d}.safetensors"
        save_tensors({name: own[name].cpu().contiguous() for name in own if numbers[name] == part}, path)
        if synced:
            sync(path)


def _is_shard(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor) and tensor.device_mesh.size() > 1


def read(folder: Path, wanted: Mapping[str, Piece], under: str = "", whole: Whole = as_it_is) -> dict[str, Tensor]:
    """This rank's piece of each wanted tensor, on CPU. Only tensors whose names begin with `under` are looked at.

    `whole` is called for each file that holds rows of this rank's pieces; of the others the headers are enough. Raises
    Unreadable, naming folder, file or tensor, when the files do not hold exactly these tensors, whole, or when a value
    is not finite.
    """
    files = _files(folder)
    headers = [read_header(path) for path in files]
    _require_the_same(folder, wanted, headers, under)
    rows = {name: _rows(name, piece, headers) for name, piece in wanted.items()}
    needed = {index: whole(files[index]) for index in sorted({one[0] for own in rows.values() for one in own})}
    with ExitStack() as stack, decoding(str(folder), "cannot be read"):
        opened = {i: stack.enter_context(safe_open(path, framework="pt")) for i, path in needed.items()}
        found = {name: _gathered(name, piece, rows[name], opened) for name, piece in wanted.items()}
        for name, tensor in found.items():
            _require_usable(folder, name, tensor)
    return found


def _files(folder: Path) -> list[Path]:
    if not is_folder(folder):
        raise Unreadable(f"{folder} is missing; a checkpoint's tensors are in it")
    files = sorted(folder.iterdir())
    strange = [path for path in files if path.suffix != ".safetensors"]
    if strange or not files or len(files) > MAX_FILES:
        found = brief(strange[0].name) if strange else f"{len(files)} files"
        raise Unreadable(f"{folder} holds {found}; 1 to {MAX_FILES} *.safetensors files and nothing else belong there")
    return files


def _require_the_same(
    folder: Path, wanted: Mapping[str, Piece], headers: list[dict[str, TensorHeader]], under: str
) -> None:
    """Raises Unreadable, naming a tensor, unless the files hold exactly the wanted tensors, with all of their rows."""
    there = {name for header in headers for name in header if name.startswith(under)}
    if lone := sorted(there ^ wanted.keys()):
        where = "is missing" if lone[0] in wanted else "is in no tensor of this model"
        raise Unreadable(f"{folder}: tensor {brief(lone[0], 200)} {where} ({len(lone)} such tensors); it is damaged")
    for name, piece in wanted.items():
        _require_whole(folder, name, piece, [header[name] for header in headers if name in header])


def _require_whole(folder: Path, name: str, piece: Piece, shards: list[TensorHeader]) -> None:
    codes = {shard.dtype for shard in shards}
    if codes != {CODES[piece.dtype]}:
        raise Unreadable(f"{folder}: tensor {name} has the type {', '.join(sorted(codes))}, not {CODES[piece.dtype]}")
    if not piece.shape:
        whole = len(shards) == 1 and shards[0].shape == ()
    else:
        whole = all(len(shard.shape) == len(piece.shape) for shard in shards)
        whole = whole and all(shard.shape[1:] == piece.shape[1:] for shard in shards)
        whole = whole and sum(shard.shape[0] for shard in shards) == piece.shape[0]
    if not whole:
        shapes = brief([list(shard.shape) for shard in shards], 200)
        raise Unreadable(f"{folder}: the shards {shapes} of {name} are no tensor of shape {list(piece.shape)}")


def _rows(name: str, piece: Piece, headers: list[dict[str, TensorHeader]]) -> list[tuple[int, int, int]]:
    """Where the rows of one piece are: (position of the file, first row in it, end), in order; of a tensor without
    dimensions the file alone."""
    found, first = [], 0
    for index, header in enumerate(headers):
        if name not in header:
            continue
        if not piece.shape:
            return [(index, 0, 0)]
        after = first + header[name].shape[0]
        start, stop = max(first, piece.start), min(after, piece.start + piece.num_rows)
        if start < stop:
            found.append((index, start - first, stop - first))
        first = after
    return found


def _gathered(name: str, piece: Piece, rows: list[tuple[int, int, int]], opened: Mapping[int, Any]) -> Tensor:
    """One piece, from the files that hold its rows."""
    if not piece.shape:
        return opened[rows[0][0]].get_tensor(name)
    parts = [opened[index].get_slice(name)[start:stop] for index, start, stop in rows]
    return torch.cat(parts) if parts else torch.empty((0, *piece.shape[1:]), dtype=piece.dtype)


def _require_usable(folder: Path, name: str, tensor: Tensor) -> None:
    """Raises Unreadable if a value is not finite or is below the least of its kind."""
    if not tensor.numel():
        return
    low, high = (float(bound) for bound in tensor.aminmax())
    least = LEAST.get(name.split("/")[1], -float("inf"))
    if not (least <= low and high < float("inf") and low > -float("inf")):
        raise Unreadable(f"{folder}: tensor {name} holds values from {low:g} to {high:g}; it is damaged")
