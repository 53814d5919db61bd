"""The tokens of the model in a folder: ids to bytes and text, text to ids, and the ids at which a turn ends.

Only byte-level tokenizers are supported (GPT-2's alphabet: Qwen, Llama 3, DeepSeek, and the tiny policy's word pieces),
because their tokens stand for the same bytes in every context.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE

from squelch.actors.formats.protocol import Ids, Message, Parsed, Tools, ToolsRefused
from squelch.kit.text.answer_start import MARKED, AnswerStart
from squelch.kit.text.chat_template import ChatTemplate, read_chat_template, read_chat_tokenizer
from squelch.kit.text.control_tokens import TextEncoder, foreign_pieces
from squelch.kit.text.tags import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN
from squelch.kit.text.tokenizer import TOKENIZER_FILE, byte_alphabet, check_vocabulary, read_object

_MOST_COMPOSED = 4
"""Most characters that Unicode's canonical composition (NFC) makes one."""
MARKERS = (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)


def _kinds(part: dict[str, Any] | None) -> list[str]:
    """The `type` names of a tokenizer's component; for a sequence, those of its parts."""
    if part is None:
        return []
    inner = part.get("decoders", part.get("normalizers", [])) if part["type"] == "Sequence" else [part]
    return [one["type"] for one in inner]


def _end_ids(path: Path) -> list[int]:
    """The `eos_token_id` of a configuration file: one id, several, or none."""
    value = read_object(path).get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(index) is int and index >= 0 for index in ids):
        raise ValueError(f"{path}: eos_token_id={str(value)[:100]} must be a token id or a list of them")
    return ids


def _num_rows(path: Path, least: int) -> int:
    """`vocab_size` of a model's config.json, or of the language model in it; `least` if it states none."""
    stated = read_object(path)
    text = stated.get("text_config")
    size = stated.get("vocab_size", text.get("vocab_size", least) if isinstance(text, dict) else least)
    if type(size) is not int or not 0 < size < 2**31:
        raise ValueError(f"{path}: vocab_size={str(size)[:100]} must be the number of the embedding's rows")
    return size


class ModelTokens:
    """The tokens of the model in `model_dir`.

    Raises ValueError with the folder and the file if it has no fast byte-level tokenizer or no chat template.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self._dir = Path(model_dir)
        self._tokenizer = read_chat_tokenizer(self._dir)
        self._backend: Tokenizer = self._tokenizer.backend_tokenizer
        self._alphabet = byte_alphabet()
        self._added = {index: token.content for index, token in self._tokenizer.added_tokens_decoder.items()}
        self._require_byte_level()
        self.most_characters = self._most_characters()
        """As `Format.most_characters`; known of a BPE that has a token for every byte and at most composes text."""
        self.vocab_size: int = _num_rows(self._dir / "config.json", len(self._tokenizer))
        """Rows of the model's output head; at least the tokenizer's size."""
        check_vocabulary(self._dir / TOKENIZER_FILE, self._backend, self.vocab_size)
        self._template = read_chat_template(self._dir, self._tokenizer)
        self._encoder = TextEncoder(self._backend, self._template.source)
        self._pieces: dict[int, bytes] = {}
        specials = set(self._tokenizer.all_special_ids)
        self._silent = {index for index in specials if self._added.get(index) not in MARKERS}
        marked = {index for index, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        self._marked = {index for index in marked if self._added[index] not in MARKERS}
        self.stop_ids: tuple[int, ...] = ()
        """Ids that end a turn, from the tokenizer, the generation configuration and the format."""
        self.pad_id: int = 0
        """Id that pads rows of a batch; it is never attended to and never learned from."""
        self.reasoning: str = MARKED
        """Where a run records the reasoning of a turn in the model's own format (`model.reasoning`)."""
        self.answer_start: AnswerStart | None = None
        """What finds the answers before which reasoning lies."""

    @property
    def template(self) -> ChatTemplate:
        """The model's own chat template."""
        return self._template

    @property
    def backend(self) -> Tokenizer:
        """The tokenizer itself."""
        return self._backend

    def _most_characters(self) -> float:
        model, vocabulary = self._backend.model, self._backend.get_vocab(True)
        normalizer = self._backend.normalizer
        kinds = _kinds(None if normalizer is None else json.loads(normalizer.__getstate__()))
        complete = isinstance(model, BPE) and model.unk_token is None and self._alphabet.keys() <= vocabulary.keys()
        if not complete or set(kinds) - {"NFC"}:
            return math.inf
        return max(map(len, vocabulary)) * (_MOST_COMPOSED if kinds else 1)

    @property
    def encoder(self) -> TextEncoder:
        """What encodes text in which foreign parts yield no control token."""
        return self._encoder

    def special_ids(self) -> dict[str, int | None]:
        """The ids of the end of a text and of unknown text, `eos` and `unk`."""
        return {"eos": self._tokenizer.eos_token_id, "unk": self._tokenizer.unk_token_id}

    def _end_turns_with(self, ends: Sequence[int]) -> None:
        """Sets the ids that end a turn, those of the format first."""
        own = self._tokenizer.eos_token_id
        found = [*ends, *([] if own is None else [int(own)])]
        for name in ("generation_config.json", "config.json"):
            found += _end_ids(self._dir / name)
        if (largest := max(found)) >= self.vocab_size:
            raise ValueError(f"{self._dir}: eos_token_id {largest} is none of the model's {self.vocab_size} ids")
        self.stop_ids = tuple(dict.fromkeys(found))
        self._silent |= set(self.stop_ids)
        pad = self._tokenizer.pad_token_id
        self.pad_id = self.stop_ids[0] if pad is None else int(pad)

    def text(self, ids: Ids) -> str:
        """The sampled text without end-of-turn and other control tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(int(index)) for index in ids).decode("utf-8", errors="replace")

    def completion_text(self, ids: Ids) -> str:
        """As `text`, without any other token that the tokenizer marks as special: the completion as TRL gives it to a
        reward function. Markers of the reasoning stay."""
        return self.text([index for index in map(int, ids) if index not in self._marked])

    def written(self, ids: Ids) -> str:
        """As `text`, with control tokens apart from those that end a turn."""
        pieces = [b"" if int(index) in self.stop_ids else self._literal(int(index)) for index in ids]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def reasoning_of(self, sampled: Ids, said: Parsed) -> tuple[int, int]:
        """As `Format.reasoning_of`."""
        if self.reasoning == MARKED:
            return said.reasoning
        return before_answer([self.token_bytes(int(index)) for index in sampled], self.answer_start)

    def whole_answer_end(self, ids: Ids) -> int | None:
        """As `Format.answer_end` of a turn in the model's own format: the answer is all content and calls."""
        rest = [int(index) for index in ids]
        while rest and rest[-1] in self.stop_ids:
            rest.pop()
        return len(rest) if self.text(rest).replace(THINK_CLOSE, "").strip() else None

    def checked_tools(self, tools: Tools) -> list[Any] | None:
        """The schemas, None if there are none. Raises ToolsRefused for one that spells a control token, and for one
        that is no JSON."""
        if not tools:
            return None
        try:
            return json.loads(self.refuse_control(list(tools), "the schemas of tools hold"))
        except ValueError as error:
            raise ToolsRefused(str(error)) from error

    def given(self, messages: Sequence[Message], tools: Tools) -> tuple[Sequence[Message], Tools]:
        """The messages and tools with which the format has the template's text of a conversation."""
        return messages, tools

    def refuse_control(self, value: Any, where: str) -> str:
        """The value as JSON. Raises ValueError if it spells a control token, or is no JSON."""
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{where} no JSON ({error})") from error
        if found := self._encoder.matched(text):
            raise ValueError(f"{where} the control token {next(iter(found))!r}; only the text of a message may")
        return text

    def token_bytes(self, index: int) -> bytes:
        """The bytes of one token; empty for control tokens and for ids that the tokenizer does not define."""
        if index not in self._pieces:
            self._pieces[index] = b"" if index in self._silent else self._literal(index)
        return self._pieces[index]

    def check(self, texts: list[str]) -> None:
        """Raise ValueError with the words that change when a text is encoded and decoded."""
        if missing := _words_that(self._changes, texts):
            names = ", ".join(sorted(map(repr, missing))[:20])
            raise ValueError(
                f"the tokenizer of {self._dir} (tokenizer.json) cannot express {names}, which the environment uses: "
                "take a model whose tokenizer covers them, or build a tiny policy for this environment"
            )

    def unknown_words(self, texts: Iterable[str]) -> list[str]:
        """The words that the tokenizer has no tokens for, sorted, each once; a text in which it is none of the words
        counts as one. Characters that the tokenizer composes (NFC) are not unknown."""
        return sorted(_words_that(self._unknown, texts))

    def encode(self, text: str) -> np.ndarray:
        """(num_tokens,) int32, read-only: the ids of a text that the policy could have sampled, in which the markers
        are matched and no control token is. Never used for what was sampled."""
        return as_array(self._encoder.encode(foreign_pieces(text, MARKERS)))

    def _lossy(self, text: str, ids: np.ndarray) -> bool:
        unknown = self._tokenizer.unk_token_id
        spelled = b"".join(self._literal(int(index)) for index in ids).decode("utf-8", errors="replace")
        return spelled != text or (unknown is not None and unknown in ids)

    def _changes(self, text: str) -> bool:
        return self._lossy(text, self.encode(text))

    def _unknown(self, text: str) -> bool:
        return self._changes(text) and self._changes(normalize("NFC", text))

    def _literal(self, index: int) -> bytes:
        """The bytes of a token's text, also for control tokens."""
        if index in self._added:
            return self._added[index].encode()
        piece = self._backend.id_to_token(index)
        return b"" if piece is None else bytes(self._alphabet[char] for char in piece)

    def _require_byte_level(self) -> None:
        decoder = self._backend.decoder
        kinds = _kinds(None if decoder is None else json.loads(decoder.__getstate__()))
        if kinds != ["ByteLevel"]:
            raise ValueError(
                f"the tokenizer of {self._dir} decodes by {' + '.join(kinds) or 'nothing'} (tokenizer.json, "
                "`decoder`); only byte-level tokenizers (decoder ByteLevel, as Qwen2 and Llama 3 have) are supported"
            )
        pieces = self._backend.get_vocab(False).keys() - self._added.values()
        unspelled = sorted(piece for piece in pieces if not set(piece) <= self._alphabet.keys())
        if unspelled:
            raise ValueError(
                f"the tokenizer of {self._dir} has pieces outside the byte-level alphabet, such as {unspelled[0]!r} "
                "(tokenizer.json, `model.vocab`); only byte-level tokenizers are supported"
            )


def _words_that(fail: Callable[[str], bool], texts: Iterable[str]) -> set[str]:
    """The words that fail in texts that fail; a text in which no word does by itself counts as one."""
    found = set[str]()
    for text in texts:
        if fail(text):
            found |= {word for word in text.split() if fail(" " + word)} or {text}
    return found


def as_text(text: str) -> str:
    """The text with `?` for each lone surrogate, which no tokenizer can encode."""
    return text.encode(errors="replace").decode()


def as_array(ids: list[int]) -> np.ndarray:
    """(num_tokens,) int32, read-only."""
    found = np.array(ids, dtype=np.int32)
    found.setflags(write=False)
    return found


def reasoning_span(pieces: Sequence[bytes], opened: bool, opening: str, closing: str) -> tuple[int, int]:
    """(start, end) of the reasoning among the tokens whose bytes these are: those wholly between the markers.

    `opened`: whether the ids before them open the reasoning; if not, it follows the `opening` with which they begin.

    White space at either end counts as reasoning. The span is empty if there is no reasoning: behind the opening if
    only white space precedes `closing`, (0, 0) if the turn opens none, and (n, n), after all n ids, if it was never
    closed.
    """
    text = b"".join(pieces)
    if not opened and not text.lstrip().startswith(opening.encode()):
        return 0, 0
    marker = text.find(closing.encode())
    if marker < 0:
        return len(pieces), len(pieces)
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    first = 0 if opened else text.find(opening.encode()) + len(opening)
    start = int(np.searchsorted(ends, first)) + 1 if first else 0
    end = int(np.searchsorted(ends, marker, side="right"))
    blank = end <= start or not text[ends[start - 1] if start else 0 : ends[end - 1]].strip()
    return (min(start, len(pieces) - 1),) * 2 if blank else (start, end)


def before_answer(pieces: Sequence[bytes], answer: AnswerStart | None) -> tuple[int, int]:
    """(start, end) of what stands before the answer among the tokens whose bytes these are, and wholly before it;
    without an `answer`, of all with bytes. Empty as in `reasoning_span`: (n, n) if no answer begins."""
    text = b"".join(pieces).decode(errors="surrogateescape")  # each broken byte is one character
    begun = len(text) if answer is None else answer.find(text)
    if begun < 0:
        return len(pieces), len(pieces)
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    before = len(text[:begun].encode(errors="surrogateescape"))
    end = int(np.searchsorted(ends, before)) + bool(before and before in ends)  # without the end of the turn
    return (0, end) if b"".join(pieces[:end]).decode(errors="surrogateescape").strip() else (0, 0)
