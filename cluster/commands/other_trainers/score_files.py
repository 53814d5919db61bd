"""Reads the files of `squelch score`: prompts and reasonings of any trainer, converted to ids that the model scores.

A file is JSONL or Parquet with one reasoning per row, as text (`prompt` with `reasoning` or `completion`) or as ids
(`prompt_ids` with `reasoning_ids` or `completion_ids`). `squelch.api.samples` converts the rows, with the model
folder's tokenizer.json and its chat template.

A malformed row is refused; the error names the file and the row's number. A row whose reasoning cannot be scored is
counted under a reason. This module imports neither torch nor Ray.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from squelch.api.completions import Markers
from squelch.api.messages import BadSample, MessageRenderer, is_messages, is_tools, without_nulls
from squelch.api.samples import Reasonings, Row, SampleReader
from squelch.api.turns import Turns
from squelch.cluster.commands.other_trainers.formats import suffix_of
from squelch.cluster.errors import UserError, bad_files_are_the_users
from squelch.envs.untrusted.files import brief, decoding, open_file, shortened, state
from squelch.envs.untrusted.memory import memory_of_at_most
from squelch.envs.untrusted.text import lines_of, parse_object

NAMES = {
    "prompt": ("prompt", "input"),
    "completion": ("completion", "output", "response"),
    "reasoning": ("reasoning",),
    "prompt_ids": ("prompt_ids",),
    "reasoning_ids": ("reasoning_ids",),
    "answer_ids": ("answer_ids",),
    "tools": ("tools",),
    "completion_ids": ("completion_ids",),
    "prompt_id": ("prompt_id", "group_id"),
    "step": ("step", "global_step"),
}
"""Accepted names of each column; the first name that a row has is used."""
NEEDED = "`prompt` with `reasoning` or `completion` (text), or `prompt_ids` with `reasoning_ids` or `completion_ids`"

LARGEST_ID = 2**31 - 1
"""Tokenizers have ids of 32 bits, and no model has a vocabulary near that."""
ROWS_AT_ONCE = 1024
"""Rows of a Parquet file that are converted to Python objects at once."""


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
                rows = without_nulls(batch.to_pylist())
            yield from enumerate(rows, first)
            first += len(rows)


def _named(path: Path, number: int, raw: Mapping[str, Any]) -> Row:
    """The row by the keys of NAMES, None for a column that it lacks. UserError if a required column is missing or has a
    wrong type."""
    row = {key: next((raw[name] for name in names if raw.get(name) is not None), None) for key, names in NAMES.items()}
    where = f"{path}, row {number}"
    for key in ("prompt_ids", "reasoning_ids", "answer_ids", "completion_ids"):
        if row[key] is not None and not _is_ids(row[key]):
            raise UserError(f"{where}: `{key}` must be a list of token ids, whole numbers from 0 to {LARGEST_ID}")
    if row["reasoning"] is not None and not isinstance(row["reasoning"], str):
        raise UserError(f"{where}: `reasoning` is a {type(row['reasoning']).__name__}; it must be text")
    for key in ("prompt", "completion"):
        if row[key] is not None and not isinstance(row[key], str) and not is_messages(row[key]):
            raise UserError(f"{where}: `{key}` must be text or a list of messages with role and content")
    if row["tools"] is not None and not is_tools(row["tools"]):
        raise UserError(f"{where}: `tools` must be a list of JSON schemas")
    row["step"] = _step(row["step"], where)
    if isinstance(row["prompt_id"], list | dict):
        raise UserError(f"{where}: `prompt_id` is {brief(row['prompt_id'])}; it must be one text or number")
    split = row["prompt_ids"] is not None and row["reasoning_ids"] is not None
    whole = (row["prompt"] is not None or row["prompt_ids"] is not None) and row["completion_ids"] is not None
    text = row["prompt"] is not None and (row["reasoning"] is not None or row["completion"] is not None)
    if not (split or whole or text):
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


class Reader:
    """Converts the rows of a file to ids with a model folder's tokenizer; see `squelch.api.samples.SampleReader`.
    ValueError if the folder has no tokenizer.json."""

    def __init__(
        self,
        path: Path,
        model_dir: Path,
        vocab_size: int,
        markers: Markers | None,
        turns: Turns = "first",
        tools: list[Any] | None = None,
    ) -> None:
        from squelch.actors.text.tokenizer import TOKENIZER_FILE, check_vocabulary, read_tokenizer

        tokenizer = read_tokenizer(model_dir, of_a_stranger=True)
        check_vocabulary(model_dir / TOKENIZER_FILE, tokenizer, vocab_size)

        def renderer() -> MessageRenderer:
            from squelch.actors.text.chat_template import read_chat_template, read_chat_tokenizer

            template = read_chat_template(model_dir, read_chat_tokenizer(model_dir))
            return MessageRenderer(template, tokenizer, markers or (), str(path))

        where = str(path), str(model_dir)
        self._reader = SampleReader(tokenizer, vocab_size, markers, renderer, *where, turns=turns, tools=tools)

    def read(self, rows: Sequence[tuple[int, Row]]) -> Reasonings:
        """The samples of all rows that have a reasoning; UserError with the row for a malformed one."""
        try:
            return self._reader.read(rows)
        except BadSample as error:
            raise UserError(str(error)) from error
