"""TRL's GRPOTrainer with the filter, and with exact ids for the diagnosis.

One method is overridden, `_generate_and_score_completions`, whose result has ids, masks and advantages. Rewards of the
rows of all ranks are read from the trainer's table of completions, `_logs`, which it fills in the same call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import trl
from trl import GRPOTrainer

from squelch.kit.trl.groups import GroupFilter, filter_metrics, total_rewards
from squelch.kit.trl.observer import PREFIX, Observer, tell
from squelch.kit.trl.releases import require_proven

WITHOUT_MIXIN = "squelch.trl.Observer, as a reward function and a callback, watches GRPOTrainer and RLOOTrainer"
FILTER_LOGGED = ("kept_fraction", "kept_mass", "zero_variance_groups", "reward_mean_kept")


require_proven(trl.__version__, GRPOTrainer)


class SquelchMixin:
    """Put before a GRPOTrainer's class: `class Mine(SquelchMixin, MyTrainer)`.

    Args:
        observer: as of `Observer`, but given here alone; or None.
        group_filter: or None, which learns from every group.
        others: those of the trainer.

    Raises:
        ValueError: the trainer is no GRPOTrainer; the observer is a reward function too; two reward functions have one
            name; the filter does not go with the loss.
    """

    def __init__(
        self, *positional: Any, observer: Observer | None = None, group_filter: GroupFilter | None = None, **others: Any
    ) -> None:
        trainer: Any = self
        if not isinstance(trainer, GRPOTrainer):
            names = [one.__name__ for one in type(self).__mro__ if one.__module__.startswith("trl.")] or ["this class"]
            raise ValueError(f"SquelchMixin goes with GRPOTrainer, and not with {names[0]}; {WITHOUT_MIXIN}")
        super().__init__(*positional, **others)
        self._squelch_observer, self._squelch_group_filter, self._squelch_no_signal_streak = observer, group_filter, 0
        if any(isinstance(one, Observer) for one in trainer.reward_funcs):
            raise ValueError("give the Observer to this trainer as observer=, and not as a reward function")
        if observer is not None:
            observer.rule = group_filter.description.split()[0] if group_filter else "none"
            trainer.add_callback(observer)
        if group_filter is not None:
            names = trainer.reward_func_names
            if len(set(names)) < len(names):
                raise ValueError(f"reward functions {names}: TRL logs them by name; give each a name of its own")
            loss = type(trainer)._compute_loss
            if loss.__module__.startswith("trl.") and loss is not GRPOTrainer._compute_loss:
                name = loss.__qualname__.partition(".")[0]
                raise ValueError(f"the filter does not know what the loss of {name} is divided by; leave it out")
            group_filter.require(trainer.loss_type, trainer.beta)
            if trainer.accelerator.is_main_process:
                tell(group_filter.says(trainer.loss_type))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        trainer: Any = self
        if trainer.model.training:
            if self._squelch_observer is not None and self._squelch_observer.wants(trainer.state):
                self._squelch_observer.see(
                    trainer.state, lambda: sampled_ids(batch, trainer.processing_class), self._squelch_log
                )
            if self._squelch_group_filter is not None:
                self._squelch_drop_groups(batch, self._squelch_group_filter)
        return batch

    def _squelch_drop_groups(self, batch: dict[str, Any], chosen: GroupFilter) -> None:
        """Masks the groups without signal, on the rewards of all ranks."""
        trainer: Any = self
        num_rows, accelerator = len(batch["advantages"]), trainer.accelerator
        columns = [list(trainer._logs["rewards"][name]) for name in trainer.reward_func_names]
        rewards = total_rewards(columns, trainer.reward_weights.tolist())
        if len(rewards) != num_rows * accelerator.num_processes:
            raise RuntimeError(f"TRL's table has {len(rewards)} rewards; {num_rows} of each rank are needed")
        found = chosen.select(rewards.reshape(-1, trainer.num_generations))
        start = num_rows * accelerator.process_index
        kept = torch.from_numpy(found.kept_rows.ravel()[start : start + num_rows]).to(batch["advantages"].device)
        chosen.mask(batch, kept, found.kept_fraction, trainer.loss_type, lambda one: accelerator.gather(one).sum())
        self._squelch_no_signal_streak = 0 if found.kept.any() else self._squelch_no_signal_streak + 1
        metrics = filter_metrics(found, self._squelch_no_signal_streak)
        for key in FILTER_LOGGED:
            if np.isfinite(metrics[key]):
                self._squelch_log(PREFIX + key, metrics[key])
        if self._squelch_observer is not None:
            self._squelch_observer.export(metrics)

    def _squelch_log(self, name: str, value: float) -> None:
        trainer: Any = self
        trainer._metrics["train"][name].append(value)


class SquelchGRPOTrainer(SquelchMixin, GRPOTrainer):
    """TRL's GRPOTrainer with `observer` and `group_filter`; see `SquelchMixin`."""

    _name = "GRPO"  # as TRL's model card calls it


def sampled_ids(batch: dict[str, Any], processor: Any) -> tuple[list[list[int]], list[list[int]]]:
    """(prompts, completions) of a batch as ids; of a completion with tools the first turn, up to the first output.
    ValueError for images."""
    if batch.get("num_images") is not None:
        raise ValueError("the samples have images: only text can be scored")
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)]
    masks = batch["completion_mask"].tolist()
    outside = batch["tool_mask"].tolist() if "tool_mask" in batch else [[1] * len(mask) for mask in masks]
    pad = getattr(processor, "tokenizer", processor).pad_token_id
    completions = [
        _first_turn(ids, mask, own, pad)
        for ids, mask, own in zip(batch["completion_ids"].tolist(), masks, outside, strict=True)
    ]
    return prompts, completions


def _first_turn(ids: list[int], mask: list[int], own: list[int], pad: int) -> list[int]:
    """A row without mask was cut (`mask_truncated_completions`): it has no end token, so padding follows its last id.
    Where there are tools, nothing says which of its ids the model sampled."""
    if any(mask) or not all(own):
        ids = ids[: sum(mask)]
        return ids[: own.index(0)] if 0 in own[: len(ids)] else ids
    end = len(ids)
    while end and ids[end - 1] == pad:
        end -= 1
    return ids[:end]
