"""What OpenAI's two APIs have in common: errors, limits of tools, and tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squelch.actors.endpoint.canonical import Refused, flag_at

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(refused: Refused) -> dict[str, Any]:
    """The body of an answer with an error."""
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}


def most_calls_at(body: Mapping[str, Any]) -> int | None:
    """Most calls of tools that the answer to a request may hold; None for as many as the policy makes."""
    one = body.get("parallel_tool_calls") is not None and not flag_at(body, "parallel_tool_calls")
    return 0 if body.get("tool_choice") == "none" else 1 if one else None


def token_json(text: str, nats: float, partial: list[int] | None) -> dict[str, Any]:
    """A sampled token with its log-probability; `partial`: the bytes of one that ends inside of a character."""
    known = partial if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": nats, "bytes": known, "top_logprobs": []}
