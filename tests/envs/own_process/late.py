"""An environment that imports NumPy where it needs it, as environments should do with their packages."""

from __future__ import annotations

from typing import Any

from squelch.envs.contract import Environment
from squelch.kit.records.splits import task_key_of


class Late(Environment):
    """Shows a number from NumPy's global generator."""

    max_turns = 1

    def rules(self) -> str:
        return "Look ."

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        import numpy as np

        shown = str(np.random.randint(10**9))
        return shown, {"task_key": task_key_of("late", shown)}

    def read_action(self, text: str) -> str | None:
        return text or None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 0.0, True, False, {"success": False}
