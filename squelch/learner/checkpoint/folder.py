"""Checkpoints of the learner: sharded state that any number of ranks can load, together with a Hugging Face export.

A checkpoint may come from somebody else. Nothing in it can run code when it is read: tensors are safetensors, the rest
is JSON, and no unpickler is involved.

    PATH/                   a run's is checkpoints/step-N (`cluster.loop.persistence.checkpoint_folders`); written under
                            the name .NAME.partial, renamed once complete
      model.json            rank 0    format, names and shapes of all parameters, other properties that distinguish
                                      models, the algorithm, optimizer steps (`manifest`)
      loop.json             rank 0    the caller's data; the coordinator may replace it later
                                      (`cluster.loop.persistence.state`)
      sharded/R-P.safetensors  each rank R, in parts P: its shards of every tensor (`shards`)
          MODULE/parameter/NAME             float32; MODULE is `policy`, or another trained module, e.g. `critic`
          MODULE/exp_avg/NAME, exp_avg_sq   AdamW's moments, of each parameter that it has updated
          MODULE/step/NAME                  AdamW's step count
      hf/                   rank 0    weights (safetensors of type `learner.export`; if null there is no folder),
                                      configuration, tokenizer

Learning rate, betas, epsilon and weight decay are the configuration's and are not in a checkpoint.

Invariants:

- A checkpoint is written under a temporary name in the same folder, synced, and renamed once complete, so that a folder
  with the final name is always complete. A failed write leaves no files and does not change an earlier checkpoint.
- Saving does not change the trainer's state. A loaded state continues bit by bit as the saved one would have.
- All ranks load or none does: every rank reads and checks all that it will take over before one parameter changes, and
  the ranks agree on whether they can. A checkpoint of another model, algorithm or format is refused, as is one
  whose tensors are missing, surplus, of another shape or type, or not finite. Models differ if their parameters differ,
  or if a different configuration, tokenizer or adapter gives the same parameters another meaning.
- To load, a rank holds its shards twice, the second time in host memory. The export is streamed (`export`).

Waiting: each rank waits for the others, in collectives, at most the process group's time-out (`together`).

What cannot be checked: whether the numbers are those that training gave. Whoever wrote a checkpoint chose the policy.
"""

import json
import shutil
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from squelch.actors.process.folders import Whole, as_it_is
from squelch.kit.base.disk import partial_path, put_in_place
from squelch.learner.checkpoint import shards
from squelch.learner.checkpoint.export import export
from squelch.learner.checkpoint.manifest import (
    EXPORT,
    FORMAT,
    LOOP,
    MANIFEST,
    SHARDED,
    Manifest,
    read_loop,
    read_manifest,
    require_same_algorithm,
    require_same_identity,
)
from squelch.learner.checkpoint.seal import not_written
from squelch.learner.checkpoint.state import (
    PARAMETER,
    POLICY,
    Trained,
    identity,
    parameter_pieces,
    require_same_parameters,
    require_same_stepped,
    restore_parameters,
)
from squelch.learner.checkpoint.together import WRITE_ERRORS, if_every_rank_can, on_every_rank, on_rank_zero
from squelch.learner.policy.model import Policy

Others = Mapping[str, tuple[nn.Module, Optimizer]]
"""Trained modules besides the policy, by name: each module under FSDP2, with its AdamW."""
NOTHING_ELSE: Others = MappingProxyType({})
PARTS = ("shards", "export", "seal")
"""What the seconds of a checkpoint are spent on; without the last it is not sealed."""


def save(
    path: Path,
    policy: Policy,
    optimizer: Optimizer,
    model_dir: Path,
    optimizer_steps: int,
    loop: Mapping,
    others: Others = NOTHING_ELSE,
    algorithm: str = "",
    export_dtype: torch.dtype | None = torch.float32,
    sealed: bool = True,
) -> dict[str, float]:
    """Write the checkpoint; a collective. An existing checkpoint at `path` is replaced. `loop` must be plain JSON data;
    without `export_dtype` there is no export. Returns the seconds of each part.

    With `sealed` false all files are complete, under the temporary name, but perhaps not on the disk yet: the caller
    makes a checkpoint of them (`checkpoint.seal`).

    Raises ValueError on all ranks, naming the path, when it cannot be written.
    """
    partial, rank = partial_path(path), dist.get_rank()
    trained = _trained(policy, optimizer, others)
    manifest = Manifest(
        format=FORMAT,
        optimizer_steps=optimizer_steps,
        algorithm=algorithm,
        identity=identity(policy, model_dir),
        modules={one.name: one.described() for one in trained},
    )
    tensors = {name: tensor for one in trained for name, tensor in one.tensors().items()}
    marks, complete = [time.perf_counter()], False
    try:
        on_rank_zero(lambda: _clear(partial))
        on_every_rank(lambda: shards.write(partial / SHARDED, tensors, rank, synced=sealed))
        marks.append(time.perf_counter())
        if export_dtype is not None:
            export(partial / EXPORT, policy, model_dir, dtype=export_dtype)
        marks.append(time.perf_counter())
        on_rank_zero(lambda: _describe(partial, manifest, loop))
        if sealed:
            on_rank_zero(lambda: put_in_place(partial, path))
            marks.append(time.perf_counter())
        complete = True
    except WRITE_ERRORS as error:
        raise ValueError(not_written(path, error)) from error
    finally:
        if rank == 0 and not complete:
            shutil.rmtree(partial, ignore_errors=True)
    return {part: after - before for part, (before, after) in zip(PARTS, pairwise(marks), strict=False)}


def load(
    path: Path,
    policy: Policy,
    optimizer: Optimizer,
    others: Others = NOTHING_ELSE,
    algorithm: str = "",
    model_dir: Path | None = None,
    whole: Whole = as_it_is,
) -> tuple[int, dict[str, Any]]:
    """Restore parameters and optimizer state, on any number of ranks; returns (optimizer steps, the caller's data). A
    collective.

    `model_dir`: folder whose tokenizer must equal the checkpoint's; `whole`: as in `shards.read`. Raises ValueError on
    all ranks, naming the path and the difference, when `path` is no complete checkpoint, is damaged, or is one of
    another model or algorithm; then nothing has changed.
    """
    trained = _trained(policy, optimizer, others)

    def prepare() -> tuple[Manifest, dict[str, Tensor], dict[str, Any]]:
        manifest = read_manifest(path)
        require_same_algorithm(path, manifest.algorithm, algorithm)
        for one in trained:
            require_same_parameters(path, manifest, one.name, one.module)
            require_same_stepped(path, manifest, one)
        require_same_identity(path, manifest.identity, identity(policy, model_dir))
        wanted = {n: piece for one in trained for n, piece in one.pieces(manifest.modules[one.name].stepped).items()}
        return manifest, shards.read(path / SHARDED, wanted, whole=whole), read_loop(path)

    manifest, found, loop = if_every_rank_can(prepare)
    for one in trained:
        one.restore(found, manifest.modules[one.name].stepped)
    return manifest.optimizer_steps, loop


def load_weights(path: Path, policy: Policy) -> None:
    """Restore only the policy's parameters, for measurements without training. Raises ValueError as `load` does."""

    def prepare() -> dict[str, Tensor]:
        manifest = read_manifest(path)
        require_same_parameters(path, manifest, POLICY, policy)
        require_same_identity(path, manifest.identity, identity(policy, None))
        return shards.read(path / SHARDED, parameter_pieces(POLICY, policy), under=f"{POLICY}/{PARAMETER}/")

    restore_parameters(POLICY, policy, if_every_rank_can(prepare))


def _trained(policy: Policy, optimizer: Optimizer, others: Others) -> list[Trained]:
    """Every trained module, the policy first."""
    return [Trained(POLICY, policy, optimizer), *(Trained(name, *others[name]) for name in sorted(others))]


def _describe(partial: Path, manifest: Manifest, loop: Mapping) -> None:
    (partial / MANIFEST).write_text(json.dumps(manifest.model_dump()))
    (partial / LOOP).write_text(json.dumps(dict(loop)))


def _clear(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
    (path / SHARDED).mkdir(parents=True)
