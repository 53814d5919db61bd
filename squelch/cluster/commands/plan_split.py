"""How `squelch plan --gpus N` splits GPUs among learner, rollout workers and scorer: each usual split is resolved as a
run, and those whose actors fit are compared by the counted time of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from squelch.cluster.commands.plan_memory import needs_on
from squelch.cluster.runs.timing.counted_step import counted, device_of
from squelch.cluster.runs.timing.step_time import StepModel
from squelch.kit.base.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from squelch.actors.model_size import ModelSize
    from squelch.cluster.config import RunConfig

SHOWN = 4
"""Splits that are shown."""
SHARED = {"rollout.num_gpus": 0.7, "scorer.num_gpus": 0.3}
"""Shares of rollout workers and of the scorer, which is on the GPU of one of them."""
ON_ONE = ((0.5, 0.3, 0.2), (0.4, 0.4, 0.2))
ON_ONE_UNSCORED = ((0.5, 0.5), (0.6, 0.4), (0.4, 0.6))
"""Shares of one GPU for the learner, a rollout worker and, if there is one, the scorer."""


@dataclass(frozen=True)
class Split:
    """One split. `advice`: what each actor that does not fit needs; `model`: the counted time of its step."""

    settings: Mapping[str, Any]
    config: RunConfig
    advice: tuple[str, ...]
    model: StepModel

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.model.step(self.config.rollout.start_count, self.config.loop.max_staleness)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of a step's parts, which follow one another unless `loop.max_staleness` lets them overlap."""
        generation = self.model.window(self.config.rollout.start_count)
        return {"generation": generation, "training": self.model.train, "new weights": self.model.publish}

    @property
    def text(self) -> str:
        """The settings, as on a command line."""
        return " ".join(f"{key}={value:g}" for key, value in self.settings.items())

    def plain(self) -> dict[str, Any]:
        """For --json."""
        own = {"settings": self.text, "advice": list(self.advice), "step_s": self.step_s, "seconds": self.parts}
        return {**own, "bound_by": bound_of(self)}


def bound_of(split: Split) -> str:
    """The part that a step's time depends on most."""
    return max(split.parts, key=split.parts.__getitem__)


def splits_of(
    load: Callable[[list[str]], RunConfig],
    config: RunConfig,
    shape: PreTrainedConfig,
    size: ModelSize,
    gpus: int,
    device_gib: float,
) -> list[Split]:
    """The usual splits of `gpus` GPUs, the best first: those whose actors all fit, and of these the shortest step.
    `load`: resolves the recipe with settings beneath the user's own, which win. UserError if no split is a run."""
    from squelch.cluster.fleet.demand import needed

    found, refused = dict[str, Split](), None
    for settings in _usual(config, gpus):
        try:
            own = load([f"{key}={value}" for key, value in settings.items()])
        except UserError as error:
            refused = error
            continue
        if needed(own, "GPU") > gpus:
            continue
        needs = needs_on(own, shape, size, [device_gib])
        advice = tuple(f"{need.role}: {need.advice}" for need in needs if need.advice)
        chosen = {key: attrgetter(key)(own) for key in settings}
        split = Split(chosen, own, advice, counted(size, own, device_of(device_gib)))
        found.setdefault(split.text, split)
    if not found:
        raise refused or UserError(f"no usual split of {gpus} GPUs goes with the settings that you give; drop some")
    return sorted(found.values(), key=lambda split: (len(split.advice), split.step_s))


def _usual(config: RunConfig, gpus: int) -> Iterator[dict[str, Any]]:
    """The settings of each usual split."""
    scored, size = config.scorer.enabled, config.rollout.tensor_parallel_size
    if gpus == 1:
        keys = ("learner.num_gpus", "rollout.num_gpus", "scorer.num_gpus")
        for shares in ON_ONE if scored else ON_ONE_UNSCORED:
            yield {"learner.ranks": 1, "rollout.count": 1, **dict(zip(keys, shares, strict=False))}
        return
    ranks = 1
    while ranks < gpus:
        learner, left = {"learner.ranks": ranks, "learner.num_gpus": 1}, gpus - ranks
        own = (left - scored) // size
        if own:
            scorer = {"scorer.num_gpus": 1} if scored else {}
            yield {**learner, "rollout.count": own, "rollout.num_gpus": size, **scorer}
        if scored and size == 1:
            yield {**learner, "rollout.count": left, **SHARED}
        ranks *= 2


def split_lines(splits: Sequence[Split], gpus: int, device_gib: float) -> list[str]:
    """The table of the best splits, and what bounds the step of the first."""
    best = splits[0]
    lines = [f"splits of {gpus} GPU{'s' * (gpus > 1)} of {device_gib:g} GiB, counted as the step time below"]
    lines.append("   step s  generation  training  new weights  settings")
    for split in splits[:SHOWN]:
        parts = zip(split.parts.values(), (10, 8, 11), strict=True)
        seconds = "  ".join(f"{value:{width}.1f}" for value, width in parts)
        lines.append(f"  {split.step_s:7.1f}  {seconds}  {split.text}{'; does not fit' * bool(split.advice)}")
    lines += [f"  {text}" for text in best.advice]
    bound = bound_of(best)
    overlap = " (they overlap)" if best.config.loop.max_staleness else ""
    share = f"{best.parts[bound]:.1f} of {best.step_s:.1f} s{overlap}"
    return [*lines, f"  set {best.text}", f"  {bound} bounds the step: {share}; {_helps(best, bound)}"]


def _helps(split: Split, bound: str) -> str:
    """What makes the part that bounds a step shorter."""
    if bound == "new weights":
        return f"they go {split.config.way.words}; fewer trainings of more prompts (loop.prompts) need them less often"
    if bound == "training":
        return "more learner ranks, or learner.activation_checkpointing=false if that fits, shorten it"
    if split.model.serial > split.model.window(split.config.rollout.start_count) / 2:
        return "it waits for the longest answer: more prompts a step (loop.prompts) use the workers better"
    return "more rollout workers shorten it"
