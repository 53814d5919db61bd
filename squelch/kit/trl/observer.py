"""`squelch.trl.Observer`: the diagnosis of a TRL run from two hooks, a reward function and a callback.

| hook | what happens |
|---|---|
| `on_init_end` | refuses trainers that cannot be observed |
| `on_train_begin` | refuses sharded models; takes model, tokenizer and temperature; opens `/metrics` |
| reward function | every `every` steps: ids of the samples of all ranks are scored; returns None for every row |
| `on_step_end` | the step at `/metrics` |
| `on_log` | what TRL logged, at `/metrics`; the mean reward, for the alarm; the findings |
| `on_save` | the state of averages, alarms and findings, as `squelch.json` in the checkpoint |
| `on_train_end` | closes `/metrics` |

Invariants:

- Training steps count from 1; the samples of step s are scored before the update of step s. Of several generations in
  one step the first is scored; where one generation serves several steps, the step in which it was sampled.
- Every rank decides alike whether to score, because that depends on the steps alone. The main process scores.
- The trainer renders the prompts, by the method with which it rendered them for sampling; completions are its ids. A
  reward function is not told which ids came from a tool: the first turn ends with its first end token, as sampling did.
  What cannot be known is not scored.
- Once training runs, the observer does not end it, whatever fails: it says why on standard error, once for each cause,
  logs `not_scored`, and tries again at the next step that is due. Every rank takes part in the gathering of the rows,
  also one whose rows cannot be read.
- Only values that are known are logged (TRL averages them); at `/metrics` an unknown one is NaN.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from transformers import TrainerCallback

from squelch.kit.api.completions import MARKERS, Markers
from squelch.kit.api.monitor import REASONS, Monitor
from squelch.kit.base.disk import write_whole
from squelch.kit.diagnosis.metrics import COMPLETION_KEYS, REGIMES
from squelch.kit.findings.finder import Finding, Findings
from squelch.kit.findings.view import StepView, TextView
from squelch.kit.findings.words import ALARMS, step_lines, trl_settings
from squelch.kit.scoring.borrowed_model import SHARDED, inner_model
from squelch.kit.text.answer_start import Reasoning
from squelch.kit.trl.exported import Endpoint, seen

PREFIX = "squelch/"
LOGGED = (
    *(f"first_turn/{key}{end}" for key in ("mi_est", "mi_seq_est") for end in ("", "_low", "_high")),
    *(f"first_turn/{key}" for key in ("mi_zscore", "retrieval_accuracy", "retrieval_chance", "num_prompts")),
    *(f"first_turn/{key}" for key in ("conditional_entropy", "marginal_entropy", "num_excluded", "reasoned")),
    *(f"first_turn/excluded/{reason}" for reason in (*dict.fromkeys(REASONS.values()), "one_prompt")),
    *(f"first_turn/regime/{regime}" for regime in REGIMES),
    *(f"probe/link/{key}{end}" for key in ("dependence", "dependence_share") for end in ("", "_low", "_high")),
    *(f"completion/{key}" for key in COMPLETION_KEYS),
    *("alarm/raised", "seconds/score"),
)
"""What TRL's log gets, under `PREFIX`; `/metrics` has every key."""
STATE_FILE = "squelch.json"
NOT_SCORED = "not_scored"
"""In TRL's log, of a step that was due: 1 if it has no MI, else 0."""
OBSERVED = ("GRPOConfig", "RLOOConfig")
"""The classes of the settings of trainers that give reward functions the ids that they sampled."""
SHOWN = 60
"""Tokens of a completion that an example shows."""
USE_TRAINER = (
    "use squelch.trl.SquelchGRPOTrainer(..., observer=Observer()), which sees the ids and masks of the trainer"
)
Log = Callable[[str, float], None]
Ids = list[list[int]]
T = TypeVar("T")

logger = logging.getLogger("squelch.trl")


def tried(call: Callable[[], T]) -> tuple[T | None, str]:
    """(result, "") of a call, or (None, the reason) if it fails, with whatever error."""
    try:
        return call(), ""
    except Exception as error:  # the observer must not end the training that it watches
        text = str(error)
        return None, text if text and isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook of an observer; an error in it is said once and ends nothing."""

    @functools.wraps(hook)
    def guarded(self: Observer, *given: Any, **named: Any) -> None:
        _, reason = tried(lambda: hook(self, *given, **named))
        if reason:
            self.say_once(reason)

    return guarded


class Observer(TrainerCallback):
    """Scores the samples of a GRPOTrainer or RLOOTrainer every few steps. Give the same object twice:
    `GRPOTrainer(..., reward_funcs=[own, observer], callbacks=[observer])`. `reward_weights`, where they are set, need
    one more entry for it, whose value has no effect.

    Args:
        every: steps from one scored step to the next, at least 1; the first step is scored.
        reasoning, markers, answer, links, token_budget: as of `squelch.score`.
        max_prompts: most prompts of a step that are scored; the cost grows with its square.
        seed: of the resampling and of the choice of prompts.
        ignore: findings that are not looked for (docs/reference/findings.md).
        export: whether `/metrics` is served, by the main process.
        host, port: where; as the settings `recorder.host` and `recorder.port` of a run.

    Raises:
        ValueError: a setting is out of its range; as the trainer is made: it is of another kind; at the start of
            training: the model is sharded, or no causal language model. Nothing later ends the training: what cannot
            be scored, images for example, is said once on standard error and logged.
    """

    __name__ = "squelch"  # TRL names reward functions in its logs

    def __init__(
        self,
        *,
        every: int = 10,
        reasoning: Reasoning = "marked",
        markers: Markers | None = MARKERS,
        answer: str = "",
        links: bool = True,
        max_prompts: int = 64,
        token_budget: int = 16384,
        seed: int = 0,
        ignore: Sequence[str] = (),
        export: bool = True,
        host: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be 1 or more")
        settings: dict[str, Any] = {"reasoning": reasoning, "markers": markers, "answer": answer, "links": links}
        settings |= {"max_prompts": max_prompts, "token_budget": token_budget}
        Monitor(None, seed=seed, **settings)  # refuses a setting before a model is loaded
        self._every = every
        self._settings: dict[str, Any] = {**settings, "seed": seed}
        self._ignore = tuple(ignore)
        self.findings = Findings(self._ignore)
        """What is wrong with the training, in words."""
        self._args: dict[str, Any] = {}
        self._processor: Any = None
        self._was_cut = False
        self._export, self._host, self._port = export, host, port
        self.rule = "none"
        """The filter of the run, as `/metrics` names it."""
        self.monitor: Monitor | None = None
        self.endpoint: Endpoint | None = None
        self._model: Any = None
        self._most_tokens = math.inf
        self._last: int | None = None
        self._is_fed = False
        self._said = set[str]()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        trainer_state: Any = None,
        log_metric: Log | None = None,
        **columns: Any,
    ) -> list[None]:
        """The reward function, which scores no row."""
        self._is_fed = True
        if self._model is None:
            # in an evaluation before any training max_steps is 0
            if trainer_state is None or (trainer_state.max_steps and trainer_state.is_world_process_zero):
                self.say_once(
                    "the Observer is a reward function and no callback, so nothing is scored; add "
                    "callbacks=[observer], the same one"
                )
        elif log_metric is not None and self.wants(trainer_state):
            trainer = getattr(log_metric, "__self__", None)
            self.see(
                trainer_state,
                lambda: _sampled(trainer, prompts, completions, completion_ids or (), columns),
                log_metric,
            )
        return [None] * len(prompts)

    def wants(self, state: Any) -> bool:
        """Whether the samples of the present step are to be scored; `state`: the trainer's."""
        step = state.global_step + 1
        return self._model.training and (self._last is None or step >= self._last + self._every)

    def see(self, state: Any, sampled: Callable[[], tuple[Ids, Ids]], log: Log) -> None:
        """Scores what was sampled in the present step; every rank calls it with its own. `sampled`: gives the ids of
        prompts and completions. The main process calls `log`."""
        self._is_fed, self._last = True, state.global_step + 1
        found = gather_object([tried(sampled)])  # every rank takes part, whatever fails on it
        if not state.is_world_process_zero:
            return
        reason = next((reason for _, reason in found if reason), "")
        if not reason:
            prompts, completions = ([ids for rows, _ in found for ids in rows[part]] for part in (0, 1))
            _, reason = tried(lambda: self._score(prompts, completions, log))
        if reason:
            self.say_once(f"step {self._last} cannot be scored: {reason}")
            log(PREFIX + NOT_SCORED, 1.0)

    def _score(self, prompts: Ids, completions: Ids, log: Log) -> None:
        assert self.monitor is not None and self._last is not None
        metrics = self.monitor.observe(self._last, self._model, prompts, completions)
        for text in self.monitor.alarms:
            tell(f"step {self._last}: {text}")
        self.export(metrics)
        cut = [len(ids) >= self._most_tokens for ids in completions]
        self._was_cut = any(cut)
        shown = self._texts(prompts, completions)
        self._find(self._last, metrics | {"groups/cut": sum(cut) / len(cut)} if cut else metrics, shown)
        for key, value in self.findings.metrics().items():
            log(PREFIX + key, value)
        for key in LOGGED:
            if math.isfinite(metrics.get(key, math.nan)):
                log(PREFIX + key, metrics[key])
        log(PREFIX + NOT_SCORED, float(bool(self.monitor.unscored)))

    def _texts(self, prompts: Ids, completions: Ids) -> list[TextView]:
        """The completions of the step, as examples."""
        decode = getattr(self._processor, "decode", None)
        return [
            TextView.of(f"completion {row}", tuple(prompt), ids, decode(ids[:SHOWN]) if decode else "")
            for row, (prompt, ids) in enumerate(zip(prompts, completions, strict=True))
        ]

    def _find(self, step: int, metrics: Mapping[str, float], texts: Sequence[TextView] | None = None) -> None:
        """Takes what a step shows, and says what changes of the findings, in at most one line."""
        found, changes = self.findings.step(StepView(step, metrics, None, texts))
        self.export(found)
        told = [change for change in changes if change.finding.name not in ALARMS]
        for line in step_lines(told, self._remedy, "observer.findings.open has them"):
            tell(f"step {step}: {line}")

    def _remedy(self, finding: Finding) -> str:
        """The finding's change as settings of TRL."""
        settings = {key: value for key, value in self._args.items() if self._was_cut or key != "max_completion_length"}
        return trl_settings(finding, settings)

    def say_once(self, text: str) -> None:
        """A line on standard error, unless one that differs in its numbers alone was said."""
        key = re.sub(r"\d+", "", text)
        if key not in self._said:
            self._said.add(key)
            tell(text)

    def export(self, flat: Mapping[str, float]) -> None:
        """Values of the present step for `/metrics`, where it is served."""
        if self.endpoint is not None:
            self.endpoint.add(flat)

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Refuses a trainer that cannot be observed."""
        require_observable(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Takes what scoring needs; ValueError as of the class."""
        require_observable(args)  # a callback that is added later sees no `on_init_end`
        require_whole(AcceleratorState())
        inner_model(given["model"])
        self._model, self._last = given["model"], None
        self._most_tokens = args.max_completion_length or math.inf
        self._args, self._processor = dict(vars(args)), given["processing_class"]
        self.findings = Findings(self._ignore)
        self.monitor = self._fresh(given["processing_class"], args)
        if not state.is_world_process_zero:
            return
        before = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
        if state.global_step:
            _, reason = tried(lambda: self._restore(json.loads(before.read_text(encoding="utf-8"))))
            if reason:
                tell(f"{before} cannot be read ({reason}): averages and alarms start anew")
                self.monitor = self._fresh(given["processing_class"], args)
                self.findings = Findings(self._ignore)
        if self._export:
            self._open(args.run_name or Path(args.output_dir).resolve().name)

    def _restore(self, state: Mapping[str, Any]) -> None:
        assert self.monitor is not None
        self.monitor.restore(state)
        if "findings" in state:  # a checkpoint of an earlier release has none
            self.findings.restore(state["findings"])

    def _fresh(self, processor: Any, args: Any) -> Monitor:
        return Monitor(processor, temperature=args.temperature, **self._settings)

    def _open(self, run: str) -> None:
        """Serves `/metrics`, unless no port is free."""
        self.endpoint, reason = tried(lambda: Endpoint(self._host, self._port, run, self.rule))
        tell(f"metrics at {self.endpoint.url}" if self.endpoint is not None else f"/metrics is not served: {reason}")

    @_harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Exports the step."""
        if not self._is_fed and state.is_world_process_zero:
            self.say_once(
                "the Observer is a callback and no reward function, so nothing is scored; add it to reward_funcs, the "
                "same one"
            )
        if self.endpoint is not None:
            self.endpoint.step(state.global_step, state.max_steps)

    @_harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **given: Any) -> None:
        """Exports what TRL logged of training."""
        reward = (logs or {}).get("reward")
        if logs is None or "reward" not in logs or not state.is_world_process_zero or self.monitor is None:
            return
        if reward is not None:
            self.monitor.record_reward(state.global_step, reward)
        self._find(state.global_step, seen(logs))
        if self.endpoint is not None:
            self.endpoint.logged(state.global_step, logs)

    @_harmless
    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Writes the state beside TRL's."""
        if state.is_world_process_zero and self.monitor is not None:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
            write_whole(path, json.dumps(self.monitor.state() | {"findings": self.findings.state()}))

    @_harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Closes `/metrics`."""
        if self.endpoint is not None:
            self.endpoint.close()
            self.endpoint = None


def require_observable(args: Any) -> None:
    """Raises ValueError unless settings are of a trainer that can be observed; `args`: the trainer's."""
    kinds = [kind.__name__ for kind in type(args).__mro__]
    if not set(OBSERVED) & set(kinds):
        name = kinds[0].removesuffix("Config") + "Trainer"
        elsewhere = "; it computes rewards in another process" if name.startswith("AsyncGRPO") else ""
        raise ValueError(
            f"squelch.trl.Observer cannot watch TRL's {name}{elsewhere}. It watches GRPOTrainer and RLOOTrainer, which "
            "give reward functions what they sampled"
        )


def require_whole(state: Any) -> None:
    """Raises ValueError if a forward needs all ranks; `state`: accelerate's."""
    kind = state.distributed_type.value
    if kind == "FSDP":
        raise ValueError(f"the run uses FSDP: {SHARDED}")
    if kind == "DEEPSPEED" and state.deepspeed_plugin.zero_stage == 3:
        raise ValueError(f"the run uses DeepSpeed ZeRO-3: {SHARDED}")


def tell(text: str) -> None:
    """A line on standard error, unless the program has given the logger `squelch.trl` other handlers."""
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logger.info("squelch: %s", text)


def _sampled(
    trainer: Any,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]],
    columns: Mapping[str, Any],
) -> tuple[Ids, Ids]:
    """The ids of prompts and first turns, of what a reward function is given. ValueError if it cannot know them."""
    for name in ("image", "images"):
        if any(value is not None and value != [] for value in columns.get(name) or ()):  # as TRL counts them
            raise ValueError(f"the samples have `{name}`: only text can be scored")
    if getattr(trainer, "rollout_func", None) is not None:
        raise ValueError(f"the trainer's rollout_func renders the prompts itself: {USE_TRAINER}")
    if not hasattr(trainer, "_tokenize_prompts"):
        raise ValueError("this release of TRL does not tell how it renders prompts; use TRL 1.16")
    ids, images, _ = trainer._tokenize_prompts(copy.deepcopy(list(prompts)))
    if images is not None:
        raise ValueError("the prompts hold images: only text can be scored")
    turns = [_first_turn(*row, trainer) for row in zip(completion_ids, completions, strict=True)]
    return [list(row) for row in ids], turns


def _first_turn(ids: Sequence[int], completion: Any, trainer: Any) -> list[int]:
    """The ids before the first output of a tool."""
    if isinstance(completion, str) or all(message.get("role") != "tool" for message in completion):
        return list(ids)
    end = next((place for place, one in enumerate(ids) if one in trainer.eos_token_ids), None)
    if end is None:
        raise ValueError(f"the model called a tool in a turn without an end token: {USE_TRAINER}")
    return list(ids[: end + 1])
