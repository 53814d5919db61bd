"""Judge of grounding for the grid worlds: does a reasoning name coordinates, and are they true?

The proxies are log-likelihoods under a model; the judge reads the text. It takes the facts from the grid in the prompt,
and the claims from the reasoning's phrases with a coordinate ("goal at 1 2"), which `envs` uses in warm-up
demonstrations. The same statement in other words is no claim: the judge recognises these phrases exactly, and ignores
all other text.

Pure: imports neither torch, Ray nor vLLM, and needs no tokens. No text raises an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from envs.wording import Cell

JUDGED = ("names", "right", "right_elsewhere")
Facts = Mapping[str, frozenset[Cell]]
Claim = tuple[str, Cell]

ROLES: Mapping[str, Mapping[str, str]] = {
    "FrozenLake": {"player": "PX*", "goal": "G*", "hole": "OX"},
    "Sokoban": {"player": "PS", "box": "X*", "target": "O*S"},
}
"""The symbols of each fact, by environment and fact. A box on its target counts as both, and so does a player on
one."""


@dataclass(frozen=True)
class GridJudge:
    """Judges the reasonings of one environment. `templates`: by fact, phrases with one `{}` for "row column"; `roles`:
    by fact, the symbols that show it."""

    templates: Mapping[str, Sequence[str]]
    roles: Mapping[str, str]

    def facts(self, prompt: str) -> Facts | None:
        """Cells (row, column), from 0, of each fact in the last grid of a prompt; None if the prompt shows no grid."""
        rows = last_grid(prompt, "".join(self.roles.values()) + "_#")
        if rows is None:
            return None
        cells = {(r, c): glyph for r, row in enumerate(rows) for c, glyph in enumerate(row)}
        return {
            name: frozenset(at for at, glyph in cells.items() if glyph in glyphs) for name, glyphs in self.roles.items()
        }

    def claims(self, reasoning: str) -> list[Claim]:
        """(fact, cell) of every phrase with a coordinate, in order; of overlapping phrases the longest counts."""
        pattern, names = self._pattern
        found = []
        for match in pattern.finditer(" ".join(reasoning.split())):
            if match.lastgroup is not None:
                at = match[match.lastgroup].split()
                found.append((names[match.lastgroup], (int(at[0]), int(at[1]))))
        return found

    @cached_property
    def _pattern(self) -> tuple[re.Pattern[str], dict[str, str]]:
        phrases = sorted(
            ((name, phrase) for name, group in self.templates.items() for phrase in group), key=lambda p: -len(p[1])
        )
        names = {f"g{i}": name for i, (name, _) in enumerate(phrases)}
        parts = [
            re.escape(phrase).replace(r"\{\}", rf"(?P<g{i}>\d{{1,3}} \d{{1,3}})")
            for i, (_, phrase) in enumerate(phrases)
        ]
        return re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)"), names

    def judge(self, prompts: Sequence[str], reasonings: Sequence[str], source: Sequence[int]) -> dict[str, float]:
        """Shares of the reasonings, each in [0, 1]: `names`: with at least one coordinate; `right`: with at least one
        coordinate, all of them true; `right_elsewhere`: as `right`, but judged by the grid of another prompt, mean over
        the other prompts. A template scores the same on `right` and `right_elsewhere`.

        `source`: index of each reasoning's own prompt. A share is NaN if no reasoning, or no other prompt, has a grid.
        """
        facts = [self.facts(prompt) for prompt in prompts]
        claims = [self.claims(text) for text in reasonings]
        shown = [s for s, own in enumerate(source) if facts[own] is not None]
        elsewhere = [
            float(
                np.mean(
                    [holds(claims[s], other) for j, other in enumerate(facts) if j != source[s] and other is not None]
                )
            )
            for s in (shown if sum(f is not None for f in facts) > 1 else [])
        ]
        return {
            "names": _mean([bool(claims[s]) for s in shown]),
            "right": _mean([holds(claims[s], facts[source[s]]) for s in shown]),
            "right_elsewhere": _mean(elsewhere),
        }


def judge_of(environment: str) -> GridJudge | None:
    """The judge of a registered environment; None if the environment is not a grid world."""
    if environment not in ROLES:
        return None
    from envs.registry import environment_class

    grid: Any = environment_class(environment)  # the class of a grid world: it has a wording
    return GridJudge(grid.wording.facts, ROLES[environment])


def last_grid(text: str, glyphs: str) -> list[str] | None:
    """The last square block of symbols whose cells are separated by spaces, one string per row; None if there is none.
    The first row may follow a chat template's marker on the same line."""
    row = rf"[{re.escape(glyphs)}](?: [{re.escape(glyphs)}])+"
    blocks = [match[0].replace(" ", "").split("\n") for match in re.finditer(rf"{row}(?:\n{row})+(?!\S)", text)]
    square = [block for block in blocks if all(len(line) == len(block) for line in block)]
    return square[-1] if square else None


def holds(claims: Sequence[Claim], facts: Facts | None) -> bool:
    """Whether there is at least one claim and all claims are true."""
    return bool(claims) and facts is not None and all(cell in facts.get(name, frozenset()) for name, cell in claims)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation in [-1, 1] with ties at their mean rank; NaN below 3 pairs or if one side is constant."""
    a, b = ranks(np.asarray(first, np.float64)), ranks(np.asarray(second, np.float64))
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """(n,) ranks from 0; equal values get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def correlations(lines: Sequence[Mapping[str, float | None]], keys: Sequence[str]) -> dict[str, float]:
    """Spearman's correlation of each flat key with `judge/right`, over the lines of a run's `metrics.jsonl`."""
    found = {}
    for key in keys:
        pairs = [(line[key], line["judge/right"]) for line in lines if _both(line, key)]
        found[key] = spearman([a for a, b in pairs if a is not None], [b for a, b in pairs if b is not None])
    return found


def _both(line: Mapping[str, float | None], key: str) -> bool:
    return line.get(key) is not None and line.get("judge/right") is not None
