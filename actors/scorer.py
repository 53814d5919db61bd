"""The scorer: measures, step by step, how far the reasoning depends on its input; it never delays training.

`Scorer` is the logic, `ScorerActor` its Ray shell, `ScoringPace` what the coordinator decides about it. Who waits: the
coordinator for nobody here; it fires `score` and looks later. The actor waits for weights and payload in the object
store, at most `scorer.timeout_s`, and names what was late. A scorer that is busy is skipped, one that is late is
reported, one that died is an alarm: none of them stops training.

Invariants:

- One matrix, one version q: the weights that were given with the step. The newest version that sampled in the window
  must be within `max_staleness` of q, else the step is refused; turns older than q - max_staleness are excluded and
  counted.
- Weights are checked before they are used (checksum, then the learner's own log-probabilities on the probe); weights
  that fail either are never scored with.
- Figures depend on the step, the seed and the window only. The moving averages are the only state.

Torch and transformers are imported by the actor alone, so that the coordinator reads this module at no cost.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError

from actors.config import ScorerConfig
from actors.drawing import (
    EXCLUSIONS,
    Draw,
    Groups,
    draw_first_turn,
    draw_trajectory,
    newest_version,
    version_mismatch,
    within_context,
)
from actors.messages import WeightBundle
from actors.proxies import EmaState, proxies_of_samples
from actors.records import Trajectory, from_table
from actors.weights import checksum

SCOPES = ("first_turn", "trajectory")
NICENESS = 10
"""Of the scoring thread: rollout and learner come first on a machine whose cores are all in use."""
PARITY_BOUND = 0.1
"""Largest mean absolute difference (nats a token) to the learner on the probe. The scorer computes in float32; a
learner that computes in bfloat16 differs by about 0.015, a stale or half-loaded parameter by more than 1."""


class Engine(Protocol):
    """What `Scorer` needs of `actors.cross_scoring.CrossScorer`."""

    context_length: int

    def matrix(self, prompts: Sequence[np.ndarray], reasonings: Sequence[np.ndarray]) -> np.ndarray: ...


class Scorer:
    """Figures of one window after another under the engine's current weights."""

    def __init__(self, engine: Engine, config: ScorerConfig, seed: int, max_staleness: int = 0) -> None:
        self.engine, self.config, self.seed, self.max_staleness = engine, config, seed, max_staleness
        self._ema = {scope: EmaState(config.ema_alpha) for scope in SCOPES}

    def score(self, step: int, version: int, groups: Groups) -> dict[str, float]:
        """Flat figures of a step's window, by the keys of the metric registry; `version` is that of the weights.

        Figures that are not known (nothing could be drawn) are left out; counts are always there. Raises ValueError
        when the version is further than max_staleness from the newest that sampled in the window.
        """
        started, cpu = time.perf_counter(), time.thread_time()
        newest = newest_version(groups)
        if newest >= 0 and abs(version - newest) > self.max_staleness:
            raise ValueError(
                f"step {step} is not scored: its newest tokens are of version {newest}, the scorer's weights of "
                f"version {version}; max_staleness={self.max_staleness} allows no such distance"
            )
        figures = {"scorer/version": float(version)}
        for scope, draw in self._draws(step, version, groups).items():
            figures |= {f"{scope}/{key}": value for key, value in self._figures(scope, draw, version).items()}
        figures["seconds/score"] = time.perf_counter() - started
        return figures | {"scorer/cpu_seconds": time.thread_time() - cpu}

    def _draws(self, step: int, version: int, groups: Groups) -> dict[str, Draw]:
        config, oldest = self.config, version - self.max_staleness
        first = draw_first_turn(groups, config.max_prompts, config.samples_per_prompt, (self.seed, step, 0), oldest)
        drawn = draw_trajectory(groups, config.trajectory_draws, (self.seed, step, 1), oldest)
        limit = self.engine.context_length
        return dict(zip(SCOPES, (within_context(first, limit), within_context(drawn, limit)), strict=True))

    def _figures(self, scope: str, draw: Draw, version: int) -> dict[str, float]:
        """Table 1 of one scope; nothing usable leaves the moving average as it is."""
        excluded = Counter(draw.excluded)
        figures = {f"excluded/{reason}": 0.0 for reason in EXCLUSIONS}
        figures |= {"num_prompts": 0.0, "num_samples": 0.0, "version_mismatch": version_mismatch(draw, version)}
        if draw.reasonings:
            proxies = proxies_of_samples(
                self.engine.matrix(draw.prompts, draw.reasonings),
                np.array([len(z) for z in draw.reasonings]),
                draw.source,
                column_weights=draw.weights,
                ema=self._ema[scope],
                epsilon=self.config.zscore_epsilon,
            )
            excluded["non_finite"] += proxies.num_excluded
            figures |= proxies.metrics() | {"num_samples": float(proxies.num_samples)}
        figures |= {f"excluded/{reason}": float(count) for reason, count in excluded.items()}
        return figures | {"num_excluded": float(excluded.total())}

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return {"ema": {scope: ema.state() for scope, ema in self._ema.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        for scope, ema in self._ema.items():
            ema.restore(state["ema"][scope])


class ScoringPace:
    """When a step is scored, and what is said of a scorer that is behind, late or dead. Pure; times are seconds of one
    clock. At most one scoring is under way; `outcomes` counts done, skipped, refused, late and failed ones."""

    def __init__(self, every: int, timeout_s: float) -> None:
        self.every, self.timeout_s = every, timeout_s
        self.outcomes: Counter[str] = Counter()
        self._step: int | None = None
        self._started = 0.0
        self._late_said = False

    @property
    def busy(self) -> bool:
        return self._step is not None

    def due(self, step: int) -> bool:
        """Step 1 and every `every`-th."""
        return step == 1 or step % self.every == 0

    def begin(self, step: int, now: float) -> bool:
        """True when this step is to be scored now; a due step that meets a busy scorer is skipped and counted."""
        if not self.due(step):
            return False
        if self.busy:
            self.outcomes["skipped"] += 1
            return False
        self._step, self._started, self._late_said = step, now, False
        return True

    def check(self, now: float) -> str | None:
        """The alarm of a scoring that is past its time, once for each."""
        if not self.busy or self._late_said or now - self._started <= self.timeout_s:
            return None
        self._late_said = True
        self.outcomes["late"] += 1
        return f"the scorer is late with step {self._step}: over {self.timeout_s:g} s (scorer.timeout_s)"

    def end(self, outcome: str, cause: str = "") -> str | None:
        """Ends the scoring under way as `done`, `refused` or `failed`; the alarm unless it is done. Never raises for a
        scorer's failure: training goes on unscored."""
        if outcome not in ("done", "refused", "failed"):
            raise ValueError(f"outcome={outcome!r} is none of done, refused, failed")
        if self._step is None:
            raise RuntimeError(f"no scoring is under way to end as {outcome}")
        step, self._step = self._step, None
        self.outcomes[outcome] += 1
        return None if outcome == "done" else f"scoring of step {step} {outcome}: {cause}"


def by_group(tables: Sequence[pa.Table]) -> dict[str, list[Trajectory]]:
    """Trajectories by group id, of tables of `TRAJECTORY_SCHEMA` with any number of groups each."""
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for table in tables:
        for name, trajectory in zip(table.column("group_id").to_pylist(), from_table(table), strict=True):
            groups[name].append(trajectory)
    return dict(groups)


@ray.remote(concurrency_groups={"health": 1})
class ScorerActor:
    """The scorer in its own process, on the CPU (float32, one thread, low priority); see `Scorer`.

    `health` is answered while a scoring is under way.
    """

    def __init__(
        self, model_dir: str, config: ScorerConfig, temperature: float, seed: int, max_staleness: int = 0
    ) -> None:
        import torch  # only this process may pay for torch and transformers: the coordinator imports this module
        from transformers import AutoModelForCausalLM

        from actors.cross_scoring import CrossScorer

        _step_back()
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
        self._engine = CrossScorer(model, config.token_budget, temperature)
        self._scorer = Scorer(self._engine, config, seed, max_staleness)
        self._timeout_s = config.timeout_s
        self._loaded: tuple[int, str] | None = None
        self._parity = 0.0
        self._busy: tuple[int, float] | None = None

    def score(self, step: int, bundle: WeightBundle, table_refs: list[ray.ObjectRef]) -> dict[str, float]:
        """Figures of the step whose groups the references resolve to, under the bundle's weights (fetched only
        here)."""
        _step_back()
        self._busy = (step, time.monotonic())
        try:
            if self._loaded != (bundle.version, bundle.checksum):
                self._load(bundle)
            tables = self._fetch(table_refs, f"groups of step {step}")
            return self._scorer.score(step, bundle.version, by_group(tables)) | {"scorer/parity": self._parity}
        finally:
            self._busy = None

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return self._scorer.state()

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._scorer.restore(state)

    @ray.method(concurrency_group="health")
    def health(self) -> dict[str, float]:
        """`version` of the weights (-1: none yet), `busy_step` (-1: idle) and for how many seconds."""
        step, since = self._busy or (-1, time.monotonic())
        version = self._loaded[0] if self._loaded else -1
        return {"version": float(version), "busy_step": float(step), "busy_seconds": time.monotonic() - since}

    def _load(self, bundle: WeightBundle) -> None:
        from actors.cross_scoring import load_arrays

        chunks = self._fetch(list(bundle.chunks), f"weights of version {bundle.version}")
        arrays = {name: array for chunk in chunks for name, array in chunk.items()}
        found = checksum(arrays.items())
        if found != bundle.checksum:
            raise RuntimeError(
                f"weights of version {bundle.version} have checksum {found}, the learner's {bundle.checksum}"
            )
        self._loaded = None
        load_arrays(self._engine.model, arrays, bundle.bfloat16_names)
        own = self._engine.token_log_probs(bundle.probe_ids[:1], bundle.probe_ids[1:], temperature=1.0)
        self._parity = float(np.abs(own - bundle.probe_log_probs).mean())
        if not self._parity <= PARITY_BOUND:
            raise RuntimeError(
                f"weights of version {bundle.version} fail the scorer's parity probe: {self._parity:.3g} nats a token, "
                f"bound {PARITY_BOUND:g}"
            )
        self._loaded = (bundle.version, bundle.checksum)

    def _fetch(self, refs: list[ray.ObjectRef], what: str) -> list[Any]:
        try:
            return ray.get(refs, timeout=self._timeout_s)
        except GetTimeoutError as error:
            raise TimeoutError(f"{what} did not reach the scorer within {self._timeout_s:g} s") from error


def _step_back() -> None:
    """Low priority and one thread for the calling thread; both are a thread's own on Linux, and Ray may change
    threads."""
    import torch

    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    torch.set_num_threads(1)
