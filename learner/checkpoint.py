"""Checkpoints of the learner: sharded state that any number of ranks can load, together with a Hugging Face export.

`path/` holds `sharded/` (torch.distributed.checkpoint: parameters and optimizer state of the policy, and of other
trained modules, e.g. a critic), `hf/` (safetensors, configuration, tokenizer), `model.json` (names and shapes of all
parameters, other properties that distinguish models, the algorithm, optimizer steps) and `loop.json` (the caller's
data).

Invariants:

- A checkpoint is written under a temporary name in the same folder, synced, and renamed once complete, so that a folder
  with the final name is always complete. A failed write leaves no files and does not change an earlier checkpoint.
- A checkpoint of another model or algorithm is refused before any state changes. Models differ if their parameters
  differ, or if a different configuration, tokenizer or adapter gives the same parameters another meaning.
- The export is streamed: rank 0 holds unsharded parameters of one file (`EXPORT_BYTES`), never a second model.

Waiting: each rank waits for the others, in collectives, at most the process group's time-out.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer

from actors.process.disk import sync
from learner.policy.model import Policy
from learner.publish import entries, gathered, published

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")
"""The tokenizer files that map ids to texts."""
NO_PART_OF_THE_FUNCTION = frozenset(
    {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    | {"bos_token_id", "eos_token_id", "pad_token_id"}
)
"""Keys of a model's configuration that do not affect the function it computes."""
WRITE_ERRORS = (OSError, SafetensorError)
EXPORT_BYTES = 4 << 30
"""Largest size of one safetensors file of the export; larger models get several files, as Hugging Face's own do."""
Others = Mapping[str, tuple[nn.Module, Optimizer]]
"""Trained modules besides the policy, by name: each module under FSDP2, with its optimizer."""
NOTHING_ELSE: Others = MappingProxyType({})


def partial_path(path: Path) -> Path:
    """Temporary path at which the checkpoint `path` is written."""
    return path.with_name(f".{path.name}.partial")


def save(
    path: Path,
    policy: Policy,
    optimizer: Optimizer,
    model_dir: Path,
    optimizer_steps: int,
    loop: Mapping,
    others: Others = NOTHING_ELSE,
    algorithm: str = "",
) -> None:
    """Write the checkpoint; a collective. An existing checkpoint at `path` is replaced. `loop` must be plain JSON data.

    Raises ValueError on all ranks, naming the path, when it cannot be written.
    """
    partial = partial_path(path)
    described = {
        "optimizer_steps": optimizer_steps,
        "algorithm": algorithm,
        "parameters": shapes(policy),
        "identity": identity(policy, model_dir),
        "others": {name: module_shapes(module) for name, (module, _) in others.items()},
    }
    try:
        _on_rank_zero(lambda: _clear(partial))
        dcp.save(_state(policy, optimizer, others), checkpoint_id=partial / "sharded")
        export(partial / "hf", policy, model_dir)
        _on_rank_zero(lambda: _seal(partial, path, described, loop))
    except (*WRITE_ERRORS, CheckpointException) as error:
        raise ValueError(_not_written(path, error)) from error
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)


def _not_written(path: Path, error: BaseException) -> str:
    """The error message: one paragraph. torch's own message has every rank's traceback and obscures the disk error."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    causes = [f"rank {rank}: {_first_line(cause)}" for rank, (cause, _) in failures.items()] or [_first_line(error)]
    free = shutil.disk_usage(next(folder for folder in path.parents if folder.exists())).free / 2**20
    return (
        f"checkpoint {path} could not be written, and nothing of it was kept ({'; '.join(causes)}). {free:,.0f} MiB "
        "are free there; free some space, then continue with --resume from the checkpoint before it."
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def load(
    path: Path,
    policy: Policy,
    optimizer: Optimizer,
    others: Others = NOTHING_ELSE,
    algorithm: str = "",
    model_dir: Path | None = None,
) -> tuple[int, dict[str, Any]]:
    """Restore parameters and optimizer state, on any number of ranks; returns (optimizer steps, the caller's data).

    `model_dir`: folder whose tokenizer must equal the checkpoint's. Raises ValueError, naming the path and the
    difference, when `path` is no complete checkpoint, or one of another model or algorithm.
    """
    described = _describe(path)
    _same_algorithm(path, described.get("algorithm", ""), algorithm)
    _same_model(path, described["parameters"], shapes(policy))
    _same_identity(path, described.get("identity", {}), identity(policy, model_dir))
    for name, (module, _) in others.items():
        _same_model(path, described.get("others", {}).get(name, {}), module_shapes(module), f"another {name}")
    state = _state(policy, optimizer, others)
    dcp.load(state, checkpoint_id=path / "sharded")
    for module, own, key in _trained(policy, optimizer, others):
        set_state_dict(module, own, model_state_dict=state[f"{key}model"], optim_state_dict=state[f"{key}optimizer"])
    return int(described["optimizer_steps"]), read_loop(path)


def load_weights(path: Path, policy: Policy) -> None:
    """Restore only the policy's parameters, for measurements without training. Raises ValueError as `load` does."""
    described = _describe(path)
    _same_model(path, described["parameters"], shapes(policy))
    _same_identity(path, described.get("identity", {}), identity(policy, None))
    state = {"model": get_model_state_dict(policy)}
    dcp.load(state, checkpoint_id=path / "sharded")
    set_model_state_dict(policy, state["model"])


def _trained(policy: Policy, optimizer: Optimizer, others: Others) -> list[tuple[nn.Module, Optimizer, str]]:
    """(module, optimizer, prefix of its keys in the sharded state) of every trained module, the policy first."""
    return [(policy, optimizer, ""), *((module, own, f"{name}_") for name, (module, own) in sorted(others.items()))]


def _state(policy: Policy, optimizer: Optimizer, others: Others) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for module, own, key in _trained(policy, optimizer, others):
        state[f"{key}model"], state[f"{key}optimizer"] = get_state_dict(module, own)
    return state


def read_loop(path: Path) -> dict[str, Any]:
    """The caller's data in the checkpoint `path`."""
    return json.loads((path / "loop.json").read_text())


def export(path: Path, policy: Policy, model_dir: Path, file_bytes: int | None = None) -> None:
    """Write a Hugging Face folder (float32 safetensors); a collective. Copies the tokenizer files of `model_dir`.

    Raises OSError on all ranks when it cannot be written.
    """
    _on_rank_zero(lambda: _write_folder(path, policy, model_dir))
    files = _Files(path, _file_names(policy, file_bytes or EXPORT_BYTES), dist.get_rank() == 0)
    for name, tensor in gathered(policy):  # every rank iterates to the end, even if rank 0 fails to write
        files.add(name, tensor)
    _on_rank_zero(files.finish)


def _write_folder(path: Path, policy: Policy, model_dir: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, path / name)
    policy.model.config.save_pretrained(path)


def _file_names(policy: Policy, file_bytes: int) -> dict[str, str]:
    """The file name of each parameter, in the order in which parameters are gathered."""
    numbers, number, size = {}, 1, 0
    for name, tensor in published(policy).items():
        own = tensor.numel() * tensor.element_size()
        if size and size + own > file_bytes:
            number, size = number + 1, 0
        numbers[name], size = number, size + own
    if number == 1:
        return dict.fromkeys(numbers, "model.safetensors")
    return {name: f"model-{i:05d}-of-{number:05d}.safetensors" for name, i in numbers.items()}


class _Files:
    """Writes safetensors files on rank 0; each is written, and its memory freed, once its parameters are complete."""

    def __init__(self, path: Path, names: Mapping[str, str], writes: bool) -> None:
        self.path, self.names, self.writes = path, names, writes
        self.open: dict[str, torch.Tensor] = {}
        self.current = ""
        self.num_bytes = 0
        self.failure: BaseException | None = None

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one parameter; writes the previous file if the parameter belongs to the next."""
        if not self.writes or self.failure is not None:
            return
        if self.names[name] != self.current:
            self._write()
            self.current = self.names[name]
        self.open[name] = tensor
        self.num_bytes += tensor.numel() * tensor.element_size()

    def _write(self) -> None:
        try:
            if self.open:
                save_file(self.open, self.path / self.current, metadata={"format": "pt"})
        except WRITE_ERRORS as error:  # `finish` raises it; the other ranks are still in collectives
            self.failure = error
        self.open = {}

    def finish(self) -> None:
        """Writes the last file and, for several files, their index; raises the first failure of all writes."""
        self._write()
        if self.failure is not None:
            raise self.failure
        if len(set(self.names.values())) > 1:
            index = {"metadata": {"total_size": self.num_bytes}, "weight_map": dict(self.names)}
            (self.path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def shapes(policy: Policy) -> dict[str, list[int]]:
    """Names and unsharded shapes of all parameters; a checkpoint fits a model only if they are equal."""
    return {name: list(tensor.shape) for name, tensor in entries(policy).items()}


def module_shapes(module: nn.Module) -> dict[str, list[int]]:
    """Names and unsharded shapes of all parameters of any trained module."""
    return {name: list(tensor.shape) for name, tensor in module.state_dict(keep_vars=True).items()}


def identity(policy: Policy, model_dir: Path | None) -> dict[str, Any]:
    """Properties that distinguish models with equal parameter shapes, by name, as plain JSON data: the configuration,
    the adapters' scale, and a digest of the tokenizer in `model_dir`."""
    found = {f"config.json: {key}": value for key, value in policy.model.config.to_dict().items()}
    found = {name: value for name, value in found.items() if name.partition(": ")[2] not in NO_PART_OF_THE_FUNCTION}
    if policy.lora is not None:
        found["learner.lora.alpha"] = policy.lora.alpha
    if model_dir is not None:
        digest = hashlib.sha256()
        for file in (model_dir / name for name in VOCABULARY_FILES):
            digest.update(file.name.encode() + file.read_bytes() if file.is_file() else b"")
        found["digest of the tokenizer"] = digest.hexdigest()[:16]
    return json.loads(json.dumps(found))


def _seal(partial: Path, path: Path, described: Mapping[str, Any], loop: Mapping) -> None:
    (partial / "model.json").write_text(json.dumps(described))
    (partial / "loop.json").write_text(json.dumps(dict(loop)))
    for file in partial.rglob("*"):
        sync(file)
    replaced = partial.with_name(f".{path.name}.replaced.partial")
    if path.exists():
        path.rename(replaced)
    partial.rename(path)
    sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _describe(path: Path) -> dict[str, Any]:
    file = path / "model.json"
    if not file.is_file() or not (path / "sharded").is_dir():
        raise ValueError(
            f"checkpoint {path}: not a complete checkpoint of the learner (no model.json and sharded/ in it)"
        )
    return json.loads(file.read_text())


def _same_algorithm(path: Path, saved: str, own: str) -> None:
    if saved and own and saved != own:
        raise ValueError(
            f"checkpoint {path} was written under learner.algorithm={saved}, and this run asks for {own}. Resume with "
            f"learner.algorithm={saved}, or start a new run from its weights: model.path={path / 'hf'}"
        )


def _same_model(
    path: Path, saved: Mapping[str, list[int]], own: Mapping[str, list[int]], what_other: str = "another model"
) -> None:
    if dict(saved) == dict(own):
        return
    differing = [name for name in own if name in saved and saved[name] != own[name]]
    if differing:
        name = differing[0]
        what = f"{name} has shape {saved[name]} there and {own[name]} here"
    else:
        lone = sorted(set(saved) ^ set(own))
        what = f"{lone[0]} exists only {'there' if lone[0] in saved else 'here'} ({len(lone)} such parameters)"
    raise ValueError(
        f"checkpoint {path} is of {what_other}: {what}. Resume with the model that wrote it (its weights are in "
        f"{path / 'hf'}), or start a new run."
    )


def _same_identity(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises ValueError when a property differs. Properties that only one side has (because of another version of
    transformers, or no `model_dir`) are not compared."""
    differing = [name for name in own if name in saved and saved[name] != own[name]]
    if differing:
        name = differing[0]
        raise ValueError(
            f"checkpoint {path} is of another model: {name} is {saved[name]!r} there and {own[name]!r} here. Resume "
            f"with the model and adapters that wrote it (its weights are in {path / 'hf'}), or start a new run."
        )


def _clear(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)


def _on_rank_zero(action: Callable[[], None]) -> None:
    """Run `action` on rank 0 while the others wait; if it fails to write, all ranks raise OSError."""
    failure: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except WRITE_ERRORS as error:
            failure[0] = str(error)
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise OSError(failure[0])
