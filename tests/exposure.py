"""What other hosts, and other users of this one, could reach of the processes and files of a run."""

import stat
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import psutil

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def sockets(processes: Iterable[psutil.Process]) -> set[str]:
    """Addresses of the processes' sockets: `HOST:PORT` for TCP and UDP; for a Unix socket its path, which begins with @
    if it is not in the file system. A process that has just ended has none."""
    found = set[str]()
    for process in processes:
        try:
            places = [one.laddr for one in process.net_connections("all")]
        except psutil.NoSuchProcess:
            continue
        found |= {place if isinstance(place, str) else f"{place.ip}:{place.port}" for place in places if place}
    return found


def exposed(addresses: Iterable[str]) -> set[str]:
    """Those addresses that are off loopback, and those of Unix sockets that other users may connect to. The ports on
    loopback are open to the host's users; Ray's ask for a token."""
    return {address for address in addresses if (_unix_open if address[0] in "@/" else _off_loopback)(address)}


def _off_loopback(address: str) -> bool:
    host = ip_address(address.rpartition(":")[0])
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return not (mapped or host).is_loopback


def _unix_open(address: str) -> bool:
    """False for a socket whose file is gone: nobody can connect to it."""
    path = Path(address)
    try:
        entered = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
        return address[0] == "@" or (entered and bool(path.stat().st_mode & OTHERS_WRITE))
    except FileNotFoundError:
        return False


def writable_by_others(folder: Path) -> list[str]:
    """The folder and the files and folders below it that the group or all others may write."""
    places = [place for place in (folder, *folder.rglob("*")) if not place.is_symlink()]
    return [str(place) for place in places if place.stat().st_mode & OTHERS_WRITE]
