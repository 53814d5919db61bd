"""The seeds of a ticket: those of its requests and those of environment noise. Every seed is a digest of its name and
of the ids that it belongs to, so that it depends on neither actor nor time."""

from __future__ import annotations

import hashlib

from squelch.kit.records.records import Ticket

_SEED_BYTES = 8
_SEED_MASK = 2**63 - 1


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and is the same on every machine."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_SEED_BYTES).digest(), "big") & _SEED_MASK


def request_seed(ticket: Ticket, trajectory: int, turn: int) -> int:
    """Seed of one turn's sampling."""
    return derive_seed("sample", ticket.seed, ticket.ticket_id, trajectory, turn)


def noise_seed(ticket: Ticket, trajectory: int, shared: bool) -> int:
    """Seed of one trajectory's environment noise; if `shared`, the same for the whole group."""
    return derive_seed("noise", ticket.seed, ticket.ticket_id, *(() if shared else (trajectory,)))
