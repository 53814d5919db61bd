"""Loads a model folder's tokenizer and the JSON files beside it. No other module loads them.

Invariants:

- A tokenizer encodes the whole text, nothing else, and always alike. A folder's own `truncation`, `padding`,
  `split_special_tokens` and BPE `dropout` are switched off: the first two would silently cut what an environment shows.
- Only regular files are read, of at most `MAX_FILE_BYTES` each.
- No two tokens share an id, and every id has a row in the model's embedding (`check_vocabulary`).

A folder that breaks them is refused: ValueError with the file, the fault and what would be right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

MAX_FILE_BYTES = 64 * 2**20
TOKENIZER_FILE = "tokenizer.json"
FILES = (TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_READ_WITH_THEM = ("config.json", "generation_config.json")
_MORE_TEMPLATES = "additional_chat_templates/*.jinja"
_SHOWN = 200
"""Characters of a library's error message that are shown; it may quote the file."""


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`/tokenizer.json, which encodes texts completely."""
    check_files(folder)
    try:
        found = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    except Exception as error:  # the library raises no narrower class
        raise unreadable(folder / TOKENIZER_FILE, error) from error
    encode_completely(found)
    return found


def encode_completely(tokenizer: Tokenizer) -> None:
    """Switches off the settings by which a text is cut, padded, split further or encoded at random."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = False
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None


def check_files(folder: Path) -> None:
    """Raises ValueError unless tokenizer.json is there, and every tokenizer file is regular and small enough."""
    if not (folder / TOKENIZER_FILE).is_file():
        raise ValueError(f"{folder} holds no tokenizer.json: give a local Hugging Face folder with a fast tokenizer")
    for path in [*(folder / name for name in (*FILES, *_READ_WITH_THEM)), *folder.glob(_MORE_TEMPLATES)]:
        if path.exists():
            check_file(path)


def check_file(path: Path) -> None:
    """Raises ValueError unless `path` is a regular file of at most `MAX_FILE_BYTES`."""
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file; give the file itself")
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise ValueError(
            f"{path} has {size / 2**20:.0f} MiB; tokenizer and configuration files have at most "
            f"{MAX_FILE_BYTES // 2**20} MiB"
        )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a configuration file; empty if there is no such file."""
    if not path.exists():
        return {}
    check_file(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error) from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a JSON {type(found).__name__}; it must be an object")
    return found


def unreadable(path: Path, error: Exception) -> ValueError:
    """The error of a file, or of a folder's tokenizer files, that cannot be parsed."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return ValueError(f"{path} cannot be read ({reason[:_SHOWN]}); copy the model's files again")


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id with which the tokenizer's model stands for text that it does not know; None if it has none."""
    model = tokenizer.model
    if isinstance(model, models.Unigram):
        return json.loads(tokenizer.to_str())["model"].get("unk_id")  # Unigram has no attribute for it
    name = model.unk_token if isinstance(model, models.BPE | models.WordLevel | models.WordPiece) else None
    return None if name is None else tokenizer.token_to_id(name)


def check_vocabulary(path: Path, tokenizer: Tokenizer, num_rows: int) -> None:
    """Raises ValueError unless every token has an id of its own, below the model's `num_rows` rows."""
    names: dict[int, str] = {}
    for name, index in tokenizer.get_vocab(with_added_tokens=True).items():
        if index in names:
            raise ValueError(f"{path} gives the id {index} to both {names[index]!r} and {name!r}; each needs its own")
        names[index] = name
    largest = max(names, default=0)
    if largest >= num_rows:
        raise ValueError(
            f"{path} has the token {names[largest]!r} with id {largest}, and config.json says vocab_size={num_rows}: "
            "the model has no row for it; give the tokenizer that belongs to the model"
        )
