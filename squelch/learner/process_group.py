"""The learner's own process group. It contains learner ranks only and is never rebuilt during a run.

Invariants: no collective waits longer than `timeout_s`, or than the time of `waiting`. Sockets are bound to the rank's
own address, never to all interfaces (`actors.process.interfaces`). A single rank needs no port, because its store is in
memory.
"""

import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from squelch.actors.process.interfaces import bind_collectives


def start(
    rank: int,
    world_size: int,
    address: str,
    port: int,
    timeout_s: float,
    device: str,
    own_address: str = "",
    listener: socket.socket | None = None,
) -> None:
    """Join the group; rank 0 listens at `address:port`. gloo on cpu, nccl on cuda.

    Args:
        own_address: address of this rank's interface; that of rank 0 if empty, because all ranks share its host.
        listener: rank 0's socket if it already listens at `address:port`; the group takes it over.
    """
    timeout = timedelta(seconds=timeout_s)
    bind_collectives(own_address or address)
    if device == "cuda":
        torch.cuda.set_device(0)
    # gloo transfers the texts that ranks exchange about a checkpoint; nccl transfers tensors on the accelerator.
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    store = _store(rank, world_size, address, port, timeout, listener)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def _store(
    rank: int, world_size: int, address: str, port: int, timeout: timedelta, listener: socket.socket | None
) -> dist.Store:
    if world_size == 1:
        return dist.HashStore()
    if rank > 0:
        return dist.TCPStore(address, port, world_size, is_master=False, timeout=timeout)
    # Without a listener of ours, TCPStore would listen on every interface.
    listener = listener or socket.create_server((address, port))
    return dist.TCPStore(address, port, world_size, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


@contextmanager
def waiting(timeout_s: float, before_s: float) -> Iterator[None]:
    """Collectives inside wait up to `timeout_s`, for ranks that use their disks; before and after, up to `before_s`."""
    set_timeout = distributed_c10d._set_pg_timeout  # torch has no public way
    set_timeout(timedelta(seconds=timeout_s))
    try:
        yield
    finally:
        set_timeout(timedelta(seconds=before_s))


def ranks_here() -> int:
    """Number of ranks on this host. A collective."""
    mine = torch.tensor([zlib.crc32(socket.gethostname().encode())])
    hosts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(hosts, mine)
    return sum(bool(host == mine) for host in hosts)


def stop() -> None:
    """Leave the group, if joined."""
    if dist.is_initialized():
        dist.destroy_process_group()
