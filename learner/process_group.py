"""The learner's own process group. It contains learner ranks only and is never rebuilt during a run.

Invariants: no collective waits longer than `timeout_s`. Sockets are bound to the given address, never to all
interfaces. A single rank needs no port, because its store is in memory.
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

LOOPBACK = ("127.0.0.1", "localhost")


def start(rank: int, world_size: int, address: str, port: int, timeout_s: float, device: str) -> None:
    """Join the group; rank 0 listens at `address:port`. gloo on cpu, nccl on cuda."""
    timeout = timedelta(seconds=timeout_s)
    if address in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if device == "cuda":
        torch.cuda.set_device(0)
    # gloo transfers the texts that ranks exchange about a checkpoint; nccl transfers tensors on the accelerator.
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    store = _store(rank, world_size, address, port, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def _store(rank: int, world_size: int, address: str, port: int, timeout: timedelta) -> dist.Store:
    if world_size == 1:
        return dist.HashStore()
    if rank > 0:
        return dist.TCPStore(address, port, world_size, is_master=False, timeout=timeout)
    listener = socket.create_server((address, port))  # without it, TCPStore listens on every interface
    return dist.TCPStore(address, port, world_size, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


def stop() -> None:
    """Leave the group, if joined."""
    if dist.is_initialized():
        dist.destroy_process_group()
