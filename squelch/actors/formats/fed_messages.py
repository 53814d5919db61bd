"""The messages among fed ids, read back by the control tokens with which chat templates open and close them.

Foreign text yields no control token, so a control token among fed ids is the template's own, and a message that spells
one is not cut by it. The table has the tokens of the families on offer and of ChatML; text that follows no token of it
has no role. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_NAMED = {"<|im_start|>": "\n", "<|start_header_id|>": ""}
"""Tokens behind which the role is written, and what ends it; a header ends with a token of its own."""
_HEADER_END = "<|end_header_id|>"
_OPENING = {
    "<|system|>": "system",
    "<|user|>": "user",
    "<|assistant|>": "assistant",
    "<|observation|>": "tool",
    "<｜User｜>": "user",
    "<｜Assistant｜>": "assistant",
    "<tool_response>": "tool",
    "<｜tool▁output▁begin｜>": "tool",
}
"""Tokens that open a message of a role."""
_CLOSING = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>"),
        *("</tool_response>", "[gMASK]", "<sop>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁end｜>"),
    )
)
"""Tokens that end a message, or stand between messages."""
_ROLES = {"ipython": "tool"}


class FedMessage(NamedTuple):
    """A message among fed ids. `role`: empty if no token says it; `start`, `end`: its ids, with the token that opens
    it."""

    role: str
    text: str
    start: int
    end: int


def fed_messages(
    ids: Sequence[int], added: Mapping[int, str], text: Callable[[Sequence[int]], str], before: int | None = None
) -> list[FedMessage]:
    """The messages, in order, without blank ones. `added`: the tokenizer's added tokens; `text`: the text of ids;
    `before`: the id before them, which may open their first message, as GLM's end of a turn does."""
    found: list[FedMessage] = []
    role, start, own = _OPENING.get(added.get(-1 if before is None else before, ""), ""), 0, list[int]()
    until: str | None = None

    def close(at: int) -> None:
        nonlocal role, until
        said = text(own)
        if until:
            role, _, said = said.partition(until)
        if said.strip():
            found.append(FedMessage(_ROLES.get(role.strip(), role.strip()), said.strip(), start, at))
        own.clear()
        role, until = "", None

    for place, index in enumerate(ids):
        token = added.get(int(index))
        if token == _HEADER_END:
            role = text(own)
            own.clear()
        elif token in _NAMED or token in _OPENING:
            close(place)
            start, role, until = place, _OPENING.get(token, ""), _NAMED.get(token)
        elif token in _CLOSING:
            close(place)
            start = place + 1
        else:
            own.append(int(index))
    close(len(ids))
    if found and found[-1].role == "assistant" and found[-1].end == len(ids):
        found.pop()  # the opening of the policy's turn, with that of its reasoning
    return found
