"""`squelch gradients`: decomposes the gradient (Figure 3) of a run's archived groups at the weights of one checkpoint.

One process loads the checkpoint and computes the gradients, without Ray or vLLM. Only groups that the same version
sampled are on-policy, and their number is limited by the steps for which that version sampled. `--older weight` adds
groups of the nearest other versions with truncated importance weights (docs/guide/gradients.md discusses the bias).
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from squelch.cluster.commands.arguments import run_folder
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import known, one_line, say_json
from squelch.learner.config import MAX_GRADIENTS
from squelch.learner.decomposition.statistics import BucketMetrics, Decomposition

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig
    from squelch.kit.records.records import Trajectory
    from squelch.learner.config import LearnerConfig
    from squelch.learner.trainer import Trainer


@dataclass(frozen=True)
class ArchivedGroup:
    """One group of the archive, with the oldest and the newest version that sampled one of its tokens."""

    group_id: str
    step: int
    version_min: int
    version_max: int
    trajectories: list[Trajectory]


def run(options: argparse.Namespace) -> int:
    """Prints the decomposition."""
    if options.groups < 2 or options.buckets < 1:
        raise UserError(f"--groups {options.groups} --buckets {options.buckets}: at least 2 groups and 1 bucket")
    run_dir = run_folder(options.run_dir)
    config = RunFolder(run_dir).config(options.overrides)
    step, version, checkpoint = choose_checkpoint(run_dir, options.step)
    groups = choose_groups(run_dir, step, version, options.older, options.groups)
    learner = learner_config(config.learner, options.kl, options.entropy)
    found = measure(config, learner, checkpoint, groups, options.buckets)
    versions = Counter(g.version_min for g in groups)
    facts = {"run": config.name, "step": step, "version": version, "older": options.older}
    facts |= {"versions": {str(v): n for v, n in sorted(versions.items())}, "objective": _objective(learner)}
    if options.json:
        say_json(facts | found.as_data())
    else:
        show(facts, found, Console())
    return 0


def choose_checkpoint(run_dir: Path, step: int | None) -> tuple[int, int, Path | None]:
    """(step, policy version, folder) of the weights after `step`; by default the newest weights for which the archive
    has groups of the next step. The folder is None for the initial policy.

    Raises:
        UserError: there are no such weights; the text names the steps that exist.
    """
    from squelch.cluster.loop.persistence.state import read_state

    folder = RunFolder(run_dir)
    saved, played = folder.checkpoints(), set(folder.steps())
    usable = sorted(number for number in (0, *saved) if number + 1 in played)
    if step is None:
        step = usable[-1] if usable else 0
    if step != 0 and step not in saved:
        raise UserError(f"--step {step}: {run_dir} has weights of step 0 (the initial policy) and of {sorted(saved)}")
    return (0, 0, None) if step == 0 else (step, read_state(run_dir / saved[step]).version, run_dir / saved[step])


def choose_groups(run_dir: Path, step: int, version: int, older: str, wanted: int) -> list[ArchivedGroup]:
    """Groups that `version` sampled; with `older` = weight, also groups of the nearest versions, up to `wanted`.

    Raises:
        UserError: there are too few groups; the text names their number and a remedy.
    """
    steps = RunFolder(run_dir).steps()
    found: list[ArchivedGroup] = []
    if older == "refuse":
        found = list(_exact(run_dir, steps, step, version))
    else:
        for near in sorted(steps, key=lambda s: (abs(s - step - 1), s)):  # the weights after s play step s + 1
            found += archived_groups(run_dir, near) if len(found) < wanted else []
    if len(found) < wanted:
        raise UserError(_too_few(run_dir, step, version, older, len(found), wanted))
    return found


def _exact(run_dir: Path, steps: Sequence[int], step: int, version: int) -> Iterator[ArchivedGroup]:
    """Groups that only that version sampled, from `step` in both directions until all groups of a step have newer, or
    older, versions."""
    for near in sorted(s for s in steps if s > step):
        groups = archived_groups(run_dir, near)
        if groups and all(g.version_min > version for g in groups):
            break
        yield from (g for g in groups if g.version_min == g.version_max == version)
    for near in sorted((s for s in steps if s <= step), reverse=True):
        groups = archived_groups(run_dir, near)
        if groups and all(g.version_max < version for g in groups):
            break
        yield from (g for g in groups if g.version_min == g.version_max == version)


def archived_groups(run_dir: Path, step: int) -> list[ArchivedGroup]:
    """The groups of one step that have at least two survivors, in order of their ids."""
    import pyarrow.compute as pc

    from squelch.kit.archive.rows import from_table

    table = RunFolder(run_dir).groups([step])
    ids = table.column("group_id")
    groups = []
    for group_id in sorted(ids.unique().to_pylist()):
        own = from_table(table.filter(pc.equal(ids, group_id)))
        alive = [t for t in own if t.failure is None and t.loss_mask.any() and t.turns]
        turns = [turn for t in alive for turn in t.turns]
        if len(alive) > 1:
            oldest, newest = min(t.version_min for t in turns), max(t.version_max for t in turns)
            groups.append(ArchivedGroup(group_id, step, oldest, newest, alive))
    return groups


def _too_few(run_dir: Path, step: int, version: int, older: str, found: int, wanted: int) -> str:
    if older == "weight":
        return f"{run_dir} holds {found} groups in all, and --groups is {wanted}; give --groups {max(found, 2)} or less"
    fewer = f"--groups {found}, or " if found > 1 else ""
    return (
        f"{run_dir}: give {fewer}--older weight, which adds groups of the nearest other versions: {found} groups were "
        f"sampled by version {version} (the weights after step {step}), and --groups is {wanted}. With "
        "gradients.every=K a run measures itself on fresh groups"
    )


def learner_config(own: LearnerConfig, kl: float | None, entropy: float | None) -> LearnerConfig:
    """The settings of the run's learner for one rank, with the given KL and entropy coefficients unless None."""
    objective = own.objective
    if kl and (objective.kl.place == "reward" or objective.kl.estimator == "k1"):
        raise UserError(
            f"--kl {kl} has no effect: this run's KL (learner.objective.kl) is place={objective.kl.place} with "
            f"estimator={objective.kl.estimator}, and only k2 or k3 in the loss has a gradient; remove --kl"
        )
    if kl is not None:
        objective = objective.model_copy(update={"kl": objective.kl.model_copy(update={"coefficient": kl})})
    if entropy is not None:
        objective = objective.model_copy(update={"entropy_coefficient": entropy})
    if not (0 <= (kl or 0) < math.inf and 0 <= (entropy or 0) < math.inf):
        raise UserError(f"--kl {kl} --entropy {entropy}: coefficients must be finite, and 0 or more")
    return own.model_copy(update={"ranks": 1, "objective": objective})


def measure(
    config: RunConfig, learner: LearnerConfig, checkpoint: Path | None, groups: Sequence[ArchivedGroup], buckets: int
) -> Decomposition:
    """Loads the weights in this process and computes the gradients.

    Raises:
        UserError: the checkpoint is of another model, or the learner cannot train on the groups.
    """
    from squelch.learner import process_group
    from squelch.learner.decomposition.decompose import decompose

    process_group.start(0, 1, "127.0.0.1", 0, learner.step_timeout_s, "cuda" if learner.num_gpus > 0 else "cpu")
    try:
        trainer = _trainer(config, learner, checkpoint)
        return decompose(trainer, [(g.group_id, g.trajectories) for g in groups], buckets)
    except ValueError as error:
        raise UserError(str(error)) from error
    finally:
        process_group.stop()


def _trainer(config: RunConfig, learner: LearnerConfig, checkpoint: Path | None) -> Trainer:
    import torch
    from transformers.utils import logging as hf_logging

    from squelch.cluster.loop.initial_policy import prepare_model
    from squelch.kit.models.model_folder import model_config
    from squelch.learner import memory
    from squelch.learner.checkpoint.folder import load_weights
    from squelch.learner.checkpoint.manifest import read_manifest
    from squelch.learner.trainer import Trainer

    if checkpoint is not None:
        read_manifest(checkpoint)  # an older checkpoint is refused before the model is loaded
    hf_logging.disable_progress_bar()
    torch.set_num_threads(learner.num_threads)
    folder = prepare_model(config, _silent)
    memory.check(model_config(folder), learner, 1, MAX_GRADIENTS)
    trainer = Trainer(folder, learner, 0, 1, config.seed, config.sampling.temperature)
    if checkpoint is not None:
        load_weights(checkpoint, trainer.policy)
    return trainer


def _silent(text: str) -> None:
    """Prints nothing: with --json the only output is the JSON object."""


def _objective(learner: LearnerConfig) -> dict[str, Any]:
    own = learner.objective
    return {
        "advantage": own.advantage,
        "aggregation": own.aggregation,
        "kl_coefficient": own.kl.coefficient,
        "kl_estimator": own.kl.estimator,
        "entropy_coefficient": own.entropy_coefficient,
    }


NORMS = {
    "RV": "reward_variance",
    "task": "task",
    "task/std": "task_std",
    "KL": "kl",
    "entropy": "entropy",
    "reg": "regulariser",
    "share": "dominance",
    "share/std": "dominance_std",
}
MEANS = {
    "task": "mean_task",
    "task/std": "mean_task_std",
    "KL": "mean_kl",
    "entropy": "mean_entropy",
    "reg": "mean_regulariser",
}
NOISE = {
    "signal^2": "signal_square",
    "+-": "signal_square_error",
    "noise^2": "noise_square",
    "SNR": "snr",
    "task SNR": "snr_task",
    "bound": "tightness",
    "signal": "tightness_signal",
}
LEGEND = """\
task: advantages R - mean R; task/std: divided by the group's std; reg: KL and entropy together, with their
coefficients; share: |reg| / (|task| + |reg|), appendix K. signal^2 and noise^2: from two halves of each group, the
first without bias and so possibly negative, with its standard error. SNR: |signal| / (|noise| + |reg|), section 3.2;
task SNR: without reg, appendix H.4. bound: |task| as a share of Theorem H.2's bound; signal: with the noise taken out.
docs/guide/gradients.md says how to read them."""


def show(facts: dict[str, Any], found: Decomposition, console: Console) -> None:
    """Prints three tables: gradient norms (Figure 3), norms of each bucket's mean gradient, and signal and noise."""
    versions = ", ".join(f"{n} of version {v}" for v, n in facts["versions"].items())
    console.print(one_line(f"{facts['run']} after step {facts['step']} (version {facts['version']}): {versions}"))
    console.print(_table("Mean norm of a prompt's gradient, by bucket of reward variance (RV)", NORMS, found.buckets))
    console.print(_table("Norm of the bucket's mean gradient", MEANS, found.buckets))
    console.print(_table("Signal against task noise, and the bound of Theorem H.2", NOISE, found.buckets))
    trends = "  ".join(f"{name} {known(value, '.3g')}" for name, value in found.trends.items())
    console.print(f"rank correlation with the reward variance, {len(found.groups)} groups: {trends}")
    console.print(LEGEND.replace("\n", " "), highlight=False)


def _table(title: str, columns: Mapping[str, str], buckets: Sequence[BucketMetrics]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False, collapse_padding=True)
    for heading in ("", "n", *columns):
        table.add_column(heading, justify="right", no_wrap=True)
    for bucket in buckets:
        values = [known(vars(bucket)[name], ".3g") for name in columns.values()]
        table.add_row(f"Q{bucket.bucket}", str(bucket.num_groups), *values)
    return table
