"""The scorer: measures how much a step's reasoning depends on its input. Imports neither torch nor Ray.

`Scorer` is the logic; `actors.scorer.actor` is its Ray actor; `actors.scorer.pace` decides which steps are scored.

Invariants:

- A matrix is computed under one version q, that of the weights given with the step. A step is refused if the newest
  version that sampled in the window is more than `max_staleness` from q. Turns older than q - max_staleness are
  excluded and counted.
- Every scorer step has every key of every scope; unknown metrics are NaN. Excluded reasonings are counted by reason.
- Metrics depend on the step, the seed, the window and the scorer's state only. The state consists of the moving
  averages, the regime's baseline, the set of turns and environments reported so far, and the last probe evaluation's
  verdict on the answers.
- Where turns are not divided (`model.reasoning: completion`), only the keys below `completion/` are known: there is no
  MI of reasoning, no regime, and nothing that an alarm could be raised by.
- A step that is scored again, because its groups were lost and retried, is scored from the state before its first
scorer step; none of the earlier metrics remain."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.actors.config import ScorerConfig
from squelch.envs.registry import judge_of
from squelch.kit.archive.score_matrices import ScoreMatrix, TurnPlace
from squelch.kit.diagnosis.fixed_probe import saturated
from squelch.kit.diagnosis.grounding import JUDGED, shares
from squelch.kit.diagnosis.metrics import SCOPES
from squelch.kit.diagnosis.pair_budget import draw_pairs, estimate, information_each, others_within
from squelch.kit.diagnosis.proxies import EmaState, proxies_of_scores, usable
from squelch.kit.diagnosis.regime import RegimeGauge, RegimeInputs, one_hot, true_share
from squelch.kit.diagnosis.repeats import repeated_share
from squelch.kit.diagnosis.uncertainty import MIN_INTERVAL, uncertainty
from squelch.kit.filter.coverage import SHOWN_KINDS, kind_name
from squelch.kit.scoring.completion_scoring import completion_dependence
from squelch.kit.scoring.drawing import (
    Draw,
    Groups,
    columns_of,
    draw_first_turn,
    draw_trajectory,
    marked_share,
    newest_version,
    reasoned_share,
    subset,
    version_mismatch,
    within_context,
)
from squelch.kit.scoring.matrix_metrics import UNKNOWN, matrix_metrics
from squelch.kit.scoring.metrics import EXCLUSIONS, PART_METRICS
from squelch.kit.scoring.modality_scoring import modality_metrics
from squelch.kit.scoring.settings import TRAJECTORY_OTHERS

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer

NAMED_TURNS = 20
"""Turns that are a part each; later ones are one part together."""


@dataclass(frozen=True)
class Followed:
    """Result of the last probe evaluation. `follows`: 1 if the answers follow from their reasoning, 0 if not, NaN if
    unknown; `step`: the step after which the probe was evaluated; `text_alone`: as of `RegimeInputs`."""

    follows: float = math.nan
    step: int = 0
    text_alone: float = math.nan

    def at(self, step: int, every: int) -> Followed:
        """What counts for the regime of `step`: nothing once it is older than two intervals of `every` steps."""
        return self if step - self.step <= 2 * every else Followed()

    def state(self) -> dict[str, Any] | None:
        """What is known, for the checkpoint; None if nothing is."""
        found = {name: value for name, value in asdict(self).items() if not math.isnan(value)}
        return found if len(found) > 1 else None


class Scorer:
    """Metrics of consecutive windows under the engine's current weights.

    `text` decodes ids for the judge (`kit.diagnosis.grounding`); without it nothing is judged. `opens`: as of
    `marked_share`; without it all turns count as marked. `whole`: whether turns are not divided.
    """

    def __init__(
        self,
        engine: CrossScorer,
        config: ScorerConfig,
        seed: int,
        max_staleness: int = 0,
        text: Callable[[np.ndarray], str] | None = None,
        opens: Callable[[np.ndarray], bool] | None = None,
        whole: bool = False,
    ) -> None:
        self.engine, self.config, self.seed, self.max_staleness = engine, config, seed, max_staleness
        self._text, self._opens, self._whole = text, opens, whole
        self._ema = {scope: EmaState(config.ema_alpha) for scope in SCOPES}
        self._regime = {scope: RegimeGauge() for scope in SCOPES}
        self._parts: set[str] = set()
        """Turns, environments and kinds of tasks reported so far; each is NaN in a window without it."""
        self.matrices: dict[str, ScoreMatrix] = {}
        """The score matrices of the last window by scope, without scopes of fewer than two prompts."""
        self.followed = Followed()
        self._before: tuple[int, dict[str, Any]] | None = None
        """The last step scored, and the state from before it."""

    def score(
        self,
        step: int,
        version: int,
        groups: Groups,
        environments: Mapping[str, str] | None = None,
        replaces: bool = False,
        kinds: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Metrics of a step's window by the registry's flat keys. `version`: policy version of the weights;
        `environments`, `kinds`: the environment's name, and the kind of the task where it has one, by group id;
        `replaces`: whether the step may have been scored before, with groups that are lost: what that left in the state
        is forgotten.

        Every key is always present; an unknown metric is NaN. Raises ValueError if `version` is more than max_staleness
        from the newest version that sampled in the window, for a step that was scored before and is not replaced, and
        for pictures that the engine's model cannot be fed.
        """
        started, cpu = time.perf_counter(), time.thread_time()
        newest = newest_version(groups)
        if newest >= 0 and abs(version - newest) > self.max_staleness:
            raise ValueError(
                f"step {step} is not scored: its newest tokens have version {newest} and the scorer's weights have "
                f"version {version}, which is more than max_staleness={self.max_staleness} apart"
            )
        if self._before is not None and self._before[0] == step:
            if not replaces:
                raise ValueError(f"step {step} was scored before; replaces=True says that its groups were retried")
            self._rewind(self._before[1])
        self._before = step, self._moving()
        metrics = {"scorer/version": float(version)}
        self.matrices = {}
        draws = self._draws(step, version, groups)
        if self._whole:
            metrics |= self._completions(draws["first_turn"], step)
            draws = {scope: subset(draw, np.zeros(len(draw.reasonings), bool)) for scope, draw in draws.items()}
        for index, (scope, draw) in enumerate(draws.items()):
            seed = (self.seed, step, len(SCOPES) + index)
            metrics |= self._scope(scope, draw, version, seed, environments or {})
        metrics |= self._by_kind(draws["first_turn"], kinds or {})
        metrics |= self._regimes(step, groups, metrics, len(draws["first_turn"].reasonings))
        metrics["seconds/score"] = time.perf_counter() - started
        return metrics | {"scorer/cpu_seconds": time.thread_time() - cpu}

    def _completions(self, draw: Draw, step: int) -> dict[str, float]:
        """The dependence of whole first turns on their prompts."""
        given = draw.prompts, draw.reasonings, draw.source, draw.weights
        found = completion_dependence(self.engine, *given, (self.seed, step, len(SCOPES)), draw.pictures)
        return {f"completion/{key}": value for key, value in found.items()}

    def _draws(self, step: int, version: int, groups: Groups) -> dict[str, Draw]:
        config, oldest = self.config, version - self.max_staleness
        most = config.max_prompts
        if self._whole and config.max_pairs is not None:  # all of its pairs are scored
            most = max(2, min(most, math.isqrt(config.max_pairs // config.samples_per_prompt)))
        first = draw_first_turn(groups, most, config.samples_per_prompt, (self.seed, step, 0), oldest)
        drawn = draw_trajectory(groups, config.trajectory_draws, (self.seed, step, 1), oldest)
        limit = self.engine.context_length
        return dict(zip(SCOPES, (within_context(first, limit), within_context(drawn, limit)), strict=True))

    def _scope(
        self, scope: str, draw: Draw, version: int, seed: tuple[int, ...], environments: Mapping[str, str]
    ) -> dict[str, float]:
        """Metrics of one scope and of its parts, by flat key."""
        excluded = Counter(draw.excluded)
        metrics = UNKNOWN | {
            "num_prompts": float(len(draw.prompts)),
            "version_mismatch": version_mismatch(draw, version),
        }
        matrix, ratio = self._matrix(scope, draw, seed)
        metrics["pairs_ratio"] = ratio
        if scope == "first_turn":  # later turns repeat earlier ones, which are part of their prompts
            metrics["repeated"] = repeated_share(draw.prompts, draw.reasonings, draw.source)
        if matrix is None:
            excluded["one_prompt"] += len(draw.reasonings)
        else:
            self.matrices[scope] = _with_turns(matrix, draw)
            metrics |= self._measure(matrix, draw, self._ema[scope], seed)
            excluded["non_finite"] += int(metrics["num_excluded"])
        if scope == "trajectory":
            known = None if matrix is None else matrix.filled(np.nan)
            seen = modality_metrics(self.engine, draw, known, (*seed, 0), TRAJECTORY_OTHERS, blank=False)
            metrics |= {f"modality/{key}": value for key, value in seen.items()}
        metrics |= {f"excluded/{reason}": float(excluded[reason]) for reason in EXCLUSIONS}
        metrics["num_excluded"] = float(excluded.total())
        flat = {f"{scope}/{key}": value for key, value in metrics.items()}
        return flat | self._parts_of(scope, matrix, draw, seed, environments)

    def _regimes(self, step: int, groups: Groups, metrics: Mapping[str, float], judged: int) -> dict[str, float]:
        """The regime of each scope, and the share of its turns with reasoning. `judged`: first-turn reasonings."""
        probe = self.config.probe
        follows = self.followed.at(step, probe.every if probe.scores_answers else 0).follows
        text_alone = {
            "first_turn": self.followed.at(step, probe.every).text_alone,
            "trajectory": metrics["trajectory/modality/text_alone"],
        }
        flat: dict[str, float] = {}
        for scope, gauge in self._regime.items():
            own = {
                key.removeprefix(f"{scope}/"): value for key, value in metrics.items() if key.startswith(f"{scope}/")
            }
            first = scope == "first_turn"
            own["reasoned"] = math.nan if self._whole else reasoned_share(groups, first)
            true = true_share(metrics["judge/names"], metrics["judge/right"], judged) if first else math.nan
            judge = first and not math.isnan(metrics["judge/names"])
            marked = marked_share(groups, first, self._opens) if self._opens is not None else math.nan
            inputs = RegimeInputs.of(own, follows, true, judge, text_alone[scope], marked)
            regime = "" if self._whole else gauge.read(inputs)
            flat |= {f"{scope}/{key}": value for key, value in one_hot(regime).items()}
            flat[f"{scope}/reasoned"] = own["reasoned"]
            if first:
                flat |= gauge.truth()
        return flat

    def _parts_of(
        self,
        scope: str,
        matrix: np.ma.MaskedArray | None,
        draw: Draw,
        seed: tuple[int, ...],
        environments: Mapping[str, str],
    ) -> dict[str, float]:
        """Metrics of a scope's parts. The trajectory scope's parts are its turns. The first-turn scope's parts are the
        environments, if a window mixes several; the judge's shares are added."""
        if scope == "trajectory":
            return self._by_part("turn", matrix, draw, [_turn_name(turn) for turn in draw.turns.tolist()], seed)
        names = [environments.get(group, "") for group in draw.groups]
        mixed = names if len(set(environments.values())) > 1 else []
        return self._judged(draw, names) | self._by_part("environment", matrix, draw, mixed, seed)

    def _matrix(self, scope: str, draw: Draw, seed: tuple[int, ...]) -> tuple[np.ma.MaskedArray | None, float]:
        """(L (num_samples, num_prompts), with pairs that `max_pairs` excludes masked; share of the pairs scored), or
        (None, NaN) below two prompts."""
        num_samples, num_prompts = len(draw.reasonings), len(draw.prompts)
        if num_prompts < 2:
            return None, math.nan
        limit, shown = self.config.max_pairs, draw.pictures
        if limit is not None and scope == "trajectory" and any(shown):
            limit -= num_samples * 2 * TRAJECTORY_OTHERS  # of MI by modality
        if limit is None or num_samples * num_prompts <= limit:
            return np.ma.array(self.engine.matrix(draw.prompts, draw.reasonings, None, shown)), 1.0
        wanted = draw_pairs(draw.source, num_prompts, others_within(limit, num_samples, num_prompts), seed)
        found = self.engine.matrix(draw.prompts, draw.reasonings, wanted, shown)
        return np.ma.array(found, mask=~wanted), float(wanted.mean())

    def _measure(
        self, matrix: np.ma.MaskedArray, draw: Draw, ema: EmaState | None, seed: tuple[int, ...]
    ) -> dict[str, float]:
        """Table 1, intervals and nulls of a matrix (num_samples, num_prompts); `num_excluded` counts non-finite
        rows."""
        if np.ma.is_masked(matrix):
            return self._estimate(matrix, draw, ema, seed)
        matrix = matrix.data
        lengths = np.array([len(z) for z in draw.reasonings])
        scores = usable(matrix, lengths, draw.source, draw.weights)
        compat, epsilon = self.config.compat, self.config.zscore_epsilon
        report = proxies_of_scores(scores, ema=ema, compat=compat, epsilon=epsilon)
        sure = uncertainty(scores, report, compat=compat, epsilon=epsilon, seed=seed)
        return matrix_metrics(report, sure, self.config.half_width)

    def _estimate(
        self, matrix: np.ma.MaskedArray, draw: Draw, ema: EmaState | None, seed: tuple[int, ...]
    ) -> dict[str, float]:
        """As `_measure`, but from the pairs that are not masked, and without metrics that need all pairs. Reasonings
        that were scored under no other prompt are not used."""
        known = np.where(np.isfinite(matrix.data), True, matrix.mask).all(axis=1)
        used = known & ((~matrix.mask).sum(axis=1) > 1)
        counts = {"num_samples": float(used.sum()), "num_excluded": float((~known).sum())}
        if not used.any():
            return counts
        lengths = np.array([len(z) for z in draw.reasonings])[used]
        values = np.where(matrix.mask, np.nan, matrix.data)[used]
        found = estimate(values, lengths, draw.source[used], draw.weights, seed)
        counts["num_prompts"] = float(len(draw.prompts))
        if (interval := found.intervals.get("mi_est")) is not None:
            share = (interval.half_width / self.config.half_width) ** 2
            counts["prompts_needed"] = float(max(MIN_INTERVAL, math.ceil(len(draw.prompts) * share)))
        counts["mi_saturated"] = float(saturated(found.mi_seq_est, found.upper_bound))
        return found.metrics(ema, self.config.zscore_epsilon) | counts

    def _by_part(
        self, kind: str, matrix: np.ma.MaskedArray | None, draw: Draw, names: Sequence[str], seed: tuple[int, ...]
    ) -> dict[str, float]:
        """Metrics of each turn or environment among its own samples and columns, without further scoring; `names`:
        (num_samples,), or empty if there are no parts. The metrics of a part with fewer than two prompts are NaN."""
        parts = [f"{kind}/{name}" for name in names]
        self._parts |= set(parts)
        flat: dict[str, float] = {}
        for index, name in enumerate(sorted(part for part in self._parts if part.startswith(f"{kind}/"))):
            keep = np.array([part == name for part in parts] or [False] * len(draw.reasonings), dtype=bool)
            metrics = dict.fromkeys(PART_METRICS, math.nan) | {"num_samples": float(keep.sum())}
            columns = columns_of(draw, keep)
            if matrix is not None and len(columns) > 1:
                measured = self._measure(matrix[keep][:, columns], subset(draw, keep), None, (*seed, index))
                metrics |= {key: measured[key] for key in PART_METRICS if key in measured}
            flat |= {f"{name}/{key}": value for key, value in metrics.items()}
        return flat

    def _by_kind(self, draw: Draw, kinds: Mapping[str, str]) -> dict[str, float]:
        """MI-Est of the first turns of each kind of task under the mixture of all prompts, without further scoring. The
        first `SHOWN_KINDS` kinds of the run have one; NaN for a kind that the window does not have."""
        own = np.array([f"kind/{kind_name(kinds.get(group)) or ''}" for group in draw.groups.tolist()], dtype=str)
        known = {part for part in self._parts if part.startswith("kind/")}
        new = sorted(set(own.tolist()) - known - {"kind/"})
        self._parts |= set(new[: SHOWN_KINDS - len(known)])
        matrix, gains = self.matrices.get("first_turn"), np.full(len(own), np.nan)
        if matrix is not None:
            gains = information_each(matrix.values, matrix.source, draw.weights) / matrix.lengths
        flat: dict[str, float] = {}
        for part in sorted(part for part in self._parts if part.startswith("kind/")):
            values = gains[(own == part) & np.isfinite(gains)]
            flat[f"{part}/mi_est"] = float(values.mean()) if len(values) else math.nan
        return flat

    def _judged(self, draw: Draw, environments: Sequence[str]) -> dict[str, float]:
        """The judge's shares over the reasonings of environments that have one; NaN if there is none to judge."""
        found, sizes, text = [], [], self._text
        for name in sorted(set(environments)):
            if text is not None and (judge := judge_of(name)) is not None:
                own = subset(draw, np.array([other == name for other in environments]))
                prompts, reasonings = (list(map(text, rows)) for rows in (own.prompts, own.reasonings))
                seen = [[one.decoded("a scored prompt") for one in shown[-1:]] for shown in own.pictures]
                found.append(shares(judge, prompts, reasonings, own.source.tolist(), seen))
                sizes.append(len(reasonings))
        return {
            f"judge/{key}": float(np.average([one[key] for one in found], weights=sizes)) if found else math.nan
            for key in JUDGED
        }

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return self._moving() | {
            "followed": self.followed.state(),
            "before": None if self._before is None else list(self._before),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self._rewind(state)
        followed, before = state["followed"], state["before"]
        self.followed = Followed() if followed is None else Followed(**followed)
        self._before = None if before is None else (before[0], before[1])

    def _moving(self) -> dict[str, Any]:
        """The part of the state that a scorer step changes."""
        return {
            "ema": {scope: ema.state() for scope, ema in self._ema.items()},
            "regime": {scope: gauge.state() for scope, gauge in self._regime.items()},
            "parts": sorted(self._parts),
        }

    def _rewind(self, state: Mapping[str, Any]) -> None:
        for scope in SCOPES:
            self._ema[scope].restore(state["ema"][scope])
            self._regime[scope].restore(state["regime"][scope])
        self._parts = set(state["parts"])


def _turn_name(turn: int) -> str:
    """The part of a turn, from 0; late turns are one part, because an agent may take hundreds."""
    return str(turn + 1) if turn < NAMED_TURNS else f"{NAMED_TURNS + 1}+"


def _with_turns(matrix: np.ma.MaskedArray, draw: Draw) -> ScoreMatrix:
    """The matrix with the turn of every reasoning, and a turn that showed each prompt."""
    names, numbers = draw.groups.tolist(), zip(draw.trajectories.tolist(), draw.turns.tolist(), strict=True)
    samples = [TurnPlace(group, *rest) for group, rest in zip(names, numbers, strict=True)]
    shown = np.unique(draw.source, return_index=True)[1]
    lengths = np.array([len(z) for z in draw.reasonings])
    return ScoreMatrix(matrix.filled(np.nan), draw.source, lengths, samples, [samples[row] for row in shown])
