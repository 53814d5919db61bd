"""The procedural data sets of `reasoning-gym` (over a hundred): one question, one answer, scored by the package itself.

    environment.name=ReasoningGym
    environment.options='{datasets: {chain_sum: {max_terms: 3}, spell_backward: {}}}'

The reward is the package's own score of the answer, from 0 to 1. A task draws one of `datasets` by its seed. With
`level` the settings come from the data set's curriculum; with `raise_every` the level rises with the task's place k in
the run. The k-th training task has the seed `environment.train_seed` + k, so k is seed - `first_seed`: the same on
every machine, after every resume, and in every cell of a sweep, whose seeds shift `train_seed`. Validation plays
`last_level` throughout.

The package runs in a process of its own (`envs.own_process`). Data sets whose scorers evaluate the answer as a program
(`envs.adapters.evaluated_text`), or pay one answer whatever the question is (`PAID_ANYHOW`), are refused. `pip install
'squelch-rl[reasoning-gym]'` installs it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import Field

from squelch.envs.adapters.evaluated_text import evaluates_text
from squelch.envs.contract import Environment
from squelch.envs.options import nearest
from squelch.envs.own_process.isolated import OwnProcess, ProcessOptions
from squelch.envs.text import legible
from squelch.kit.base.settings import Settings
from squelch.kit.records.splits import Split, no_task, split_of, task_key_of
from squelch.kit.untrusted.files import reason

MAX_QUESTION = 16_000
"""Characters; longer questions are not drawn."""
MAX_ANSWER = 20_000
"""Characters; a longer text is no answer."""
SEEDS, DRAWS = 50, 10
"""Neighbouring seeds that share a data set, and the entries of it that each of them may draw."""
ROUNDS = 100
"""Data sets that a seed goes through before the adapter concludes that the split has no question."""
SOLVED = 1.0
LEFT_OUT = frozenset({"composite"})
"""Data sets that are made of others; `datasets` mixes them here."""
PAID_ANYHOW = {"coin_flip": "0", "complex_arithmetic": "nan", "game_of_life_halting": "no"}
"""Data sets of version 0.1.25 whose scorers pay some answer in full for any question, or most, with such an answer:
`coin_flip` takes it for the beginning of 0.0268, `complex_arithmetic` for one without a distance to the right one, and
`game_of_life_halting` takes every text for the right one."""


class QuestionOptions(Settings):
    """The data sets and their difficulty."""

    datasets: dict[str, dict[str, Any]] = Field(min_length=1)
    """Each data set by its name, with settings of its own configuration; `{chain_sum: {}}` for its defaults."""
    level: int | None = Field(None, ge=0)
    """Level of each data set's curriculum, from 0; a curriculum with fewer levels plays its highest. Unset: no
    curriculum, the configuration's defaults."""
    raise_every: int | None = Field(None, ge=1)
    """Training tasks of the run after which the level rises by one, up to `last_level`; it begins at `level`."""
    last_level: int | None = Field(None, ge=0)
    """The level at which the rise ends, and that of validation tasks. Unset: `level`."""


class ReasoningGymOptions(QuestionOptions, ProcessOptions):
    """The data sets, and the process in which they are made and scored."""


class ReasoningGym(OwnProcess):
    """One question of a data set, in a process of its own."""

    Options = ReasoningGymOptions
    options: ReasoningGymOptions
    inside = f"{__name__}:Question"
    needs = ("reasoning_gym", "reasoning-gym")
    max_turns = 1


class Question(Environment):
    """One question, in the process that has the package."""

    Options = QuestionOptions
    options: QuestionOptions
    max_turns = 1

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        from reasoning_gym.factory import CURRICULA, DATASETS

        self._known, self._curricula = DATASETS, CURRICULA
        given = self.options
        if given.raise_every is not None and (given.level is None or given.last_level is None):
            raise ValueError("environment.options.raise_every: level and last_level must be set, too")
        if given.last_level is not None and given.level is None:
            raise ValueError(f"environment.options.last_level={given.last_level}: level must be set, too")
        if given.raise_every is not None and given.level is not None and (given.last_level or 0) < given.level:
            raise ValueError(
                f"environment.options.last_level={given.last_level} is below level={given.level}, from which "
                "raise_every raises it; raise last_level or leave raise_every out"
            )
        self._names = sorted(given.datasets)
        for name in self._names:
            self._check(name)

    def rules(self) -> str:
        """The task; each question states its own format."""
        return "Answer the question . The action is the answer alone ."

    def read_action(self, text: str) -> str | None:
        """Any text that is neither empty nor too long."""
        said = text.strip()
        return said if 0 < len(said) <= MAX_ANSWER else None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Draws questions from `seed` until one belongs to the split."""
        name = random.Random(f"data set {seed}").choice(self._names)
        level = self._level(seed)
        for dataset, index in self._candidates(name, level, seed):
            try:
                entry = dataset[index]
            except Exception:  # some data sets fail at some entries, e.g. by a division by 0; the next one is drawn
                continue
            shown = legible(str(entry["question"]), MAX_QUESTION)
            key = task_key_of(f"ReasoningGym {name}", shown)
            if len(entry["question"]) <= MAX_QUESTION and split_of(key) == self.split:
                self._dataset, self._entry = dataset, entry
                return shown, {"task_key": key, "task_kind": name if level is None else f"{name} level {level}"}
        raise no_task(f"ReasoningGym {name}", self.options, ROUNDS * DRAWS)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The package's score of the answer. An answer at which the scorer fails is wrong."""
        try:
            score = float(self._dataset.score_answer(action, self._entry))
        except Exception:  # the scorers parse answers with whatever raises, e.g. int() in prime_factorization
            score = 0.0
        return "", score, True, False, {"success": score >= SOLVED}

    def _level(self, seed: int) -> int | None:
        given = self.options
        if given.level is None or given.last_level is None:
            return given.level
        if self.split == "validation" or given.raise_every is None:
            return given.last_level if self.split == "validation" else given.level
        place = max(0, seed - self.first_seed)
        return min(given.level + place // given.raise_every, given.last_level)

    def _candidates(self, name: str, level: int | None, seed: int) -> Iterator[tuple[Any, int]]:
        """(data set, index) of the entries that belong to `seed` alone. Making a data set takes up to seconds, and so
        does making an entry of some; neighbouring seeds therefore share one, and no entry is made in vain."""
        chunk, place = divmod(seed, SEEDS)
        settings = json.dumps(self.options.datasets[name], sort_keys=True)
        for number in range(ROUNDS):
            dataset = _made(name, level, settings, _derived(chunk, number))
            for index in range(place * DRAWS, (place + 1) * DRAWS):
                yield dataset, index

    def _check(self, name: str) -> None:
        """Raises ValueError for an unknown data set, or settings that it refuses."""
        where, known = "environment.options.datasets", sorted(set(self._known) - LEFT_OUT)
        if name not in known:
            raise ValueError(f"{where}: reasoning-gym has no data set {name!r}; {nearest(name, known)}")
        if evaluates_text(self._known[name][0]):
            wrong = (
                f"the scorer of {name!r} evaluates the answer as a program, with which a policy could forge its reward"
            )
            raise ValueError(f"{where}: {wrong}; leave it out")
        if name in PAID_ANYHOW:
            wrong = f"the scorer of {name!r} pays the answer {PAID_ANYHOW[name]!r} in full, whatever the question is"
            raise ValueError(f"{where}: {wrong}; leave it out")
        if own := {"seed", "size"} & set(self.options.datasets[name]):
            raise ValueError(f"{where}.{name}: {sorted(own)[0]} follows from the task's seed; leave it out")
        if self.options.level is not None and name not in self._curricula:
            raise ValueError(f"{where}.{name}: it has no curriculum; leave environment.options.level out")
        for level in {self.options.level, self.options.last_level}:
            wanted = self.options.datasets[name]
            try:
                found = _made(name, level, json.dumps(wanted, sort_keys=True), 0)
            except (AssertionError, TypeError, ValueError) as error:
                raise ValueError(f"{where}.{name}: {reason(error)}") from error
            for key, value in wanted.items() if level is not None else ():
                if (played := getattr(found.config, key, value)) != value:
                    raise ValueError(
                        f"{where}.{name}: the curriculum sets {key}={played!r} at level {level}, in place of "
                        f"{value!r}; leave {key} or environment.options.level out"
                    )


@lru_cache(maxsize=32)
def _made(name: str, level: int | None, settings: str, seed: int) -> Any:
    """A data set of `SEEDS * DRAWS` entries; it makes them when they are asked for."""
    from reasoning_gym.factory import CURRICULA, DATASETS, create_dataset

    chosen = {"seed": seed, "size": SEEDS * DRAWS, **json.loads(settings)}
    if level is None:
        return create_dataset(name, **chosen)
    curriculum = CURRICULA[name]()
    curriculum.set_global_level(level)
    return DATASETS[name][0](config=curriculum.generate_configuration(chosen))


def _derived(chunk: int, number: int) -> int:
    """A data set's seed, of 31 bits. The package adds an entry's index to it, so seeds must lie far apart."""
    digest = hashlib.blake2b(f"questions {chunk} {number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
