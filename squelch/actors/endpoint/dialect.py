"""A dialect: how one API reads requests and writes answers. No dialect knows another; the server knows them all.

| dialect | module | types |
|---|---|---|
| OpenAI's chat completions | `chat_api` | `openai.types.chat` |
| OpenAI's responses | `responses_api` | `openai.types.responses` |
| Anthropic's messages | `messages_api` | `anthropic.types` |

Reading a request gives what is sampled (`canonical.Request`), and a `Writer`, which alone knows what else of the
request its answer depends on. An answer is written whole, or as a stream of events: `opening` with the first bytes,
`pulse` as often as the client must see that the stream lives, then `rest`, or `failure` in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from squelch.actors.endpoint.canonical import Begun, Reading, Refused, Reply, Request
from squelch.actors.endpoint.fields import Fields


class Writer(Protocol):
    """Writes the answer to one request, once."""

    is_stream: bool
    """Whether the client asked for events."""

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The answer as one object."""
        ...

    def opening(self, begun: Begun) -> bytes:
        """The events that can be sent before anything is sampled. All others follow them."""
        ...

    def pulse(self) -> bytes:
        """An event that says that the answer is still being sampled."""
        ...

    def rest(self, reply: Reply) -> bytes:
        """All events behind the opening."""
        ...

    def failure(self, refused: Refused) -> bytes:
        """The events that end an opened stream in place of an answer."""
        ...


@dataclass(frozen=True)
class Dialect:
    """One API. `read`: a request's body; raises Refused with the field at fault. `error`: the body of an error."""

    path: str
    fields: Fields
    read: Callable[[Mapping[str, Any], Reading], tuple[Request, Writer]]
    error: Callable[[Refused], dict[str, Any]]
    repeats_cut: bool = False
    """Whether clients take a stream that ends at its token limit for a broken one, and send the request again."""
    count_path: str = ""
    """Where requests are answered with the number of their tokens; empty if nowhere."""
    count: Callable[[int], dict[str, Any]] | None = None
    """The body of such an answer."""


def event(data: str, kind: str = "") -> bytes:
    """A server-sent event."""
    return (f"event: {kind}\n" if kind else "").encode() + f"data: {data}\n\n".encode()
