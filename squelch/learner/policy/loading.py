"""Loads a model shard by shard: no rank ever holds more of the weights than its shards and one chunk of rows.

    Unloaded     the model on torch's meta device, without storage; buffers that no file holds (`inv_freq`) are real
    equip, shard by the caller: adapters, FSDP
    fill         storage for this rank's shards; each rank then reads its own rows of every tensor, unless a checkpoint
                 is about to bring all of them

Each rank reads the files itself: they are mapped into memory, so that the ranks of a host share what the kernel caches,
and no rank waits for another before the end. FSDP2 divides a tensor's first dimension among the ranks, in order.

Invariants:

- The values are bit-identical to those of `load_model_folder`, and the checks are the same: if one rank finds a weight
  that is not finite, or two tied weights with different values, all ranks refuse the model.
- What is real before `fill` (adapters, a value head, buffers) keeps its values.

transformers converts the tensors of some architectures while it loads them: it merges the matrices of experts
(`kit.models.conversion`). A rank merges those of its own experts alone, one chunk at a time; of a weight that is
converted otherwise it makes the whole weight, takes its rows, and drops the rest. `learner.memory` counts either.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from squelch.kit.models.conversion import Assembled, assembled
from squelch.kit.models.model_folder import auto_model, check_model_folder, weight_files, weight_headers
from squelch.kit.packed.vision import use_attention
from squelch.kit.untrusted.files import Unreadable, decoding
from squelch.learner.checkpoint.shards import Piece, held
from squelch.learner.checkpoint.together import if_every_rank_can
from squelch.learner.kernels.choice import KERNELS
from squelch.learner.policy.packed_check import check_packed

CHUNK_BYTES = 64 << 20
"""Largest number of float32 bytes that are read at once; a single row may be larger."""


class Unloaded:
    """The model of a folder, in evaluation mode, whose parameters have no storage yet.

    Raises ValueError for a folder that cannot be used (`kit.models.model_folder`) and for a model that cannot be
    trained.
    """

    def __init__(self, model_dir: Path, kernels: str = "fast", resumes: bool = False) -> None:
        """`kernels` selects the implementation of its attention and layers. `resumes`: a checkpoint brings the
        weights, so that the folder's are not read."""
        self.folder, self._resumes = Path(model_dir), resumes
        config, chosen = check_model_folder(self.folder), KERNELS[kernels]
        check_packed(config, chosen.attention)
        with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
            model = auto_model(config).from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        model.tie_weights()
        use_attention(model, chosen.attention)
        chosen.replace_layers(model)
        self.model: PreTrainedModel = model.eval()
        self._owners = _owners(model)
        self._weights = assembled(model, weight_headers(self.folder))

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Gives `module`, which contains the model and is sharded, its storage on `device` and the weights, which are
        not numbers as long as a checkpoint has not brought them. A collective. Raises ValueError on all ranks when a
        weight cannot be used."""
        real = {name: held(tensor).clone() for name, tensor in module.named_parameters() if not tensor.is_meta}
        buffers = [
            (owner, name, own) for owner in module.modules() for name, own in owner._buffers.items() if own is not None
        ]
        module.to_empty(device=device)
        for owner, name, own in buffers:  # with offloaded parameters, on another device than they
            owner._buffers[name] = own
        with torch.no_grad():
            for name, tensor in module.named_parameters():
                if name in real:
                    held(tensor).copy_(real[name])
                elif self._resumes:  # so that weights that were never loaded are refused wherever they are used
                    held(tensor).fill_(math.nan)
            if not self._resumes:
                if_every_rank_can(self._read)

    def _read(self) -> bool:
        """Reads this rank's rows of every tensor. Raises Unreadable."""
        taken: dict[int, str] = {}
        for name, rows in self._tensors():
            owner, attribute = self._owners[name]
            tensor = getattr(owner, attribute)
            if tensor.is_meta:  # a part of the model that the module does without
                continue
            if (other := taken.setdefault(id(tensor), name)) == name:
                self._copy(name, rows, tensor)
            elif not _equal(rows, tensor):
                raise Unreadable(
                    f"model folder {self.folder}: config.json makes {name} and {other} one weight, but the files hold "
                    "different values; set tie_word_embeddings to false if both are meant"
                )
        return True

    def _tensors(self) -> Iterator[tuple[str, Any]]:
        """Yields the name and the rows, to be sliced, of each weight."""
        with decoding(f"model folder {self.folder}", "cannot be loaded"), ExitStack() as stack:
            files = [stack.enter_context(safe_open(path, framework="pt")) for path in weight_files(self.folder)]
            file_of = {name: opened for opened in files for name in opened.keys()}  # noqa: SIM118 (no mapping)

            def read(name: str) -> Tensor:
                return file_of[name].get_slice(name)[...]

            for one in self._weights:
                if one.converter is None:
                    (name,) = one.sources[""]
                    yield one.name, file_of[name].get_slice(name)
                elif one.by_rows:
                    yield one.name, _Merged(one, self.model, read)
                else:
                    yield from one.made(self.model, lambda name: read(name).float()).items()

    def _copy(self, name: str, rows: Any, tensor: Tensor) -> None:
        own = held(tensor)
        for place, part in _parts(rows, tensor):
            low, high = (float(bound) for bound in part.aminmax())
            if not -float("inf") < low <= high < float("inf"):
                raise Unreadable(
                    f"model folder {self.folder}: the weight {name} holds values that are not finite numbers"
                )
            own[place].copy_(part)


@dataclass(frozen=True)
class _Merged:
    """A weight whose rows are merged as they are read."""

    weight: Assembled
    model: PreTrainedModel
    read: Callable[[str], Tensor]

    def __getitem__(self, rows: slice) -> Tensor:
        """The rows, in the files' type: they are moved, not computed with."""
        return self.weight.made(self.model, self.read, rows)[self.weight.name]


def _owners(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """The module and attribute of each tensor of the model's state dict; both outlive adapters and sharding."""
    found = {}
    for prefix, module in model.named_modules():
        for attribute in module.state_dict(keep_vars=True):
            if "." not in attribute:
                found[f"{prefix}.{attribute}" if prefix else attribute] = (module, attribute)
    return found


def _parts(rows: Any, tensor: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields this rank's rows in float32 (integers as they are), in parts of up to `CHUNK_BYTES`, and where in its
    shard they belong."""
    piece = Piece.of(tensor)
    if not piece.shape:
        raise RuntimeError("a weight without dimensions cannot be read by rows")
    size = max(1, CHUNK_BYTES // (4 * max(1, math.prod(piece.shape[1:]))))
    for first in range(0, piece.num_rows, size):
        last = min(first + size, piece.num_rows)
        yield slice(first, last), rows[piece.start + first : piece.start + last].to(piece.dtype)


def _equal(rows: Any, tensor: Tensor) -> bool:
    own = held(tensor)
    return all(own[place].cpu().equal(part) for place, part in _parts(rows, tensor))
