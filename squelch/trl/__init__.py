"""`squelch.kit.trl` under the name that programs import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from squelch.kit import trl

if TYPE_CHECKING:
    from squelch.kit.trl.groups import GroupFilter
    from squelch.kit.trl.imported import recipe
    from squelch.kit.trl.observer import Observer
    from squelch.kit.trl.trainer import SquelchGRPOTrainer, SquelchMixin

__all__ = ["GroupFilter", "Observer", "SquelchGRPOTrainer", "SquelchMixin", "recipe"]


def __getattr__(name: str) -> Any:
    return getattr(trl, name)
