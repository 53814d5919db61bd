"""Checkpoints of the learner: sharded state that any number of ranks can load, and a Hugging Face export beside it.

`path/` holds `sharded/` (torch.distributed.checkpoint: parameters and optimizer state), `hf/` (safetensors,
configuration, tokenizer), `model.json` (names and shapes of all parameters, optimizer steps) and `loop.json` (the
caller's).

Invariants: a checkpoint is written beside its place and renamed when whole, so that a folder by that name is complete;
a failed write leaves nothing behind. A checkpoint of another model is refused before anything is changed.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from learner.model import Policy
from learner.publish import entries, gathered

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
WRITE_ERRORS = (OSError, SafetensorError)
STEP_FOLDER = re.compile(r"step-(\d+)")


def partial_path(path: Path) -> Path:
    """Where a checkpoint is written before it is whole."""
    return path.with_name(f".{path.name}.partial")


def save(
    path: Path, policy: Policy, optimizer: Optimizer, model_dir: Path, optimizer_steps: int, loop: Mapping
) -> None:
    """Write the checkpoint; a collective. Replaces a checkpoint of that name. `loop` has to be plain JSON data."""
    partial = partial_path(path)
    try:
        _on_rank_zero(lambda: _clear(partial))
        model_state, optimizer_state = get_state_dict(policy, optimizer)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=partial / "sharded")
        export(partial / "hf", policy, model_dir)
        _on_rank_zero(lambda: _seal(partial, path, policy, optimizer_steps, loop))
    except (*WRITE_ERRORS, CheckpointException) as error:
        raise ValueError(f"checkpoint {path} could not be written, and nothing of it was kept: {error}") from error
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)


def load(path: Path, policy: Policy, optimizer: Optimizer) -> tuple[int, dict[str, Any]]:
    """Restore parameters and optimizer state, on any number of ranks; returns (optimizer steps, the caller's data).

    Raises ValueError, naming the path and the difference, for a checkpoint of another model or no checkpoint at all.
    """
    described = _describe(path)
    _same_model(path, described["parameters"], shapes(policy))
    model_state, optimizer_state = get_state_dict(policy, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=path / "sharded")
    set_state_dict(policy, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(described["optimizer_steps"]), read_loop(path)


def read_loop(path: Path) -> dict[str, Any]:
    """The caller's data of a checkpoint."""
    return json.loads((path / "loop.json").read_text())


def export(path: Path, policy: Policy, model_dir: Path) -> None:
    """Write a Hugging Face folder (float32 safetensors); a collective. Files of `model_dir`'s tokenizer are copied."""
    whole = {}
    for name, tensor in gathered(policy):
        if dist.get_rank() == 0:
            whole[name] = tensor
    _on_rank_zero(lambda: _write_folder(path, policy, model_dir, whole))


def _write_folder(path: Path, policy: Policy, model_dir: Path, whole: dict[str, torch.Tensor]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, path / name)
    policy.model.config.save_pretrained(path)
    save_file(whole, path / "model.safetensors", metadata={"format": "pt"})


def shapes(policy: Policy) -> dict[str, list[int]]:
    """Names and whole shapes of all parameters: what makes two models the same to a checkpoint."""
    return {name: list(tensor.shape) for name, tensor in entries(policy).items()}


def _seal(partial: Path, path: Path, policy: Policy, optimizer_steps: int, loop: Mapping) -> None:
    described = {"optimizer_steps": optimizer_steps, "parameters": shapes(policy)}
    (partial / "model.json").write_text(json.dumps(described))
    (partial / "loop.json").write_text(json.dumps(dict(loop)))
    _clear(path)
    partial.rename(path)


def _describe(path: Path) -> dict[str, Any]:
    file = path / "model.json"
    if not file.is_file() or not (path / "sharded").is_dir():
        raise ValueError(f"checkpoint {path}: not a whole checkpoint of the learner (no model.json and sharded/ in it)")
    return json.loads(file.read_text())


def _same_model(path: Path, saved: Mapping[str, list[int]], own: Mapping[str, list[int]]) -> None:
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
        f"checkpoint {path} is of another model: {what}. Resume with the model that wrote it (its weights are in "
        f"{path / 'hf'}), or start a new run."
    )


def _clear(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)


def _on_rank_zero(action: Callable[[], None]) -> None:
    """Run on rank 0 while the others wait; a failed write is raised on all of them."""
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
