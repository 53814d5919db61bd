"""A model folder's chat template: messages to text, and separates the template's own text from the messages'.

Invariants:

- A template is rendered in a child process of its own with bounded memory, and bounded CPU time for each rendering
  (`squelch/kit/text/render.py`). A template that exceeds them, or raises an error, is refused with the folder's name.
  The process is started at the first rendering and renders the later ones too.
- `parts` renders a placeholder in place of each content, and of each reasoning (`reasoning_content`): a word that
  nobody can guess, between the text's own white space, because templates may strip it. What stands in the word's place
  afterwards is foreign, all else is the template's. A template that drops or changes a content is refused.
- Parts depend on the roles, the white space and the tools alone, so a run renders few conversations, once each.
- Several threads may use a template at once.

A model's template comes from its folder: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`. With
`model.chat_template` the run first makes a folder with that template in its place (`shipped_templates.py`).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.text import render, trial
from squelch.kit.text.script_process import Answering, Broken
from squelch.kit.text.stamp import read_stamp
from squelch.kit.text.tokenizer import (
    DAMAGED,
    FILES,
    REMEDY,
    TOKENIZER_FILE,
    check_files,
    encode_completely,
    read_tokenizer,
)
from squelch.kit.untrusted.files import Unreadable, decoding

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Message = Mapping[str, Any]
Part = str | int
"""Text that the template wrote, or the index of the message whose content stands here; with `REASONING` added, the one
whose reasoning does."""
REASONING = 10_000_000
Shape = tuple[tuple[str, str, str], ...]
"""A conversation with placeholders for its texts: (role, content, other fields as JSON) of each message."""

MAX_TEMPLATE_CHARACTERS = 2**20
_KEPT_SHAPES = 256
_SAMPLE = trial.SAMPLE + " don't, we'LL; 1234567 a_b\r\n\t{x}"
"""A text at which rules for splitting texts differ."""


class TemplateRefused(ValueError):
    """The template cannot render a conversation. `index`: which one of those that were given."""

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index


class Words:
    """Placeholders of texts; a random part distinguishes them from all other text."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)

    def hide(self, text: str, index: int) -> str:
        """The text with the word `index` in place of all but the white space at its ends; blank text stays."""
        inner = text.strip()
        before, _, after = text.partition(inner) if inner else (text, "", "")
        return f"{before}{self._mark}{index:08d}{after}" if inner else text

    def split(self, rendered: str) -> list[Part]:
        """What lies between the words, and the indices of the words."""
        pieces = re.split(rf"{self._mark}(\d{{8}})", rendered)
        return [int(piece) if place % 2 else piece for place, piece in enumerate(pieces) if piece]


class ChatTemplate:
    """The chat template `source` of a model folder. `variables`: the special tokens by name, as templates use them;
    `date`: the day that it writes, as of `stamp.Stamp`."""

    def __init__(self, folder: Path, source: str, variables: Mapping[str, str], date: str = "") -> None:
        self.source, self.date = source, date
        self._folder, self._variables = folder, dict(variables)
        self._known: dict[tuple[Shape, str], tuple[Part, ...]] = {}
        """The parts by shape and schemas of tools."""
        self._words = Words()
        self._process = Answering(render.__file__, render.MEMORY_BYTES, render.CPU_S)

    def parts(
        self, conversations: Sequence[Sequence[Message]], compare: bool = False, tools: list[Any] | None = None
    ) -> list[tuple[Part, ...]]:
        """Each conversation with the generation prompt, as parts. All that is new is rendered by one request.

        `compare`: the contents themselves are rendered, too, and must stand as given where the words stand. `tools`:
        JSON schemas, which are the template's own text. Raises TemplateRefused if the template refuses, drops or
        changes a message, or drops the tools.
        """
        schemas = json.dumps(tools) if tools else ""
        shapes = [tuple(self._shape(index, one) for index, one in enumerate(messages)) for messages in conversations]
        known, texts = self._learn(shapes, conversations if compare else (), schemas)
        found = [known[shape] for shape in shapes]
        for messages, parts, text in zip(conversations, found, texts, strict=False):
            if "".join(_filled(messages, parts)) != text:
                raise self._changed(", ".join(one["role"] for one in messages))
        if tools and self.parts(conversations[:1]) == found[:1]:
            raise TemplateRefused(f"the chat template of {self._folder} shows no tools, and there are {len(tools)}")
        return found

    def knows(self, messages: Sequence[Message]) -> bool:
        """Whether `parts` of this conversation, without tools, takes no rendering."""
        return (tuple(self._shape(index, one) for index, one in enumerate(messages)), "") in self._known

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template writes tools into a prompt: it is given one."""
        name = self._words.hide("x", 0)
        parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
        tool = {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}
        asked = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
        try:
            return name in self.render([asked], [[tool]])[0]
        except TemplateRefused:
            return False

    def _learn(
        self, shapes: Sequence[Shape], also: Sequence[Sequence[Message]], schemas: str
    ) -> tuple[dict[Shape, tuple[Part, ...]], list[str]]:
        """(the parts of the shapes, the texts of the conversations `also`). What is not known yet is rendered by one
        request."""
        known = {one: parts for one in shapes if (parts := self._known.get((one, schemas))) is not None}
        new = [shape for shape in dict.fromkeys(shapes) if shape not in known]
        hidden = [[{"role": r, "content": c, **json.loads(more)} for r, c, more in shape] for shape in new]
        asked = [*hidden, *also]
        texts = self.render(asked, [json.loads(schemas)] * len(asked) if schemas else ()) if asked else []
        if len(self._known) > _KEPT_SHAPES:
            self._known.clear()
        for shape, text in zip(new, texts, strict=False):
            known[shape] = self._known[shape, schemas] = self._checked(shape, text)
        return known, texts[len(new) :]

    def render(
        self,
        conversations: Sequence[Sequence[Message]],
        tools: Sequence[list[Any] | None] = (),
        replies: Sequence[bool] = (),
        *,
        given: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The text of each conversation with the generation prompt, rendered by one request; `tools`, `replies`: as of
        `render.rendered`; `given`: arguments of the template's own, such as `enable_thinking`.

        Raises TemplateRefused if the template refuses a conversation or exceeds its bounds, and Unreadable if the
        machine's load kept it from being rendered.
        """
        request: dict[str, Any] = {"template": self.source, "conversations": list(map(list, conversations))}
        request |= {"tools": list(tools), "replies": list(replies), "date": self.date}
        answer = self._in_a_child(request | {"variables": {**self._variables, **(given or {})}})
        if "texts" in answer:
            return answer["texts"]
        if answer.get("by_chance"):
            raise Unreadable(
                f"the chat template of {self._folder} could not be rendered ({answer['error']}): the machine is short "
                "of time or memory"
            )
        roles = ", ".join(str(one["role"]) for one in conversations[answer["index"]])
        raise TemplateRefused(
            f"the chat template of {self._folder} refuses messages of roles {roles} ({answer['error']})",
            answer["index"],
        )

    def _in_a_child(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of `render.py`; its `error` if it broke its bounds."""
        found = self._process.answer_of(json.dumps(request).encode())
        if isinstance(found, Broken):
            return {"error": found.reason, "index": 0, "by_chance": found.by_chance}
        return json.loads(found)

    def _shape(self, index: int, message: Message) -> tuple[str, str, str]:
        more = {key: value for key, value in message.items() if key not in ("role", "content")}
        if isinstance(thought := more.get("reasoning_content"), str):
            more["reasoning_content"] = self._words.hide(thought, REASONING + index)
        return message["role"], self._words.hide(message["content"], index), json.dumps(more)

    def _checked(self, shape: Shape, text: str) -> tuple[Part, ...]:
        parts = tuple(self._words.split(text))
        for index, (role, content, _) in enumerate(shape):
            if content.strip() and index not in parts and role != "assistant":  # old replies may be left out
                raise self._changed(role)
        return parts

    def _changed(self, roles: str) -> TemplateRefused:
        return TemplateRefused(
            f"the chat template of {self._folder} drops or changes the content of messages of roles {roles}; it must "
            "show each message as it is given, apart from white space at its ends"
        )


def _filled(messages: Sequence[Message], parts: Sequence[Part]) -> list[str]:
    return [part if isinstance(part, str) else messages[part]["content"].strip() for part in parts]


def read_chat_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder with its special tokens and chat template; it encodes texts completely.

    Not `AutoTokenizer`: for some architectures (such as Qwen2) it replaces the pre-tokenizer and the decoder in
    tokenizer.json, with which the policy was trained, by those of its class. Raises ValueError with the folder.
    """
    # a run's driver imports this module, and the embedded policy needs no transformers in it
    from transformers import PreTrainedTokenizerFast

    check_files(folder)
    with decoding(f"{folder}/({' | '.join(FILES)})", DAMAGED, REMEDY):
        found = PreTrainedTokenizerFast.from_pretrained(
            str(folder), local_files_only=True, tokenizer_file=str(folder / TOKENIZER_FILE)
        )
    encode_completely(found.backend_tokenizer)
    return found


def reads_as_written(folder: Path) -> bool:
    """Whether `AutoTokenizer`, with which other programs read a folder, splits and joins texts by tokenizer.json."""
    from transformers import AutoTokenizer

    try:
        with decoding(str(folder), DAMAGED):
            found: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
            theirs = _reading(found.backend_tokenizer)
    except Unreadable:  # for example, it names a class whose code is elsewhere
        return False
    return theirs == _reading(read_tokenizer(folder))


def _reading(tokenizer: Tokenizer) -> tuple[str, list[str], list[int], str]:
    """What a tokenizer makes of a sample: normalised, split, encoded, and decoded again."""
    normal = tokenizer.normalizer.normalize_str(_SAMPLE) if tokenizer.normalizer else _SAMPLE
    split = tokenizer.pre_tokenizer.pre_tokenize_str(normal) if tokenizer.pre_tokenizer else []
    ids = tokenizer.encode(_SAMPLE, add_special_tokens=False).ids
    return normal, [text for text, _ in split], ids, tokenizer.decode(ids, skip_special_tokens=False)


def read_chat_template(folder: Path, tokenizer: PreTrainedTokenizerFast) -> ChatTemplate:
    """The folder's default chat template. Raises ValueError if there is none, or if it is no text of bounded size."""
    source = tokenizer.chat_template
    if isinstance(source, dict):
        source = source.get("default")
    if not source:
        raise ValueError(
            f"{folder} has no chat template of its own (chat_template.jinja, or `chat_template` in "
            "tokenizer_config.json): take an instruction-tuned model, or add the template it was trained with"
        )
    if not isinstance(source, str) or len(source) > MAX_TEMPLATE_CHARACTERS:
        raise ValueError(f"the chat template of {folder} must be text of at most {MAX_TEMPLATE_CHARACTERS} characters")
    return ChatTemplate(folder, source, tokenizer.special_tokens_map, read_stamp(folder).date)
