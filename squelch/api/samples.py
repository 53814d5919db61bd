"""Prompts and completions converted to the ids that a model scores: X, its reasonings Z, and their answers.

Each row is text (`prompt` with `reasoning` or `completion`), or ids (`prompt_ids` with `reasoning_ids` or
`completion_ids`; a `completion_ids` may also follow a prompt that is text or messages). X ends with the opening marker
of the reasoning; Z is what lies between the markers (`completions.py`).

A prompt that is text is taken as already rendered: what it spells as control tokens are control tokens, and they are
counted. In messages only the chat template writes control tokens (`messages.py`).

A malformed row is refused; the error names the row. A row whose reasoning cannot be scored is counted under a reason.
This module imports neither torch nor Ray.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from squelch.actors.content import content_key
from squelch.actors.text.control_tokens import Piece, TextEncoder, foreign_pieces
from squelch.actors.text.tokenizer import unknown_id
from squelch.api.completions import EMPTY, Markers, answer_text, split_completion, split_ids
from squelch.api.messages import BadSample, MessageRenderer
from squelch.envs.untrusted.files import brief

TOO_LONG = "longer than the model's context"
NOT_DRAWN = "prompts beyond --max-prompts"

Row = dict[str, Any]
"""One sample; None, or no key, for what it lacks:

    prompt            text as fed to the model, or messages (of any role, with `tool_calls`)
    completion        text, or messages: those of role `assistant` are turns, the others (`tool`, `user`) stand between
                      them. A message's reasoning is in its `content` between the markers, under `reasoning_content`,
                      `reasoning` or `thinking`, or a block of its `content`; its `tool_calls` are no answer
    reasoning         text of the reasoning alone
    tools             list of JSON schemas, which the chat template shows in X
    prompt_ids, reasoning_ids, answer_ids, completion_ids    lists of token ids
    completion_mask   one entry for each of `completion_ids`: 1 where the policy sampled, 0 for what it was fed between
                      its turns (TRL's `tool_mask`, others' `response_mask`)
    turn              number of the turn in its trajectory, from 0, if each turn is a row with a prompt of its own
    prompt_id         rows of one id have one prompt
"""


@dataclass(frozen=True)
class Reasonings:
    """The reasonings of a file and their prompts. `prompts`: the distinct prompts, one id sequence X_j each; `ids`: the
    reasonings Z_s; `texts`: their text; `source`: (num_samples,), index of the prompt under which each was sampled;
    `rows`: (num_samples,), row number in the file, from 1; `answers`: the ids from the closing of each reasoning to the
    end of its answer, None for a row without an answer; `excluded`: number of rows left out, by reason;
    `control_tokens`: number of control tokens, by text, in the distinct prompts of the file that are text; `reasoned`:
    share of rows with reasoning among the file's rows that closed it, whichever are left out afterwards."""

    prompts: list[np.ndarray]
    ids: list[np.ndarray]
    texts: list[str]
    source: np.ndarray
    rows: np.ndarray
    answers: list[np.ndarray | None] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)
    control_tokens: Counter[str] = field(default_factory=Counter)
    reasoned: float = math.nan

    def subset(self, keep: np.ndarray, reason: str) -> Reasonings:
        """The samples that `keep` (num_samples,), bool, selects, and their prompts; the other samples are counted as
        excluded for `reason`."""
        left = np.flatnonzero(keep)
        columns = np.unique(self.source[left])
        excluded = self.excluded + Counter({reason: len(keep) - len(left)})
        return Reasonings(
            [self.prompts[j] for j in columns],
            [self.ids[s] for s in left],
            [self.texts[s] for s in left],
            np.searchsorted(columns, self.source[left]),
            self.rows[left],
            [self.answers[s] for s in left],
            excluded,
            self.control_tokens,
            self.reasoned,
        )


class _Sample(NamedTuple):
    prompt: np.ndarray
    reasoning: np.ndarray
    text: str
    answer: np.ndarray | None


class SampleReader:
    """Converts rows to ids with a tokenizer, which encodes texts completely (`actors.text.tokenizer`).

    `vocab_size`: number of rows of the model's embedding. `markers`: the texts that open and close a reasoning in a
    completion; None uses complete completions. `renderer`: makes what renders messages; ValueError if nothing can.
    `where`, `model`: the source of the rows and the model, as errors name them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        markers: Markers | None,
        renderer: Callable[[], MessageRenderer],
        where: str = "",
        model: str = "the model",
    ) -> None:
        self._tokenizer, self._vocab_size, self._markers = tokenizer, vocab_size, markers
        self._renderer, self._where, self._model = renderer, where, model
        self._encoder = TextEncoder(tokenizer)
        self._unknown = unknown_id(tokenizer)
        self._special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._encoded: dict[tuple[Piece, ...], np.ndarray] = {}
        self._rendered: dict[int, list[Piece]] = {}
        self._counted: dict[str, Counter[str]] = {}  # the control tokens of each prompt that is text

    def read(self, rows: Sequence[tuple[int, Row]]) -> Reasonings:
        """The samples of all rows that have a reasoning; `rows`: (number, row). BadSample for a malformed one."""
        self._encoded, self._counted = {}, {}
        self._rendered = self._render(rows)
        column: dict[str, int] = {}
        prompts: list[np.ndarray] = []
        ids, texts, source, numbers, answers, excluded = [], [], [], [], [], Counter[str]()
        named: dict[str, tuple[int, str]] = {}
        for number, row in rows:
            found = self._sample(number, row)
            if isinstance(found, str):
                excluded[found] += 1
                continue
            key = content_key(found.prompt)
            self._check_prompt_id(number, row.get("prompt_id"), key, named)
            if key not in column:
                column[key] = len(prompts)
                prompts.append(found.prompt)
            source.append(column[key])
            ids.append(found.reasoning)
            texts.append(found.text)
            answers.append(found.answer)
            numbers.append(number)
        control = sum(self._counted.values(), Counter[str]())
        where = np.array(source, np.int64), np.array(numbers, np.int64)
        reasoned = len(ids) / max(1, len(ids) + excluded[EMPTY])
        return Reasonings(prompts, ids, texts, *where, answers, excluded, control, reasoned)

    def _sample(self, number: int, row: Row) -> _Sample | str:
        """The sample of a row, or the reason why it has none."""
        found = self._sample_of_ids(number, row) if _has_ids(row) else self._sample_of_text(number, row)
        if not isinstance(found, str) and not len(found.prompt):
            raise BadSample(f"{self._row(number)}: the prompt is empty; every reasoning needs a prompt")
        return found

    def _sample_of_ids(self, number: int, row: Row) -> _Sample | str:
        before, said = self._fed(number, row), row.get("completion_ids")
        if said is None:
            reasoning, answer = row["reasoning_ids"], row.get("answer_ids")
        else:
            parts = self._split(list(said))
            if isinstance(parts, str):
                return parts
            opening, reasoning, answer = parts
            before = [*before, *opening]
        if not len(reasoning):
            return EMPTY
        self._check_vocabulary(number, max(before, default=0), max(reasoning), max(answer or [0]))
        prompt, ids = np.array(before, dtype=np.int64), np.array(reasoning, dtype=np.int64)
        return _Sample(prompt, ids, self._decode(list(reasoning)), self._scorable(answer))

    def _fed(self, number: int, row: Row) -> Sequence[int]:
        """The ids that a row's completion was sampled after; those of the opening may be missing."""
        if row.get("prompt_ids") is not None:
            return row["prompt_ids"]
        pieces = self._rendered[number] if number in self._rendered else [(row["prompt"], False)]
        ids = self._encode(number, pieces)
        self._count(row["prompt"], ids)
        return ids.tolist()

    def _split(self, said: list[int]) -> tuple[list[int], list[int], list[int] | None] | str:
        """(opening, reasoning, answer) of a completion's ids, without control tokens at its end; or why there are
        none."""
        while said and said[-1] in self._special:
            said = said[:-1]
        if self._markers is None:
            return ([], said, None) if self._decode(said).strip() else EMPTY
        spans = split_ids(said, self._decode, self._markers)
        if isinstance(spans, str):
            return spans
        answer = None if spans.answer_end is None else said[spans.end : spans.answer_end]
        return said[: spans.start], said[spans.start : spans.end], answer

    def _sample_of_text(self, number: int, row: Row) -> _Sample | str:
        text, why = self._reasoning(row)
        if text is None:
            return str(why)
        prompt = self._encode(number, self._prompt(number, row))
        self._count(row["prompt"], prompt)
        reasoning = self._encode(number, self._said(row, text))
        self._check_vocabulary(number, max(prompt, default=0), max(reasoning, default=0))
        return _Sample(prompt, reasoning, text, self._answer(number, row))

    def _answer(self, number: int, row: Row) -> np.ndarray | None:
        """The ids of a text's answer, with the closing of the reasoning; None if it has none that the tokenizer can
        express."""
        if row.get("reasoning") is not None or self._markers is None:
            return None
        text = answer_text(self._completion(row["completion"]), self._markers[1])
        ids = self._encoder.encode(self._said(row, text)) if text else []
        self._check_vocabulary(number, max(ids, default=0))
        return self._scorable(ids)

    def _scorable(self, answer: Sequence[int] | None) -> np.ndarray | None:
        return np.array(answer, dtype=np.int64) if answer and self._unknown not in answer else None

    def _reasoning(self, row: Row) -> tuple[str | None, str | None]:
        given = row.get("reasoning")
        text = given if given is not None else self._completion(row["completion"])
        if given is None and self._markers is not None:
            return split_completion(text, *self._markers)
        return (text, None) if text.strip() else (None, EMPTY)

    def _completion(self, completion: str | list[dict[str, Any]]) -> str:
        """The text of a completion. Of several messages only the first counts, because later messages depend on the
        messages between. If a parser has moved the reasoning to `reasoning_content`, it is put back."""
        if isinstance(completion, str):
            return completion
        content, reasoning = (completion[0].get(key) or "" for key in ("content", "reasoning_content"))
        if not reasoning:
            return content
        return reasoning + content if self._markers is None else reasoning.join(self._markers) + content

    def _said(self, row: Row, text: str) -> list[Piece]:
        """The pieces of a reasoning. A message's content spells no control tokens, text as logged may."""
        spoken = row.get("reasoning") is None and not isinstance(row["completion"], str)
        return foreign_pieces(text, self._markers or ()) if spoken else [(text, False)]

    def _prompt(self, number: int, row: Row) -> list[Piece]:
        """The pieces of X, which includes a completion's opening."""
        pieces = self._rendered[number] if number in self._rendered else [(row["prompt"], False)]
        if row.get("reasoning") is not None or self._markers is None or _opens(pieces, self._markers[0]):
            return pieces
        return [*pieces, (self._markers[0], False)]

    def _render(self, rows: Sequence[tuple[int, Row]]) -> dict[int, list[Piece]]:
        """The pieces of each prompt that is a list of messages, by row number."""
        spoken = [
            (number, row["prompt"])
            for number, row in rows
            if row.get("prompt_ids") is None and isinstance(row["prompt"], list)
        ]
        if not spoken:
            return {}
        try:
            renderer = self._renderer()
        except ValueError as error:
            raise BadSample(
                f"{self._where or 'row ' + str(spoken[0][0])}: prompts are messages, which must be rendered, and "
                f"{error}. Or give prompts as text, or as ids"
            ) from error
        first: dict[str, int] = {}  # the row that had the same messages first
        same = {number: first.setdefault(json.dumps(messages), number) for number, messages in spoken}
        found = dict(renderer.render([(number, messages) for number, messages in spoken if same[number] == number]))
        return {number: found[same[number]] for number, _ in spoken}

    def _count(self, prompt: str | list[dict[str, Any]], ids: np.ndarray) -> None:
        """Counts the control tokens of a prompt that is text, once; the markers of the reasoning are none."""
        if isinstance(prompt, str) and prompt not in self._counted:
            names = (self._encoder.control.get(index) for index in ids.tolist())
            self._counted[prompt] = Counter(name for name in names if name and name not in (self._markers or ()))

    def _encode(self, number: int, pieces: Sequence[Piece]) -> np.ndarray:
        """The ids of a text, (num_tokens,) int64, without special tokens at its ends."""
        key, text = tuple(pieces), "".join(piece for piece, _ in pieces)
        if key not in self._encoded:
            self._encoded[key] = np.array(self._encoder.encode(pieces), dtype=np.int64)
        ids = self._encoded[key]
        if self._unknown is not None and self._unknown in ids:
            lost = [word for word in text.split() if self._unknown in self._tokenizer.encode(word).ids]
            raise BadSample(
                f"{self._row(number)}: the tokenizer of {self._model} cannot express "
                f"{brief(lost[0]) if lost else 'its white space'}; give the model that wrote the text"
            )
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _row(self, number: int) -> str:
        return f"{self._where}, row {number}" if self._where else f"row {number}"

    def _check_vocabulary(self, number: int, *ids: int) -> None:
        largest = int(max(ids))
        if largest >= self._vocab_size:
            raise BadSample(
                f"{self._row(number)}: token id {str(largest)[:20]} is outside the vocabulary of {self._model}, which "
                f"has ids 0 to {self._vocab_size - 1}; give the model whose tokenizer wrote the rows"
            )

    def _check_prompt_id(self, number: int, name: Any, key: str, named: dict[str, tuple[int, str]]) -> None:
        """Raises BadSample if rows of one prompt id have different prompts; `key`: the prompt's content key."""
        if name is None:
            return
        first, other = named.setdefault(str(name), (number, key))
        if other != key:
            raise BadSample(
                f"{self._row(number)}: `prompt_id` {brief(name)} is that of row {first}, whose prompt differs; "
                "give each prompt a distinct id, or remove the column"
            )


def _has_ids(row: Row) -> bool:
    """Whether the row's reasoning is given as ids."""
    split = row.get("prompt_ids") is not None and row.get("reasoning_ids") is not None
    return split or row.get("completion_ids") is not None


def _opens(pieces: Sequence[Piece], marker: str) -> bool:
    """Whether a prompt ends with the opening of the reasoning, which a message's content cannot write."""
    text, foreign = pieces[-1] if pieces else ("", True)
    return not foreign and text.rstrip().endswith(marker)


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
