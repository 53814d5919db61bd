"""The network between learner ranks: the interface that their collectives use, and whether they reach one another.

Gloo and NCCL choose an interface by themselves: Gloo takes the address that the hostname resolves to, which is loopback
on many distributions, and NCCL takes the first that is up. Environment variables make both use the interface that
holds the node's Ray address. A value that the node's environment already has is kept, e.g. for NCCL on InfiniBand.

| waits for | unblocked by | on time-out |
|---|---|---|
| a TCP connection to each other rank, all at once | that rank's host | it is reported, `CONNECT_TIMEOUT_S` |
"""

import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 128
"""Ranks that a rank tries at once."""


@dataclass(frozen=True)
class Home:
    """The node of a rank."""

    node: str
    """Ray's id of the node."""
    address: str
    """The address under which the node joined Ray."""
    process_id: int


@dataclass(frozen=True)
class Place:
    """Where a rank listens."""

    address: str
    """Of the rank's node, or loopback if all ranks share a node."""
    store_port: int
    """For the members of the process group; rank 0's is used."""
    door_port: int
    """For the other ranks' attempts to reach this one."""


def interface_of(address: str) -> str:
    """The name of this host's interface that holds `address`; ValueError with all addresses if none does."""
    wanted, held = ip_address(address), interface_addresses()
    for name, addresses in held.items():
        if any(ip_address(own) == wanted for own in addresses):
            return name
    known = "; ".join(f"{name}: {', '.join(addresses)}" for name, addresses in held.items())
    raise ValueError(
        f"no network interface of this host holds {address}, the address under which the node joined Ray ({known}). "
        "Start Ray with --node-ip-address=ADDRESS of an interface that the other nodes reach"
    )


def interface_addresses() -> dict[str, list[str]]:
    """The IPv4 and IPv6 addresses of each interface of this host, by name; IPv6 without zone."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [entry.address.partition("%")[0] for entry in entries if entry.family in families]
        for name, entries in psutil.net_if_addrs().items()
    }


def bind_collectives(address: str) -> None:
    """Makes Gloo and NCCL use the interface that holds `address`; call it before the process group is started."""
    name = interface_of(address)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # without "=", NCCL takes eth1 for eth10 as well


def listen(address: str) -> socket.socket:
    """A socket that listens at `address` on a free port."""
    return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def unreachable(own_rank: int, places: Sequence[Place]) -> dict[int, str]:
    """Tries to connect to every other rank; returns the reason of each failure by rank."""
    others = {rank: place for rank, place in enumerate(places) if rank != own_rank}
    if not others:
        return {}
    with ThreadPoolExecutor(min(MAX_CONNECTIONS, len(others))) as pool:
        reasons = dict(zip(others, pool.map(_try, others.values()), strict=True))
    return {rank: reason for rank, reason in reasons.items() if reason}


def _try(place: Place) -> str:
    """The reason why the place cannot be reached; empty if it can."""
    try:
        socket.create_connection((place.address, place.door_port), timeout=CONNECT_TIMEOUT_S).close()
    except TimeoutError:
        return f"no answer within {CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error)
    return ""


def failures_in_words(places: Sequence[Place], failures: Mapping[int, Mapping[int, str]]) -> str:
    """One sentence about ranks that do not reach one another, with both addresses of each pair; empty if all do.

    Args:
        failures: reason by the rank that was tried, by the rank that tried.
    """
    pairs = [
        f"learner rank {to} on {places[to].address} cannot be reached from rank {source} on {places[source].address} "
        f"({reason})"
        for source, reasons in sorted(failures.items())
        for to, reason in sorted(reasons.items())
    ]
    if not pairs:
        return ""
    more = f"; and {len(pairs) - 4} more pairs" if len(pairs) > 4 else ""
    return "; ".join(pairs[:4]) + more + ". Learner ranks must reach one another on every port above 1023"
