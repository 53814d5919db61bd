"""The single-player games of `textarena` that need neither network nor key, over several turns.

    environment.name=TextArena
    environment.options='{game: Mastermind-v0}'
    environment.format.max_turns=20

The game's own messages are the observations, its rules stand in the first one, and its final reward, mostly from 0 to 1
(-1 for some invalid moves), is the last turn's reward; earlier turns pay 0. A game that reaches no end within
`environment.format.max_turns` pays nothing: the game's own limit stands in `textarena.yaml`.

The package seeds Python's global generator. Games therefore run in a process of their own, each under its own state of
the generators (`envs.own_process`). Once a game has started, its chance events follow the noise seed. Install it with
`pip install 'squelch-rl[textarena]'`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from squelch.envs.contract import Environment
from squelch.envs.options import nearest
from squelch.envs.own_process.isolated import OwnProcess, ProcessOptions
from squelch.envs.text import legible
from squelch.kit.base.settings import Settings
from squelch.kit.records.splits import Split, no_task, split_of, task_key_of
from squelch.kit.untrusted.files import reason
from squelch.kit.untrusted.text import own_yaml

MAX_OBSERVATION = 8000
"""Characters of an observation; the rest is cut."""
MAX_MOVE = 2000
"""Characters of a move; a longer text is none."""
MAX_STARTS = 300
"""Starts drawn before the adapter concludes that the split has none."""
_LISTED: Mapping[str, Mapping[str, int | None]] = own_yaml(Path(__file__).with_suffix(".yaml"))
GAMES, ONE_START = _LISTED["games"], _LISTED["one_start"]
"""The games whose starts differ, and those that always start alike, each with its own limit of turns."""
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


class GameOptions(Settings):
    """The game."""

    game: str
    """Name of the game with its version and variant, such as `Mastermind-v0-hard`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the game, such as `{max_number: 100}` for GuessTheNumber."""
    success_reward: float = 1.0
    """Least final reward of a won game."""
    hold_out: bool = True
    """Whether validation has its own starts, by the digest of prompt and hidden state. Set it to false for a game that
    always starts alike; validation then plays the training task."""


class TextArenaOptions(GameOptions, ProcessOptions):
    """The game, and the process in which it is played."""


class TextArena(OwnProcess):
    """One game, in a process of its own."""

    Options = TextArenaOptions
    options: TextArenaOptions
    inside = f"{__name__}:Game"
    needs = ("textarena", "textarena")
    max_turns = 20

    def __init__(self, split: Split = "train", **options: Any) -> None:
        chosen = TextArenaOptions(**options)
        known = [*GAMES, *ONE_START]
        if chosen.game not in known:
            raise ValueError(
                f"environment.options.game: {chosen.game!r} is none of the single-player games that are played "
                f"offline; {nearest(chosen.game, known)}"
            )
        if chosen.game in ONE_START and chosen.hold_out:
            raise ValueError(
                f"environment.options.hold_out: {chosen.game} always starts alike, so that no start can be held out; "
                "set it to false"
            )
        super().__init__(split, **options)


class Game(Environment):
    """One game, in the process that has the package."""

    Options = GameOptions
    options: GameOptions
    stochastic = True
    max_turns = 20

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        import textarena

        self._make, self._own_move = textarena.make, textarena.ObservationType.PLAYER_ACTION
        try:
            self._start(0)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(
                f"environment.options.kwargs: {self.options.game} refuses them: {reason(error)}"
            ) from error

    def rules(self) -> str:
        """What all games have in common; the first observation explains the game."""
        return "Play the game . The action is one move in the form that the game asks for ."

    def read_action(self, text: str) -> str | None:
        """Any text that is neither empty nor too long; the game itself judges moves."""
        said = text.strip()
        return said if 0 < len(said) <= MAX_MOVE else None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Draws starts from `seed` until one belongs to the split."""
        for draw in range(MAX_STARTS):
            self._start(random.Random(f"{self.options.game} {seed} {draw}").getrandbits(31))
            shown, state = self._message(), _ADDRESS.sub("", repr(self._game.state.game_state))
            key = task_key_of(f"TextArena {self.options.game}", f"{shown}\n{state}")
            if not self.options.hold_out or split_of(key) == self.split:
                random.seed(f"noise {options['noise_seed']}")
                return shown, {"task_key": key, "task_kind": None}
        raise no_task(f"TextArena {self.options.game}", self.options, MAX_STARTS)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays a move; brackets that the move lacks are put around it, as the package's own wrapper does."""
        move = action if "[" in action or "]" in action else f"[{action}]"
        done, _ = self._game.step(action=move)
        if not done:
            return self._message(), 0.0, False, False, {"success": False}
        rewards, _ = self._game.close()
        reward = float(rewards[0])
        return self._message(), reward, True, False, {"success": reward >= self.options.success_reward}

    def _start(self, seed: int) -> None:
        raw = f"{self.options.game}-raw"  # without the wrappers that repeat the whole game in each observation
        self._game = self._make(raw, **self.options.kwargs)
        self._game.reset(num_players=1, seed=seed)
        state = self._game.state
        state.set_invalid_move = _in_order(state.set_invalid_move)

    def _message(self) -> str:
        """What the game has said since the last call, without the player's own moves."""
        _, messages = self._game.get_observation()
        said = [str(text).strip() for _, text, kind in messages if kind != self._own_move]
        return legible("\n".join(text for text in said if text), MAX_OBSERVATION)


def _in_order(set_invalid_move: Callable[[str, float], None]) -> Callable[..., None]:
    """The package's way to refuse a move, which takes reason and reward. Four of its games (Slitherlink,
    ThreeCardMonte, Countdown, Cryptarithm) give it the reward first, and would pay the reason."""

    def refuse(reason: Any, reward: Any = -1.0) -> None:
        set_invalid_move(*((reward, reason) if isinstance(reward, str) else (reason, reward)))

    return refuse
