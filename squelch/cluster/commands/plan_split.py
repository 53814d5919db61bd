"""How `squelch plan --gpus N` splits GPUs among learner, rollout workers and scorer: each usual split is resolved as a
run, and those whose actors fit are compared by the counted time of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from squelch.cluster.commands.plan_memory import Need, needs_on
from squelch.cluster.runs.timing.counted_step import counted, device_of
from squelch.cluster.runs.timing.step_time import StepModel
from squelch.kit.base.errors import UserError
from squelch.kit.base.gpu_split import ON_ONE, ON_ONE_UNSCORED, of_each, on_several

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from squelch.actors.model_size import ModelSize
    from squelch.cluster.config import RunConfig

SHOWN = 4
"""Splits that are shown."""


@dataclass(frozen=True)
class Split:
    """One split. `text`: its settings, as on a command line; `needs`: the memory of each actor; `model`: the counted
    time of its step."""

    text: str
    config: RunConfig
    needs: list[Need]
    model: StepModel

    @property
    def advice(self) -> list[str]:
        """What each actor that does not fit needs."""
        return [f"{need.role}: {need.advice}" for need in self.needs if need.advice]

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.model.step(self.config.rollout.start_count, self.config.loop.max_staleness)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of a step's parts, which follow one another unless `loop.max_staleness` lets them overlap."""
        generation = self.model.window(self.config.rollout.start_count)
        return {"generation": generation, "training": self.model.train, "new weights": self.model.publish}

    def plain(self) -> dict[str, Any]:
        """For --json."""
        own = {"settings": self.text, "advice": self.advice, "step_s": self.step_s, "seconds": self.parts}
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
        text = " ".join(f"{key}={attrgetter(key)(own):g}" for key in settings)
        if text not in found:
            needs = list(needs_on(own, shape, size, [device_gib]))
            found[text] = Split(text, own, needs, counted(size, own, device_of(device_gib)))
    if not found:
        raise refused or UserError(f"no usual split of {gpus} GPUs goes with the settings that you give; drop some")
    return sorted(found.values(), key=lambda split: (len(split.advice), split.step_s))


def _usual(config: RunConfig, gpus: int) -> Iterator[dict[str, Any]]:
    """The settings of each usual split."""
    scored, size = config.scorer.enabled, config.rollout.tensor_parallel_size
    if gpus == 1:
        for shares in ON_ONE if scored else ON_ONE_UNSCORED:
            yield {"learner.ranks": 1, "rollout.count": 1, **of_each(shares)}
        return
    ranks = 1
    while ranks < gpus:
        for shared in (False, True) if scored and size == 1 else (False,):
            split = on_several(ranks, gpus - ranks, size, scored, shared)
            if split["rollout.count"]:
                yield split
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
        repeats = split.config.learner.activation_checkpointing
        return f"more learner ranks{', or learner.activation_checkpointing=false if that fits,' * repeats} shorten it"
    if split.model.serial > split.model.window(split.config.rollout.start_count) / 2:
        return "it waits for the longest answer: more prompts a step (loop.prompts) use the workers better"
    return "more rollout workers shorten it"
