"""A step's score matrix for the page: the heat map, one of its cells, and the templates.

A cell (i, j) says how likely reasoning i is under prompt j. The heat map shows p(X_j | Z_i), the posterior over the
prompts of the matrix under a uniform prior: a strong diagonal means that reasonings name their prompts, even columns
that they fit all prompts alike. The rows are sorted by their own prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from markupsafe import Markup

from squelch.cluster.inspector.previews import prompt_words
from squelch.cluster.inspector.texts import Pieces, shown, tokens_html
from squelch.cluster.inspector.trajectories import Board, board_of, by_index, readable, reasoning_log_probs
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.archive.score_matrices import ScoreMatrix, TurnPlace
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.pair_budget import estimate
from squelch.kit.diagnosis.proxies import proxies_of_scores, usable
from squelch.kit.diagnosis.regime import dependence_words
from squelch.kit.diagnosis.templates import Template, gaps, ranked
from squelch.kit.diagnosis.uncertainty import uncertainty
from squelch.kit.records.records import Trajectory

MOST_TEMPLATES = 60
MOST_COLUMN_LABELS, MOST_ROW_LABELS = 16, 24
"""Labels on the axes of the heat map: as many as a phone's width, and the height of 24 prompts, have room for."""
SCALES = {"posterior": ("0", "0.25", "0.5", "0.75", "1"), "gap": ("\u22122", "\u22121", "0", "+1", "+2")}
"""Labels of the colour scale, evenly spaced, by what the heat map shows."""


@dataclass(frozen=True)
class Heatmap:
    """A scope's matrix with rows sorted by their own prompt. `order`: (num_samples,) the matrix's row of each row."""

    matrix: ScoreMatrix
    order: np.ndarray

    @property
    def source(self) -> np.ndarray:
        """(num_samples,) own column of each row."""
        return self.matrix.source[self.order]

    def values(self, shows: str) -> np.ndarray:
        """(num_samples, num_prompts) float32, for the colours; NaN where nothing was scored. `shows`: `posterior`, in
        [0, 1], or `gap`: log p(z|x) - log p(z|own), nats per token of the reasoning."""
        likely = self.matrix.values[self.order]
        if shows == "gap":
            own = likely[np.arange(len(likely)), self.source]
            return ((likely - own[:, None]) / np.maximum(self.matrix.lengths[self.order], 1)[:, None]).astype(
                np.float32
            )
        return posterior(likely).astype(np.float32)

    @property
    def partial(self) -> bool:
        """Whether some pair was not scored."""
        return bool(np.isnan(self.matrix.values).any())

    def column_labels(self) -> list[tuple[float, int]]:
        """(middle, in percent of the width; prompt) of the columns that are labelled."""
        count = len(self.matrix.prompts)
        return [(100 * (j + 0.5) / count, j) for j in range(0, count, -(-count // MOST_COLUMN_LABELS))]

    def row_labels(self) -> list[tuple[float, int]]:
        """(middle, in percent of the height; prompt) of the blocks of rows, one for each own prompt, that are
        labelled."""
        prompts, starts, sizes = np.unique(self.source, return_index=True, return_counts=True)
        middles = 100 * (starts + sizes / 2) / len(self.source)
        apart = -(-len(prompts) // MOST_ROW_LABELS)
        return list(zip(middles.tolist(), prompts.tolist(), strict=True))[::apart]


@dataclass(frozen=True)
class Judged:
    """What a matrix alone says. `found`: share of the reasonings whose own prompt is the likeliest, and `chance` that
    share by chance; `depends`: whether reasonings depend on their prompts, None if that is not known; `words`: what
    decides it."""

    num_samples: int
    found: float
    chance: float
    depends: bool | None
    words: str


def judged(matrix: ScoreMatrix) -> Judged:
    """Judges a matrix by its own pairs, as a scorer step does; its prompts count alike. Of one with pairs that were not
    scored, reasonings with fewer than two scored prompts, and those without their own, are left out."""
    finite = np.isfinite(matrix.values)
    own = finite[np.arange(len(finite)), matrix.source]
    used = own & (finite.sum(axis=1) > 1) & (matrix.lengths > 0)
    values, lengths, source = np.where(finite, matrix.values, np.nan)[used], matrix.lengths[used], matrix.source[used]
    if not used.any():
        return Judged(0, math.nan, math.nan, None, "MI is not known")
    if finite[used].all():
        scores = usable(values, lengths, source)
        report = proxies_of_scores(scores)
        metrics = report.metrics() | uncertainty(scores, report).metrics()
    else:
        metrics = estimate(values, lengths, source).metrics(None, 1e-3)
    depends, words = dependence_words(metrics)
    found, chance = metrics["retrieval_accuracy"], metrics["retrieval_chance"]
    return Judged(int(used.sum()), found, chance, depends, words)


def posterior(log_likelihood: np.ndarray) -> np.ndarray:
    """p(x_j | z_i) under a uniform prior over the scored prompts of each row; NaN where nothing was scored."""
    top = np.nanmax(log_likelihood, axis=1, keepdims=True)
    mass = np.exp(log_likelihood - top)
    return mass / np.nansum(mass, axis=1, keepdims=True)


def heatmap(matrix: ScoreMatrix) -> Heatmap:
    """The heat map of a matrix."""
    return Heatmap(matrix, np.argsort(matrix.source, kind="stable"))


@dataclass(frozen=True)
class PromptView:
    """A prompt of a matrix: where it was shown, its text, its board, and the first words of its last message."""

    place: TurnPlace
    text: Markup
    board: Board | None
    words: str


@dataclass(frozen=True)
class Cell:
    """One pair. Log-likelihoods in nats; `posterior` in [0, 1]; `rank`: of this prompt for the reasoning, from 1."""

    row: int
    column: int
    place: TurnPlace
    reasoning: Markup
    num_tokens: int
    prompt: PromptView
    own: PromptView
    is_own: bool
    log_likelihood: float | None
    own_log_likelihood: float
    posterior: float | None
    rank: int | None
    num_prompts: int


class Texts:
    """The turns that a step's matrix names; reads each group once. `environment`: by group id."""

    def __init__(self, folder: RunFolder, step: int, pieces: Pieces) -> None:
        self.step, self.pieces = step, pieces
        self.environment: dict[str, str] = {}
        self._group = lru_cache(maxsize=None)(lambda group: self._read(folder, group))

    def _read(self, folder: RunFolder, group: str) -> dict[int, Trajectory]:
        table = folder.group(self.step, group)
        self.environment[group] = table["environment"][0].as_py()
        return by_index(table)

    def trajectory(self, place: TurnPlace) -> Trajectory:
        """The trajectory of a place. UserError if the archive lacks it, e.g. because the files are of two runs."""
        found = self._group(place.group).get(place.trajectory)
        if found is None or not 0 <= place.turn < len(found.turns):
            raise UserError(
                f"the scores of step {self.step} name turn {place.turn} of trajectory {place.trajectory} of group "
                f"{place.group}, which the step's groups do not hold"
            )
        return found

    def reasoning(self, place: TurnPlace) -> str:
        """The text of a reasoning."""
        return self.pieces.text(self.trajectory(place).reasoning_ids(place.turn))

    def prompt(self, place: TurnPlace) -> PromptView:
        """A prompt, for the page."""
        trajectory = self.trajectory(place)
        ids = trajectory.prompt_ids(place.turn)
        text = self.pieces.text(ids)
        board = board_of(self.environment[place.group], text)
        return PromptView(place, readable(text), board, prompt_words(ids, self.pieces))

    def tokens(self, place: TurnPlace) -> Markup:
        """The tokens of a reasoning, coloured by the log-probability with which they were sampled."""
        trajectory = self.trajectory(place)
        ids, log_probs = trajectory.reasoning_ids(place.turn), reasoning_log_probs(trajectory, place.turn)
        return tokens_html(self.pieces.html(ids), log_probs, (0, 0))


def cell(heat: Heatmap, texts: Texts, row: int, column: int) -> Cell:
    """The pair in a row and column of the heat map. UserError outside of it."""
    matrix = heat.matrix
    if not (0 <= row < len(matrix.samples) and 0 <= column < len(matrix.prompts)):
        raise UserError(
            f"the matrix has {len(matrix.samples)} rows and {len(matrix.prompts)} columns; no {row}, {column}"
        )
    sample = int(heat.order[row])
    own, likely = int(matrix.source[sample]), matrix.values[sample]
    scored = bool(np.isfinite(likely[column]))
    place = matrix.samples[sample]
    return Cell(
        row=row,
        column=column,
        place=place,
        reasoning=texts.tokens(place),
        num_tokens=int(matrix.lengths[sample]),
        prompt=texts.prompt(matrix.prompts[column]),
        own=texts.prompt(matrix.prompts[own]),
        is_own=own == column,
        log_likelihood=float(likely[column]) if scored else None,
        own_log_likelihood=float(likely[own]),
        posterior=float(posterior(likely[None])[0, column]) if scored else None,
        rank=int((likely > likely[column]).sum()) + 1 if scored else None,
        num_prompts=int(np.isfinite(likely).sum()),
    )


def templates(matrix: ScoreMatrix, texts: Texts) -> list[Template]:
    """The texts of the matrix's reasonings, those nearest to every prompt first."""
    whole = np.where(np.isfinite(matrix.values), matrix.values, np.nan)
    written = [texts.reasoning(place) for place in matrix.samples]
    gap = gaps(whole, matrix.source) if whole.shape[1] > 1 else np.full(len(written), np.nan)
    found = ranked(gap, matrix.source, written, matrix.lengths, np.arange(len(written)))
    return found[:MOST_TEMPLATES]


def nearest(matrix: ScoreMatrix, column: int, most: int = 12) -> Sequence[tuple[int, float]]:
    """(row of the matrix, log p per token) of the reasonings that are likeliest under a prompt."""
    rate = matrix.values[:, column] / np.maximum(matrix.lengths, 1)
    order = np.argsort(-np.where(np.isfinite(rate), rate, -np.inf), kind="stable")[:most]
    return [(int(row), float(rate[row])) for row in order if np.isfinite(rate[row])]


def template_text(template: Template) -> Markup:
    """A template's text for the page."""
    return shown(template.text.strip())


def as_bytes(values: np.ndarray) -> bytes:
    """Row-major little-endian float32."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()
