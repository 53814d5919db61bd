"""`squelch.Monitor`: the diagnosis over the steps of a run, inside any trainer's process (docs/guide/python.md).

    observe         every k steps   samples of the step   MI, D, regime; alarm on falling MI
    observe_probe   now and then    the same prompts      MI and D on them, change since the first; alarm on each
    record_reward   every step      mean reward           whether the reward rose while MI fell

Invariants:

- Metrics have the flat keys of a run of Squelch (docs/reference/metrics.md), so that `/metrics`, the dashboards and the
  alerts know them. Every key is always present; an unknown one is NaN.
- MI, D and the regime of a step are those of `squelch.score` for the same samples. Until the probe was observed, D and
  the other links of the step's own answers stand under the probe's keys (`probe/link/…`); the alarm on D sees the probe
  alone, because answers to other prompts are no fall.
- Steps must come in their order. Metrics depend on the samples, the weights, the seed and the state alone; `state` is
  plain JSON, for the trainer's checkpoint.
- With `reasoning: completion` there is no MI, no regime and no alarm: only the keys below `completion/` are known.
- A step with fewer than two usable prompts is counted and raises nothing: a run must not end for it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.kit.api.answers import Answers, regime_of
from squelch.kit.api.arrays import numbers
from squelch.kit.api.completions import (
    CALLS_ONLY,
    EMPTY,
    HALF_CHARACTER,
    MARKERS,
    NO_ANSWER,
    NO_TOKENS,
    TEXT_BEFORE,
    UNCLOSED,
    UNMARKED,
    Markers,
    where_of,
)
from squelch.kit.api.inputs import reader_of, rows_of
from squelch.kit.api.samples import TOO_LONG, Reasonings, SampleReader, at_most, within_context
from squelch.kit.api.scoring import ScoreResult, require_two_prompts, scored
from squelch.kit.diagnosis.alarm import DependenceAlarm, score_of
from squelch.kit.diagnosis.metrics import COMPLETION_KEYS, LINK_KEYS
from squelch.kit.diagnosis.probe_alarm import ProbeAlarm
from squelch.kit.diagnosis.proxies import NON_FINITE, Compat, EmaState
from squelch.kit.diagnosis.regime import one_hot
from squelch.kit.records.content import content_key
from squelch.kit.scoring.matrix_metrics import UNKNOWN, matrix_metrics
from squelch.kit.scoring.metrics import ANSWER_EXCLUSIONS, EXCLUSIONS
from squelch.kit.scoring.probe_drawing import ProbeDraw
from squelch.kit.scoring.probe_scoring import FixedProbe
from squelch.kit.scoring.settings import OTHERS, REFERENCES, ProbeConfig
from squelch.kit.text.answer_start import Reasoning

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer

REASONS = dict.fromkeys((EMPTY, UNMARKED, TEXT_BEFORE, CALLS_ONLY), "empty")
REASONS |= {UNCLOSED: "unclosed", NO_ANSWER: "unclosed"}
REASONS |= {TOO_LONG: "too_long", NON_FINITE: "non_finite", NO_TOKENS: "non_finite", HALF_CHARACTER: "non_finite"}
"""The metric's reason for each reason of a sample's exclusion; a completion that does not begin with its reasoning has
none where one is expected, and words without tokens, or of unknown ones, have no likelihood."""


class Monitor:
    """The state of the diagnosis of one run; see the module's head.

    Args:
        tokenizer: as of `squelch.score`; it must stay the same.
        tools, reasoning, markers, answer, temperature, compat, links, token_budget: as of `squelch.score`.
        max_prompts: most prompts of a step that are scored, at least 2; the cost grows with its square.
        ema_alpha: weight of the past in MI-ZScore-EMA, [0, 1).
        half_width: nats per token, the half width of MI-Est's interval for which `prompts_needed` is given.
        seed: of the resampling and of the choice of prompts.

    Raises:
        ValueError: a setting is out of its range.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        reasoning: Reasoning = "marked",
        markers: Markers | None = MARKERS,
        answer: str = "",
        temperature: float = 1.0,
        compat: Compat = "paper",
        links: bool = True,
        max_prompts: int = 64,
        token_budget: int = 16384,
        ema_alpha: float = 0.9,
        half_width: float = 0.05,
        seed: int = 0,
    ) -> None:
        _require("temperature", temperature, temperature > 0, "above 0")
        _require("max_prompts", max_prompts, max_prompts >= 2, "2 or more")
        _require("token_budget", token_budget, token_budget >= 1, "1 or more")
        _require("ema_alpha", ema_alpha, 0 <= ema_alpha < 1, "in [0, 1)")
        _require("half_width", half_width, half_width > 0, "above 0")
        self._tokenizer, self._tools, self._temperature = tokenizer, tools, temperature
        self._where = where_of(reasoning, markers, answer)
        self._compat: Compat = compat
        self._links, self._max_prompts, self._token_budget = links, max_prompts, token_budget
        self._half_width, self._seed = half_width, seed
        self._reader: tuple[int, SampleReader] | None = None
        self._ema, self._alarm, self._probe_alarm = EmaState(ema_alpha), DependenceAlarm(), ProbeAlarm()
        self._step: int | None = None
        self._probe_step: int | None = None
        self._probe_prompts: list[list[int]] | None = None
        self._probe_first: dict[str, Any] | None = None
        self._raised: list[str] = []
        self._unscored = ""

    @property
    def unscored(self) -> str:
        """Why the last observed step has no MI, with what was left out; empty if it has."""
        return self._unscored

    @property
    def alarms(self) -> tuple[str, ...]:
        """The alarms that the last observation raised, in words; empty if none did."""
        return tuple(self._raised)

    def record_reward(self, step: int, mean: float) -> None:
        """Records the mean reward of a training step, which an alarm's text and `alarm/reward_trend` compare with."""
        self._alarm.reward(step, float(mean))

    def observe(
        self,
        step: int,
        model: Any,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        rewards: Any = None,
        masks: Sequence[Any] | None = None,
    ) -> dict[str, float]:
        """Scores the first turns of a training step's samples. The model stays as it was.

        Args:
            step: the training step, above that of the last call.
            model: as of `squelch.score`: with the weights that sampled the completions, so before the update.
            prompts, completions, masks: as of `squelch.score`.
            rewards: (num_samples,) the rewards, whose mean is recorded; NaN or None for a row without one.

        Returns:
            Flat metrics: `first_turn/…`, `probe/link/…` (see the module's head), `alarm/…`, `scorer/…`,
            `seconds/score`.

        Raises:
            ValueError: as of `squelch.score`, or the step does not come after the last.
        """
        self._require_order("observe", step, self._step)
        rows = rows_of(prompts, completions, masks=masks)
        if rewards is not None:
            self._record_rewards(step, rewards, len(rows))
        with self._engine(model) as (engine, reader):
            return self.observe_read(step, engine, reader.read(rows))

    def observe_read(self, step: int, engine: CrossScorer, found: Reasonings) -> dict[str, float]:
        """As `observe`, of samples that a reader has converted, under the model of an engine: for `squelch monitor`."""
        self._require_order("observe", step, self._step)
        started, cpu = time.perf_counter(), time.process_time()  # torch may use several threads
        found = within_context(found, engine.context_length)
        found = at_most(found, self._max_prompts, self._seed + step)
        result = self._scored(engine, found) if len(found.prompts) > 1 else None
        self._step, self._raised = step, []
        metrics = {f"first_turn/{key}": value for key, value in step_metrics(found, result, self._half_width).items()}
        metrics |= self._completion_metrics(result)
        known = metrics["completion/dependence" if self._where is None else "first_turn/mi_est"]
        self._unscored = _why_unscored(found, result) if math.isnan(known) else ""
        metrics |= {"scorer/step": float(step), "scorer/version": float(step)}
        metrics |= self._watched(step, metrics)
        if self._links and self._probe_step is None:
            metrics |= link_metrics(result.answers if result else None)
        metrics["seconds/score"] = time.perf_counter() - started
        return metrics | {"scorer/cpu_seconds": time.process_time() - cpu}

    def observe_probe(
        self, step: int, model: Any, prompts: Sequence[Any], completions: Sequence[Any]
    ) -> dict[str, float]:
        """Scores completions of the same prompts as at the first call, e.g. of the trainer's evaluation set. Changes of
        MI and D on them are the policy's and not the prompts'. Several completions of each prompt narrow the intervals.

        Args:
            step: the training step after which they were sampled, above that of the last call.
            model: as of `squelch.score`: with the weights that sampled the completions.
            prompts, completions: as of `squelch.score`. The distinct prompts of the first call, as far as they had a
                usable reasoning, are the probe; rows of other prompts are left out later, and counted.

        Returns:
            Flat metrics: `probe/…`, `seconds/probe_score`.

        Raises:
            ValueError: as of `squelch.score`, or fewer than two of the prompts are the probe's.
        """
        self._require_order("observe_probe", step, self._probe_step)
        if self._where is None:
            raise ValueError("observe_probe measures reasoning, and with reasoning=completion there is none to tell")
        with self._engine(model) as (engine, reader):
            found = within_context(reader.read(rows_of(prompts, completions)), engine.context_length)
            if self._probe_prompts is None:
                require_two_prompts(found)
                self._probe_prompts = [prompt.tolist() for prompt in found.prompts]
            draw = self._probe_draw(found)
            config = ProbeConfig(links=self._links, answer_references=REFERENCES, answer_prompts=OTHERS)
            probe = FixedProbe(engine, config, self._seed, lambda answer: len(answer) or None)
            probe.restore(self._probe_first)
            metrics = probe.evaluate(step, step, draw)
        self._probe_step, self._probe_first = step, probe.state()
        self._raised = [self._probe_alarm.text(name) for name in self._probe_alarm.update(step, metrics)]
        return metrics | self._probe_alarm.metrics()

    def state(self) -> dict[str, Any]:
        """For the trainer's checkpoint; plain JSON."""
        return {
            "ema": self._ema.state(),
            "alarm": self._alarm.state(),
            "probe_alarm": self._probe_alarm.state(),
            "step": self._step,
            "probe_step": self._probe_step,
            "probe_prompts": self._probe_prompts,
            "probe_first": self._probe_first,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state of a checkpoint."""
        self._ema.restore(state["ema"])
        self._alarm.restore(state["alarm"])
        self._probe_alarm.restore(state["probe_alarm"])
        self._step, self._probe_step = state["step"], state["probe_step"]
        self._probe_prompts, self._probe_first = state["probe_prompts"], state["probe_first"]

    @contextmanager
    def _engine(self, model: Any) -> Iterator[tuple[CrossScorer, SampleReader]]:
        """What scores under the model, and what converts rows for it."""
        from squelch.kit.scoring.borrowed_model import borrowed
        from squelch.kit.scoring.cross_scoring import CrossScorer

        with borrowed(model) as own:
            config: Any = own.config.get_text_config()
            if self._reader is None or self._reader[0] != config.vocab_size:
                reader = reader_of(self._tokenizer, config.vocab_size, self._where, tools=self._tools)
                self._reader = config.vocab_size, reader
            yield CrossScorer(own, self._token_budget, self._temperature), self._reader[1]

    def _scored(self, engine: CrossScorer, found: Reasonings) -> ScoreResult:
        return scored(engine, found, compat=self._compat, links=self._links, seed=self._seed, ema=self._ema)

    def _completion_metrics(self, result: ScoreResult | None) -> dict[str, float]:
        """What is known of completions that are not divided; nothing of others."""
        if self._where is not None:
            return {}
        known = result.completion if result is not None else None
        found = dict.fromkeys(COMPLETION_KEYS, math.nan) | dict(known or {})
        return {f"completion/{key}": value for key, value in found.items()}

    def _watched(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Passes a step's metrics to the alarm; the alarm's metrics."""
        seen = score_of({"step": step, **metrics})
        if seen is not None and self._alarm.update(*seen):
            self._raised.append(self._alarm.text())
        return self._alarm.metrics()

    def _record_rewards(self, step: int, rewards: Any, num_rows: int) -> None:
        values = numbers("rewards", rewards)
        if values.shape != (num_rows,):
            raise ValueError(f"`rewards` has shape {values.shape}; it must be ({num_rows},), one for each completion")
        if np.isfinite(values).any():
            self.record_reward(step, float(values[np.isfinite(values)].mean()))

    def _probe_draw(self, found: Reasonings) -> ProbeDraw:
        """The samples as the probe's: each of its prompts is a task and a column, whether it has samples or not."""
        prompts = [np.array(ids, dtype=np.int64) for ids in self._probe_prompts or []]
        keys = tuple(content_key(prompt) for prompt in prompts)
        place = {key: index for index, key in enumerate(keys)}
        task = np.array([place.get(content_key(found.prompts[j]), -1) for j in found.source], dtype=np.int64)
        (kept,) = np.nonzero(task >= 0)
        if len(np.unique(task[kept])) < 2:
            raise ValueError(
                f"{len(np.unique(task[kept]))} prompts of the {len(found.prompts)} with a usable reasoning are among "
                f"the probe's {len(prompts)}, and a comparison needs 2; give the same prompts each time"
            )
        size = int(np.bincount(task[kept]).max())
        within = np.array([int((task[:s] == task[s]).sum()) for s in kept], dtype=np.int64)
        left = Counter(found.excluded) + Counter({"other_prompt": len(task) - len(kept)})
        answers = [found.answers[s] for s in kept]
        return ProbeDraw(
            tasks=keys,
            prompts=prompts,
            weights=np.ones(len(prompts)),
            reasonings=[found.ids[s] for s in kept],
            after=[np.zeros(0, np.int64) if answer is None else answer for answer in answers],
            task=task[kept],
            source=task[kept],
            slot=task[kept] * size + within,
            slots=np.repeat(np.arange(len(prompts)), size),
            excluded=left,
            pictures=[()] * len(prompts),
        )

    def _require_order(self, call: str, step: int, last: int | None) -> None:
        if last is not None and step <= last:
            raise ValueError(f"{call} was called for step {last} and then for {step}; steps must rise")


def _why_unscored(found: Reasonings, result: ScoreResult | None) -> str:
    """Why a step has no MI, in words; `result`: None below two prompts."""
    try:
        require_two_prompts(found)
    except ValueError as error:
        return str(error)
    excluded = result.proxies.excluded if result else found.excluded
    return "no reasoning can be compared. Excluded rows: " + "; ".join(f"{why}: {n}" for why, n in excluded.items())


def step_metrics(found: Reasonings, result: ScoreResult | None, half_width: float) -> dict[str, float]:
    """The metrics of a step's first turns without their scope; `result`: None below two prompts; `half_width`: as of
    `Monitor`."""
    about = {"num_prompts": float(len(found.prompts)), "reasoned": found.reasoned, "repeated": found.repeated}
    metrics = UNKNOWN | about
    excluded = Counter[str]()
    for reason, count in (found.excluded if result is None else result.proxies.excluded).items():
        if reason in REASONS:  # a prompt that was not drawn is no fault
            excluded[REASONS[reason]] += count
    if result is None:
        excluded["one_prompt"] += len(found.ids)
    elif not found.whole:
        metrics |= matrix_metrics(result.proxies, result.uncertainty, half_width) | {"pairs_ratio": 1.0}
    links = result.answers.links if result and result.answers else None
    metrics |= {f"excluded/{reason}": float(excluded[reason]) for reason in EXCLUSIONS}
    metrics["num_excluded"] = float(excluded.total())
    return metrics | one_hot("" if found.whole else regime_of(metrics, found, links))


def link_metrics(answers: Answers | None) -> dict[str, float]:
    """The links of a step's own answers under the probe's keys; NaN where unknown."""
    found = dict.fromkeys(LINK_KEYS, math.nan) | {"answers": 0.0}
    if answers is not None and answers.links is not None:
        found |= answers.links.metrics()
    excluded = answers.excluded if answers is not None else Counter[str]()
    found |= {f"excluded/{reason}": float(excluded[reason]) for reason in ANSWER_EXCLUSIONS}
    return {f"probe/link/{key}": value for key, value in found.items()}


def _require(name: str, value: Any, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}; it must be {wanted}")
