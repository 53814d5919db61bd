"""The one model, as the packages of OpenAI and Anthropic both read it: each ignores the other's fields. Pure."""

from __future__ import annotations

from typing import Any

from squelch.actors.endpoint.canonical import MODEL


def models() -> dict[str, Any]:
    """The answer of `/v1/models`."""
    return {"object": "list", "data": [model(MODEL)], "has_more": False, "first_id": MODEL, "last_id": MODEL}


def model(name: str) -> dict[str, Any]:
    """The answer of `/v1/models/NAME`: whatever its name, the policy answers."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "squelch",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }
