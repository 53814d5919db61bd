"""The policy as a Hugging Face folder: safetensors in float32 or bfloat16, configuration and tokenizer, for any other
program.

Rank 0 holds the unsharded parameters of one file (`EXPORT_BYTES`), never a second model.
"""

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import PreTrainedConfig

from squelch.kit.models.conversion import published as as_published
from squelch.kit.models.model_folder import INDEX
from squelch.kit.models.written import save_tensors
from squelch.kit.pictures.geometry import PREPROCESSOR
from squelch.kit.text.chat_template import reads_as_written
from squelch.kit.text.stamp import STAMP_FILE
from squelch.kit.text.tokenizer import TOKENIZER_FILE, read_object, write_settings
from squelch.learner.checkpoint.shards import numbered
from squelch.learner.checkpoint.together import WRITE_ERRORS, on_rank_zero
from squelch.learner.policy.model import Policy
from squelch.learner.publish import gathered, published, type_of

EXPORT_BYTES = 4 << 30
"""Largest size of one safetensors file of the export; larger models get several files, as Hugging Face's own do."""
SETTINGS = "tokenizer_config.json"
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    SETTINGS,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    STAMP_FILE,
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
PICTURE_FILES = (PREPROCESSOR, "processor_config.json", "video_preprocessor_config.json")
_readable: dict[Path, bool] = {}
"""Whether other programs read the tokenizer of a model folder as it is written: a checkpoint's export need not try it
again."""


def export(
    path: Path, policy: Policy, model_dir: Path, file_bytes: int | None = None, dtype: torch.dtype = torch.float32
) -> None:
    """Write a Hugging Face folder in `dtype`; a collective. Copies the files of `model_dir` that say how texts become
    ids and pictures patches.

    Raises OSError on all ranks when it cannot be written.
    """
    on_rank_zero(lambda: _write_folder(path, policy, model_dir, dtype))
    files = _Files(path, _file_names(policy, file_bytes or EXPORT_BYTES, dtype), dist.get_rank() == 0)
    for name, tensor in gathered(policy, dtype):  # every rank iterates to the end, even if rank 0 fails to write
        files.add(name, tensor, policy.model.config)
    on_rank_zero(files.finish)


def _write_folder(path: Path, policy: Policy, model_dir: Path, dtype: torch.dtype) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name in (*TOKENIZER_FILES, *PICTURE_FILES, "generation_config.json"):
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, path / name)
    config = copy.deepcopy(policy.model.config)
    config.dtype = dtype
    config.save_pretrained(path)
    if model_dir not in _readable:
        _readable[model_dir] = not (path / TOKENIZER_FILE).exists() or reads_as_written(path)
    if not _readable[model_dir]:
        write_settings(path / SETTINGS, read_object(path / SETTINGS))


def _file_names(policy: Policy, file_bytes: int, dtype: torch.dtype) -> dict[str, str]:
    """The file name of each parameter, in the order in which parameters are gathered."""
    sizes = {name: tensor.numel() * type_of(tensor, dtype).itemsize for name, tensor in published(policy).items()}
    numbers = numbered(sizes, file_bytes)
    count = max(numbers.values(), default=0) + 1
    if count == 1:
        return dict.fromkeys(numbers, "model.safetensors")
    return {name: f"model-{i + 1:05d}-of-{count:05d}.safetensors" for name, i in numbers.items()}


class _Files:
    """Writes safetensors files on rank 0; each is written, and its memory freed, once its parameters are complete."""

    def __init__(self, path: Path, names: Mapping[str, str], writes: bool) -> None:
        self.path, self.names, self.writes = path, names, writes
        self.open: dict[str, torch.Tensor] = {}
        self.written: dict[str, str] = {}
        """The file of each tensor, by its name in the folder."""
        self.current = ""
        self.num_bytes = 0
        self.failure: BaseException | None = None

    def add(self, name: str, tensor: torch.Tensor, config: PreTrainedConfig) -> None:
        """Takes one parameter, each expert by itself; writes the previous file if the parameter belongs to the next."""
        if not self.writes or self.failure is not None:
            return
        if self.names[name] != self.current:
            self._write()
            self.current = self.names[name]
        try:
            for part, own in as_published(config, [(name, tensor)]):
                self.open[part] = own if own is tensor or _is_whole(own) else _copy(own)
                self.written[part] = self.current
        except Exception as error:  # as in `_write`; whatever transformers raises must not leave the ranks apart
            self.failure = OSError(f"{name} cannot be written as published folders hold it: {error!r}")
            self.failure.__cause__ = error
        self.num_bytes += tensor.numel() * tensor.element_size()

    def _write(self) -> None:
        try:
            if self.open:
                save_tensors(self.open, self.path / self.current)
        except WRITE_ERRORS as error:  # `finish` raises it; the other ranks are still in collectives
            self.failure = error
        self.open = {}

    def finish(self) -> None:
        """Writes the last file and, for several files, their index; raises the first failure of all writes."""
        self._write()
        if self.failure is not None:
            raise self.failure
        if len(set(self.names.values())) > 1:
            index = {"metadata": {"total_size": self.num_bytes}, "weight_map": self.written}
            (self.path / INDEX).write_text(json.dumps(index, indent=2))


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor is all of its memory; views of one memory cannot be written."""
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
