"""SortWords: put words into alphabetical order. An example of docs/guide/adding-an-environment.md: copy it and
change it.

It is complete, and the tests play it. It has no entry in `envs.registry`; its path is its name:
`environment.name=docs.examples.sort_words:SortWords`.

Invariants: no word occurs twice in a task; the words shown are never in order. An episode ends at the right answer, or
after the last turn of the format; each wrong attempt halves the reward of the right answer.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

from pydantic import Field

from squelch.envs.base import TextEnv
from squelch.envs.contract import Demonstrator
from squelch.envs.settings import Settings
from squelch.envs.splits import MAX_DRAWS, no_task, split_of, task_key_of
from squelch.envs.wording import (
    DEFAULT_QUALITY,
    DemonstrationQuality,
    Example,
    Rng,
    Wording,
    choose,
    draw_distinct,
    generic_reasoning,
)

WORDS = (
    *("acorn", "apple", "arrow", "badge", "beach", "berry", "cabin", "candle", "cloud", "daisy", "desk", "drum"),
    *("eagle", "engine", "fable", "feather", "fox", "garden", "glass", "goat", "hammer", "harbor", "honey", "island"),
    *("jacket", "kettle", "ladder", "lemon", "lion", "maple", "mirror", "moon", "needle", "ocean", "olive", "paper"),
    *("pear", "pond", "quilt", "rabbit", "river", "rose", "sail", "stone", "tiger", "tower", "valley", "window"),
)
TINY = Wording(
    rules="Put the words into alphabetical order . The action is all words in order , separated by spaces .",
    shown={"words": "words {words}"},
    said={"order": ("first {first} and last {last}",)},
    generic=(("let me see", "i look at the letters", "one after another"),),
)
NATURAL = Wording(
    rules="Put the words into alphabetical order.\nYour answer is all words in order, separated by spaces",
    shown={"words": "Words: {words}"},
    said={"order": ("The first word is {first} and the last one is {last}.", "It begins with {first}.")},
    generic=(("Let me see.", "I look at the letters.", "I take one after another."),),
    example=Example(
        "Words: tree house apple", "The first word is apple and the last one is tree.", ("apple house tree",)
    ),
)


class SortWordsOptions(Settings):
    """Every field has its bounds, a default that suits a laptop, and a line that says what it means."""

    num_words: int = Field(4, ge=2, le=10)
    """Words of one task."""


class SortWords(TextEnv, Demonstrator):
    """1 for the words in alphabetical order at the first attempt, half of it at the second, and so on."""

    name = "SortWords"
    wordings: ClassVar = {"tiny": TINY, "natural": NATURAL}
    Options = SortWordsOptions
    options: SortWordsOptions
    max_turns = 2
    max_action_length = 200
    max_observation_length = 200

    # --- the messages to the policy ---

    def observation(self) -> str:
        """The current state as text."""
        return self.wording.shown["words"].format(words=" ".join(self._words))

    # --- the policy's answer ---

    def read_action(self, text: str) -> str | None:
        """Lower-case words with one space between them; None if the text is no action. A wrong order is an action."""
        if len(text) > 10 * self.max_action_length:  # first, because all other checks take time linear in the text
            return None
        words = text.lower().split()
        said = " ".join(words)
        known = all(word.isascii() and word.isalpha() for word in words)
        return said if words and known and len(said) <= self.max_action_length else None

    # --- the task ---

    def _load(self, seed: int) -> dict[str, Any]:
        """Draw until the content belongs to this split, so that validation tasks never train."""
        rng = random.Random(f"{self.name} {seed}")  # an own stream; never use the global one
        for _ in range(MAX_DRAWS):
            words = [WORDS[index] for index in draw_distinct(rng, self.options.num_words, len(WORDS))]
            key = task_key_of(self.name, " ".join(words))
            if split_of(key) == self.split and words != sorted(words):
                self._words, self._key, self._attempts, self._solved = words, key, 0, False
                return {"num_words": len(words)}  # added to `info` at reset
        raise no_task(self.name, self.options)

    def task_key(self) -> str:
        """Digest of the task's content."""
        return self._key

    def solution(self) -> list[str] | None:
        """Actions to success from the current state; None if none is known."""
        return None if self._solved else [" ".join(sorted(self._words))]

    # --- playing it ---

    def _move(self, action: str) -> float:
        self._solved = action.split() == sorted(self._words)
        self._attempts += 1
        return 0.5 ** (self._attempts - 1) if self._solved else 0.0

    def _details(self) -> dict[str, Any]:
        return {"attempts": self._attempts}  # added to `info` at each step

    def _terminated(self) -> bool:
        return self._solved

    def _succeeded(self) -> bool:
        return self._solved

    # --- for the tiny policy ---

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """A reasoning that names the first word or is generic; sometimes the order is wrong, so that rewards vary."""
        grounded = rng.random() < quality.grounded
        order = sorted(self._words)
        if rng.random() < (quality.random_plan if grounded else quality.generic_random_plan):
            order = [self._words[index] for index in draw_distinct(rng, len(order), len(order))]
        if not grounded:
            return generic_reasoning(rng, self.wording), [" ".join(order)]
        reasoning = choose(rng, self.wording.said["order"]).format(first=order[0], last=order[-1])
        return reasoning, [" ".join(order)]
