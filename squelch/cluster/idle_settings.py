"""Settings that do nothing in a run, because another setting switches off what they adjust.

A run with such a setting is not refused: recipes share settings, and a resumed run keeps those that it began with. It
says so at its start instead, so that no option is silently ignored. An idle setting that can only be a mistake is
refused by its settings model.

To add a case, add an entry to `CASES`. A case of the settings of `environment` holds of each environment of a run that
plays several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import eq, ne, not_
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.setting_keys import flat, unplaced
from squelch.envs.mixture import Entry
from squelch.envs.registry import environment_class
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.statistics import STATISTICS
from squelch.learner.objective.algorithms import as_written


@dataclass(frozen=True)
class Case:
    """Settings that do nothing where the setting `switch` has a value that is `off`, all by dotted key. `reason`: that
    in words; if empty, the value itself says it."""

    switch: str
    off: Callable[[Any], bool]
    keys: tuple[str, ...]
    reason: str = ""

    def why(self, values: Mapping[str, Any]) -> str:
        """Why they do nothing, of a run's settings by dotted key."""
        return self.reason or f"with {self.switch}={as_written(values[self.switch])}"

    def of(self, entry: Entry) -> Case:
        """The case with the keys of one environment of a run."""
        return replace(self, switch=entry.keyed(self.switch), keys=tuple(map(entry.keyed, self.keys)))


def _case(switch: str, off: Callable[[Any], bool], *names: str, others: tuple[str, ...] = (), reason: str = "") -> Case:
    """`names`: of settings in the block of the switch; `others`: whole keys."""
    block = switch[: switch.rfind(".") + 1]
    return Case(switch, off, (*(f"{block}{name}" for name in names), *others), reason)


def _is(value: Any) -> Callable[[Any], bool]:
    return partial(eq, value)


def _is_not(value: Any) -> Callable[[Any], bool]:
    return partial(ne, value)


SCALE = ("learner.objective.loss_scale",)
CASES: tuple[Case, ...] = (
    _case("learner.objective.aggregation", _is_not("constant"), "normaliser_tokens"),
    _case("learner.objective.anchor", _is_not("recomputed"), "mismatch_cap"),
    _case("learner.objective.kl.coefficient", _is(0), "estimator", "place"),
    _case("learner.objective.overlong.penalty", _is(0), "max_tokens", "cache_tokens"),
    _case("learner.optimizer.decay_steps", _is(0), "decay", "final_factor"),
    _case("learner.ranks", _is(1), "placement"),
    *(
        _case("filter.rule", lambda rule, name=name: name not in RULES[rule].settings, name)
        for name in sorted({name for rule in RULES.values() for name in rule.settings})
    ),
    _case("filter.rule", lambda rule: not RULES[rule].filters, "keep", "include_zero", "target", others=SCALE),
    _case("filter.target", _is_not("groups"), others=SCALE),
    _case("environment.name", lambda name: environment_class(name).whole_turns, "format.format_penalty"),
    _case("environment.prompt", _is_not("natural"), "format.worked_turn", "format.response_length"),
    _case("filter.window", _is_not("sliding"), "window_size"),
    _case("filter.refill", _is(False), "max_refill_rounds"),
    _case("gradients.every", _is(0), "groups"),
    _case("rollout.num_gpus", _is(0), "gpu_memory_utilization", "tensor_parallel_size"),
    _case("rollout.num_gpus", _is_not(0), "num_threads"),
    _case("model.path", _is_not("tiny"), "tiny_seed", "tiny_tokens"),
    _case(
        "recorder.loggers",
        lambda loggers: "wandb" not in loggers,
        *("wandb_project", "wandb_entity", "wandb_mode"),
        reason="without wandb in recorder.loggers",
    ),
    _case("store", not_, "upload.every_s", "upload.give_up_after_s", "upload.lease_s", reason="without a store"),
    _case("cluster.address", bool, "num_cpus", "object_store_mib"),
)


def idle_settings(config: RunConfig) -> list[str]:
    """One line `KEY=VALUE does nothing REASON` for each setting of a resolved run that is neither at its default nor
    used."""
    values = flat(config.model_dump(mode="json"))
    usual = flat(RunConfig.model_validate({"learner": {"algorithm": config.learner.algorithm}}).model_dump(mode="json"))
    return [
        f"{key}={as_written(values[key])} does nothing {case.why(values)}"
        for general in CASES
        for case in dict.fromkeys(general.of(entry) for entry in config.mixture.entries)
        if case.off(values[case.switch])
        for key in case.keys
        if values.get(key, usual[unplaced(key)]) != usual[unplaced(key)]
    ]


def notes_on_settings(config: RunConfig) -> list[str]:
    """What a run says of its settings at its start."""
    return [*(f"setting without effect: {one}" for one in idle_settings(config)), *scale_notes(config)]


def scale_notes(config: RunConfig) -> list[str]:
    """A warning if the filter ranks groups of several environments together by a statistic of their rewards, whose
    scales may differ."""
    chosen, labels = config.filter, config.mixture.labels
    of_rewards = STATISTICS[chosen.statistic].of == "returns"
    if len(labels) < 2 or chosen.scope != "run" or not RULES[chosen.rule].filters or not of_rewards:
        return []
    return [
        f"WARNING: filter.scope=run ranks groups of {' and '.join(labels)} together by {chosen.statistic}: if their "
        "rewards have different scales, the environment of the larger rewards is kept and the other dropped; set "
        "filter.scope=environment to rank within each"
    ]
