"""The base of the grid worlds: closed action words, one symbol per cell, and reasoning that names coordinates.

Invariants: an observation ends with `side` rows of `side` symbols, cells separated by spaces, rows by newlines; every
symbol is in `legend`; before the rows it has nothing, or the cells of all that `nouns` names (`observation_format`); a
picture of the same board stands after them, or in place of all text;
in the prompt style `tiny` all text comes from a closed vocabulary, so that a word tokenizer reads one
token per cell. `squelch/envs/grid_worlds/prompts.yaml` holds the words, and `claims.py` the judge of reasonings.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from gymnasium.spaces import Text
from pydantic import Field

from squelch.envs.base import TwinnedEnv
from squelch.envs.contract import ClosedVocabulary, Demonstrator, Judged
from squelch.envs.grid_worlds.board import facts_of, last_board, places, shown
from squelch.envs.grid_worlds.claims import GridJudge, Nouns
from squelch.envs.grid_worlds.picture import MAX_CELL_PIXELS, MIN_CELL_PIXELS, picture_of
from squelch.envs.wording import (
    DEFAULT_QUALITY,
    SHORT_PLAN_RATE,
    Cell,
    DemonstrationQuality,
    Rng,
    Wording,
    choose,
    generic_reasoning,
    grounded_reasoning,
    misplace,
)
from squelch.kit.base.settings import Settings
from squelch.kit.records.pictures import Picture, Shown


class GridOptions(Settings):
    """Options that every grid world has."""

    observation_format: Literal["grid", "grid_coord", "picture", "both"] | None = None
    """What an observation shows: `grid`, the board, or `grid_coord`, before it a line with the cell of each thing but
    walls and empty cells, for models that cannot read a board. The authors' code has both, and trains with
    `grid_coord`. Unset: `grid_coord` with `environment.prompt=natural`; the style `tiny` has no words for it.
    `picture`: a picture of the board alone, without a worked turn; `both`: the text that is shown without this setting,
    and the picture after it."""
    cell_pixels: int = Field(28, ge=MIN_CELL_PIXELS, le=MAX_CELL_PIXELS)
    """Width of a cell in a picture. The board's side in pixels must be a multiple of the model's patch times its merge
    (28 for Qwen2.5-VL)."""


class GridEnv(TwinnedEnv, Demonstrator, ClosedVocabulary, Judged):
    """A square board. In addition to the members of `TwinnedEnv`, subclasses define legend, nouns, side, board and
    facts."""

    max_turns = 5
    max_actions_per_turn = 2
    legend: ClassVar[Mapping[str, str]]
    """What each symbol of a board shows: names of facts, with one space between them."""
    nouns: ClassVar[Nouns]
    """The words by which a natural reasoning calls each fact that the judge reads."""
    options: GridOptions

    @property
    @abc.abstractmethod
    def side(self) -> int:
        """Rows, and columns, of an observation."""

    @abc.abstractmethod
    def board(self) -> str:
        """The current board as plain text (`envs.grid_worlds.board`)."""

    @property
    def wording(self) -> Wording:
        """As `TextEnv.wording`; the worked turn shows its board as observations do, and there is none where they show
        it in pictures alone."""
        wording = super().wording
        if self.options.observation_format == "picture":
            return replace(wording, example=None)
        if not self.names_cells or wording.example is None:
            return wording
        rows = last_board(wording.example.observation, "".join(self.legend), [wording.shown["row"]]) or []
        observation = self._seen("\n".join(" ".join(row) for row in rows))
        return replace(wording, example=replace(wording.example, observation=observation))

    @property
    def names_cells(self) -> bool:
        """Whether observations name the cells of things before the board."""
        chosen = self.options.observation_format
        return "place" in super().wording.shown if chosen in (None, "both") else chosen == "grid_coord"

    @property
    def shows_pictures(self) -> bool:
        """As `Environment.shows_pictures`."""
        return self.options.observation_format in ("picture", "both")

    def picture_sizes(self) -> list[tuple[int, int]]:
        """As `Environment.picture_sizes`."""
        width = self.side * self.options.cell_pixels
        return [(width, width)] if self.shows_pictures else []

    def check(self) -> None:
        """As `Environment.check`."""
        if self.names_cells and "place" not in super().wording.shown:
            raise ValueError(
                f"environment.options.observation_format={self.options.observation_format} needs "
                f"environment.prompt=natural: the style {self.prompt} has no words for it"
            )

    def observation(self) -> str:
        """The current state as text."""
        return self._seen(self.board())

    def shown(self) -> str | Shown:
        """As `TextEnv.shown`: the text, the picture, or both."""
        if not self.shows_pictures:
            return self.observation()
        rows = self.board().replace(" ", "").split("\n")
        picture = Picture(picture_of(rows, self.legend, self.options.cell_pixels))
        return Shown.of(f"{self.observation()}\n" if self.options.observation_format == "both" else "", picture)

    def terms(self) -> dict[str, str]:
        """As `TextEnv.terms`: what the symbols mean, or a picture shows; the style `tiny` says it in its rules."""
        texts, chosen = super().wording.shown, self.options.observation_format
        wanted = {"picture": ("drawn",), "both": ("symbols", "drawn")}.get(chosen or "", ("symbols",))
        return {"legend": "\n".join(texts[name] for name in wanted if name in texts)}

    def _seen(self, board: str) -> str:
        """A board in plain text as observations show it."""
        text = shown(board, super().wording)
        if not self.names_cells:
            return text
        self.check()  # for environments that Gymnasium makes
        facts = facts_of(board.replace(" ", "").split("\n"), self.legend, self.nouns)
        return f"{places(facts, super().wording)}\n{text}"

    @classmethod
    def judge(cls) -> GridJudge:
        """As `Judged.judge`."""
        return GridJudge(cls.legend, cls.nouns, tuple(cls.wordings.values()))

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """(reasoning, actions) of the solver for the current state, made worse at the rates in `quality`."""
        grounded = rng.random() < quality.grounded
        random_rate = quality.random_plan if grounded else quality.generic_random_plan
        count = 1 if rng.random() < SHORT_PLAN_RATE else quality.max_actions
        plan = None if rng.random() < random_rate else self._plan(rng, count)
        actions = plan or [choose(rng, self.actions) for _ in range(count)]
        if not grounded:
            return generic_reasoning(rng, self.wording), actions
        facts = self._facts(rng)
        if rng.random() < quality.wrong_coordinates:
            facts = misplace(rng, facts, self.side)
        return grounded_reasoning(rng, self.wording, facts, actions), actions

    @classmethod
    def phrases(cls) -> list[str]:
        """As `ClosedVocabulary.phrases`."""
        cells = [f"{glyph} {glyph}\n" for glyph in cls.legend]  # a row's first cell has no space before it
        words = [*(action.lower() for action in cls.actions), *"0123456789", *cls.wordings["tiny"].fragments()]
        return [*cells, *(f" {word}" for word in words), cls().rules()]

    def _plan(self, rng: Rng, count: int) -> list[str] | None:
        """At most `count` actions of a shortest solution from here, or None."""
        solution = self.solution()
        return solution[:count] if solution else None

    def _observation_space(self) -> Text:
        plain = "\n".join([" ".join("_" * self.side)] * self.side)
        shortest = longest = shown(plain, self.wording)
        if self.names_cells:
            self.check()
            cells = [(row, column) for row in range(self.side) for column in range(self.side)]
            longest = f"{places(dict.fromkeys(self.nouns, cells), self.wording)}\n{longest}"
        glyphs = "".join(self.legend) + " \n"
        more = "".join(sorted(set(longest) - set(glyphs)))
        return Text(len(longest), min_length=len(shortest), charset=glyphs + more)

    @abc.abstractmethod
    def _facts(self, rng: Rng) -> dict[str, Cell]:
        """The facts that a grounded reasoning names, the player's cell among them, by their name in `wording.said`."""
