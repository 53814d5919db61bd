"""Weight sync, the learner's end: the policy's weights as a `WeightBundle`, with the parity probe by which a receiver
verifies them.

Invariants:

- All ranks gather the parameters together, one at a time. Only rank 0 casts, hashes and copies them, and it passes each
  full chunk to `put`: besides the model, it holds at most `chunk_bytes` and the largest parameter twice. `put` gets
  copies, never views of live parameters. The probe, which runs first, gathers FSDP's root (embedding, head, layers
  below `learner.min_num_params`) and one layer at a time.
- A version that processes of the host share is frozen first (`learner.published_copy`), once and whole, and the object
  store is filled from that copy, in the background.
- Adapters are merged, and the digest's sums are computed, on the device: of each parameter, one copy leaves it.
- Names and order are those of the model's Hugging Face state dict. A tied output head is omitted, as in a saved model;
  the receiver ties it again.
- A broadcast (`send`) gathers the same parameters once more, on the device, and sends what the bundle's table lists.
  The bundle is stored in any case: late joiners and the scorer read it, and its digest (`actors.weights`) identifies
  the weights, however they travel.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from squelch.actors.device_sums import DeviceDigest
from squelch.actors.messages import TensorEntry, WeightBundle
from squelch.actors.weight_group import WeightGroup, num_bytes
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import pack
from squelch.kit.packed.vision import PictureTensors
from squelch.kit.pictures.arrays import Shown, arrays_of
from squelch.kit.pictures.geometry import Vision
from squelch.kit.records.content import PlacedPictures
from squelch.kit.records.pictures import Picture
from squelch.learner.policy.lora import merged, published_name
from squelch.learner.policy.model import Policy, one_layer_at_a_time
from squelch.learner.published_copy import CHUNK_BYTES, Copies, as_array

Put = Callable[[dict[str, np.ndarray]], Any]
"""Stores a chunk and returns the reference that the bundle holds: `ray.put`, or the identity in tests."""

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
    to the end. `dtype`: as in `whole`."""
    live = _live(policy)
    return ((name, _copied(tensor, live)) for name, tensor in whole(policy, dtype))


def whole(policy: Policy, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, unsharded tensor where the policy keeps it, perhaps the live parameter itself), with adapters
    merged. A collective.

    Args:
        dtype: of floating-point tensors; None: their own.
    """
    named = merged(_unsharded(policy), policy.adapters) if policy.adapters else _unsharded(policy)
    return ((name, tensor.to(type_of(tensor, dtype))) for name, tensor in named)


def _take_part(policy: Policy) -> None:
    """This rank's part in another's iteration over `whole`, without its work."""
    for _ in _unsharded(policy):
        pass


def _copied(tensor: Tensor, live: set[int]) -> Tensor:
    """The tensor on CPU, and not in memory that is `_live`."""
    return tensor.to("cpu", copy=tensor.untyped_storage().data_ptr() in live)


def _live(policy: Policy) -> set[int]:
    """Addresses of the memory in which the parameters of this rank lie; gathering on one rank yields views of it."""
    found = (t.to_local() if isinstance(t, DTensor) else t for t in entries(policy).values())
    return {tensor.untyped_storage().data_ptr() for tensor in found}


def type_of(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type of the published tensor: `dtype`, but integer buffers keep theirs."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def _unsharded(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """As `whole`, before adapters are merged. A collective."""
    for name, tensor in entries(policy).items():
        detached = tensor.detach()
        yield name, detached.full_tensor() if isinstance(detached, DTensor) else detached


@dataclass(frozen=True)
class Probe:
    """The fixed probe of a policy, the same for every version of a run. `ids`: (num_probe,) int32; `pictures`: as
    `WeightBundle.probe_pictures`, one for a policy with a vision tower, whose weights text does not test."""

    ids: np.ndarray
    pictures: PlacedPictures
    vision: Vision | None

    @classmethod
    def of(cls, policy: Policy, vision: Vision | None) -> "Probe":
        """The probe; `vision`: how the policy is fed pictures, None without a tower."""
        random = np.random.default_rng(PROBE_SEED)
        ids = random.integers(0, policy.model.config.get_text_config().vocab_size, PROBE_LENGTH).astype(np.int32)
        if vision is None:
            return cls(ids, (), None)
        ids[np.isin(ids, sorted(vision.control_ids))] = 0
        side = vision.side_multiple * max(2, math.ceil(math.sqrt(vision.least_pixels) / vision.side_multiple))
        picture, before = Picture(random.integers(0, 256, (side, side, 3)).astype(np.uint8)), PROBE_LENGTH // 2
        whole = np.concatenate([ids[:before], vision.placeholders(side, side), ids[before:]]).astype(np.int32)
        return cls(whole, ((before + 1, picture),), vision)

    def layout(self, device: torch.device) -> Layout:
        """The layout of all ids but the last."""
        forest = pack([self.ids[:-1]])
        if self.vision is None:
            return Layout.of(forest, device)
        rows = [[Shown.of(at, picture.rgb, self.vision) for at, picture in self.pictures]]
        arrays = arrays_of(rows, forest.places, forest.num_tokens, self.vision)
        return Layout.of(forest, device, PictureTensors.of(arrays, device))


@torch.no_grad()
def log_probs_of(policy: Policy, probe: Probe, device: torch.device) -> np.ndarray:
    """Log-probabilities (num_probe - 1,) float32 of all tokens but the first, at temperature 1. A collective."""
    tokens = torch.from_numpy(probe.ids.astype(np.int64)).to(device)
    positions = torch.arange(len(tokens) - 1, device=device)
    layout = probe.layout(device)
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
    copies: Copies | None = None,
    vision: Vision | None = None,
) -> WeightBundle | None:
    """The bundle on rank 0, None elsewhere. `device`: where the policy computes, which is not where offloaded
    parameters are; `dtype` is the type of the published weights; `copies`: makes the frozen copy, if processes of this
    host shall share the weights; `vision`: as of `Probe.of`.

    The probe is computed in the learner's own arithmetic, so with a narrower `dtype` the receiver's parity difference
    includes the rounding.
    """
    probe = Probe.of(policy, vision)
    log_probs = log_probs_of(policy, probe, device)
    if dist.get_rank() != 0:
        return _take_part(policy)
    entries = table(policy, dtype)
    copy = copies.next(entries) if copies is not None else None
    chunks, clock, digest, live = _Chunks(put, chunk_bytes), _Clock(), DeviceDigest(), _live(policy)
    for name, tensor in clock.timed(whole(policy, dtype)):
        digest.add(name, tensor)
        with clock.running():
            if copy is not None:
                copy.add(name, tensor)
                continue
            array = as_array(_copied(tensor, live))
        chunks.add(name, array)
    shared = copy.seal() if copy is not None else None
    return WeightBundle(
        version=version,
        chunks=copy.stored() if copy is not None else chunks.finish(),
        checksum=digest.hexdigest(),
        probe_ids=probe.ids,
        probe_log_probs=log_probs,
        num_bytes=sum(map(num_bytes, entries)),
        bfloat16_names=frozenset(entry.name for entry in entries if entry.dtype == "bfloat16"),
        table=entries,
        probe_pictures=probe.pictures,
        shared=shared,
        why_not_on_gpu=copies.why_not_on_gpu if copies is not None else "",
        seconds_gathered=clock.seconds,
        seconds_sent=chunks.seconds,
    )


def send(policy: Policy, group: WeightGroup | None, dtype: torch.dtype = torch.float32) -> str | None:
    """Broadcasts the weights in `dtype` on rank 0, the sender of `group`; the other ranks pass None. A collective:
    every rank gathers to the end, also if the group fails.

    Returns the reason if the group failed.
    """
    if group is None:
        return _take_part(policy)
    weights, failure = whole(policy, dtype), None
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
        TensorEntry(name, str(type_of(tensor, dtype)).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in published(policy).items()
    )


class _Clock:
    """Measures the seconds in which weights are gathered and copied, without the time of what is done with them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this context, time counts."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    def timed(self, items: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields the items and adds up the time that each takes."""
        while True:
            with self.running():
                item = next(items, None)
            if item is None:
                return
            yield item


class _Chunks:
    """Fills chunks of about `chunk_bytes` and hands each to `put` when full."""

    def __init__(self, put: Put, chunk_bytes: int) -> None:
        self.put, self.chunk_bytes = put, chunk_bytes
        self.stored: list[Any] = []
        self.open: dict[str, np.ndarray] = {}
        self.open_bytes = 0
        self.seconds = 0.0
        """Seconds spent in `put`."""

    def add(self, name: str, array: np.ndarray) -> None:
        """Takes one parameter."""
        self.open[name] = array
        self.open_bytes += array.nbytes
        if self.open_bytes >= self.chunk_bytes:
            self._close()

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
