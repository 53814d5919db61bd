"""Settings that do nothing in a run, because another setting switches off what they adjust.

A run with such a setting is not refused: recipes share settings, and a resumed run keeps those that it began with. It
says so at its start instead, so that no option is silently ignored. An idle setting that can only be a mistake is
refused by its settings model.

To add a case, add an entry to `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from squelch.actors.filter.rules import RULES
from squelch.actors.filter.scores import STATISTICS
from squelch.cluster.config import RunConfig
from squelch.cluster.setting_keys import flat
from squelch.envs.registry import environment_class
from squelch.learner.objective.algorithms import as_written

Reason = Callable[[Mapping[str, Any]], str]
"""Why settings do nothing, such as "without a store", of a run's settings by dotted key."""


@dataclass(frozen=True)
class Case:
    """Settings by dotted key, the runs in which they do nothing, and the reason there."""

    keys: tuple[str, ...]
    idle: Callable[[RunConfig], bool]
    reason: Reason


def _with(key: str) -> Reason:
    """A reason that names the setting which switches something off, with its value in the run."""
    return lambda values: f"with {key}={as_written(values[key])}"


def _below(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


def _of_other_rules() -> Iterator[Case]:
    for name in sorted({name for rule in RULES.values() for name in rule.settings}):
        yield Case(
            (f"filter.{name}",),
            lambda run, name=name: name not in RULES[run.filter.rule].settings,
            _with("filter.rule"),
        )


OBJECTIVE = "learner.objective"
CASES: tuple[Case, ...] = (
    Case(
        (f"{OBJECTIVE}.normaliser_tokens",),
        lambda run: run.learner.objective.aggregation != "constant",
        _with(f"{OBJECTIVE}.aggregation"),
    ),
    Case(
        (f"{OBJECTIVE}.mismatch_cap",),
        lambda run: run.learner.objective.anchor != "recomputed",
        _with(f"{OBJECTIVE}.anchor"),
    ),
    Case(
        _below(f"{OBJECTIVE}.kl", "estimator", "place"),
        lambda run: run.learner.objective.kl.coefficient == 0,
        _with(f"{OBJECTIVE}.kl.coefficient"),
    ),
    Case(
        _below(f"{OBJECTIVE}.overlong", "max_tokens", "cache_tokens"),
        lambda run: run.learner.objective.overlong.penalty == 0,
        _with(f"{OBJECTIVE}.overlong.penalty"),
    ),
    Case(
        _below("learner.optimizer", "decay", "final_factor"),
        lambda run: run.learner.optimizer.decay_steps == 0,
        _with("learner.optimizer.decay_steps"),
    ),
    Case(("learner.placement",), lambda run: run.learner.ranks == 1, _with("learner.ranks")),
    *_of_other_rules(),
    Case(
        ("filter.keep", "filter.include_zero", "filter.target", f"{OBJECTIVE}.loss_scale"),
        lambda run: not RULES[run.filter.rule].filters,
        _with("filter.rule"),
    ),
    Case((f"{OBJECTIVE}.loss_scale",), lambda run: run.filter.target != "groups", _with("filter.target")),
    Case(
        ("environment.format.format_penalty",),
        lambda run: not run.environments and environment_class(run.environment.name).whole_turns,
        _with("environment.name"),
    ),
    Case(
        _below("environment.format", "worked_turn", "response_length"),
        lambda run: not run.environments and run.environment.prompt != "natural",
        _with("environment.prompt"),
    ),
    Case(("filter.window_size",), lambda run: run.filter.window != "sliding", _with("filter.window")),
    Case(("filter.max_refill_rounds",), lambda run: not run.filter.refill, _with("filter.refill")),
    Case(("gradients.groups",), lambda run: run.gradients.every == 0, _with("gradients.every")),
    Case(
        _below("rollout", "gpu_memory_utilization", "tensor_parallel_size"),
        lambda run: run.rollout.num_gpus == 0,
        _with("rollout.num_gpus"),
    ),
    Case(("rollout.num_threads",), lambda run: run.rollout.num_gpus > 0, _with("rollout.num_gpus")),
    Case(("model.tiny_seed",), lambda run: run.model.path != "tiny", _with("model.path")),
    Case(
        _below("recorder", "wandb_project", "wandb_entity", "wandb_mode"),
        lambda run: "wandb" not in run.recorder.loggers,
        lambda _: "without wandb in recorder.loggers",
    ),
    Case(
        _below("upload", "every_s", "give_up_after_s", "lease_s"),
        lambda run: not run.store,
        lambda _: "without a store",
    ),
    Case(
        _below("cluster", "num_cpus", "object_store_mib"),
        lambda run: bool(run.cluster.address),
        _with("cluster.address"),
    ),
)


def idle_settings(config: RunConfig) -> list[str]:
    """One line `KEY=VALUE does nothing REASON` for each setting of a resolved run that is neither at its default nor
    used."""
    values = flat(config.model_dump(mode="json"))
    usual = flat(RunConfig.model_validate({"learner": {"algorithm": config.learner.algorithm}}).model_dump(mode="json"))
    return [
        f"{key}={as_written(values[key])} does nothing {case.reason(values)}"
        for case in CASES
        if case.idle(config)
        for key in case.keys
        if values.get(key, usual[key]) != usual[key]
    ]


def scale_notes(config: RunConfig) -> list[str]:
    """A warning if the filter ranks groups of several environments together by a statistic of their rewards, whose
    scales may differ."""
    chosen, labels = config.filter, config.mixture.labels
    of_rewards = STATISTICS[chosen.statistic].of in ("returns", "replay_returns")
    if len(labels) < 2 or chosen.scope != "run" or not RULES[chosen.rule].filters or not of_rewards:
        return []
    return [
        f"WARNING: filter.scope=run ranks groups of {' and '.join(labels)} together by {chosen.statistic}: if their "
        "rewards have different scales, the environment of the larger rewards is kept and the other dropped; set "
        "filter.scope=environment to rank within each"
    ]
