"""Training steps of a finished run made again, from a checkpoint and the archived groups, without Ray or vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from safetensors.torch import save_file

from squelch.actors.messages import StepTerms
from squelch.cluster.config import load
from squelch.kit.archive.reader import is_of_step, read_groups, read_metrics
from squelch.kit.archive.rows import from_table
from squelch.kit.records.records import Trajectory
from squelch.learner.publish import gathered
from squelch.learner.trainer import Trainer
from tests.learner.ranks import run_ranks


def kept_groups(run_dir: Path, step: int) -> list[tuple[str, list[Trajectory]]]:
    """What the learner was given at a step, in no order that means anything."""
    table = read_groups(run_dir, [step])
    ids, decisions = (np.array(table.column(name).to_pylist()) for name in ("group_id", "decision"))
    kept = sorted(set(ids[decisions == "kept"].tolist()), reverse=True)
    return [(group_id, from_table(table.filter(ids == group_id))) for group_id in kept]


def retrain(trainer: Trainer, folder: Path) -> None:
    """One rank's part of a replay, as `folder/replay.json` has it; rank 0 leaves the parameters there."""
    spec = json.loads((folder / "replay.json").read_text())
    run_dir, first, last = Path(spec["run_dir"]), spec["first"], spec["last"]
    scales = {line["step"]: line["loss_scale"] for line in read_metrics(run_dir) if is_of_step(line)}
    if first > 1:
        trainer.load(run_dir / "checkpoints" / f"step-{first - 1}")
    for step in range(first, last + 1):
        kept = kept_groups(run_dir, step)
        if kept:  # a step without signal trained nothing
            assert trainer.train_step(step, kept, StepTerms(scales[step])).updated
    found = dict(gathered(trainer.policy))
    if trainer.rank == 0:
        save_file(found, folder / "found.safetensors")


def assert_replays(run_dir: Path, model_dir: Path, first: int, last: int, folder: Path) -> None:
    """The steps `first` to `last`, made again on as many ranks as the run had, from the checkpoint before `first` (or
    the model the run began with), give the parameters of its checkpoint after `last`, bit by bit."""
    config = load(str(run_dir / "config.yaml"))
    (folder / "replay.json").write_text(json.dumps({"run_dir": str(run_dir.resolve()), "first": first, "last": last}))
    settings = {"seed": config.seed, "temperature": config.sampling.temperature}
    run_ranks(config.learner.ranks, model_dir, config.learner, retrain, folder, **settings)
    saved, found = load_file(exported(run_dir, last)), load_file(folder / "found.safetensors")
    before = load_file(exported(run_dir, first - 1) if first > 1 else model_dir / "model.safetensors")
    assert set(found) == set(saved)
    for name, values in found.items():
        assert values.tobytes() == saved[name].tobytes(), name
    assert any((saved[name] != before[name]).any() for name in saved)


def exported(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step-{step}" / "hf" / "model.safetensors"
