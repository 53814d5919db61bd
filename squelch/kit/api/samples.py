"""Prompts and completions converted to the ids that a model scores: X, its reasonings Z, and their answers.

Each row is text (`prompt` with `reasoning` or `completion`), or ids (`prompt_ids` with `reasoning_ids` or
`completion_ids`; a `completion_ids` may also follow a prompt that is text or messages). `turns.py` finds the turns of
a completion; a sample is one turn. X is all that was fed before the turn, with the opening of the reasoning; Z is what
lies between the markers (`completions.py`). The opening of one prompt's turns is the commonest of them, so that a
prompt stays one prompt if some of its completions begin with a line break.

A malformed row is refused; the error names the row. A turn whose reasoning cannot be scored is counted under a reason.
This module imports neither torch nor Ray.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from squelch.kit.api.completions import CALLS_ONLY, EMPTY, UNCLOSED, UNMARKED, Where, markers_of
from squelch.kit.api.encoding import RowEncoder
from squelch.kit.api.messages import BadSample, MessageRenderer
from squelch.kit.api.pictures import placed
from squelch.kit.api.turns import Row, SampledTurn, Templates, TurnReader, Turns
from squelch.kit.diagnosis.repeats import repeated_share
from squelch.kit.pictures.geometry import Vision
from squelch.kit.records.content import Picture, content_key
from squelch.kit.text.answer_start import asked_for
from squelch.kit.untrusted.files import brief

TOO_LONG = "longer than the model's context"
_COMPLETIONS = ("completion", "completion_ids")
NOT_DRAWN = "prompts beyond --max-prompts"


@dataclass(frozen=True)
class Reasonings:
    """The reasonings of a file and their prompts. `prompts`: the distinct prompts, one id sequence X_j each; `ids`: the
    reasonings Z_s; `texts`: their text; `source`: (num_samples,), index of the prompt under which each was sampled;
    `rows`: (num_samples,), row number in the file, from 1; `answers`: the ids from the closing of each reasoning to the
    end of its answer, None for a row without an answer; `excluded`: number of rows left out, by reason;
    `control_tokens`: number of control tokens, by text, in the distinct prompts of the file that are text; `reasoned`:
    share of turns with reasoning among those that closed it, whichever are left out afterwards; NaN if none did;
    `marked`: share of turns that mark a reasoning, closed or not, NaN where nothing is to be marked; `asked`: what
    prompts ask answers to begin with, where nothing is marked (`kit.text.answer_start`); `whole`: whether these are
    completions that are not divided, and no reasonings; `turns`: number of the file's turns, `total`, and of those of
    them that are `later` ones and left out, or that call tools and `answer nothing`; `notes`: how text was completed,
    in words; `pictures`: those of each prompt, empty if none shows any."""

    prompts: list[np.ndarray]
    ids: list[np.ndarray]
    texts: list[str]
    source: np.ndarray
    rows: np.ndarray
    answers: list[np.ndarray | None] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)
    control_tokens: Counter[str] = field(default_factory=Counter)
    reasoned: float = math.nan
    marked: float = math.nan
    asked: str = ""
    whole: bool = False
    turns: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()
    pictures: list[tuple[Picture, ...]] = field(default_factory=list)

    @cached_property
    def repeated(self) -> float:
        """Share of the reasonings' tokens that repeat their prompts (`kit.diagnosis.repeats`); NaN of completions."""
        return math.nan if self.whole else repeated_share(self.prompts, self.ids, self.source)

    def subset(self, keep: np.ndarray, reason: str) -> Reasonings:
        """The samples that `keep` (num_samples,), bool, selects, and their prompts; the other samples are counted as
        excluded for `reason`."""
        left = np.flatnonzero(keep)
        columns = np.unique(self.source[left])
        return replace(
            self,
            prompts=[self.prompts[j] for j in columns],
            ids=[self.ids[s] for s in left],
            texts=[self.texts[s] for s in left],
            source=np.searchsorted(columns, self.source[left]),
            rows=self.rows[left],
            answers=[self.answers[s] for s in left],
            excluded=self.excluded + Counter({reason: len(keep) - len(left)}),
            pictures=[self.pictures[j] for j in columns] if self.pictures else [],
        )


class _Sample(NamedTuple):
    fed: tuple[int, ...]
    opening: tuple[int, ...]
    reasoning: np.ndarray
    text: str
    answer: np.ndarray | None
    pictures: tuple[Picture, ...]

    @property
    def asked(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Equal for samples that were fed the same before the opening."""
        return self.fed, tuple(one.digest for one in self.pictures)


class SampleReader:
    """Converts rows to ids with a tokenizer, which encodes texts completely (`kit.text.tokenizer`).

    `vocab_size`: number of rows of the model's embedding. `where`: where a completion's reasoning lies. `renderer`:
    makes what renders messages; ValueError if nothing can. `source`, `model`: where the rows are from, and the model,
    as errors name them. `turns`: those of a completion that are samples. `tools`: JSON schemas for rows without their
    own. `vision`: how the model is shown pictures; None if it cannot be.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        where: Where,
        renderer: Callable[[], MessageRenderer],
        source: str = "",
        model: str = "the model",
        *,
        turns: Turns = "first",
        tools: list[Any] | None = None,
        vision: Vision | None = None,
    ) -> None:
        self._vision = vision
        self._encoder = RowEncoder(tokenizer, vocab_size, source, model)
        self._templates = Templates(renderer, list(self._encoder.special.values()))
        self._where, self._markers = where, markers_of(where)
        self._which: Turns = turns
        self._tools = tools

    def read(self, rows: Sequence[tuple[int, Row]]) -> Reasonings:
        """The samples of all rows that have a reasoning; `rows`: (number, row). BadSample for a malformed one."""
        self._encoder.forget()
        turns = TurnReader(self._encoder, self._where, self._templates, self._which, self._tools, rows)
        found, numbers, excluded = list[_Sample](), list[int](), Counter[str]()
        named: dict[str, tuple[int, str]] = {}
        for number, row in rows:
            for place, said in enumerate(turns.of(number, row)):
                sample = self._sample(number, said, row, turns)
                if isinstance(sample, str):
                    excluded[sample] += 1
                    continue
                if place == 0:
                    key = content_key(np.array(sample.fed), sample.pictures)
                    self._check_prompt_id(number, row.get("prompt_id"), key, named)
                found.append(sample)
                numbers.append(number)
        silent, notes = excluded[EMPTY] + excluded[UNMARKED] + excluded[CALLS_ONLY], turns.notes()
        might = len(found) + excluded.total() - excluded[CALLS_ONLY]
        marked = math.nan if self._markers is None or not might else 1 - excluded[UNMARKED] / might
        if (
            excluded[UNCLOSED] + excluded[UNMARKED]
            and self._markers
            and self._markers[1] in self._encoder.special.values()
        ):
            notes += (
                f"{self._markers[1]} is a special token, which trainers leave out of the text that they log: give ids",
            )
        whole = self._where is None and any(row.get(key) is not None for _, row in rows for key in _COMPLETIONS)
        prompts, pictures, source = _columns(found)
        return Reasonings(
            prompts,
            [one.reasoning for one in found],
            [one.text for one in found],
            source,
            np.array(numbers, np.int64),
            [one.answer for one in found],
            excluded,
            turns.control_tokens(),
            len(found) / (len(found) + silent) if (found or silent) and not whole else math.nan,
            marked,
            asked_for(turns.asked(rows)) if marked == 0 else "",
            whole,
            +turns.counted,
            notes,
            pictures if any(pictures) else [],
        )

    def _sample(self, number: int, said: SampledTurn | str, row: Row, turns: TurnReader) -> _Sample | str:
        """The sample of a turn, or the reason why it has none."""
        if isinstance(said, str):
            return said
        (start, end, answer_end), ids = said.spans, said.ids
        (fed, pictures), opening, reasoning = self._shown(number, said.fed, row), ids[:start], ids[start:end]
        answer = ids[end:answer_end] if answer_end is not None else []
        if not fed and not opening:
            raise BadSample(f"{self._encoder.row(number)}: the prompt is empty; every reasoning needs a prompt")
        self._encoder.require_rows(number, fed, opening, reasoning, answer)
        turns.counted["answer nothing"] += said.calls and not answer
        scored = np.array(answer, np.int64) if answer else None
        return _Sample(tuple(fed), tuple(opening), np.array(reasoning, np.int64), said.text, scored, pictures)

    def _shown(self, number: int, fed: list[int], row: Row) -> tuple[list[int], tuple[Picture, ...]]:
        """What is fed, with the row's pictures at their places."""
        if self._vision is None:
            return fed, ()
        try:
            return placed(fed, row.get("pictures") or (), self._vision)
        except ValueError as error:
            raise BadSample(f"{self._encoder.row(number)}: {error}") from error

    def _check_prompt_id(self, number: int, name: Any, key: str, named: dict[str, tuple[int, str]]) -> None:
        """Raises BadSample if rows of one prompt id have different prompts; `key`: the prompt's content key."""
        if name is None:
            return
        first, other = named.setdefault(str(name), (number, key))
        if other != key:
            raise BadSample(
                f"{self._encoder.row(number)}: the prompt's id {brief(name)} is that of row {first}, whose prompt "
                "differs; give each prompt a distinct id, or remove the column"
            )


def _columns(found: Sequence[_Sample]) -> tuple[list[np.ndarray], list[tuple[Picture, ...]], np.ndarray]:
    """The distinct prompts with the commonest opening of each, their pictures, and the prompt of each sample."""
    openings: dict[tuple[tuple[int, ...], tuple[str, ...]], Counter[tuple[int, ...]]] = {}
    for one in found:
        openings.setdefault(one.asked, Counter())[one.opening] += 1
    whole = {(fed, shown): ((*fed, *counts.most_common(1)[0][0]), shown) for (fed, shown), counts in openings.items()}
    column: dict[tuple[tuple[int, ...], tuple[str, ...]], int] = {}
    source = [column.setdefault(whole[one.asked], len(column)) for one in found]
    pictures = {whole[one.asked]: one.pictures for one in found}
    return [np.array(ids, np.int64) for ids, _ in column], [pictures[key] for key in column], np.array(source, np.int64)


def within_context(found: Reasonings, context_length: int) -> Reasonings:
    """Removes samples until every reasoning fits into `context_length` tokens under every remaining prompt. Each round
    removes either the longest prompt with its samples or the longest reasonings, whichever costs fewer samples."""
    while len(found.ids):
        sizes = np.array([len(x) for x in found.prompts])
        too_long = np.array([len(z) for z in found.ids]) + sizes.max() > context_length
        if not too_long.any():
            break
        own = found.source == sizes.argmax()
        found = found.subset(~(own if own.sum() <= too_long.sum() else too_long), TOO_LONG)
    return found


def at_most(found: Reasonings, max_prompts: int | None, seed: int) -> Reasonings:
    """A random subset of `max_prompts` prompts, with all their reasonings; None keeps all prompts."""
    if max_prompts is None or len(found.prompts) <= max_prompts:
        return found
    chosen = np.random.default_rng(seed).permutation(len(found.prompts))[:max_prompts]
    return found.subset(np.isin(found.source, chosen), NOT_DRAWN)


def notes_on(found: Reasonings, shown: int = 6, first_only: bool = False) -> Iterator[str]:
    """What to know about the samples. `first_only`: later turns cannot be samples either."""
    if control := found.control_tokens:
        named = ", ".join(f"{name} {count}" for name, count in control.most_common(shown))
        more = f", and {len(control) - shown} others" if len(control) > shown else ""
        yield f"prompts that are text are taken as already rendered; control tokens in them: {named}{more}"
    total, later, silent = (found.turns[key] for key in ("total", "later", "answer nothing"))
    if later:
        every = "" if first_only else "; turns=all scores each under its own prompt"
        yield (
            f"{later} of {total} turns ({later / total:.0%}) are left out: of a rollout the first is scored, of a "
            f"conversation the last{every}"
        )
    if silent:
        yield f"{silent} turns call tools and answer nothing; calls of tools are no answers"
    if len(found.ids) == len(found.prompts):
        yield "each prompt has one reasoning: the variety within a prompt is not known, and intervals are wide"
