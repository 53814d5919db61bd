"""Network interfaces of this host, and which of them Gloo and NCCL use.

Gloo and NCCL choose an interface by themselves: Gloo takes the address that the hostname resolves to, which is loopback
on many distributions, and NCCL takes the first that is up. Environment variables make both use the interface that
holds the node's Ray address. A value that the node's environment already has is kept, e.g. for NCCL on InfiniBand.
"""

import os
import socket
from ipaddress import ip_address


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
    import psutil  # `benchmarks.gpu` trains on machines that lack it

    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [entry.address.partition("%")[0] for entry in entries if entry.family in families]
        for name, entries in psutil.net_if_addrs().items()
    }


def bind_collectives(address: str) -> None:
    """Makes Gloo and NCCL use the interface that holds `address`; call it before the process group is started."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(address))
    bind_nccl(address)


def bind_nccl(address: str) -> None:
    """As `bind_collectives`, for NCCL alone, which reads its interface once in a process."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface_of(address)}")  # without "=", eth1 would also be eth10


def listen(address: str) -> socket.socket:
    """A socket that listens at `address` on a free port."""
    return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
