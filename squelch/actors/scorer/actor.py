"""The scorer's process: fetches weights and groups, checks the weights, and scores the groups.

The coordinator does not wait for the actor: it calls `score` and polls for the result. The actor waits at most
`scorer.timeout_s` for weights and groups from the object store, and its error names the late object.

Invariants:

- Weights are checked before use: first by checksum, then by the learner's log-probabilities on the probe. Weights that
  fail a check are never used.
- With `scorer.model` set the weights never change: tokens of every version are scored, and the reported version is -1.

This module imports torch and transformers; the coordinator does not import it (`actors.process.shell`).
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.exceptions import GetTimeoutError
from transformers import PreTrainedModel

from squelch.actors.config import ScorerConfig
from squelch.actors.formats.choice import AnyFormat, open_format
from squelch.actors.messages import WeightBundle
from squelch.actors.process.shipping import Folder, local
from squelch.actors.scorer.fixed_model import FIXED_VERSION
from squelch.actors.scorer.scorer import Followed, Scorer
from squelch.actors.weights import checksum
from squelch.kit.archive.rows import from_table, unpacked
from squelch.kit.archive.score_matrices import scores_table
from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.pictures.geometry import vision_of
from squelch.kit.process.progress_marks import Progress
from squelch.kit.records.records import Cluster, Trajectory
from squelch.kit.scoring.cross_scoring import CrossScorer, Ways
from squelch.kit.scoring.drawing import newest_version
from squelch.kit.scoring.models import load_arrays
from squelch.kit.scoring.probe_scoring import FixedProbe
from squelch.kit.text.answer_start import COMPLETION, MARKED
from squelch.kit.text.stamp import read_stamp

LEAST_PRIORITY = 19
"""Niceness of the scoring thread on a CPU where Linux refuses the policy `SCHED_IDLE`."""
PARITY_BOUND = {"float32": 0.1, "bfloat16": 0.3}
"""Largest mean absolute difference (nats per token) to the learner on the parity probe, by the less precise dtype of
the two. bfloat16 differs by about 0.015 on text and by up to 0.104 on the probe's random ids; a half-loaded parameter
differs by more than 1."""


def by_group(tables: Sequence[pa.Table]) -> dict[str, list[Trajectory]]:
    """Trajectories by group id; each table has `TRAJECTORY_SCHEMA` and any number of groups."""
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for table in tables:
        for name, trajectory in zip(table.column("group_id").to_pylist(), from_table(table), strict=True):
            groups[name].append(trajectory)
    return dict(groups)


def environments_of(tables: Sequence[pa.Table]) -> dict[str, str]:
    """The environment's name by group id."""
    pairs = (zip(t.column("group_id").to_pylist(), t.column("environment").to_pylist(), strict=True) for t in tables)
    return {group: environment for table in pairs for group, environment in table}


def kinds_of(tables: Sequence[pa.Table]) -> dict[str, str]:
    """The kind of each group's task, by group id, where its environment declares one."""
    pairs = (zip(t.column("group_id").to_pylist(), t.column("task_kind").to_pylist(), strict=True) for t in tables)
    return {group: kind for table in pairs for group, kind in table if kind is not None}


class ScorerActor:
    """The scorer, on one CPU thread that yields to all others, or on a GPU (`scorer.num_gpus`); see `Scorer`."""

    def __init__(
        self,
        model: Folder | str,
        config: ScorerConfig,
        temperature: float,
        seed: int,
        max_staleness: int = 0,
        kernels: str = "fast",
        fixed: Folder | str | None = None,
        whole_turns: bool = False,
    ) -> None:
        """`model`: the policy's folder. `fixed`: that of `scorer.model`, which scores instead of the policy.
        `whole_turns`: whether turns are in the model's own format, where an answer is all content."""
        torch.set_num_threads(1)  # and at the priority of all actors: the run's start waits for this one as well
        self._config = config
        self._model_dir = str(local(model))
        folder = str(local(fixed)) if fixed is not None else self._model_dir
        scores = load_model(folder, config)
        # A choice by time may differ between runs, and scores by rounding with it: on a CPU, where it gains little,
        # equal runs have equal scores.
        columns: Ways = "measured" if next(scores.parameters()).is_cuda else "one"
        vision = vision_of(Path(folder))
        self._engine = CrossScorer(scores, config.token_budget, temperature, kernels, columns, vision)
        whole = whole_turns and read_stamp(Path(self._model_dir)).reasoning == COMPLETION
        opens = self._opens if whole_turns else None
        self._scorer = Scorer(self._engine, config, seed, max_staleness, self._text, opens, whole)
        self._probe = FixedProbe(self._engine, config.probe, seed, self._answer_end)
        self._codec: AnyFormat | None = None
        self._whole_turns = whole_turns
        self._fixed = fixed is not None
        self._timeout_s = config.timeout_s
        self._loaded: tuple[int, str] | None = None
        self._parity = 0.0

    def score(
        self, step: int, bundle: WeightBundle, row_refs: list[ray.ObjectRef], replaces: bool = False
    ) -> tuple[dict[str, float], dict[str, Any], pa.Table]:
        """Metrics of the step whose groups `row_refs` refer to, under the bundle's weights (which are fetched here if
        they are not loaded), or under the fixed model; the state; and the score matrices
        (`kit.archive.score_matrices.SCORES_SCHEMA`). `replaces`: as in `Scorer.score`. All in one call: an evaluation
        of the probe, with weights of its own, may wait behind it."""
        metrics = self._score(step, bundle, row_refs, replaces)
        return metrics, self.state(), scores_table(self._scorer.matrices, int(metrics["scorer/version"]))

    def _score(
        self, step: int, bundle: WeightBundle, row_refs: list[ray.ObjectRef], replaces: bool
    ) -> dict[str, float]:
        self._prepare(bundle)
        tables = self._tables(row_refs, f"groups of step {step}")
        groups, about = by_group(tables), (environments_of(tables), replaces, kinds_of(tables))
        version = max(newest_version(groups), 0) if self._fixed else bundle.version
        before = self._engine.num_passes
        metrics = self._scorer.score(step, version, groups, *about)
        metrics |= self._passes(before) | {"scorer/parity": math.nan if self._fixed else self._parity}
        return metrics | ({"scorer/version": float(FIXED_VERSION)} if self._fixed else {})

    def _passes(self, before: int) -> dict[str, float]:
        """Forward passes since there were `before`, and what the latest cost on this device."""
        launch, token = self._engine.costs[self._engine.way].each
        cost = {"scorer/pass_seconds": launch, "scorer/token_seconds": token}
        return cost | {"scorer/passes": float(self._engine.num_passes - before)}

    def probe(
        self,
        step: int,
        bundle: WeightBundle,
        row_refs: list[ray.ObjectRef],
        clusters: Mapping[str, Cluster] | None = None,
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """The metrics of a probe evaluation, whose groups `row_refs` refer to, and the state after it; weights as in
        `score`, `clusters` as in `FixedProbe.read`."""
        self._prepare(bundle)
        tables = self._tables(row_refs, f"the probe's groups after step {step}")
        groups, kinds = by_group(tables), kinds_of(tables)
        version = max(newest_version(groups), 0) if self._fixed else bundle.version
        before = self._engine.num_passes
        metrics = self._probe.read(step, version, groups, clusters, kinds)
        metrics["probe/passes"] = float(self._engine.num_passes - before)
        self._scorer.followed = Followed(metrics["probe/link/follows"], step, metrics["probe/modality/text_alone"])
        return metrics, self.state()

    def _prepare(self, bundle: WeightBundle) -> None:
        """Gives way to other processes, and loads the bundle's weights, unless a fixed model scores."""
        _step_back(self._config)
        if not self._fixed and self._loaded != (bundle.version, bundle.checksum):
            self._load(bundle)

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return self._scorer.state() | {"probe": self._probe.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self._scorer.restore(state)
        self._probe.restore(state.get("probe"))

    def progress(self) -> Progress:
        """The progress marks so far, also while a step is scored; it is idle while it waits for weights or groups."""
        return self._engine.progress()

    def _text(self, ids: np.ndarray) -> str:
        """Decodes ids for the judge."""
        return self._tokens().text(ids)

    def _opens(self, fed: np.ndarray) -> bool:
        """Whether a turn behind these ids needs to mark no reasoning: its prompt does, or none is to be marked."""
        tokens = self._tokens()
        return tokens.reasoning != MARKED or bool(tokens.begins_inside(fed))

    def _answer_end(self, ids: np.ndarray) -> int | None:
        """Finds the end of the answer for the fixed probe."""
        tokens = self._tokens()
        return tokens.whole_answer_end(ids) if self._whole_turns else tokens.answer_end(ids)

    def _tokens(self) -> AnyFormat:
        """The policy's format, which is loaded at the first use."""
        if self._codec is None:
            self._codec = open_format(self._model_dir)
        return self._codec

    def _load(self, bundle: WeightBundle) -> None:
        chunks = self._fetch(list(bundle.chunks), f"weights of version {bundle.version}")
        arrays = {name: array for chunk in chunks for name, array in chunk.items()}
        found = checksum(arrays.items())
        if found != bundle.checksum:
            raise RuntimeError(
                f"the weights of version {bundle.version} have checksum {found} in the scorer and {bundle.checksum} in "
                "the learner"
            )
        self._loaded = None
        load_arrays(self._engine.model, arrays, bundle.bfloat16_names)
        probe = bundle.probe_ids[:1], bundle.probe_ids[1:], 1.0, bundle.probe_pictures
        own = self._engine.token_log_probs(*probe)
        self._parity = float(np.abs(own - bundle.probe_log_probs).mean())
        exact = self._config.dtype == "float32" and not bundle.bfloat16_names
        bound = PARITY_BOUND["float32" if exact else "bfloat16"]
        if not self._parity <= bound:
            raise RuntimeError(
                f"weights of version {bundle.version} fail the scorer's parity probe: {self._parity:.3g} nats per "
                f"token, bound {bound:g}"
            )
        self._loaded = (bundle.version, bundle.checksum)

    def _tables(self, row_refs: list[ray.ObjectRef], what: str) -> list[pa.Table]:
        return [unpacked(rows) for rows in self._fetch(row_refs, what)]

    def _fetch(self, refs: list[ray.ObjectRef], what: str) -> list[Any]:
        try:
            return ray.get(refs, timeout=self._timeout_s)
        except GetTimeoutError as error:
            raise TimeoutError(f"{what} did not reach the scorer within {self._timeout_s:g} s") from error


def load_model(folder: str, config: ScorerConfig) -> PreTrainedModel:
    """The causal model in a folder, with the configured dtype and on the configured device.

    Raises RuntimeError if the device is a GPU and this process finds none, and ValueError for a folder that cannot be
    used (`kit.models.model_folder`).
    """
    if config.num_gpus > 0 and not torch.cuda.is_available():
        raise RuntimeError(
            f"scorer.num_gpus={config.num_gpus:g}, but the scorer's process finds no CUDA device (torch "
            f"{torch.__version__}): set Squelch up with KIND=gpu on the nodes that have GPUs, or set "
            "scorer.num_gpus=0 to score on a CPU thread, or scorer.enabled=false"
        )
    model: Any = load_model_folder(Path(folder), getattr(torch, config.dtype))
    return model.to("cuda") if config.num_gpus > 0 else model


def _step_back(config: ScorerConfig) -> None:
    """Gives the calling thread one torch thread; on a CPU it yields the processor to every other process that wants it.
    On Linux both belong to a thread, and Ray may call methods from different threads.

    Niceness is too weak for that: Ray starts all its workers at 15 of 19. A learner whose threads wait for one another
    at every product is as slow as its slowest thread, so a scorer with an equal share of one core halves its speed.
    """
    torch.set_num_threads(1)
    if config.num_gpus == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError:  # some containers refuse the call
            os.setpriority(os.PRIO_PROCESS, 0, LEAST_PRIORITY)
