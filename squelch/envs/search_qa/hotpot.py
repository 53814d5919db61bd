"""Questions and passages of HotpotQA's published form (Yang et al. 2018): Parquet, JSON, or its id on the hub.

The columns are `question`, `answer`, `context` (`title`: one per paragraph, `sentences`: one list per paragraph) and
`supporting_facts` (`title`, `sent_id`); in the authors' own JSON files the last two are lists of pairs. Published
splits are used as they are; the published `test` has no answers and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Field, model_validator

from squelch.envs.data.files import UnknownSplitError, find_files
from squelch.envs.data.rows import Part, Rows, read_rows, split_rows
from squelch.envs.retrieval import Index, Passage, open_index
from squelch.envs.retrieval.index import file_identity
from squelch.envs.search_qa.questions import Question
from squelch.kit.records.splits import Split, task_key_of

PUBLISHED_SPLITS = ("train", "validation")


def _columns(value: Any, names: tuple[str, str]) -> Any:
    """A list of pairs as a mapping of two lists; any other value unchanged, which its model then checks."""
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == len(names) for pair in value):
        return {name: [pair[place] for pair in value] for place, name in enumerate(names)}
    return value


class Context(BaseModel):
    """The paragraphs that come with a question."""

    title: list[str] = []
    sentences: list[list[str]] = []

    @model_validator(mode="before")
    @classmethod
    def _of_pairs(cls, value: Any) -> Any:
        return _columns(value, ("title", "sentences"))


class SupportingFacts(BaseModel):
    """The paragraphs that lead to the answer; a title occurs once per sentence."""

    title: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _of_pairs(cls, value: Any) -> Any:
        return _columns(value, ("title", "sent_id"))


class QuestionRow(BaseModel):
    """One row without its context, which is read separately because it is most of the file."""

    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    supporting_facts: SupportingFacts = SupportingFacts()


class ContextRow(BaseModel):
    """The context of a row."""

    context: Context


class HotpotQuestions:
    """The questions of one split; a question of the published validation split is never trained on."""

    def __init__(self, source: str, subset: str | None, split: Split) -> None:
        self._rows: Part[QuestionRow] = split_rows(source, split, QuestionRow, "question", subset)

    def __len__(self) -> int:
        return len(self._rows)

    def question(self, seed: int) -> Question:
        """The question of `seed`; consecutive seeds use each question once before any is repeated."""
        row = self._rows[seed % len(self._rows)]
        hops = tuple(dict.fromkeys(row.supporting_facts.title))
        return Question(row.question, row.answer, hops, task_key_of("SearchQA", row.question))


def open_contexts(source: str, subset: str | None, cache: str | None) -> Index:
    """The index of every paragraph that comes with a question of any split, each once."""
    identity = "\n".join(file_identity(find_files(source, split, subset)) for split in _splits(source, subset))
    return open_index("contexts", identity, lambda: _paragraphs(source, subset), cache)


def _splits(source: str, subset: str | None) -> list[str]:
    return [split for split in PUBLISHED_SPLITS if _has(source, split, subset)]


def _has(source: str, split: str, subset: str | None) -> bool:
    try:
        find_files(source, split, subset)
    except UnknownSplitError:
        if split == PUBLISHED_SPLITS[0]:
            raise
        return False
    return True


def _paragraphs(source: str, subset: str | None) -> Iterator[Passage]:
    seen: set[str] = set()
    for split in _splits(source, subset):
        rows: Rows[ContextRow] = read_rows(source, split, ContextRow, subset)
        for index, row in enumerate(rows):
            titles, paragraphs = row.context.title, row.context.sentences
            if len(titles) != len(paragraphs):
                where = f"{rows.location(index)}, column context"
                raise ValueError(f"{where}: {len(titles)} titles for {len(paragraphs)} paragraphs; need one each")
            for title, sentences in zip(titles, paragraphs, strict=True):
                text = "".join(sentences).strip()
                digest = task_key_of(title, text)
                if digest not in seen:
                    seen.add(digest)
                    yield Passage(digest, title, text)
