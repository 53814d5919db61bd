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
- Every key of every scope is there at every scoring; what is not known is NaN, and why is counted.
- Figures depend on the step, the seed and the window only. State: the moving averages, the regime's baseline, and
  which turns and environments have been reported.
- With `scorer.model` set the weights never change: any version may have sampled, and the version reported is -1.

Torch and transformers are imported by the actor alone, so that the coordinator reads this module at no cost.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError

from actors.config import ScorerConfig
from actors.diagnosis.budget import draw_pairs, estimate, others_within
from actors.diagnosis.grounding import JUDGED, judge_of
from actors.diagnosis.proxies import METRIC_KEYS, RECALL_AT, EmaState, proxies_of_scores, usable
from actors.diagnosis.regime import Reading, RegimeGauge, one_hot
from actors.diagnosis.uncertainty import MIN_INTERVAL, Uncertainty, uncertainty
from actors.messages import WeightBundle
from actors.metrics.reasoning import EXCLUSIONS, PART_FIGURES, SCOPES
from actors.records import Trajectory, from_table
from actors.scorer.drawing import (
    Draw,
    Groups,
    columns_of,
    draw_first_turn,
    draw_trajectory,
    newest_version,
    subset,
    version_mismatch,
    within_context,
)
from actors.scorer.fixed_model import FIXED_VERSION
from actors.weights import checksum

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from actors.play.codec import ChatCodec

UNKNOWN = (
    dict.fromkeys((*METRIC_KEYS, *(f"recall@{k}" for k in RECALL_AT), "prompts_needed"), math.nan)
    | Uncertainty(0, {}, {}).metrics()
    | {"num_samples": 0.0, "pairs_ratio": math.nan}
)
"""A scope's figures when nothing could be scored."""
NICENESS = 10
"""Of the scoring thread: rollout and learner come first on a machine whose cores are all in use."""
PARITY_BOUND = 0.1
"""Largest mean absolute difference (nats a token) to the learner on the probe. bfloat16 on one side and float32 on the
other differ by about 0.015, a stale or half-loaded parameter by more than 1."""


class Engine(Protocol):
    """What `Scorer` needs of `actors.scorer.cross_scoring.CrossScorer`."""

    context_length: int

    def matrix(
        self, prompts: Sequence[np.ndarray], reasonings: Sequence[np.ndarray], wanted: np.ndarray | None = None
    ) -> np.ndarray: ...


class Scorer:
    """Figures of one window after another under the engine's current weights.

    `text` decodes ids for the outside judge (actors/diagnosis/grounding.py); without it nothing is judged.
    """

    def __init__(
        self,
        engine: Engine,
        config: ScorerConfig,
        seed: int,
        max_staleness: int = 0,
        text: Callable[[np.ndarray], str] | None = None,
    ) -> None:
        self.engine, self.config, self.seed, self.max_staleness = engine, config, seed, max_staleness
        self._text = text
        self._ema = {scope: EmaState(config.ema_alpha) for scope in SCOPES}
        self._regime = {scope: RegimeGauge() for scope in SCOPES}
        self._parts: set[str] = set()
        """Turns and environments reported so far: they stay, as NaN, when a window has none."""

    def score(
        self, step: int, version: int, groups: Groups, environments: Mapping[str, str] | None = None
    ) -> dict[str, float]:
        """Flat figures of a step's window, by the keys of the metric registry; `version` is that of the weights,
        `environments` the environment's name by group id.

        Every key is there every time; a figure that is not known is NaN. Raises ValueError when the version is further
        than max_staleness from the newest that sampled in the window.
        """
        started, cpu = time.perf_counter(), time.thread_time()
        newest = newest_version(groups)
        if newest >= 0 and abs(version - newest) > self.max_staleness:
            raise ValueError(
                f"step {step} is not scored: its newest tokens are of version {newest}, the scorer's weights of "
                f"version {version}; max_staleness={self.max_staleness} allows no such distance"
            )
        figures = {"scorer/version": float(version)}
        for index, (scope, draw) in enumerate(self._draws(step, version, groups).items()):
            seed = (self.seed, step, len(SCOPES) + index)
            figures |= self._scope(scope, draw, version, seed, environments or {})
        figures["seconds/score"] = time.perf_counter() - started
        return figures | {"scorer/cpu_seconds": time.thread_time() - cpu}

    def _draws(self, step: int, version: int, groups: Groups) -> dict[str, Draw]:
        config, oldest = self.config, version - self.max_staleness
        first = draw_first_turn(groups, config.max_prompts, config.samples_per_prompt, (self.seed, step, 0), oldest)
        drawn = draw_trajectory(groups, config.trajectory_draws, (self.seed, step, 1), oldest)
        limit = self.engine.context_length
        return dict(zip(SCOPES, (within_context(first, limit), within_context(drawn, limit)), strict=True))

    def _scope(
        self, scope: str, draw: Draw, version: int, seed: tuple[int, ...], environments: Mapping[str, str]
    ) -> dict[str, float]:
        """Figures of one scope, by full key, and of its parts."""
        excluded = Counter(draw.excluded)
        figures = UNKNOWN | {
            "num_prompts": float(len(draw.prompts)),
            "version_mismatch": version_mismatch(draw, version),
        }
        matrix, ratio = self._matrix(draw, seed)
        figures["pairs_ratio"] = ratio
        if matrix is None:
            excluded["one_prompt"] += len(draw.reasonings)
        else:
            figures |= self._measure(matrix, draw, self._ema[scope], seed)
            excluded["non_finite"] += int(figures["num_excluded"])
        figures |= one_hot(self._regime[scope].read(Reading.of(figures)))
        figures |= {f"excluded/{reason}": float(excluded[reason]) for reason in EXCLUSIONS}
        figures["num_excluded"] = float(excluded.total())
        flat = {f"{scope}/{key}": value for key, value in figures.items()}
        return flat | self._parts_of(scope, matrix, draw, seed, environments)

    def _parts_of(
        self,
        scope: str,
        matrix: np.ma.MaskedArray | None,
        draw: Draw,
        seed: tuple[int, ...],
        environments: Mapping[str, str],
    ) -> dict[str, float]:
        """Turns of the trajectory scope; of the first turn, the judge's view and, in a mixed window, environments."""
        if scope == "trajectory":
            return self._by_part("turn", matrix, draw, [str(turn + 1) for turn in draw.turns], seed)
        names = [environments.get(group, "") for group in draw.groups]
        mixed = names if len(set(environments.values())) > 1 else []
        return self._judged(draw, names) | self._by_part("environment", matrix, draw, mixed, seed)

    def _matrix(self, draw: Draw, seed: tuple[int, ...]) -> tuple[np.ma.MaskedArray | None, float]:
        """(L (num_samples, num_prompts), masked where `max_pairs` leaves a pair out; share of the pairs scored), or
        (None, NaN) where there are no two prompts."""
        num_samples, num_prompts = len(draw.reasonings), len(draw.prompts)
        if num_prompts < 2:
            return None, math.nan
        limit = self.config.max_pairs
        if limit is None or num_samples * num_prompts <= limit:
            return np.ma.array(self.engine.matrix(draw.prompts, draw.reasonings)), 1.0
        wanted = draw_pairs(draw.source, num_prompts, others_within(limit, num_samples, num_prompts), seed)
        found = self.engine.matrix(draw.prompts, draw.reasonings, wanted)
        return np.ma.array(found, mask=~wanted), float(wanted.mean())

    def _measure(
        self, matrix: np.ma.MaskedArray, draw: Draw, ema: EmaState | None, seed: tuple[int, ...]
    ) -> dict[str, float]:
        """Table 1, intervals and nulls of a matrix (num_samples, num_prompts); `num_excluded`: non-finite rows."""
        if np.ma.is_masked(matrix):
            return self._estimate(matrix, draw, ema)
        matrix = matrix.data
        lengths = np.array([len(z) for z in draw.reasonings])
        scores = usable(matrix, lengths, draw.source, draw.weights)
        compat, epsilon = self.config.compat, self.config.zscore_epsilon
        report = proxies_of_scores(scores, ema=ema, compat=compat, epsilon=epsilon)
        sure = uncertainty(scores, report, compat=compat, epsilon=epsilon, seed=seed)
        needed = sure.prompts_needed("mi_est", self.config.half_width)
        counts = {"prompts_needed": math.nan if needed is None else float(needed)}
        return report.metrics() | sure.metrics() | counts | {"num_samples": float(report.num_samples)}

    def _estimate(self, matrix: np.ma.MaskedArray, draw: Draw, ema: EmaState | None) -> dict[str, float]:
        """As `_measure`, of the pairs that are not masked; what needs all of them is left out. Reasonings that met no
        other prompt are not used."""
        known = np.where(np.isfinite(matrix.data), True, matrix.mask).all(axis=1)
        used = known & ((~matrix.mask).sum(axis=1) > 1)
        counts = {"num_samples": float(used.sum()), "num_excluded": float((~known).sum())}
        if not used.any():
            return counts
        lengths = np.array([len(z) for z in draw.reasonings])[used]
        values = np.where(matrix.mask, np.nan, matrix.data)[used]
        found = estimate(values, lengths, draw.source[used], draw.weights)
        counts |= {"num_prompts": float(len(draw.prompts)), "upper_bound": math.log(draw.weights.sum())}
        if (interval := found.intervals.get("mi_est")) is not None:
            share = (interval.half_width / self.config.half_width) ** 2
            counts["prompts_needed"] = float(max(MIN_INTERVAL, math.ceil(len(draw.prompts) * share)))
        return found.metrics(ema, self.config.zscore_epsilon) | counts

    def _by_part(
        self, kind: str, matrix: np.ma.MaskedArray | None, draw: Draw, names: Sequence[str], seed: tuple[int, ...]
    ) -> dict[str, float]:
        """Figures of each turn or environment among its own samples and columns, at no further scoring; `names`:
        (num_samples,), or empty where there are no parts. A part of fewer than two prompts is NaN."""
        parts = [f"{kind}/{name}" for name in names]
        self._parts |= set(parts)
        flat: dict[str, float] = {}
        for index, name in enumerate(sorted(part for part in self._parts if part.startswith(f"{kind}/"))):
            keep = np.array([part == name for part in parts] or [False] * len(draw.reasonings), dtype=bool)
            figures = dict.fromkeys(PART_FIGURES, math.nan) | {"num_samples": float(keep.sum())}
            columns = columns_of(draw, keep)
            if matrix is not None and len(columns) > 1:
                measured = self._measure(matrix[keep][:, columns], subset(draw, keep), None, (*seed, index))
                figures |= {key: measured[key] for key in PART_FIGURES if key in measured}
            flat |= {f"{name}/{key}": value for key, value in figures.items()}
        return flat

    def _judged(self, draw: Draw, environments: Sequence[str]) -> dict[str, float]:
        """The outside judge's shares over the reasonings of grid worlds; NaN where there is none to judge."""
        shares, sizes = [], []
        for name in sorted(set(environments) if self._text is not None else ()):
            if (judge := judge_of(name)) is not None:
                own = subset(draw, np.array([other == name for other in environments]))
                prompts, reasonings = ([self._text(ids) for ids in rows] for rows in (own.prompts, own.reasonings))
                shares.append(judge.judge(prompts, reasonings, own.source))
                sizes.append(len(reasonings))
        return {
            f"judge/{key}": float(np.average([share[key] for share in shares], weights=sizes)) if shares else math.nan
            for key in JUDGED
        }

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return {
            "ema": {scope: ema.state() for scope, ema in self._ema.items()},
            "regime": {scope: gauge.state() for scope, gauge in self._regime.items()},
            "parts": sorted(self._parts),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        for scope in SCOPES:
            self._ema[scope].restore(state["ema"][scope])
            self._regime[scope].restore(state["regime"][scope])
        self._parts = set(state["parts"])


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


def environments_of(tables: Sequence[pa.Table]) -> dict[str, str]:
    """The environment's name by group id."""
    pairs = (zip(t.column("group_id").to_pylist(), t.column("environment").to_pylist(), strict=True) for t in tables)
    return {group: environment for table in pairs for group, environment in table}


@ray.remote(concurrency_groups={"health": 1})
class ScorerActor:
    """The scorer in its own process, on one CPU thread of low priority or on a GPU (`scorer.num_gpus`); see `Scorer`.

    `health` is answered while a scoring is under way.
    """

    def __init__(
        self, model_dir: str, config: ScorerConfig, temperature: float, seed: int, max_staleness: int = 0
    ) -> None:
        from actors.scorer.cross_scoring import CrossScorer  # torch, for which only this process may pay

        _step_back()
        model = load_model(config.model or model_dir, config)
        self._engine = CrossScorer(model, config.token_budget, temperature)
        self._scorer = Scorer(self._engine, config, seed, max_staleness, self._text)
        self._model_dir = model_dir
        self._codec: ChatCodec | None = None
        self._fixed = config.model is not None
        self._timeout_s = config.timeout_s
        self._loaded: tuple[int, str] | None = None
        self._parity = 0.0
        self._busy: tuple[int, float] | None = None

    def score(self, step: int, bundle: WeightBundle, table_refs: list[ray.ObjectRef]) -> dict[str, float]:
        """Figures of the step whose groups the references resolve to, under the bundle's weights (fetched only here),
        or under the fixed model."""
        _step_back()
        self._busy = (step, time.monotonic())
        try:
            if not self._fixed and self._loaded != (bundle.version, bundle.checksum):
                self._load(bundle)
            tables = self._fetch(table_refs, f"groups of step {step}")
            groups, environments = by_group(tables), environments_of(tables)
            if self._fixed:
                figures = self._scorer.score(step, max(newest_version(groups), 0), groups, environments)
                return figures | {"scorer/version": float(FIXED_VERSION), "scorer/parity": math.nan}
            return self._scorer.score(step, bundle.version, groups, environments) | {"scorer/parity": self._parity}
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

    def _text(self, ids: np.ndarray) -> str:
        """Decodes for the outside judge; the tokenizer is read when a grid world is first judged."""
        from actors.play.codec import ChatCodec

        if self._codec is None:
            self._codec = ChatCodec(self._model_dir)
        return self._codec.text(ids)

    def _load(self, bundle: WeightBundle) -> None:
        from actors.scorer.cross_scoring import load_arrays

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


def load_model(folder: str, config: ScorerConfig) -> PreTrainedModel:
    """The causal model of a folder, in the type and on the device that the settings name.

    Raises RuntimeError when that is a GPU and this process sees none.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if config.num_gpus > 0 and not torch.cuda.is_available():
        raise RuntimeError(
            f"scorer.num_gpus={config.num_gpus:g}, but the scorer's process finds no CUDA device (torch "
            f"{torch.__version__}): set Squelch up with KIND=gpu on the nodes that have GPUs, or set "
            "scorer.num_gpus=0 to score on a CPU thread, or scorer.enabled=false"
        )
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=getattr(torch, config.dtype),
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    return model.to("cuda") if config.num_gpus > 0 else model


def _step_back() -> None:
    """Low priority and one thread for the calling thread; both are a thread's own on Linux, and Ray may change threads.
    A run that was started with a lower priority keeps it: only root may raise one."""
    import torch

    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    torch.set_num_threads(1)
