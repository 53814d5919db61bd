"""An environment whose turns and notes follow from its options."""

from __future__ import annotations

from typing import Any

from squelch.envs.contract import Environment
from squelch.kit.base.settings import Settings
from squelch.kit.records.splits import task_key_of


class CountedOptions(Settings):
    """Options of `Counted`."""

    turns: int = 5


class Counted(Environment):
    """Every action is right."""

    Options = CountedOptions
    options: CountedOptions
    max_turns = 5
    max_actions_per_turn = 2

    def __init__(self, split: str = "train", **options: Any) -> None:
        super().__init__(split, **options)
        self.max_turns = self.options.turns

    def notes(self) -> list[str]:
        if self.options.turns == 13:
            raise ValueError("environment.options.turns: 13 is unlucky")
        return [f"{self.options.turns} turns"]

    def rules(self) -> str:
        return "Go on ."

    def read_action(self, text: str) -> str | None:
        return text.strip() or None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "here", {"task_key": task_key_of("Counted", str(seed))}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "here", 1.0, False, False, {"success": True}
