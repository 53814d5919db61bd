"""Errors as OpenAI's API has them, in all of its dialects. Pure."""

from __future__ import annotations

from typing import Any

from squelch.actors.endpoint.canonical import Refused

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(refused: Refused) -> dict[str, Any]:
    """The body of an answer with an error."""
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}
