"""Reads the files of `squelch score`: prompts and completions of any trainer, converted to ids that the model scores.

`rows.py` reads a file's rows, `squelch.kit.api.samples` converts them, with the model folder's tokenizer.json and its
chat template. Only the rows of the wanted step are kept, so a file of a whole run need not fit into memory.

A malformed row is refused; the error names the file and the row's number. A row that failed, or whose reasoning cannot
be scored, is counted under a reason. This module imports neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.api.completions import Where, markers_of
from squelch.kit.api.messages import BadSample, MessageRenderer, as_messages, is_messages, is_tools
from squelch.kit.api.pictures import place_of
from squelch.kit.api.samples import Reasonings, Row, SampleReader
from squelch.kit.api.turns import Turns
from squelch.kit.base.errors import UserError, as_user_error, bad_files_are_the_users
from squelch.kit.base.values import digest, known_id
from squelch.kit.readers.format import Format
from squelch.kit.readers.format_rows import LARGEST_ID, NEEDED, column_of, is_ids, is_sample, whole
from squelch.kit.readers.formats import format_named
from squelch.kit.readers.pictures import PICTURES, PLACE, VIDEOS, PictureFiles, decoded
from squelch.kit.readers.records import SUFFIXES, suffix_of
from squelch.kit.readers.rows import Rows
from squelch.kit.untrusted.decoder_process import bounded_reading
from squelch.kit.untrusted.files import brief, is_file, read_bytes, shortened, state
from squelch.kit.untrusted.text import MAX_LINE, parse_object

if TYPE_CHECKING:
    from squelch.kit.pictures.geometry import Vision

OF_TOKENS = ("logprobs", "advantage", "learned")
"""Keys that may hold a value for each token and that no score needs."""
MOST_SHOWN = 2**24
"""Ids of all prompts of a record: each turn of a long rollout shows those before it again."""


@dataclass(frozen=True)
class SampleFile:
    """The rows of one step of a file or folder. `rows`: (number, row), numbered from 1, through all files of a folder;
    `step`: None if neither rows nor names hold one; `notes`: what a reader of the results should know."""

    format: Format
    step: int | None
    rows: list[tuple[int, Row]]
    notes: list[str] = field(default_factory=list)


def read_rows(path: Path, step: int | None = None, name: str | None = None) -> list[tuple[int, Row]]:
    """(number, row) of each row of `read_samples`."""
    return read_samples(path, step, name).rows


def read_samples(
    path: Path,
    step: int | None = None,
    name: str | None = None,
    pictures: Path | None = None,
    turns: Turns = "all",
) -> SampleFile:
    """The rows of a file, or of all files in a folder; `step` selects the rows of one step, `name` is the format's,
    `pictures` the folder of pictures' paths. With `turns` first, the later turns of a long rollout have no content;
    with `turns` all, those whose prompts are too many ids are left out with a note.

    Raises:
        UserError: a row is malformed, the format is unknown or not clear, or the file has several steps, hence several
            policies, and `step` is None.
    """
    with bad_files_are_the_users(), bounded_reading(str(path)):
        if state(path) is None:
            raise UserError(f"{path} does not exist; give a file of samples with {NEEDED}")
        suffix_of(path, SUFFIXES, f"give one of {', '.join(SUFFIXES)} with {NEEDED}")
        reader = Rows(path, None if name is None else format_named(name), also=(*PICTURES, *VIDEOS), step=step)
        files, rows = PictureFiles(path, pictures), list[tuple[int, Row]]()
        of_record, shown = 0, 0
        for read in reader:
            of_record, shown = read.number, shown if read.number == of_record else 0
            row = read.row
            later = turns == "first" and row.get("turn") and "content" in row
            shown += 0 if later else row.get("shown", 0)
            if row.get("failed") is None and shown > MOST_SHOWN:
                reader.leave_out(f"in a record whose prompts have more than {MOST_SHOWN:,} ids together")
            elif row.get("untold") is not None:
                reader.leave_out(row["untold"])
            elif row.get("failed") is None:
                row = {**row, "content": None} if later else checked(whole(row), read.record, read.where)
                files.take(row, read.record, read.file, read.where)
                rows.append((read.number, {key: value for key, value in row.items() if key not in OF_TOKENS}))
            if step is None and len(reader.steps) > 1:
                rows.clear()  # refused once the steps are known
        return _of_one_step(path, step, reader, rows)


def _of_one_step(path: Path, step: int | None, reader: Rows, rows: list[tuple[int, Row]]) -> SampleFile:
    """The rows that were read; UserError if they are none, or of several steps."""
    steps, left = sorted(reader.steps), reader.notes_on_left_out()
    reasons = f" ({'; '.join(left)})" if left else ""
    if not reader.holds_rows:
        raise UserError(f"{path} holds no rows{reasons}; it needs {NEEDED}")
    if step is None and len(steps) > 1:
        raise UserError(
            f"{path} holds the steps {_some(steps)}, which different policies sampled; select one with --step, and "
            "give the weights that sampled it"
        )
    if not rows and step not in steps and step is not None:
        raise UserError(f"{path} holds no rows of step {step}; it has {_some(steps) or 'no column `step`'}")
    if not rows:
        raise UserError(f"{path} holds no rows that count{reasons}")
    assert reader.format is not None
    return SampleFile(
        reader.format,
        step if step is not None else steps[0] if steps else None,
        rows,
        [*reader.notes, *left, *_notes_on(rows)],
    )


def notes_on_file(found: SampleFile, path: Path, model: Path) -> list[str]:
    """What a reader should know of the file, and of its rows under this model."""
    notes, rule, named = list(found.notes), found.format.rule_for(path), found.format.step_of(path)
    if named is not None and found.step is not None and named != found.step:
        notes.append(f"the file's name says step {named}, and its rows say step {found.step}")
    if rule is not None and found.step is not None:
        notes += filter(None, [rule.disagreement(found.step, model)])
    if found.format.name == "trl" and found.step is not None and _evaluated(model, found.step):
        notes.append(
            f"step {found.step} was evaluated, and TRL writes evaluations under the same name: rows may be of "
            f"checkpoint-{found.step} on the evaluation's prompts"
        )
    return notes


def _evaluated(model: Path, step: int) -> bool:
    """Whether a checkpoint of Hugging Face's Trainer, in the model's place or beside it, records an evaluation at the
    step."""
    for folder in (model, model.with_name(f"checkpoint-{step}")):
        path = folder / "trainer_state.json"
        if is_file(path):
            with bad_files_are_the_users():
                history = parse_object(read_bytes(path, MAX_LINE), str(path)).get("log_history")
            entries = [one for one in history if isinstance(one, dict)] if isinstance(history, list) else []
            if any(one.get("step") == step and "eval_runtime" in one for one in entries):
                return True
    return False


def _notes_on(rows: Sequence[tuple[int, Row]]) -> Iterator[str]:
    """What the rows of one step show about themselves."""
    spans = [row["versions"] for _, row in rows if row.get("versions")]
    mixed = sum(None not in span and span[0] != span[1] for span in spans)
    if mixed:
        yield f"{mixed} of {len(rows)} rows were sampled while the weights changed; they are scored with one version"
    samplers = {str(row["sampler"]) for _, row in rows if row.get("sampler")}
    if len(samplers) > 1:
        names = shortened(", ".join(sorted(samplers)), 200)
        yield f"the rows were sampled by {len(samplers)} models ({names}), and are scored with one"
    groups: dict[bytes, set[str]] = {}
    for _, row in rows:
        if known_id(row.get("group")) and not row.get("turn"):
            prompt = row["prompt"] if row.get("prompt_ids") is None else row["prompt_ids"]
            asked = prompt, [one.digest for one in row.get("pictures") or ()]
            groups.setdefault(digest(asked), set()).add(str(row["group"]))
    twice = sum(len(names) > 1 for names in groups.values())
    if twice:
        yield f"{twice} prompts stand under more than one id; equal prompts count as one"


def _some(values: Sequence[int]) -> str:
    shown = ", ".join(shortened(str(value), 24) for value in values[:6])
    return f"{shown}, … ({len(values)} in all)" if len(values) > 6 else shown


def checked(row: Row, record: dict[str, Any], where: str) -> Row:
    """The row. UserError, which names the record's column, if a required key is missing or has a wrong type."""

    def column(key: str) -> str:
        return column_of(key, row, record)

    for key in ("prompt_ids", "reasoning_ids", "answer_ids", "completion_ids"):
        if row.get(key) is not None and not is_ids(row[key]):
            raise UserError(f"{where}: {column(key)} must be a list of token ids, whole numbers from 0 to {LARGEST_ID}")
    if row.get("reasoning") is not None and not isinstance(row["reasoning"], str):
        raise UserError(f"{where}: {column('reasoning')} is a {type(row['reasoning']).__name__}; it must be text")
    for key in ("prompt", "completion"):
        given = as_messages(row.get(key))
        if given is not None and not isinstance(given, str) and not is_messages(given):
            raise UserError(f"{where}: {column(key)} must be text or a list of messages with role and content")
        row[key] = given
    if row.get("tools") is not None and not is_tools(row["tools"]):
        raise UserError(f"{where}: `tools` must be a list of JSON schemas")
    if isinstance(row.get("prompt_id"), list | dict):
        raise UserError(f"{where}: {column('prompt_id')} is {brief(row['prompt_id'])}; it must be one text or number")
    if not is_sample({key for key, value in row.items() if value is not None}):
        names = ", ".join(f"`{name}`" + " (null)" * (record[name] is None) for name in record) or "nothing"
        raise UserError(f"{where}: holds {shortened(names, 300)}; it needs {NEEDED}")
    return row


class Reader:
    """Converts the rows of a file to ids with a model folder's tokenizer; see `squelch.kit.api.samples.SampleReader`.
    `where`: where reasonings lie; `vision`: how the model is shown pictures, None if it cannot be; `resize`: whether
    these are made to fit. ValueError if the folder has no tokenizer.json."""

    def __init__(
        self,
        path: Path,
        model_dir: Path,
        vocab_size: int,
        where: Where,
        turns: Turns = "first",
        tools: list[Any] | None = None,
        vision: Vision | None = None,
        resize: bool = False,
    ) -> None:
        from squelch.kit.text.tokenizer import TOKENIZER_FILE, check_vocabulary, read_tokenizer

        tokenizer = read_tokenizer(model_dir, of_a_stranger=True)
        check_vocabulary(model_dir / TOKENIZER_FILE, tokenizer, vocab_size)
        self._tokenizer, self._vision, self._resize, self._place = tokenizer, vision, resize, ""

        def renderer() -> MessageRenderer:
            from squelch.kit.text.chat_template import read_chat_template, read_chat_tokenizer

            template = read_chat_template(model_dir, read_chat_tokenizer(model_dir))
            return MessageRenderer(template, tokenizer, markers_of(where) or (), str(path), self._place)

        named = str(path), str(model_dir)
        self._reader = SampleReader(
            tokenizer, vocab_size, where, renderer, *named, turns=turns, tools=tools, vision=vision
        )

    def read(self, rows: Sequence[tuple[int, Row]]) -> Reasonings:
        """The samples of all rows that have a reasoning; UserError with the row for a malformed one."""
        if self._vision is not None and any(row.get("pictures") for _, row in rows):
            with as_user_error():
                self._place = place_of(self._tokenizer, self._vision)
            rows = [(number, self._with_places(row)) for number, row in decoded(rows, self._vision, self._resize)]
        with as_user_error(BadSample):
            return self._reader.read(rows)

    def _with_places(self, row: Row) -> Row:
        """The row with the model's own tokens for `<image>` in a prompt that is text, unless that has them."""
        prompt = row.get("prompt")
        marked = bool(row["pictures"]) and isinstance(prompt, str) and self._place not in prompt
        return {**row, "prompt": prompt.replace(PLACE, self._place)} if marked else row
