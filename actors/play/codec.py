"""Codec between an episode's messages and the exact ids that a policy is fed and samples.

Invariants:

- Sampled ids are never decoded and encoded again. An episode's sequence is
  `first_turn | sampled | next_turn | sampled | ...`; each part is encoded once, separately.
- X of a turn is all ids up to and including the opening of the reasoning, `<think>`, which the codec appends. Where an
  environment has a format of its own (`whole_turns`) nothing is appended; unless the template itself opens the
  reasoning, a turn has one if it begins with `<think>`.
- `next_turn` is rendered by the model's own chat template: the template is rendered with a placeholder for the sampled
  text, and what follows it is the next turn. A template whose continuation depends on earlier turns is refused, and so
  is one that removes the reasoning of earlier turns: it would show the trained policy other text than it was fed.
- Only the template's own text yields control tokens. The contents of messages are foreign (`actors/text`): a control
  token that an observation spells is encoded as ordinary text. The markers of the turn format are matched in a system
  message alone, which shows the format to the policy; no part of a prompt is ever parsed for them.
- Spans are found on bytes, so a token that contains a part of `</think>` belongs to the marker, not to the reasoning.

Only byte-level tokenizers are supported (GPT-2's alphabet: Qwen, Llama 3, and the tiny policy's word pieces), because
their tokens stand for the same bytes in every context. Nothing here waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from tokenizers import Tokenizer

from squelch.actors.text.chat_template import Part, TemplateRefused, read_chat_template, read_chat_tokenizer
from squelch.actors.text.control_tokens import Piece, TextEncoder, foreign_pieces
from squelch.actors.text.shipped_templates import SHIPPED, fitting
from squelch.actors.text.tokenizer import TOKENIZER_FILE, byte_alphabet, check_vocabulary, read_object
from squelch.envs.format import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN

Message = dict[str, str]

MARKERS = (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
_CACHED_TURNS = 4096
_SAMPLE = " ".join(["A b  c\n\nd\t<e> & \"f\" 'g' {h} [i] (j) \\ é Ü 漢 1,000.5 | % # $ @ ~ ` ^ * _ -- x"] * 50)
"""A content with which a template is tried: it must come out as it went in."""


def _kinds(part: dict[str, Any] | None) -> list[str]:
    """The `type` names of a tokenizer's component; for a sequence, those of its parts."""
    if part is None:
        return []
    inner = part.get("decoders", []) if part["type"] == "Sequence" else [part]
    return [one["type"] for one in inner]


def _end_ids(path: Path) -> list[int]:
    """The `eos_token_id` of a configuration file: one id, several, or none."""
    value = read_object(path).get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(index) is int and index >= 0 for index in ids):
        raise ValueError(f"{path}: eos_token_id={str(value)[:100]} must be a token id or a list of them")
    return ids


def _num_rows(path: Path, least: int) -> int:
    """`vocab_size` of a model's config.json; `least` if it states none."""
    size = read_object(path).get("vocab_size", least)
    if type(size) is not int or not 0 < size < 2**31:
        raise ValueError(f"{path}: vocab_size={str(size)[:100]} must be the number of the embedding's rows")
    return size


def _reply_and(*start: str) -> list[Message]:
    """A conversation of these roles, then a reply of the assistant, then a user's message."""
    return [{"role": role, "content": _SAMPLE} for role in (*start, "assistant", "user")]


_OPENING = ("system", "user")
_REASONING, _ANSWER = "this reasoning stays where it is", "and this answer stays behind it"
_THOUGHT = f"{THINK_OPEN} {_REASONING} {THINK_CLOSE} <answer> {_ANSWER} </answer>"
_TURN, _LATER_TURN = _reply_and(*_OPENING), _reply_and(*_OPENING, "assistant", "user")


class ChatCodec:
    """Encodes an episode's messages for the policy in one model folder, and decodes its sampled ids.

    Raises ValueError with the folder and the file if the folder has no fast byte-level tokenizer, no chat template, or
    a template that cannot be continued turn by turn.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self._dir = Path(model_dir)
        self._tokenizer = read_chat_tokenizer(self._dir)
        self._backend: Tokenizer = self._tokenizer.backend_tokenizer
        self._alphabet = byte_alphabet()
        self._added = {index: token.content for index, token in self._tokenizer.added_tokens_decoder.items()}
        self._require_byte_level()
        self.vocab_size: int = _num_rows(self._dir / "config.json", len(self._tokenizer))
        """Rows of the model's output head; at least the tokenizer's size."""
        check_vocabulary(self._dir / TOKENIZER_FILE, self._backend, self.vocab_size)
        self._template = read_chat_template(self._dir, self._tokenizer)
        self._require_kept_reasoning()
        self._encoder = TextEncoder(self._backend, self._template.source)
        self._pieces: dict[int, bytes] = {}
        specials = set(self._tokenizer.all_special_ids)
        self._silent = {index for index in specials if self._added.get(index) not in MARKERS}
        marked = {index for index, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        self._marked = {index for index in marked if self._added[index] not in MARKERS}
        self._end_id = self._turn_end()
        self.stop_ids: tuple[int, ...] = self._find_stop_ids()
        """Ids that end a turn, from the tokenizer, the generation configuration and the chat template."""
        self._silent |= set(self.stop_ids)
        pad = self._tokenizer.pad_token_id
        self.pad_id: int = self.stop_ids[0] if pad is None else int(pad)
        """Id that pads rows of a batch; it is never attended to and never learned from."""
        self._between = lru_cache(maxsize=_CACHED_TURNS)(self._encode_between)

    # --- what is fed ---

    def first_turn(self, messages: list[Message], opening: bool = True) -> np.ndarray:
        """(num_tokens,) int32: the rendered messages, the generation prompt and, with `opening`, the opening of the
        reasoning."""
        (parts,) = self._template.parts([messages])
        return self._encode_parts(parts, messages, opening)

    def next_turn(self, message: Message, closed: bool, opening: bool = True) -> np.ndarray:
        """(num_tokens,) int32: the ids that are fed between two sampled turns; `opening` as in `first_turn`.

        `closed`: whether the sampled turn ended with one of `stop_ids`, which replaces the template's end of turn. If
        it did not, the ids begin with the end of turn.
        """
        ids = self._between(message["role"], message["content"], opening)
        return ids[1:] if closed else ids

    @cached_property
    def template_opens(self) -> bool:
        """Whether the chat template itself ends a prompt with the opening of the reasoning."""
        (parts,) = self._template.parts([_TURN[: len(_OPENING)]])
        return not _opening_of_reasoning(parts)

    # --- what was sampled ---

    def text(self, ids: np.ndarray | list[int]) -> str:
        """The sampled text without end-of-turn and other control tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(int(index)) for index in ids).decode("utf-8", errors="replace")

    def completion_text(self, ids: np.ndarray | list[int]) -> str:
        """As `text`, without any other token that the tokenizer marks as special: the completion as TRL gives it to a
        reward function. Markers of the reasoning stay."""
        return self.text([index for index in map(int, ids) if index not in self._marked])

    def reasoning_span(self, ids: np.ndarray | list[int], opened: bool = True) -> tuple[int, int]:
        """(start, end) of the reasoning among the sampled ids: the ids whose bytes all precede `</think>`. `opened`:
        whether the ids before them open the reasoning; if not, it follows the `<think>` with which the turn begins.

        White space at either end counts as reasoning. The span is empty if there is no reasoning: (0, 0) if only white
        space precedes `</think>` or the turn opens none, and (n, n), after all n ids, if it was never closed.
        """
        pieces = [self.token_bytes(int(index)) for index in ids]
        text = b"".join(pieces)
        if not opened and not text.lstrip().startswith(THINK_OPEN.encode()):
            return 0, 0
        marker = text.find(THINK_CLOSE.encode())
        if marker < 0:
            return len(pieces), len(pieces)
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        first = 0 if opened else text.find(THINK_OPEN.encode()) + len(THINK_OPEN)
        start = int(np.searchsorted(ends, first)) + 1 if first else 0
        end = int(np.searchsorted(ends, marker, side="right"))
        blank = end <= start or not text[ends[start - 1] if start else 0 : ends[end - 1]].strip()
        return (0, 0) if blank else (start, end)

    def answer_end(self, ids: np.ndarray | list[int]) -> int | None:
        """Number of ids up to the one that completes the answer, among the ids sampled from the closing of the
        reasoning on; None if they hold no complete answer (`envs.format`)."""
        pieces = [self.token_bytes(int(index)) for index in ids]
        text = b"".join(pieces)
        opened = text.find(ANSWER_OPEN.encode(), max(text.find(THINK_CLOSE.encode()), 0))
        closed = text.find(ANSWER_CLOSE.encode(), opened) if opened >= 0 else -1
        if closed < 0:
            return None
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        return int(np.searchsorted(ends, closed + len(ANSWER_CLOSE))) + 1

    def token_bytes(self, index: int) -> bytes:
        """The bytes of one token; empty for control tokens and for ids that the tokenizer does not define."""
        if index not in self._pieces:
            self._pieces[index] = self._spell(index)
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

    # --- the template ---

    def _require_kept_reasoning(self) -> None:
        """Raises ValueError if the template leaves the reasoning of earlier turns out, or refuses the conversation."""
        conversation = [dict(one) for one in _LATER_TURN]
        for one in conversation:
            one["content"] = _THOUGHT if one["role"] == "assistant" else "next"
        try:
            (text,) = self._template.render([conversation])
        except TemplateRefused:
            return  # `_turn_end` says which messages it refuses
        if text.count(_REASONING) < text.count(_ANSWER):
            raise ValueError(
                f"the chat template of {self._dir} removes the reasoning of earlier turns, so a later turn would be "
                f"shown other text than the policy was fed; {_remedy(self._template.source)}"
            )

    def _turn_end(self) -> int:
        """The id with which the template ends an assistant turn. Raises ValueError if the template shows contents
        otherwise than as given, or if its continuation depends on earlier turns."""
        opening = _TURN[: len(_OPENING)]
        try:
            _, turn, later = self._template.parts([opening, _TURN, _LATER_TURN], compare=True)
        except TemplateRefused as error:
            raise ValueError(
                f"{error}; it must take a system message followed by user and assistant in turn: "
                f"{_remedy(self._template.source)}"
            ) from error
        after = self._after(turn, _TURN)
        if after != (deep := self._after(later, _LATER_TURN)):
            raise ValueError(
                f"the chat template of {self._dir} continues a turn differently depending on earlier turns "
                f"({_shown(after)} after one turn, {_shown(deep)} after two); it must not"
            )
        first = int(self._encode_parts(after, [{"role": "user", "content": "next"}])[0])
        if first not in self._encoder.control:
            raise ValueError(
                f"the chat template of {self._dir} ends an assistant turn with {_shown(after)[:12]!r}, which is not an "
                "added token of tokenizer.json; it must be one token, such as <|im_end|>, so that generation can stop "
                "there"
            )
        return first

    def _after(self, parts: Sequence[Part], messages: Sequence[Message]) -> list[Part]:
        """The text that the template writes after the reply, which is the last message but one; 0 stands for the
        last."""
        reply, last = len(messages) - 2, len(messages) - 1
        after = list(parts[parts.index(reply) + 1 :]) if reply in parts else []
        foreseen = not any(isinstance(part, int) and part != last for part in after)
        shown = last in after or not messages[last]["content"].strip()
        if not (after and foreseen and shown):
            raise ValueError(
                f"the chat template of {self._dir} does not render an assistant turn followed by a "
                f"{messages[last]['role']} turn as they are given, so an episode cannot be continued turn by turn"
            )
        return [0 if part == last else part for part in after]

    def _encode_between(self, role: str, content: str, opening: bool) -> np.ndarray:
        message = {"role": role, "content": content}
        messages = [*_TURN[:-1], message]
        (parts,) = self._template.parts([messages])
        return self._encode_parts(self._after(parts, messages), [message], opening)

    def _find_stop_ids(self) -> tuple[int, ...]:
        own = self._tokenizer.eos_token_id
        found = [self._end_id, *([] if own is None else [int(own)])]
        for name in ("generation_config.json", "config.json"):
            found += _end_ids(self._dir / name)
        if (largest := max(found)) >= self.vocab_size:
            raise ValueError(f"{self._dir}: eos_token_id {largest} is none of the model's {self.vocab_size} ids")
        return tuple(dict.fromkeys(found))

    def _encode_parts(self, parts: Sequence[Part], messages: Sequence[Message], opening: bool = True) -> np.ndarray:
        """The ids of a rendered conversation, whose parts stand for `messages`; with `opening`, that of the reasoning
        is among them."""
        pieces: list[Piece] = []
        for part in [*parts, *(_opening_of_reasoning(parts) if opening else ())]:
            if isinstance(part, str):
                pieces.append((part, False))
            else:
                markers = MARKERS if messages[part]["role"] == "system" else ()
                pieces += foreign_pieces(_as_text(messages[part]["content"].strip()), markers)
        return _as_array(self._encoder.encode(pieces))

    # --- the tokenizer ---

    def encode(self, text: str) -> np.ndarray:
        """(num_tokens,) int32, read-only: the ids of a text that the policy could have sampled, in which the markers
        are matched and no control token is. Never used for what was sampled."""
        return _as_array(self._encoder.encode(foreign_pieces(text, MARKERS)))

    def _lossy(self, text: str, ids: np.ndarray) -> bool:
        unknown = self._tokenizer.unk_token_id
        spelled = b"".join(self._literal(int(index)) for index in ids).decode("utf-8", errors="replace")
        return spelled != text or (unknown is not None and unknown in ids)

    def _changes(self, text: str) -> bool:
        return self._lossy(text, self.encode(text))

    def _unknown(self, text: str) -> bool:
        return self._changes(text) and self._changes(normalize("NFC", text))

    def _spell(self, index: int) -> bytes:
        return b"" if index in self._silent else self._literal(index)

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


def _opening_of_reasoning(parts: Sequence[Part]) -> tuple[str, ...]:
    """The opening of the reasoning, which follows the generation prompt unless the template has written it."""
    last = parts[-1] if parts else ""
    return () if isinstance(last, str) and last.rstrip().endswith(THINK_OPEN) else (THINK_OPEN,)


def _as_text(text: str) -> str:
    """The text with `?` for each lone surrogate, which no tokenizer can encode."""
    return text.encode(errors="replace").decode()


def _as_array(ids: list[int]) -> np.ndarray:
    """(num_tokens,) int32, read-only."""
    found = np.array(ids, dtype=np.int32)
    found.setflags(write=False)
    return found


def _remedy(source: str) -> str:
    """Advice on a setting that replaces the template `source`."""
    name = fitting(source)
    fits = f"={name}, which Squelch ships and which fits this model" if name else f" (shipped are {', '.join(SHIPPED)})"
    return f"set model.chat_template{fits}"


def _shown(parts: Sequence[Part]) -> str:
    """Parts in an error message, `...` for a content."""
    return "".join(part if isinstance(part, str) else "..." for part in parts)
