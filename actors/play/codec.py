"""Codec between an episode's messages and the exact ids that a policy is fed and samples.

Invariants:

- Sampled ids are never decoded and encoded again. An episode's sequence is
  `first_turn | sampled | next_turn | sampled | ...`; each part is encoded once, separately.
- X of a turn is all ids up to and including the opening of the reasoning, `<think>`, which the codec appends.
- `next_turn` is rendered by the model's own chat template: the template is rendered with a sentinel in place of the
  sampled text, and the text after the sentinel is the next turn. So a template that rewrites earlier turns (for
  example, one that strips old reasoning) does not change the sequence. A template whose continuation depends on earlier
  turns is refused.
- Spans are found on bytes, so a token that contains a part of `</think>` belongs to the marker, not to the reasoning.

Only byte-level tokenizers are supported (GPT-2's alphabet: Qwen, Llama 3, and the tiny policy's word pieces), because
their tokens stand for the same bytes in every context. Nothing here waits.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

Message = dict[str, str]

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
MARKERS = (THINK_OPEN, THINK_CLOSE, "<answer>", "</answer>")
_SENTINEL = "squelchsentinel"
_CACHED_TURNS = 4096


def byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable character -> byte; 256 entries."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + index): byte for index, byte in enumerate(rest)}
    return {chr(byte): byte for byte in printable} | shifted


def _kinds(part: dict[str, Any] | None) -> list[str]:
    """The `type` names of a tokenizer's component; for a sequence, those of its parts."""
    if part is None:
        return []
    inner = part.get("decoders", []) if part["type"] == "Sequence" else [part]
    return [one["type"] for one in inner]


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _as_ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


class ChatCodec:
    """Encodes an episode's messages for the policy in one model folder, and decodes its sampled ids.

    Raises ValueError with the folder and the file if the folder has no fast byte-level tokenizer, no chat template, or
    a template that cannot be continued turn by turn.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self._dir = Path(model_dir)
        if not (self._dir / "tokenizer.json").is_file():
            raise ValueError(
                f"{self._dir} holds no tokenizer.json: give a local Hugging Face folder with a fast tokenizer"
            )
        # Not AutoTokenizer: for some architectures (such as Qwen2) it replaces the pre-tokenizer and the decoder in
        # tokenizer.json, with which the policy was trained, by those of its class.
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(str(self._dir), local_files_only=True)
        self._backend: Tokenizer = self._tokenizer.backend_tokenizer
        self._alphabet = byte_alphabet()
        self._added = {index: token.content for index, token in self._tokenizer.added_tokens_decoder.items()}
        self._require_byte_level()
        self._require_template()
        self._pieces: dict[int, bytes] = {}
        specials = set(self._tokenizer.all_special_ids)
        self._silent = {index for index in specials if self._added.get(index) not in MARKERS}
        self._end_id = self._turn_end()
        self.stop_ids: tuple[int, ...] = self._find_stop_ids()
        """Ids that end a turn, from the tokenizer, the generation configuration and the chat template."""
        self._silent |= set(self.stop_ids)
        config = _read_json(self._dir / "config.json")
        self.vocab_size: int = int(config.get("vocab_size", len(self._tokenizer)))
        """Rows of the model's output head; at least the tokenizer's size."""
        pad = self._tokenizer.pad_token_id
        self.pad_id: int = self.stop_ids[0] if pad is None else int(pad)
        """Id that pads rows of a batch; it is never attended to and never learned from."""
        self._between = lru_cache(maxsize=_CACHED_TURNS)(self._encode_between)

    # --- what is fed ---

    def first_turn(self, messages: list[Message]) -> np.ndarray:
        """(num_tokens,) int32: the rendered messages, the generation prompt and the opening of the reasoning."""
        return self.encode(self._open_reasoning(self._render(messages)))

    def next_turn(self, message: Message, closed: bool) -> np.ndarray:
        """(num_tokens,) int32: the ids that are fed between two sampled turns.

        `closed`: whether the sampled turn ended with one of `stop_ids`, which replaces the template's end of turn. If
        it did not, the ids begin with the end of turn.
        """
        ids = self._between(message["role"], message["content"])
        return ids[1:] if closed else ids

    # --- what was sampled ---

    def text(self, ids: np.ndarray | list[int]) -> str:
        """The sampled text without end-of-turn and other control tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(int(index)) for index in ids).decode("utf-8", errors="replace")

    def reasoning_span(self, ids: np.ndarray | list[int]) -> tuple[int, int]:
        """(start, end) of the reasoning among the sampled ids: the ids whose bytes all precede `</think>`.

        White space at either end counts as reasoning. The span is empty if there is no reasoning: (0, 0) if only white
        space precedes `</think>`, and (n, n), after all n ids, if the reasoning was never closed.
        """
        pieces = [self.token_bytes(int(index)) for index in ids]
        text = b"".join(pieces)
        marker = text.find(THINK_CLOSE.encode())
        if marker < 0:
            return len(pieces), len(pieces)
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        end = int(np.searchsorted(ends, marker, side="right"))
        blank = end == 0 or not text[: ends[end - 1]].strip()
        return (0, 0) if blank else (0, end)

    def token_bytes(self, index: int) -> bytes:
        """The bytes of one token; empty for control tokens and for ids that the tokenizer does not define."""
        if index not in self._pieces:
            self._pieces[index] = self._spell(index)
        return self._pieces[index]

    def check(self, texts: list[str]) -> None:
        """Raise ValueError with the words that change when a text is encoded and decoded."""
        missing: list[str] = []
        for text in texts:
            ids = self.encode(text)
            if not self._lossy(text, ids):
                continue
            words = [word for word in text.split() if self._lossy(" " + word, self.encode(" " + word))]
            missing.extend(words or [text])
        if missing:
            names = ", ".join(sorted({repr(word) for word in missing})[:20])
            raise ValueError(
                f"the tokenizer of {self._dir} (tokenizer.json) cannot express {names}, which the environment uses: "
                "take a model whose tokenizer covers them, or build a tiny policy for this environment"
            )

    # --- the template ---

    def _render(self, messages: list[Message]) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(
                f"the chat template of {self._dir} refuses messages of roles {roles} ({error}); it must take a system "
                "message followed by user and assistant in turn"
            ) from error

    @staticmethod
    def _open_reasoning(text: str) -> str:
        """The text with the opening of the reasoning appended, unless the template has already added it."""
        return text if text.rstrip().endswith(THINK_OPEN) else text + THINK_OPEN

    def _after(self, history: list[Message], message: Message) -> str:
        """The template's text after the reply to `history`: end of turn, `message` and the opening of the reasoning."""
        rendered = self._open_reasoning(self._render([*history, {"role": "assistant", "content": _SENTINEL}, message]))
        before, found, after = rendered.rpartition(_SENTINEL)
        if not found or _SENTINEL in before or message["content"].strip() not in after:
            raise ValueError(
                f"the chat template of {self._dir} does not render an assistant turn followed by a "
                f"{message['role']} turn as they are given, so an episode cannot be continued turn by turn"
            )
        return after

    def _encode_between(self, role: str, content: str) -> np.ndarray:
        history = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
        return self.encode(self._after(history, {"role": role, "content": content}))

    def _turn_end(self) -> int:
        """The id with which the template ends an assistant turn. Raises ValueError if the continuation depends on
        earlier turns."""
        start = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
        longer = [*start, {"role": "assistant", "content": "a b"}, {"role": "user", "content": "v"}]
        message = {"role": "user", "content": "next"}
        after = self._after(start, message)
        if after != self._after(longer, message):
            raise ValueError(
                f"the chat template of {self._dir} continues a turn differently depending on earlier turns "
                f"({after!r} after one turn, {self._after(longer, message)!r} after two); it must not"
            )
        first = int(self.encode(after)[0])
        if first not in self._added:
            raise ValueError(
                f"the chat template of {self._dir} ends an assistant turn with {after[:12]!r}, which is not an added "
                "token of tokenizer.json; it must be one token, such as <|im_end|>, so that generation can stop there"
            )
        return first

    def _find_stop_ids(self) -> tuple[int, ...]:
        found = [self._end_id, *_as_ids(self._tokenizer.eos_token_id)]
        for name in ("generation_config.json", "config.json"):
            found += _as_ids(_read_json(self._dir / name).get("eos_token_id"))
        return tuple(dict.fromkeys(found))

    # --- the tokenizer ---

    def encode(self, text: str) -> np.ndarray:
        """(num_tokens,) int32, read-only: the ids of the text without special tokens. Never used for sampled text."""
        ids = np.array(self._backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        ids.setflags(write=False)
        return ids

    def _lossy(self, text: str, ids: np.ndarray) -> bool:
        unknown = self._tokenizer.unk_token_id
        spelled = b"".join(self._literal(int(index)) for index in ids).decode("utf-8", errors="replace")
        return spelled != text or (unknown is not None and unknown in ids)

    def _spell(self, index: int) -> bytes:
        return b"" if index in self._silent else self._literal(index)

    def _literal(self, index: int) -> bytes:
        """The bytes of a token's text, also for control tokens."""
        if index in self._added:
            return self._added[index].encode()
        piece = self._backend.id_to_token(index)
        return b"" if piece is None else bytes(self._alphabet[char] for char in piece)

    def _require_byte_level(self) -> None:
        decoder = json.loads(self._backend.to_str())["decoder"]
        kinds = _kinds(decoder)
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

    def _require_template(self) -> None:
        template = self._tokenizer.chat_template
        if not template:
            raise ValueError(
                f"{self._dir} has no chat template of its own (chat_template.jinja, or `chat_template` in "
                "tokenizer_config.json): take an instruction-tuned model, or add the template it was trained with"
            )
