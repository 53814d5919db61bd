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
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from squelch.kit.text import trial
from squelch.kit.text.script_process import Broken, answer_of
from squelch.kit.untrusted.files import (
    MAX_REASON,
    MIB,
    Unreadable,
    decoding,
    is_file,
    read_bytes,
    require_regular,
    shortened,
    size_text,
    state,
)
from squelch.kit.untrusted.text import parse_object

MAX_FILE_BYTES = 64 * MIB
TOKENIZER_FILE = "tokenizer.json"
FILES = (TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_READ_WITH_THEM = ("config.json", "generation_config.json")
_MORE_TEMPLATES = "additional_chat_templates/*.jinja"
_faults: dict[bytes, str] = {}
"""Why a tokenizer that was tried cannot be used, empty if it can, by the digest of its file."""
READ_AS_WRITTEN = {"tokenizer_class": "PreTrainedTokenizerFast", "trust_remote_code": True}
"""Entries of tokenizer_config.json with which `AutoTokenizer` reads tokenizer.json as it is written, as this project
does. Beside a Qwen2 model transformers 5 takes Qwen's tokenizer whatever class is named, and rebuilds it with Qwen's
rules for splitting text unless the second entry is there; vLLM reads through transformers. No code is run: the folder
holds none, and only the reader of tokenizer.json looks at the entry."""
DAMAGED, REMEDY = "cannot be read", "copy the model's files again"


def read_tokenizer(folder: Path, of_a_stranger: bool = False) -> Tokenizer:
    """The tokenizer in `folder`/tokenizer.json, which encodes texts completely. `of_a_stranger`: it is tried first
    (`try_tokenizer`)."""
    check_files(folder)
    path = folder / TOKENIZER_FILE
    data = read_bytes(path, MAX_FILE_BYTES)
    if of_a_stranger:
        try_tokenizer(data, str(path))
    with decoding(str(path), DAMAGED, REMEDY):
        found = Tokenizer.from_buffer(data)
    encode_completely(found)
    return found


def try_tokenizer(data: bytes, where: str) -> None:
    """Raises Unreadable, naming `where`, if a tokenizer.json cannot be loaded, encode and decode a sample in a process
    of its own with bounded memory and CPU time. For the process that first meets a stranger's file: it might not
    survive loading it."""
    digest = sha256(data).digest()
    if digest not in _faults:
        found = answer_of(trial.__file__, data, trial.MEMORY_BYTES, trial.CPU_S)
        if isinstance(found, Broken) and found.by_chance:
            raise Unreadable(f"{where} could not be tried ({found.reason}): the machine is short of time or memory")
        _faults[digest] = found.reason if isinstance(found, Broken) else found.decode(errors="replace")
    if fault := _faults[digest]:
        raise Unreadable(f"{where} {DAMAGED} ({shortened(' '.join(fault.split()), MAX_REASON)}); {REMEDY}")


def encode_completely(tokenizer: Tokenizer) -> None:
    """Switches off the settings by which a text is cut, padded, split further or encoded at random."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = False
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None


def check_files(folder: Path) -> None:
    """Raises ValueError unless tokenizer.json is there, and every tokenizer file is regular and small enough."""
    if not is_file(folder / TOKENIZER_FILE):
        raise ValueError(f"{folder} holds no tokenizer.json: give a local Hugging Face folder with a fast tokenizer")
    for path in [*(folder / name for name in (*FILES, *_READ_WITH_THEM)), *folder.glob(_MORE_TEMPLATES)]:
        found = state(path)
        if found is None:
            continue
        require_regular(path)
        if found.st_size > MAX_FILE_BYTES:
            raise Unreadable(f"{path} is larger than {size_text(MAX_FILE_BYTES)}, the most that such a file may have")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a configuration file; empty if there is no such file."""
    return {} if state(path) is None else parse_object(read_bytes(path, MAX_FILE_BYTES), str(path))


def write_settings(path: Path, settings: dict[str, Any]) -> None:
    """Writes a tokenizer_config.json with which other programs read tokenizer.json as this project does."""
    own = {name: value for name, value in settings.items() if name != "auto_map"} | READ_AS_WRITTEN
    path.write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable character -> byte; 256 entries."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + index): byte for index, byte in enumerate(rest)}
    return {chr(byte): byte for byte in printable} | shifted


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
