"""The number that `learner.token_budget: auto` stands for, resolved once, at the start of a run.

The start writes it to `config.yaml`, and a resumed run keeps it: another number would cut other micro-batches, whose
sums differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.cluster.config import RunConfig, settings_of
from squelch.kit.base.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from squelch.learner.config import LearnerConfig

Ask = Callable[[RunConfig], int]


def choose_token_budget(
    config: RunConfig, model_dir: Path, resume: bool, say: Callable[[str], None], weights: int, ask: Ask
) -> RunConfig:
    """The configuration with a number for `learner.token_budget`. Call it once Ray is connected. `weights`: bytes of
    a published version, which the learner may share on its GPU; `ask`: the memory of a rank on a GPU, where Ray would
    place it.

    Raises:
        UserError: not even the longest trajectory fits into a rank's memory, or no GPU answers.
    """
    if config.learner.token_budget != "auto":
        return config
    saved = config.run_dir / "config.yaml"
    if resume and saved.exists() and isinstance(kept := settings_of(saved).get("learner.token_budget"), int):
        return _with(config, config.learner.with_tokens(kept))
    if config.learner.num_gpus == 0:
        return _with(config, settled(config, None, None))
    from squelch.kit.models.model_folder import model_config
    from squelch.learner import memory

    shape, learner = model_config(model_dir), config.learner
    given = memory.configured(learner)
    has = ask(config) if given is None else given
    if config.way.on_gpu:
        has -= weights
    found = settled(config, shape, has)
    bound = found.model_copy(update={"max_memory_gib": has / memory.GIB})
    try:
        memory.check(shape, bound, learner.ranks, config.held_gradients, config.rollout.max_model_len)
    except ValueError as error:
        raise UserError(f"learner.token_budget=auto: {error}") from error
    say(f"learner.token_budget={found.tokens}, for {has / memory.GIB:.1f} GiB of a GPU per rank")
    return _with(config, found)


def settled(config: RunConfig, shape: PreTrainedConfig | None, has: int | None) -> LearnerConfig:
    """The learner's settings with a number for `token_budget`. `has`: bytes of a rank on a GPU; None if nobody knows,
    and then an automatic budget is the least that a run can have, its longest trajectory."""
    learner, longest = config.learner, config.rollout.max_model_len
    if learner.token_budget != "auto":
        return learner
    if learner.num_gpus == 0:
        return learner.with_tokens(config.tokens_fed)
    if has is None or shape is None:
        return learner.with_tokens(longest)
    from squelch.learner import memory

    room = has - memory.RUNTIME
    return learner.with_tokens(
        memory.fitting_tokens(shape, learner, learner.ranks, config.held_gradients, longest, room)
    )


def _with(config: RunConfig, learner: LearnerConfig) -> RunConfig:
    return config.model_copy(update={"learner": learner})
