"""Compares the gradient of one off-policy GRPO minibatch in Squelch's learner and in TRL 1.16: python -m \
benchmarks.peer.gradients [--quick] [--json]

Both sides use the model of `benchmarks.peer.trl` and groups of 8 with a common prompt of 40 random tokens and answers
of 8 to 64. The sampler's log-probabilities have a normal error of 0.3, so that some ratios are clipped from either
side.
Squelch's minibatch is packed and goes through `learner.trainer.Trainer`; TRL's is padded and goes through its trainer's
own loss, in the environment that `benchmarks.peer.trl` creates. The benchmark prints the relative norm of the
difference over all parameters, and for the parameter with the largest one. `--quick` uses one group.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers.utils import logging

from benchmarks import common
from benchmarks.peer import work as peer_work
from benchmarks.peer.trl import REPOSITORY, peer_python
from squelch.actors.records import Trajectory, Turn
from squelch.learner import process_group
from squelch.learner.batching import collate, to_rows
from squelch.learner.config import LearnerConfig, ObjectiveConfig
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer

GROUP_SIZE, PROMPT, ANSWERS, NOISE = 8, 40, (8, 65), 0.3
BOUND = 1e-4
TIMEOUT_S = 300.0


def settings(work: peer_work.Work) -> LearnerConfig:
    """The learner's settings for the work, in one minibatch."""
    objective = ObjectiveConfig(clip_low=work.clip_low, clip_high=work.clip_high, entropy_coefficient=0.0)
    return LearnerConfig(minibatches=1, num_threads=1, objective=objective)


def minibatch(trainer: Trainer, num_groups: int) -> list[tuple[str, list[Trajectory]]]:
    """Random groups with the trainer's own log-probabilities plus a normal error."""
    rng = np.random.default_rng(0)
    groups = []
    for g in range(num_groups):
        prompt, members = rng.integers(2, 512, PROMPT), []
        for i in range(GROUP_SIZE):
            ids = np.concatenate([prompt, rng.integers(2, 512, int(rng.integers(*ANSWERS)))]).astype(np.int32)
            turn = Turn(PROMPT, len(ids), PROMPT, len(ids), float(rng.random()), 0.0, True, False, 1, 0, 0)
            mask = np.arange(len(ids)) >= PROMPT
            members.append(Trajectory(i, ids, mask, np.zeros(len(ids), np.float32), [turn], False, False))
        groups.append((f"{g:03d}", members))
    for group_id, members in groups:
        for t in members:
            (row,) = to_rows([(group_id, [t])], trainer.config.objective)
            own = trainer._score(trainer.policy, inputs_of(collate([row]), trainer.device)).numpy()
            t.log_probs[t.loss_mask] = own + NOISE * rng.standard_normal(len(own))
    return groups


def arrays(groups: list[tuple[str, list[Trajectory]]], objective: ObjectiveConfig) -> dict[str, np.ndarray]:
    """The minibatch in the form of TRL's loss: completions padded on the right."""
    rows = to_rows(groups, objective)
    members = [t for _, ts in groups for t in ts]
    width = max(len(t.token_ids) for t in members) - PROMPT
    found = {
        "prompt_ids": np.stack([t.token_ids[:PROMPT] for t in members]).astype(np.int64),
        "prompt_mask": np.ones((len(members), PROMPT), dtype=np.int64),
        "completion_ids": np.zeros((len(members), width), dtype=np.int64),
        "completion_mask": np.zeros((len(members), width), dtype=np.int64),
        "old_per_token_logps": np.zeros((len(members), width), dtype=np.float32),
        "advantages": np.array([row.advantage for row in rows], dtype=np.float32),
    }
    for i, t in enumerate(members):
        length = len(t.token_ids) - PROMPT
        found["completion_ids"][i, :length] = t.token_ids[PROMPT:]
        found["completion_mask"][i, :length] = 1
        found["old_per_token_logps"][i, :length] = t.log_probs[PROMPT:]
    return found


def compare(num_groups: int, python: Path, folder: Path) -> dict[str, Any]:
    """Computes both gradients; returns the relative norms of their difference."""
    work = peer_work.Work(num_steps=1, num_threads=1)
    common.random_qwen2(folder, vocabulary=512, width=256, layers=4, hidden=768, heads=4, seed=peer_work.SEED)
    peer_work.save(work, folder)
    trainer = Trainer(folder, settings(work))
    groups = minibatch(trainer, num_groups)
    given: dict[str, Any] = arrays(groups, trainer.config.objective)
    np.savez(folder / "minibatch.npz", **given)
    ours = trainer.gradients(groups)
    command = [str(python), "-m", "benchmarks.peer.trl_gradients_worker", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=TIMEOUT_S, stdout=sys.stderr, env={**os.environ})
    theirs = load_file(folder / "gradients.safetensors")
    apart = {name: float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in theirs}
    whole = [torch.cat([side[name].flatten() for name in theirs]) for side in (ours, theirs)]
    return {
        "benchmark": "peer_gradients",
        "sequences": len(given["advantages"]),
        "relative_difference": float((whole[0] - whole[1]).norm() / whole[1].norm()),
        "worst_parameter": max(apart, key=apart.__getitem__),
        "worst_relative_difference": max(apart.values()),
        "bound": BOUND,
        "reached": float((whole[0] - whole[1]).norm() / whole[1].norm()) < BOUND,
    }


def main() -> None:
    """Prints the figures."""
    arguments = common.arguments(__doc__, "one group instead of four; never installs")
    python = peer_python(may_install=not arguments.quick)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    process_group.start(0, 1, "127.0.0.1", 0, TIMEOUT_S, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        found = compare(1 if arguments.quick else 4, python, Path(folder))
    process_group.stop()
    rows = [[name, f"{value:.3g}" if isinstance(value, float) else value] for name, value in found.items()]
    common.print_figures(found, arguments.json, ("figure", "value"), rows, [])


if __name__ == "__main__":
    main()
