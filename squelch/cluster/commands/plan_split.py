"""How `squelch plan --gpus N` splits GPUs among learner, rollout workers and scorer: each usual split is resolved as a
run, and those whose actors fit are compared by the counted time of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from squelch.cluster.commands.plan_memory import Need, needs_on
from squelch.cluster.runs.timing.counted_step import counted, device_of
from squelch.cluster.runs.timing.step_time import NEARLY, StepModel
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

    @cached_property
    def gpus(self) -> int:
        """GPUs that have work: an actor takes the room that others leave on one."""
        from squelch.cluster.fleet.demand import needs

        room = list[float]()
        for amount in sorted((n.resources["GPU"] for n in needs(self.config) for _ in range(n.count)), reverse=True):
            place = next((k for k, left in enumerate(room) if amount <= left + 1e-6), None)
            if place is None:
                room += [0.0] * (math.ceil(amount) - 1) + [math.ceil(amount) - amount]
            else:
                room[place] -= amount
        return len(room)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of a step's parts, which follow one another unless `loop.max_staleness` lets them overlap."""
        generation = self.model.window(self.config.rollout.start_count)
        return {"generation": generation, "training": self.model.train, "new weights": self.model.publish}

    def plain(self) -> dict[str, Any]:
        """For --json."""
        own = {"settings": self.text, "advice": self.advice, "step_s": self.step_s, "seconds": self.parts}
        return {**own, "gpus": self.gpus, "bound_by": bound_of(self)}


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
    Steps within `NEARLY` of the shortest count as equal: then the fewest idle GPUs decide, and ranks that divide the
    weights evenly, as powers of two do. `load`: resolves the recipe with settings beneath the user's own, which win.
    UserError if no split is a run."""
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
        raise refused or UserError(_no_split(config, gpus))
    least = min(len(split.advice) for split in found.values())
    near = NEARLY * min(split.step_s for split in found.values() if len(split.advice) == least)

    def place(split: Split) -> tuple[float, ...]:
        if len(split.advice) > least or split.step_s > near:
            return len(split.advice), 1, split.step_s
        return least, 0, -split.gpus, not _even(split), split.step_s

    return sorted(found.values(), key=place)


def undivided(
    load: Callable[[list[str]], RunConfig], best: Split, shape: PreTrainedConfig, size: ModelSize, gpus: int, gib: float
) -> Split | None:
    """The best split with rollout workers of one GPU each, if they fit it and its step is shorter; as `splits_of`."""
    one = ["rollout.tensor_parallel_size=1"]
    if best.config.rollout.tensor_parallel_size == 1 or gpus == 1:
        return None
    with suppress(UserError):
        config = load([*one, "rollout.num_gpus=1"])
        if config.rollout.tensor_parallel_size == 1:
            found = splits_of(lambda own: load([*one, *own]), config, shape, size, gpus, gib)[0]
            return None if found.advice or found.step_s >= best.step_s else found
    return None


def _even(split: Split) -> bool:
    """Whether the ranks' shards of the weights are of equal size, as far as a model's usual shapes go."""
    return split.config.learner.ranks.bit_count() == 1


def _no_split(config: RunConfig, gpus: int) -> str:
    size = config.rollout.tensor_parallel_size
    if size > 1 and size + 1 + config.scorer.enabled > gpus:
        actors = "a learner rank and the scorer" if config.scorer.enabled else "a learner rank"
        return (
            f"a rollout worker takes {size} of {gpus} GPUs (rollout.tensor_parallel_size), which leaves too few for "
            f"{actors}: set rollout.tensor_parallel_size={max(1, size // 2)}, or give more GPUs"
        )
    return f"no usual split of {gpus} GPUs goes with the settings that you give; drop some"


def _usual(config: RunConfig, gpus: int) -> Iterator[dict[str, Any]]:
    """The settings of each usual split."""
    scored, size = config.scorer.enabled, config.rollout.tensor_parallel_size
    if gpus == 1:
        for shares in ON_ONE if scored else ON_ONE_UNSCORED:
            yield {"learner.ranks": 1, "rollout.count": 1, **of_each(shares)}
        return
    yield from on_several(gpus, size, scored)


def split_lines(splits: Sequence[Split], gpus: int, device_gib: float, whole: Split | None) -> list[str]:
    """The table of the best splits, and what bounds the step of the first. `whole`: as from `undivided`."""
    best = splits[0]
    lines = [f"splits of {gpus} GPU{'s' * (gpus > 1)} of {device_gib:g} GiB, counted as the step time below"]
    lines.append("   step s  generation  training  new weights  settings")
    for split in splits[:SHOWN]:
        parts = zip(split.parts.values(), (10, 8, 11), strict=True)
        seconds = "  ".join(f"{value:{width}.1f}" for value, width in parts)
        unused = f"; {gpus - split.gpus} idle" if split.gpus < gpus else ""
        lines.append(f"  {split.step_s:7.1f}  {seconds}  {split.text}{unused}{'; does not fit' * bool(split.advice)}")
    lines += [f"  {text}" for text in [*best.advice, *_idle(best, gpus), *_shorter(splits)]]
    bound = bound_of(best)
    overlap = " (they overlap)" if best.config.loop.max_staleness else ""
    share = f"{best.parts[bound]:.1f} of {best.step_s:.1f} s{overlap}"
    if whole is not None:
        text = f"rollout.tensor_parallel_size=1 {whole.text}"
        lines.append(f"  a rollout worker fits one GPU: {whole.step_s:.1f} s with {text}")
    return [*lines, f"  set {best.text}", f"  {bound} bounds the step: {share}; {_helps(best, bound)}"]


def _idle(split: Split, gpus: int) -> list[str]:
    """How many GPUs have no work, and why; nothing if all have some."""
    if not (idle := gpus - split.gpus):
        return []
    config, size = split.config, split.config.rollout.tensor_parallel_size
    beside = f"{config.learner.ranks} learner rank{'s' * (config.learner.ranks > 1)}"
    beside += f", {config.rollout.start_count} rollout worker{'s' * (config.rollout.start_count > 1)} of {max(1, size)}"
    beside += " and the scorer" * config.scorer.enabled
    why = f"one more worker takes {size}" if idle < size else "the settings that you give use no more"
    return [f"{idle} of {gpus} GPUs {'stay' if idle > 1 else 'stays'} idle beside {beside}: {why}"]


def _shorter(splits: Sequence[Split]) -> list[str]:
    """Why the shortest step of those that fit is not the one that is proposed; nothing if it is."""
    best, quick = splits[0], min(splits, key=lambda split: (len(split.advice), split.step_s))
    if quick is best:
        return []
    why = f"{best.config.learner.ranks} ranks divide the weights evenly" if _even(best) else "no GPU is idle so"
    return [f"{quick.config.learner.ranks} ranks would take {quick.step_s:.1f} s, too little less to be sure of; {why}"]


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
