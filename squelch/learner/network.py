"""The network between learner ranks: where each rank listens, and whether they reach one another. The interface that
their collectives use is chosen in `actors.process.interfaces`.

| waits for | unblocked by | on time-out |
|---|---|---|
| a TCP connection to each other rank, all at once | that rank's host | it is reported, `CONNECT_TIMEOUT_S` |
"""

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 128
"""Ranks that a rank tries at once."""


@dataclass(frozen=True)
class RankProcess:
    """The node and the process of a rank."""

    node: str
    """Ray's id of the node."""
    address: str
    """The address under which the node joined Ray."""
    process_id: int


@dataclass(frozen=True)
class Endpoint:
    """The addresses on which a rank listens."""

    address: str
    """Address of the rank's node, or loopback if all ranks share a node."""
    store_port: int
    """For the members of the process group; rank 0's is used."""
    check_port: int
    """For the other ranks' attempts to reach this one."""


def unreachable(own_rank: int, endpoints: Sequence[Endpoint]) -> dict[int, str]:
    """Tries to connect to every other rank; returns the reason of each failure by rank."""
    others = {rank: endpoint for rank, endpoint in enumerate(endpoints) if rank != own_rank}
    if not others:
        return {}
    with ThreadPoolExecutor(min(MAX_CONNECTIONS, len(others))) as pool:
        reasons = dict(zip(others, pool.map(_try, others.values()), strict=True))
    return {rank: reason for rank, reason in reasons.items() if reason}


def _try(endpoint: Endpoint) -> str | None:
    """The reason why the endpoint cannot be reached; None if it can."""
    try:
        socket.create_connection((endpoint.address, endpoint.check_port), timeout=CONNECT_TIMEOUT_S).close()
    except TimeoutError:
        return f"no answer within {CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error)
    return None


def failures_in_words(endpoints: Sequence[Endpoint], failures: Mapping[int, Mapping[int, str]]) -> str | None:
    """One sentence about ranks that do not reach one another, with both addresses of each pair; None if all do.

    Args:
        failures: reason by the rank that was tried, by the rank that tried.
    """
    pairs = [
        f"learner rank {to} on {endpoints[to].address} cannot be reached from rank {source} on "
        f"{endpoints[source].address} ({reason})"
        for source, reasons in sorted(failures.items())
        for to, reason in sorted(reasons.items())
    ]
    if not pairs:
        return None
    more = f"; and {len(pairs) - 4} more pairs" if len(pairs) > 4 else ""
    return "; ".join(pairs[:4]) + more + ". Learner ranks must reach one another on every port above 1023"
