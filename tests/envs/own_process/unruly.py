"""An environment that does what no environment should, on demand: its actions say what."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from typing import Any

import numpy as np

from squelch.envs.contract import Environment
from squelch.envs.own_process.isolated import OwnProcess, ProcessOptions
from squelch.kit.base.settings import Settings
from squelch.kit.records.splits import split_of, task_key_of


class UnrulyOptions(Settings):
    """Options of `Unruly`."""

    wrong: str = ""
    """What the constructor does: `raise`, `exit`."""


class UnrulyProcessOptions(UnrulyOptions, ProcessOptions):
    """With those of its process."""


class Unruly(Environment):
    """Counts its steps; draws from the global generators."""

    Options = UnrulyOptions
    options: UnrulyOptions
    max_turns = 6

    def __init__(self, split: str = "train", **options: Any) -> None:
        super().__init__(split, **options)
        if self.options.wrong == "raise":
            raise ValueError("environment.options.wrong: not this one")
        if self.options.wrong == "exit":
            os._exit(3)

    def rules(self) -> str:
        return "Behave ."

    def read_action(self, text: str) -> str | None:
        match text:
            case "steps":
                return f"{self._steps} steps"
            case "unreadable":
                raise LookupError("cannot read")
            case "deadly":
                os._exit(9)
            case "endless":
                time.sleep(3600)
        return text.strip() or None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._steps, self._task = 0, seed
        while split_of(key := task_key_of("Unruly", str(self._task))) != self.split:
            self._task += 1_000_000
        random.seed(self._task)  # as TextArena does
        return f"task {self._task}", {"task_key": key, "task_kind": None}

    def step(self, action: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward: Any = 0.5
        match action:
            case "raise":
                raise LookupError("nothing here")
            case "leave":
                sys.exit(1)
            case "end":
                print("about to end", file=sys.stderr)
                sys.stderr.flush()
                os._exit(7)
            case "hang":
                time.sleep(3600)
            case "spin":
                while True:
                    pass
            case "hold":  # in C, with the interpreter's lock
                ctypes.PyDLL(None).sleep(3600)
            case "print":
                print("step  1/60  success 1.000  " * 100_000)
                os.write(1, b"written past Python")
            case "huge":
                return "x" * 40_000_000, reward, False, False, {"success": False}
            case "nan" | "inf" | "-inf":
                reward = float(action)
            case "words":
                reward = "much"
            case "forget":
                return "", reward, False, False, {}
            case "odd":
                return object(), reward, False, False, {"success": False}
            case "memory":
                np.ones(2**34, np.uint8)
        drawn = random.random() + np.random.random()
        return f"{self._steps} {drawn:.9f}", reward, action == "done", False, {"success": action == "done"}


class UnrulyInProcess(OwnProcess):
    """The same in a process of its own."""

    Options = UnrulyProcessOptions
    options: UnrulyProcessOptions
    inside = f"{__name__}:Unruly"
    max_turns = 6
