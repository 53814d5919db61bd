"""Reads the files of `squelch score`: prompts and reasonings of any trainer, converted to ids that the model scores.

A file is JSONL or Parquet with one reasoning per row, as text (`prompt` with `reasoning` or `completion`) or as ids
(`prompt_ids` with `reasoning_ids`). The model folder's tokenizer.json encodes text, prompt and reasoning separately;
ids are used unchanged. X ends with the opening marker of the reasoning; Z is the text between the markers.

A prompt that is text is taken as already rendered: what it spells as control tokens are control tokens, and they are
counted. In messages only the chat template writes control tokens (`score_messages.py`).

A malformed row is refused; the error names the file and the row's number. A row whose reasoning cannot be scored is
counted under a reason. This module imports neither torch nor Ray.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.actors.content import content_key
from squelch.cluster.commands.other_trainers.formats import suffix_of
from squelch.cluster.errors import UserError, bad_files_are_the_users
from squelch.envs.format import ANSWER_CLOSE
from squelch.envs.untrusted.files import brief, decoding, open_file, shortened, state
from squelch.envs.untrusted.memory import memory_of_at_most
from squelch.envs.untrusted.text import lines_of, parse_object

if TYPE_CHECKING:
    from squelch.actors.text.control_tokens import Piece

NAMES = {
    "prompt": ("prompt", "input"),
    "completion": ("completion", "output", "response"),
    "reasoning": ("reasoning",),
    "prompt_ids": ("prompt_ids",),
    "reasoning_ids": ("reasoning_ids",),
    "answer_ids": ("answer_ids",),
    "prompt_id": ("prompt_id", "group_id"),
    "step": ("step", "global_step"),
}
"""Accepted names of each column; the first name that a row has is used."""
EMPTY = "empty reasoning"
UNCLOSED = "reasoning never closed"
TEXT_BEFORE = "text before the reasoning"
TOO_LONG = "longer than the model's context"
NOT_DRAWN = "prompts beyond --max-prompts"
NEEDED = "`prompt` with `reasoning` or `completion` (text), or `prompt_ids` with `reasoning_ids`"

LARGEST_ID = 2**31 - 1
"""Tokenizers have ids of 32 bits, and no model has a vocabulary near that."""
ROWS_AT_ONCE = 1024
"""Rows of a Parquet file that are converted to Python objects at once."""

Row = dict[str, Any]


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


def read_rows(path: Path, step: int | None) -> list[tuple[int, Row]]:
    """(number, row) of each row, by the keys of NAMES; `step` selects the rows of one step.

    Raises:
        UserError: a row is malformed, or the file has several steps, hence several policies, and `step` is None.
    """
    with bad_files_are_the_users(), memory_of_at_most(str(path)):
        if state(path) is None:
            raise UserError(f"{path} does not exist; give a JSONL or Parquet file with {NEEDED}")
        suffix = suffix_of(path, (".jsonl", ".json", ".parquet"), f"give a .jsonl, .json or .parquet with {NEEDED}")
        raw = _parquet_rows(path) if suffix == ".parquet" else _json_rows(path)
        found, seen = list[tuple[int, Row]](), set[int | None]()
        for number, row in ((number, _named(path, number, row)) for number, row in raw):
            seen.add(row["step"])
            if step is None or row["step"] == step:  # a file of a whole run need not fit into memory
                found.append((number, row))
    if not seen:
        raise UserError(f"{path} holds no rows; it needs {NEEDED}")
    steps = sorted(one for one in seen if one is not None)
    if step is None and len(steps) > 1:
        raise UserError(
            f"{path} holds the steps {_some(steps)}, which different policies sampled; select one with --step, "
            "and give the weights that sampled it"
        )
    if not found:
        raise UserError(f"{path} holds no rows of step {step}; it has {_some(steps) or 'no column `step`'}")
    return found


def _some(values: Sequence[int]) -> str:
    shown = ", ".join(shortened(str(value), 24) for value in values[:6])
    return f"{shown}, … ({len(values)} in all)" if len(values) > 6 else shown


def _json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    with open_file(path) as file:
        for number, line in lines_of(file, str(path)):
            if line.strip():
                yield number, parse_object(line, f"{path}, row {number}")


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    from squelch.envs.untrusted.parquet import DAMAGED, open_parquet, row_groups

    known = {name for names in NAMES.values() for name in names}
    with open_file(path) as raw:
        file = open_parquet(raw, str(path))
        wanted = [name for name in file.schema_arrow.names if name in known]
        batches = (batch for table in row_groups(file, str(path), wanted) for batch in table.to_batches(ROWS_AT_ONCE))
        first = 1
        for batch in batches:
            with decoding(f"{path}, rows {first} to {first + len(batch) - 1}", DAMAGED):
                rows = batch.to_pylist()
            yield from enumerate(rows, first)
            first += len(rows)


def _named(path: Path, number: int, raw: Mapping[str, Any]) -> Row:
    """The row by the keys of NAMES, None for a column that it lacks. UserError if a required column is missing or has a
    wrong type."""
    row = {key: next((raw[name] for name in names if raw.get(name) is not None), None) for key, names in NAMES.items()}
    where = f"{path}, row {number}"
    for key in ("prompt_ids", "reasoning_ids", "answer_ids"):
        if row[key] is not None and not _is_ids(row[key]):
            raise UserError(f"{where}: `{key}` must be a list of token ids, whole numbers from 0 to {LARGEST_ID}")
    if row["reasoning"] is not None and not isinstance(row["reasoning"], str):
        raise UserError(f"{where}: `reasoning` is a {type(row['reasoning']).__name__}; it must be text")
    for key in ("prompt", "completion"):
        if row[key] is not None and not isinstance(row[key], str) and not _is_messages(row[key]):
            raise UserError(f"{where}: `{key}` must be text or a list of messages with role and content")
    row["step"] = _step(row["step"], where)
    if isinstance(row["prompt_id"], list | dict):
        raise UserError(f"{where}: `prompt_id` is {brief(row['prompt_id'])}; it must be one text or number")
    ids = row["prompt_ids"] is not None and row["reasoning_ids"] is not None
    text = row["prompt"] is not None and (row["reasoning"] is not None or row["completion"] is not None)
    if not (ids or text):
        names = ", ".join(f"`{name}`" for name in raw) or "nothing"
        raise UserError(f"{where}: holds {shortened(names, 300)}; it needs {NEEDED}")
    return row


def _step(value: Any, where: str) -> int | None:
    """The step as a number: tables hold it as a float if it is missing in other rows, and some trainers as text."""
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if value is None or value != value:
        return None
    if re.fullmatch(r"-?\d{1,18}(\.0*)?", text) is None:
        raise UserError(f"{where}: `step` is {brief(value)}; it must be a whole number")
    return int(text.partition(".")[0])


def _is_ids(value: Any) -> bool:
    whole = isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    return whole and all(0 <= i <= LARGEST_ID for i in value)


def _is_messages(value: Any) -> bool:
    def whole(one: Any) -> bool:
        return (
            isinstance(one, dict)
            and isinstance(one.get("role"), str)
            and all(isinstance(one.get(key) or "", str) for key in ("content", "reasoning_content"))
        )

    return isinstance(value, list) and bool(value) and all(map(whole, value))


def answer_text(text: str, closing: str) -> str | None:
    """The end of a completion from the closing of its reasoning on, through `</answer>` if it has that; None if nothing
    follows the closing."""
    _, closed, rest = text.partition(closing)
    answer, ended, _ = rest.partition(ANSWER_CLOSE)
    return closed + answer + ended if closed and answer.strip() else None


def split_completion(text: str, opening: str, closing: str) -> tuple[str | None, str | None]:
    """(reasoning, None), or (None, the reason why it cannot be scored). The opening may be in the prompt instead. White
    space before the opening is dropped; white space after it belongs to the reasoning."""
    before, opened, rest = text.partition(opening)
    if opened and before.strip():
        return None, TEXT_BEFORE
    reasoning, closed, _ = (rest if opened else text).partition(closing)
    if not closed:
        return None, UNCLOSED
    return (reasoning, None) if reasoning.strip() else (None, EMPTY)


class Reader:
    """Converts rows to ids with the tokenizer of a model folder.

    `markers`: the texts that open and close a reasoning in a completion; None uses complete completions. `vocab_size`:
    number of rows of the model's embedding. ValueError if the folder has no tokenizer.json.
    """

    def __init__(self, path: Path, model_dir: Path, vocab_size: int, markers: tuple[str, str] | None) -> None:
        from squelch.actors.text.control_tokens import TextEncoder
        from squelch.actors.text.tokenizer import read_tokenizer, unknown_id

        self._path, self._model_dir, self._vocab_size, self._markers = path, model_dir, vocab_size, markers
        self._tokenizer = read_tokenizer(model_dir, of_a_stranger=True)
        self._encoder = TextEncoder(self._tokenizer)
        self._unknown = unknown_id(self._tokenizer)
        self._encoded: dict[tuple[Piece, ...], np.ndarray] = {}
        self._rendered: dict[int, list[Piece]] = {}
        self._counted: dict[str, Counter[str]] = {}  # the control tokens of each prompt that is text

    def read(self, rows: Sequence[tuple[int, Row]]) -> Reasonings:
        """The samples of all rows that have a reasoning."""
        self._rendered = self._render(rows)
        column: dict[str, int] = {}
        prompts: list[np.ndarray] = []
        ids, texts, source, numbers, answers, excluded = [], [], [], [], [], Counter[str]()
        named: dict[str, tuple[int, str]] = {}
        for number, row in rows:
            found, why = self._sample(number, row)
            if found is None:
                excluded[str(why)] += 1
                continue
            prompt, reasoning, text = found
            key = content_key(prompt)
            self._check_prompt_id(number, row["prompt_id"], key, named)
            if key not in column:
                column[key] = len(prompts)
                prompts.append(prompt)
            source.append(column[key])
            ids.append(reasoning)
            texts.append(text)
            answers.append(self._answer(number, row))
            numbers.append(number)
        control = sum(self._counted.values(), Counter[str]())
        where = np.array(source, np.int64), np.array(numbers, np.int64)
        reasoned = len(ids) / max(1, len(ids) + excluded[EMPTY])
        return Reasonings(prompts, ids, texts, *where, answers, excluded, control, reasoned)

    def _answer(self, number: int, row: Row) -> np.ndarray | None:
        """The ids of a row's answer, with the closing of the reasoning; None if it has none that the tokenizer can
        express."""
        ids: list[int] = []
        if _has_ids(row):
            ids = row["answer_ids"] or []
        elif row["reasoning"] is None and self._markers is not None:
            text = answer_text(self._completion(row["completion"]), self._markers[1])
            ids = self._encoder.encode(self._said(row, text)) if text else []
        self._check_vocabulary(number, max(ids, default=0))
        return np.array(ids, dtype=np.int64) if len(ids) and self._unknown not in ids else None

    def _sample(self, number: int, row: Row) -> tuple[tuple[np.ndarray, np.ndarray, str] | None, str | None]:
        """((X, Z, Z's text), None), or (None, the reason why the row has no sample)."""
        if _has_ids(row):
            if not row["reasoning_ids"]:
                return None, EMPTY
            self._check_vocabulary(number, max(row["prompt_ids"], default=0), max(row["reasoning_ids"]))
            prompt, reasoning = (np.array(row[key], dtype=np.int64) for key in ("prompt_ids", "reasoning_ids"))
            text = self._tokenizer.decode(row["reasoning_ids"], skip_special_tokens=False)
        else:
            text, why = self._reasoning(row)
            if text is None:
                return None, why
            prompt = self._encode(number, self._prompt(number, row))
            self._count(row["prompt"], prompt)
            reasoning = self._encode(number, self._said(row, text))
            self._check_vocabulary(number, max(prompt, default=0), max(reasoning, default=0))
        if not len(prompt):
            raise UserError(f"{self._path}, row {number}: the prompt is empty; every reasoning needs a prompt")
        return (prompt, reasoning, text), None

    def _reasoning(self, row: Row) -> tuple[str | None, str | None]:
        text = row["reasoning"] if row["reasoning"] is not None else self._completion(row["completion"])
        if row["reasoning"] is None and self._markers is not None:
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
        from squelch.actors.text.control_tokens import foreign_pieces

        spoken = row["reasoning"] is None and not isinstance(row["completion"], str)
        return foreign_pieces(text, self._markers or ()) if spoken else [(text, False)]

    def _prompt(self, number: int, row: Row) -> list[Piece]:
        """The pieces of X, which includes a completion's opening."""
        pieces = self._rendered[number] if number in self._rendered else [(row["prompt"], False)]
        if row["reasoning"] is not None or self._markers is None or _opens(pieces, self._markers[0]):
            return pieces
        return [*pieces, (self._markers[0], False)]

    def _render(self, rows: Sequence[tuple[int, Row]]) -> dict[int, list[Piece]]:
        """The pieces of each prompt that is a list of messages, by row number."""
        spoken = [
            (number, row["prompt"]) for number, row in rows if isinstance(row["prompt"], list) and not _has_ids(row)
        ]
        if not spoken:
            return {}
        from squelch.cluster.commands.other_trainers.score_messages import MessageRenderer

        try:
            renderer = MessageRenderer(self._path, self._model_dir, self._tokenizer, self._markers or ())
        except ValueError as error:
            raise UserError(
                f"{self._path}: prompts are messages, which must be rendered, and {error}. Or give prompts as text, or "
                "as `prompt_ids`"
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
            raise UserError(
                f"{self._path}, row {number}: the tokenizer of {self._model_dir} cannot express "
                f"{brief(lost[0]) if lost else 'its white space'}; give the model that wrote the file"
            )
        return ids

    def _check_vocabulary(self, number: int, *ids: int) -> None:
        largest = int(max(ids))
        if largest >= self._vocab_size:
            raise UserError(
                f"{self._path}, row {number}: token id {str(largest)[:20]} is outside the vocabulary of "
                f"{self._model_dir}, which has ids 0 to {self._vocab_size - 1}; give the model whose tokenizer wrote "
                "the file"
            )

    def _check_prompt_id(self, number: int, name: Any, key: str, named: dict[str, tuple[int, str]]) -> None:
        """Raises UserError if rows of one prompt id have different prompts; `key`: the prompt's content key."""
        if name is None:
            return
        first, other = named.setdefault(str(name), (number, key))
        if other != key:
            raise UserError(
                f"{self._path}, row {number}: `prompt_id` {brief(name)} is that of row {first}, whose prompt differs; "
                "give each prompt a distinct id, or remove the column"
            )


def _has_ids(row: Row) -> bool:
    return row["prompt_ids"] is not None and row["reasoning_ids"] is not None


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
