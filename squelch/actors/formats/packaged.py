"""Formats of the package `renderers` (Apache-2.0), which has a renderer and a parser in Python for each model family.

It is for families whose chat template our own codec refuses, because the template removes the reasoning of earlier
turns (Qwen3), or whose calls of tools are not written as Qwen2.5's. It is optional: `deploy/setup.sh renderers`.

Invariants, beside those of `protocol.Format`:

- A family is named by `model.format` or known by its template (`families`), never guessed from a path.
- The package encodes whole texts in which control tokens of its own stand beside the messages'. It gets a tokenizer
  that knows the messages' texts (`_Guard`): a text that could yield a control token is shown to the package as a word
  that nobody can guess, and encoded as foreign text in the word's place (`kit.text.control_tokens`).
- A rendered conversation is what the template writes, so it lacks the reasoning that the template removes. An
  extension keeps the reasoning of earlier turns (`thinking_retention="all"`), and depends on no sampled id but the
  last, and on whether the reasoning was closed.
- Reasoning is found by the ids of its markers where the tokenizer has them as tokens, else on bytes; `extend` closes a
  reasoning exactly if `parse` says that it is open.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from squelch.actors.formats.families import FAMILIES
from squelch.actors.formats.protocol import (
    FOLLOWERS,
    Ids,
    Message,
    Parsed,
    ToolCall,
    Tools,
    ToolsRefused,
    as_call,
    require_followers,
)
from squelch.actors.formats.retention import reasoned
from squelch.actors.formats.tokens import ModelTokens, as_array, as_text, reasoning_span
from squelch.kit.text.chat_template import Words
from squelch.kit.text.control_tokens import Piece
from squelch.kit.text.tags import THINK_CLOSE, THINK_OPEN

PACKAGES = ("renderers==0.1.12", "prime-pydantic-config==0.4.3")
"""As pip takes them; what else they need is there with vLLM."""
MODULE = "renderers"
_HELD = ("content", "reasoning_content")
"""Fields of a message that may hold any text. A control token in any other field is refused."""


def is_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec(MODULE) is not None


class PackagedFormat(ModelTokens):
    """The format of a family, for the model in a folder; a `Format`.

    `keeps_reasoning`: as of `Format`. Raises ValueError if the package is missing, or the tokenizer lacks the family's
    control tokens.
    """

    whole_content, followers = False, FOLLOWERS

    def __init__(self, model_dir: str | Path, name: str, keeps_reasoning: bool = True) -> None:
        super().__init__(model_dir)
        self.name, self._family, self.keeps_reasoning = name, FAMILIES[name], keeps_reasoning
        self.reasons = self._family.reasons
        self._guard, self._one_at_a_time = _Guard(self), Lock()
        self._renderer = self._made()
        self._end_turns_with([int(index) for index in self._renderer.get_stop_token_ids()])
        ids = [self._backend.token_to_id(marker) for marker in (THINK_OPEN, THINK_CLOSE)]
        self._atomic = None if None in ids else (ids[0], ids[1])
        self._closing = self._encoder.encode([(THINK_CLOSE, False)])

    def _made(self) -> Any:
        if not is_installed():
            raise ValueError(
                f"model.format={self.name} needs the package {MODULE}, which is not installed; run "
                f"deploy/setup.sh renderers, or pip install --no-deps {' '.join(PACKAGES)}"
            )
        from pydantic import TypeAdapter
        from renderers import RendererConfig, create_renderer

        settings = {"name": self._family.renderer, "thinking_retention": "all"}
        if self._family.dated:
            day = datetime.fromisoformat(self.template.date) if self.template.date else datetime.now()
            settings["date_string"] = day.strftime("%d %b %Y")
        try:
            return create_renderer(self._guard, TypeAdapter(RendererConfig).validate_python(settings))
        except (AssertionError, ValueError) as error:
            raise ValueError(
                f"model.format={self.name} does not fit the tokenizer of {self._dir}: {str(error)[:300]}"
            ) from error

    # --- what is fed ---

    def render(self, messages: Sequence[Message], tools: Tools = None) -> np.ndarray:
        """As `Format.render`."""
        with self._one_at_a_time:
            return self._rendered(messages, tools)

    def _rendered(self, messages: Sequence[Message], tools: Tools) -> np.ndarray:
        shown, schemas = self._shown(messages), self.checked_tools(tools)
        if schemas and not self._shows_tools:
            raise ToolsRefused(
                f"model.format={self.name} shows no tools; set model.format=own and model.keep_reasoning=template, "
                "with which they end the system message"
            )
        try:
            ids = self._renderer.render_ids(shown, tools=schemas, add_generation_prompt=True)
        except Exception as error:  # the package's renderers raise what they like for messages that they cannot show
            raise ValueError(f"model.format={self.name} cannot show these messages: {error}") from error
        return as_array([int(index) for index in ids])

    @cached_property
    def _shows_tools(self) -> bool:
        """Whether the family writes tools into a prompt: it is given one."""
        asked, tool = [{"role": "user", "content": "x"}], {"type": "function", "function": {"name": "x"}}
        with_tool, without = (self._renderer.render_ids(asked, tools=given) for given in ([tool], None))
        return list(with_tool) != list(without)

    def shown_reasoning(self, messages: Sequence[Message], tools: Tools = None) -> frozenset[int]:
        """As `Format.shown_reasoning`: each reasoning is a word that nobody can guess, which is looked for."""
        words, marked = Words(), [dict(message) for message in messages]
        for index in reasoned(messages):
            marked[index]["reasoning_content"] = words.hide("x", index)
        text = self._backend.decode(self.render(marked, tools).tolist(), skip_special_tokens=False)
        return frozenset(part for part in words.split(text) if isinstance(part, int))

    def extend(self, fed: Ids, sampled: Ids, messages: Sequence[Message], tools: Tools = None) -> np.ndarray:
        """As `Format.extend`. What follows a turn is taken from the package behind a turn of one word."""
        with self._one_at_a_time:
            return self._extended(fed, sampled, messages, tools)

    def _extended(self, fed: Ids, sampled: Ids, messages: Sequence[Message], tools: Tools) -> np.ndarray:
        roles = require_followers(messages)
        before, turn = [int(index) for index in fed], [int(index) for index in sampled]
        shown, schemas = self._shown(messages), self.checked_tools(tools)
        opened, closed = self._opened(before), bool(turn) and turn[-1] in self.stop_ids
        word = [*self._reply(opened), turn[-1] if closed else self.stop_ids[0]]
        try:
            found = self._renderer.bridge_to_next_turn(before, word, shown, tools=schemas)
        except Exception as error:  # as in `render`
            raise ValueError(f"model.format={self.name} cannot extend a conversation: {error}") from error
        ids = [] if found is None else [int(index) for index in found.token_ids]
        start = len(before) + len(word)
        if not ids or ids[:start] != before + word:
            raise ValueError(f"model.format={self.name} cannot extend a conversation by messages of roles {roles}")
        if closed:
            return as_array(ids[start:])
        cut = self._closing if self.reasons and self._is_open(turn, before, tools) else []
        return as_array([*cut, self.stop_ids[0], *ids[start:]])

    def _shown(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as the package gets them: with a word for each text that could yield a control token."""
        self._guard.forget()
        found = []
        for message in messages:
            as_json = self._family.json_results and message["role"] == "tool"
            held = {
                key: self._guard.hidden(message[key], as_json) for key in _HELD if isinstance(message.get(key), str)
            }
            others = {key: value for key, value in message.items() if key not in held}
            self.refuse_control(others, "a message's other fields hold")
            found.append({**others, **held})
        return found

    # --- what was sampled ---

    def begins_inside(self, fed: Ids) -> bool | None:
        """As `Format.begins_inside`."""
        return self._opened([int(index) for index in fed[-8:]]) if self.reasons else None

    def parse(self, sampled: Ids, fed: Ids = (), tools: Tools = None) -> Parsed:
        """As `Format.parse`."""
        ids, before = [int(index) for index in sampled], [int(index) for index in fed]
        said = self._parsed(ids, before, tools)
        pieces, opened = self._turn(ids, before, said)
        span = reasoning_span(pieces, opened, THINK_OPEN, THINK_CLOSE) if self.reasons else (0, 0)
        if isinstance(said, ToolCall):
            return Parsed(span, "", (said,))
        return Parsed(span, str(said.content or "").strip(), tuple(map(self._call, count(), said.tool_calls)))

    def _parsed(self, ids: list[int], before: list[int], tools: Tools) -> Any:
        """What the package reads in a turn; a call with an error if it can read nothing."""
        try:
            return self._renderer.parse_response(ids, tools=list(tools or ()) or None, prompt_ids=before)
        except Exception as error:  # the package's parsers meet whatever a policy samples
            return ToolCall("call_0", "", "", self.written(ids), f"it cannot be parsed ({error})")

    @staticmethod
    def _call(number: int, found: Any) -> ToolCall:
        if found.status.value == "ok":
            return as_call(number, found.name, found.arguments, found.raw, found.id)
        return ToolCall(found.id or f"call_{number}", found.name or "", "", found.raw, str(found.status.value))

    def answer_end(self, ids: Ids) -> int | None:
        """As `Format.answer_end`."""
        return self.whole_answer_end(ids)

    def _reply(self, opened: bool) -> list[int]:
        """The ids of a turn of one word."""
        text = "x" if not self.reasons else f"x{THINK_CLOSE}x" if opened else f"{THINK_OPEN}x{THINK_CLOSE}x"
        return self._encoder.encode([(text, False)])

    def _is_open(self, ids: list[int], before: list[int], tools: Tools) -> bool:
        """Whether a turn ended inside of its reasoning, by what `parse` calls its reasoning."""
        pieces, opened = self._turn(ids, before, self._parsed(ids, before, tools))
        text = b"".join(pieces)
        return (opened or text.lstrip().startswith(THINK_OPEN.encode())) and THINK_CLOSE.encode() not in text

    def _opened(self, fed: Sequence[int]) -> bool:
        """Whether a turn begins inside of its reasoning: what was fed opens it, or the family's turns do."""
        if not self.reasons:
            return False
        return self._family.begins_inside or b"".join(self._spoken(fed[-8:])).rstrip().endswith(THINK_OPEN.encode())

    def _turn(self, ids: list[int], before: list[int], said: Any) -> tuple[list[bytes], bool]:
        """(bytes of the ids, whether the reasoning is open before them), as `tokens.reasoning_span` takes a turn.
        `said`: as of `_parsed`; its first call closes the reasoning if no marker does."""
        pieces = self._spoken(ids)
        calls = () if isinstance(said, ToolCall) else said.tool_calls
        closes = bool(calls) and said.reasoning_complete and said.reasoning_content is not None
        if closes and calls[0].token_span and THINK_CLOSE.encode() not in b"".join(pieces):
            pieces[calls[0].token_span[0]] = THINK_CLOSE.encode()
        again = b"".join(pieces).lstrip().startswith(THINK_OPEN.encode())
        return pieces, self._opened(before) and not again

    def _spoken(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of the ids; if the tokenizer has the markers of the reasoning as tokens, other ids spell none."""
        pieces = [b"" if index in self.stop_ids else self._literal(index) for index in ids]
        if self._atomic is None:
            return pieces
        names = {self._atomic[0]: THINK_OPEN.encode(), self._atomic[1]: THINK_CLOSE.encode()}
        return [names.get(index) or piece.replace(b"<", b"(") for index, piece in zip(ids, pieces, strict=True)]


class _Guard:
    """The tokenizer as the package sees it (`renderers.Tokenizer`), without offsets."""

    def __init__(self, tokens: ModelTokens) -> None:
        self.name_or_path = ""  # nothing is chosen by a name
        self._tokens, self._backend, self._encoder = tokens, tokens.backend, tokens.encoder
        self._words = Words()
        self._held: list[str] = []
        own = tokens.special_ids()
        self.eos_token_id, self.unk_token_id = own["eos"], own["unk"]

    def forget(self) -> None:
        """Another conversation begins."""
        self._held = []

    def hidden(self, text: str, as_json: bool) -> str:
        """The text, or a word for it if it could yield a control token. `as_json`: the package writes it as JSON."""
        text = as_text(text)
        if not self._encoder.may_control(text):
            return text
        inner = text.strip()
        self._held.append(json.dumps(inner, ensure_ascii=False)[1:-1] if as_json else inner)
        return self._words.hide(text, len(self._held) - 1)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """The ids of a text of the package, in which words stand for texts of messages."""
        pieces: list[Piece] = []
        for part in self._words.split(text):
            pieces.append((part, False) if isinstance(part, str) else (self._held[part], True))
        return self._encoder.encode(pieces)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of ids, control tokens included unless `skip_special_tokens`."""
        return self._backend.decode([int(index) for index in ids], skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, or those of several; the unknown token's id for text that is no token."""
        if isinstance(tokens, str):
            found = self._backend.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(one) for one in tokens]
