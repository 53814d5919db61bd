"""Publication: the policy's weights as a `WeightBundle`, with the parity probe by which a receiver verifies them.

Invariants:

- All ranks gather the parameters together, one at a time. Only rank 0 keeps them, and it passes each full chunk to
  `put`: besides the model, a rank holds at most `chunk_bytes` and the largest parameter twice. `put` gets copies, never
  views of live parameters. The probe, which runs first, gathers FSDP's root (embedding, head, layers below
  `learner.min_num_params`) and one layer at a time.
- Names and order are those of the model's Hugging Face state dict. A tied output head is omitted, as in a saved model;
  the receiver ties it again.
- A broadcast (`send`) gathers the same parameters once more, on the device, and sends what the bundle's table lists.
  The bundle is stored in any case: late joiners and the scorer read it, and its checksum identifies the weights.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from squelch.actors.messages import TensorEntry, WeightBundle
from squelch.actors.packed.layout import Layout
from squelch.actors.packed.packing import pack
from squelch.actors.weight_group import WeightGroup
from squelch.actors.weights import checksum
from squelch.learner.policy.lora import merged, published_name
from squelch.learner.policy.model import Policy, one_layer_at_a_time

Put = Callable[[dict[str, np.ndarray]], Any]
"""Stores a chunk and returns the reference that the bundle holds: `ray.put`, or the identity in tests."""

CHUNK_BYTES = 256 << 20
PROBE_LENGTH = 32
PROBE_SEED = 20
PREFIX = "model."
"""Prefix of the Hugging Face model's parameters in `Policy`."""


def entries(module: nn.Module) -> dict[str, Tensor]:
    """Tensors (still sharded) by state-dict name, each tensor once, including persistent buffers."""
    seen: set[int] = set()
    found = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            found[name.removeprefix(PREFIX)] = tensor
        seen.add(id(tensor))
    return found


def published(policy: Policy) -> dict[str, Tensor]:
    """`entries` by their published names, without adapters, in the order of `gathered`."""
    named = {published_name(name): tensor for name, tensor in entries(policy).items()}
    return {name: tensor for name, tensor in named.items() if name is not None}


def gathered(policy: Policy, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, copy of the unsharded tensor on CPU), with adapters merged. A collective: every rank must iterate
    to the end.

    Args:
        dtype: of the copies of floating-point tensors, which are cast before they leave the device; None: their own.
            With adapters it is ignored, because merging computes in the parameters' own type.
    """
    wanted = dtype if policy.lora is None else None
    copies = ((name, _copied(whole, wanted)) for name, whole in _whole(policy))
    return copies if policy.lora is None else merged(copies, policy.lora)


def _copied(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy on CPU. Cast first, because a copy that casts moves the wider type and casts on the host."""
    cast = tensor.to(_type_of(tensor, dtype))
    return cast.to("cpu", copy=cast is tensor)


def _type_of(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type of the tensor's copies: `dtype`, but integer buffers keep theirs."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def _whole(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, unsharded tensor on the device, perhaps the live parameter itself). A collective."""
    for name, tensor in entries(policy).items():
        detached = tensor.detach()
        yield name, detached.full_tensor() if isinstance(detached, DTensor) else detached


def as_array(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    """A contiguous numpy array in `dtype`; bfloat16 is stored as its bits, in uint16. Integer buffers keep their
    type."""
    cast = tensor.to(_type_of(tensor, dtype)).contiguous()
    return cast.view(torch.uint16).numpy() if cast.dtype == torch.bfloat16 else cast.numpy()


def probe_tokens(vocabulary: int) -> np.ndarray:
    """The fixed probe: (PROBE_LENGTH,) int32 ids, the same for every version of a run."""
    return np.random.default_rng(PROBE_SEED).integers(0, vocabulary, PROBE_LENGTH).astype(np.int32)


@torch.no_grad()
def probe(policy: Policy, ids: np.ndarray, device: torch.device) -> np.ndarray:
    """Log-probabilities (num_probe - 1,) float32 of all tokens but the first, at temperature 1. A collective."""
    tokens = torch.from_numpy(ids.astype(np.int64)).to(device)
    positions = torch.arange(len(ids) - 1, device=device)
    layout = Layout.of(pack([ids[:-1]]), device)
    with one_layer_at_a_time(policy):
        log_probs, _ = policy(tokens[None, :-1], positions, tokens[1:], layout, 1.0, False)
    return log_probs.float().cpu().numpy()


def publish(
    policy: Policy,
    device: torch.device,
    version: int,
    put: Put,
    dtype: torch.dtype = torch.float32,
    chunk_bytes: int = CHUNK_BYTES,
) -> WeightBundle | None:
    """The bundle on rank 0, None elsewhere. `device`: where the policy computes, which is not where offloaded
    parameters are; `dtype` is the type of the published weights.

    The probe is computed in the learner's own arithmetic, so with a narrower `dtype` the receiver's parity difference
    includes the rounding.
    """
    ids = probe_tokens(policy.model.config.vocab_size)
    log_probs = probe(policy, ids, device)
    chunks = _Chunks(put, chunk_bytes, keep=dist.get_rank() == 0)
    clock = _Clock()
    digest = checksum(
        chunks.add(name, as_array(tensor, dtype)) for name, tensor in clock.timed(gathered(policy, dtype))
    )
    if dist.get_rank() != 0:
        return None
    stored = chunks.finish()
    return WeightBundle(
        version=version,
        chunks=stored,
        checksum=digest,
        probe_ids=ids,
        probe_log_probs=log_probs,
        num_bytes=chunks.num_bytes,
        bfloat16_names=frozenset(chunks.floating) if dtype == torch.bfloat16 else frozenset(),
        table=table(policy, dtype),
        seconds_gathered=clock.seconds,
        seconds_sent=chunks.seconds,
    )


def send(policy: Policy, group: WeightGroup | None, dtype: torch.dtype = torch.float32) -> str | None:
    """Broadcasts the weights in `dtype` on rank 0, the sender of `group`; the other ranks pass None. A collective:
    every rank gathers to the end, also if the group fails.

    Returns the reason if the group failed.
    """
    # Adapters are merged on CPU, so that a broadcast has the same bits as the bundle.
    named = _whole(policy) if policy.lora is None else gathered(policy)
    weights = ((name, tensor.to(_type_of(tensor, dtype))) for name, tensor in named)
    failure: str | None = None
    if group is not None:
        try:
            group.send(weights, table(policy, dtype))
        except RuntimeError as error:
            failure = str(error)
    for _ in weights:
        pass
    return failure


def table(policy: Policy, dtype: torch.dtype = torch.float32) -> tuple[TensorEntry, ...]:
    """The published parameters in order, with their whole shapes; no rank waits for another."""
    return tuple(
        TensorEntry(name, _type_name(tensor, dtype), tuple(tensor.shape)) for name, tensor in published(policy).items()
    )


def _type_name(tensor: Tensor, dtype: torch.dtype) -> str:
    return str(dtype if tensor.is_floating_point() else tensor.dtype).removeprefix("torch.")


class _Clock:
    """Measures the seconds that an iterator takes to produce its items, without the consumer's time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, items: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields the items and adds up the time that each takes."""
        while True:
            started = time.perf_counter()
            item = next(items, None)
            self.seconds += time.perf_counter() - started
            if item is None:
                return
            yield item


class _Chunks:
    """Fills chunks of about `chunk_bytes` and hands each to `put` when full."""

    def __init__(self, put: Put, chunk_bytes: int, keep: bool) -> None:
        self.put, self.chunk_bytes, self.keep = put, chunk_bytes, keep
        self.stored: list[Any] = []
        self.open: dict[str, np.ndarray] = {}
        self.floating: list[str] = []
        self.num_bytes = 0
        self.open_bytes = 0
        self.seconds = 0.0
        """Seconds spent in `put`."""

    def add(self, name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
        """Takes one parameter and returns it for the checksum."""
        if array.dtype == np.uint16:
            self.floating.append(name)
        if self.keep:
            self.open[name] = array
            self.num_bytes += array.nbytes
            self.open_bytes += array.nbytes
            if self.open_bytes >= self.chunk_bytes:
                self._close()
        return name, array

    def _close(self) -> None:
        started = time.perf_counter()
        self.stored.append(self.put(self.open))
        self.open, self.open_bytes = {}, 0
        self.seconds += time.perf_counter() - started

    def finish(self) -> tuple[Any, ...]:
        """Passes the last chunk to `put`; returns the references of all chunks."""
        if self.open:
            self._close()
        return tuple(self.stored)
