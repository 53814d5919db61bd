"""The caller's tokenizer, prompts and completions, as `squelch.kit.api.samples` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from tokenizers import Tokenizer, models

from squelch.kit.api.arrays import token_ids
from squelch.kit.api.completions import Where, markers_of
from squelch.kit.api.messages import MessageRenderer, as_messages, is_messages
from squelch.kit.api.samples import SampleReader
from squelch.kit.api.turns import Row, Turns
from squelch.kit.text.chat_template import read_chat_template
from squelch.kit.text.tokenizer import encode_completely


def rows_of(
    prompts: Any, completions: Any, reasonings: Any = None, answers: Any = None, masks: Any = None
) -> list[tuple[int, Row]]:
    """(index, row) of each sample; arguments as of `squelch.score`. ValueError names the argument and the row."""
    if (completions is None) == (reasonings is None):
        raise ValueError("give either `completions`, or `reasonings` that are already cut out of them")
    if answers is not None and reasonings is None:
        raise ValueError("`answers` go with `reasonings`; those of `completions` are found in them")
    if masks is not None and completions is None:
        raise ValueError("`masks` go with `completions` that are token ids")
    said = completions if completions is not None else reasonings
    columns = {"prompts": prompts, "completions" if reasonings is None else "reasonings": said, "answers": answers}
    columns["masks"] = masks
    lists = {name: _listed(name, value) for name, value in columns.items() if value is not None}
    sizes = {name: len(rows) for name, rows in lists.items()}
    if len(set(sizes.values())) > 1 or not sizes["prompts"]:
        counted = ", ".join(f"{size} `{name}`" for name, size in sizes.items())
        raise ValueError(f"{counted}; each row needs one of each, so repeat a prompt for each of its completions")
    return [(index, _row({name: rows[index] for name, rows in lists.items()}, index)) for index in range(len(prompts))]


def _listed(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"`{name}` is a {type(value).__name__}; it must hold one entry for each sample")
    return list(value)


def _row(given: dict[str, Any], index: int) -> Row:
    row: Row = {}
    for name, value in given.items():
        key, where = name.removesuffix("s"), f"{name}[{index}]"
        value = as_messages(value) if name in ("prompts", "completions") else value
        spoken = name in ("prompts", "completions") and is_messages(value)
        if spoken or (isinstance(value, str) and name != "answers"):
            row[key] = value
        elif value is None and name in ("answers", "masks"):
            continue
        elif name == "masks":
            row["completion_mask"] = token_ids(where, value).tolist()
        else:
            row[f"{key}_ids"] = token_ids(where, value).tolist()
    if "completion_mask" in row and "completion_ids" not in row:
        raise ValueError(f"row {index}: `masks` go with `completions` that are token ids")
    said, fed = "completion" in row or "reasoning" in row, "prompt" in row
    if said != fed and "completion_ids" not in row:
        raise ValueError(
            f"row {index}: the prompt is {'text' if fed else 'ids'} and the rest is not; text goes with text, and ids "
            "with ids"
        )
    return row


def reader_of(
    tokenizer: Any, vocab_size: int, where: Where, turns: Turns = "first", tools: Sequence[Any] | None = None
) -> SampleReader:
    """What converts rows with the caller's tokenizer, which stays as it is. `where`: where reasonings lie; the others
    are as of `squelch.score`.

    Raises ValueError for a tokenizer that is not fast, or has a token for which the model has no row, and for arguments
    of another form.
    """
    if turns not in get_args(Turns):
        raise ValueError(f"`turns` is {turns!r}; it must be one of {', '.join(get_args(Turns))}")
    if tools is not None and not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError("`tools` must be a list of JSON schemas, as the chat template shows them")
    own = complete(tokenizer)
    name, largest = max(own.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    if largest >= vocab_size:
        raise ValueError(
            f"the tokenizer has the token {name!r} with id {largest}, and the model has rows for the ids 0 to "
            f"{vocab_size - 1}; give the tokenizer that belongs to the model"
        )

    def renderer() -> MessageRenderer:
        if not hasattr(tokenizer, "chat_template"):
            raise ValueError("the tokenizer has no chat template")
        folder = Path(getattr(tokenizer, "name_or_path", "") or "the tokenizer")
        return MessageRenderer(read_chat_template(folder, tokenizer), own, markers_of(where) or ())

    schemas = [dict(tool) for tool in tools or []] or None
    return SampleReader(own, vocab_size, where, renderer, turns=turns, tools=schemas)


def complete(tokenizer: Any) -> Tokenizer:
    """The tokenizer behind one of transformers, or behind a processor; a copy if it would cut, pad or split texts."""
    inner = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if inner is None and hasattr(tokenizer, "tokenizer"):
        return complete(tokenizer.tokenizer)
    if not isinstance(inner, Tokenizer):
        raise ValueError(
            f"`tokenizer` is a {type(tokenizer).__name__}; a fast tokenizer is needed, of transformers or of tokenizers"
        )
    drops = isinstance(inner.model, models.BPE) and inner.model.dropout
    if inner.truncation is None and inner.padding is None and not inner.encode_special_tokens and not drops:
        return inner
    own = Tokenizer.from_str(inner.to_str())
    encode_completely(own)
    return own
