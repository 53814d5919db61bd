"""`squelch.trl.Observer`: the diagnosis of a TRL run by its public hooks, a reward function and a callback.

| hook | what happens |
|---|---|
| `on_train_begin` | refuses sharded models; takes model, tokenizer and temperature; opens `/metrics` |
| reward function | every `every` steps: ids of the samples of all ranks are scored; returns None for every row |
| `on_step_end` | the step at `/metrics` |
| `on_log` | what TRL logged, at `/metrics`; the mean reward, for the alarm |
| `on_save` | the state of averages and alarms, as `squelch.json` in the checkpoint |
| `on_train_end` | closes `/metrics` |

Invariants:

- Training steps count from 1; the samples of step s are scored before the update of step s. Of several generations in
  one step the first is scored; where one generation serves several steps, the step in which it was sampled.
- Every rank decides alike whether to score, because that depends on the steps alone. The main process scores.
- Prompts are rendered as TRL does, by its tokenizer with `chat_template_kwargs`; completions are its ids.
- Only values that are known are logged (TRL averages them); at `/metrics` an unknown one is NaN.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from transformers import TrainerCallback

from squelch.kit.api.completions import Markers
from squelch.kit.api.messages import is_messages
from squelch.kit.api.monitor import Monitor
from squelch.kit.api.scoring import MARKERS
from squelch.kit.base.disk import write_whole
from squelch.kit.diagnosis.metrics import REGIMES
from squelch.kit.scoring.borrowed_model import SHARDED, inner_model
from squelch.kit.trl.exported import Endpoint

PREFIX = "squelch/"
LOGGED = (
    *(f"first_turn/{key}{end}" for key in ("mi_est", "mi_seq_est") for end in ("", "_low", "_high")),
    *(f"first_turn/{key}" for key in ("mi_zscore", "retrieval_accuracy", "retrieval_chance", "num_prompts")),
    *(f"first_turn/{key}" for key in ("conditional_entropy", "marginal_entropy", "num_excluded", "reasoned")),
    *(f"first_turn/regime/{regime}" for regime in REGIMES),
    *(f"probe/link/{key}{end}" for key in ("dependence", "dependence_share") for end in ("", "_low", "_high")),
    *("alarm/raised", "seconds/score"),
)
"""What TRL's log gets, under `PREFIX`; `/metrics` has every key."""
STATE_FILE = "squelch.json"
USE_TRAINER = (
    "use squelch.trl.SquelchGRPOTrainer(..., observer=Observer()), which sees the ids and masks of the trainer"
)
Log = Callable[[str, float], None]

logger = logging.getLogger("squelch.trl")


class Observer(TrainerCallback):
    """Scores the samples of a GRPOTrainer every few steps. Give the same object twice:
    `GRPOTrainer(..., reward_funcs=[own, observer], callbacks=[observer])`. `reward_weights`, where they are set, need
    one more entry for it, whose value has no effect.

    Args:
        every: steps from one scored step to the next, at least 1; the first step is scored.
        markers, links, token_budget: as of `squelch.score`.
        max_prompts: most prompts of a step that are scored; the cost grows with its square.
        seed: of the resampling and of the choice of prompts.
        export: whether `/metrics` is served, by the main process.
        host, port: where; as the settings `recorder.host` and `recorder.port` of a run.

    Raises:
        ValueError: a setting is out of its range; at the start of training: the model is sharded, or no causal language
            model; the port is in use; at a step: images, tools or environments, for which reward functions see too
            little.
    """

    __name__ = "squelch"  # TRL names reward functions in its logs

    def __init__(
        self,
        *,
        every: int = 10,
        markers: Markers | None = MARKERS,
        links: bool = True,
        max_prompts: int = 64,
        token_budget: int = 16384,
        seed: int = 0,
        export: bool = True,
        host: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be 1 or more")
        settings = {"markers": markers, "links": links, "max_prompts": max_prompts, "token_budget": token_budget}
        Monitor(None, seed=seed, **settings)  # refuses a setting before a model is loaded
        self._every, self._settings = every, {**settings, "seed": seed}
        self._export, self._host, self._port = export, host, port
        self.rule = "none"
        """The filter of the run, as `/metrics` names it."""
        self.monitor: Monitor | None = None
        self.endpoint: Endpoint | None = None
        self._model: Any = None
        self._processor: Any = None
        self._template_kwargs: dict[str, Any] = {}
        self._last: int | None = None
        self._is_fed = False

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        trainer_state: Any,
        log_metric: Log,
        **columns: Any,
    ) -> list[None]:
        """The reward function, which scores no row."""
        self._is_fed = True
        if self._model is None and trainer_state.max_steps:  # 0 in an evaluation before any training
            raise ValueError(
                "the Observer is a reward function and no callback; add callbacks=[observer], the same one"
            )
        if self._model is not None and self.wants(trainer_state):
            _require_plain(prompts, completions, columns)
            self.see(trainer_state, self._encoded(prompts), completion_ids, log_metric)
        return [None] * len(prompts)

    def wants(self, state: Any) -> bool:
        """Whether the samples of the present step are to be scored; `state`: the trainer's."""
        step = state.global_step + 1
        return self._model.training and (self._last is None or step >= self._last + self._every)

    def see(self, state: Any, prompts: Sequence[Any], completions: Sequence[Any], log: Log) -> None:
        """Scores ids sampled in the present step; every rank calls it with its own. The main process calls `log`."""
        self._is_fed, self._last = True, state.global_step + 1
        rows = gather_object(list(zip(prompts, completions, strict=True)))
        if not state.is_world_process_zero:
            return
        assert self.monitor is not None
        metrics = self.monitor.observe(self._last, self._model, *map(list, zip(*rows, strict=True)))
        for text in self.monitor.alarms:
            tell(f"step {self._last}: {text}")
        self.export(metrics)
        for key in LOGGED:
            if math.isfinite(metrics.get(key, math.nan)):
                log(PREFIX + key, metrics[key])

    def export(self, flat: Mapping[str, float]) -> None:
        """Values of the present step for `/metrics`, where it is served."""
        if self.endpoint is not None:
            self.endpoint.add(flat)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Takes what scoring needs; ValueError as of the class."""
        require_whole(AcceleratorState())
        inner_model(given["model"])
        self._model, self._processor = given["model"], given["processing_class"]
        self._template_kwargs = args.chat_template_kwargs or {}
        self._last = None
        self.monitor = Monitor(self._processor, temperature=args.temperature, **self._settings)
        if not state.is_world_process_zero:
            return
        before = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
        if state.global_step and before.is_file():
            self.monitor.restore(json.loads(before.read_text(encoding="utf-8")))
        elif state.global_step:
            tell(f"{before} is missing: averages and alarms start anew")
        if self._export:
            run = args.run_name or Path(args.output_dir).resolve().name
            self.endpoint = Endpoint(self._host, self._port, run, self.rule)
            tell(f"metrics at {self.endpoint.url}")

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Exports the step."""
        if not self._is_fed:
            raise ValueError("the Observer is a callback and no reward function; add it to reward_funcs, the same one")
        if self.endpoint is not None:
            self.endpoint.step(state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **given: Any) -> None:
        """Exports what TRL logged of training."""
        reward = (logs or {}).get("reward")
        if logs is None or "reward" not in logs or not state.is_world_process_zero or self.monitor is None:
            return
        if reward is not None:
            self.monitor.record_reward(state.global_step, reward)
        if self.endpoint is not None:
            self.endpoint.logged(state.global_step, logs)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Writes the state beside TRL's."""
        if state.is_world_process_zero and self.monitor is not None:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
            write_whole(path, json.dumps(self.monitor.state()))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Closes `/metrics`."""
        if self.endpoint is not None:
            self.endpoint.close()
            self.endpoint = None

    def _encoded(self, prompts: Sequence[Any]) -> list[list[int]]:
        """The ids that TRL fed, by the calls of its `_tokenize_prompts`."""
        if not is_messages(prompts[0]):
            return self._processor(text=list(prompts))["input_ids"]
        template = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, **self._template_kwargs}
        return self._processor.apply_chat_template(conversation=list(prompts), **template)["input_ids"]


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


def _require_plain(prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> None:
    """Raises ValueError where a reward function does not see what the model read."""
    for name in ("image", "images", "environments"):
        if columns.get(name) is not None:
            tail = "only text can be scored" if name != "environments" else USE_TRAINER
            raise ValueError(f"the samples have `{name}`: {tail}")
    for completion in completions:
        if is_messages(completion) and any(one["role"] == "tool" or one.get("tool_calls") for one in completion):
            raise ValueError(f"the model called a tool: {USE_TRAINER}")
