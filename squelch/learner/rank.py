"""One learner rank, in a process of its own: the class that `actors.process.shell` puts into a Ray actor. The
coordinator calls all ranks together (`cluster.control.rank_client`); the rows of `cluster.control.calls` say how
long each call may take.

| actor | produces | waits for | unblocked by | on time-out |
|---|---|---|---|---|
| `LearnerRank` | report, bundle, files | payload of the kept groups | their owner | RuntimeError naming them |
| `LearnerRank` | | the model folder, chunk by chunk | the driver | ValueError naming file and host |
| `LearnerRank` | | a connection to each other rank | that rank's host | it is reported |
| `LearnerRank` 0 | the next version | the stored chunks of the one before | the thread `beside` | RuntimeError |
| `LearnerRank` 0 | a broadcast | all members of its weight group | their own calls | it returns the reason |
| `LearnerRank` | | the other ranks, in a collective | each rank's own call | the process group's time-out |

Invariants: all ranks get every collective, in the same order. The process group contains learner ranks only and lives
as long as they do. Ranks may run on several hosts: collectives use the interface that holds a node's Ray address
(`actors.process.interfaces`), the model folder comes through the object store (`actors.process.shipping`), and files of
ranks that do not see the driver's disk are fetched from them (`learner.staging`). `progress` is no collective: a thread
of its own answers it while another call is under way, and another one stores published weights.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError
from transformers.utils import logging as hf_logging

from squelch.actors.gpus.memory import GpuMemory
from squelch.actors.gpus.watch import Counters, watch_gpu
from squelch.actors.messages import GroupMember, Imitation, StepReport, StepTerms, WeightBundle
from squelch.actors.process.folders import Entry
from squelch.actors.process.interfaces import bind_nccl, listen
from squelch.actors.process.shipping import Folder, forget, local, outline, own_node
from squelch.actors.weight_group import WeightGroup
from squelch.kit.archive.rows import from_table, unpacked
from squelch.kit.process.progress_marks import Marks, Progress
from squelch.learner import imitation, process_group, publish, staging
from squelch.learner.batching import Groups, Row
from squelch.learner.config import LearnerConfig
from squelch.learner.decomposition.decompose import decompose
from squelch.learner.decomposition.statistics import Decomposition
from squelch.learner.memory import full_gpu_explained
from squelch.learner.network import LOOPBACK, Endpoint, RankProcess, unreachable
from squelch.learner.published_copy import Copies
from squelch.learner.staging import Staging
from squelch.learner.trainer import Trainer

log = logging.getLogger(__name__)


def counters() -> Counters:
    """What torch knows of this rank's GPU; its largest reservation is that since the last call."""
    free, total = torch.cuda.mem_get_info()
    own = torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return Counters(torch.cuda.get_device_name(), float(total - free), float(total), float(own))


DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types in which weights are published, by the name in `rollout.dtype`; any other name publishes float32."""


def _in_background() -> Callable[[int], Any]:
    """Calls `LearnerRank.chunk` of this actor beside its other calls: Ray stores what the call returns."""
    actor = ray.get_runtime_context().current_actor
    return lambda number: actor.beside.remote("chunk", number)


class LearnerRank:
    """One rank. `start` and the methods that train, publish, send, save and load are collectives."""

    def __init__(
        self,
        rank: int,
        model_dir: Folder | str,
        config: LearnerConfig,
        seed: int,
        temperature: float,
        transfer: str = "object_store",
    ) -> None:
        """`transfer`: the way in which workers get weights, which says what rank 0 keeps of a version."""
        self.rank, self.model_dir, self.config = rank, model_dir, config
        self.seed, self.temperature = seed, temperature
        self.marks = Marks()
        self._sockets: tuple[socket.socket, ...] = ()
        self._rendezvous: socket.socket | None = None
        """Listens for the members of a weight group that is being formed."""
        self._group: WeightGroup | None = None
        self._transfer = transfer
        self._copies: Copies | None = None

    def progress(self) -> Progress:
        """The progress marks so far, also in the middle of a step."""
        return self.marks.seen()

    # -- the process group -------------------------------------------------------------------------------------------

    def identify(self) -> RankProcess:
        """The node and the process of this rank."""
        return RankProcess(*own_node(), os.getpid())

    def open_endpoint(self, one_node: bool) -> Endpoint:
        """Listens, until `start`, for the other ranks: on loopback if all ranks share a node."""
        address = LOOPBACK if one_node else own_node()[1]
        self._sockets = store, check = listen(address), listen(address)
        return Endpoint(address, store.getsockname()[1], check.getsockname()[1])

    def unreachable(self, endpoints: Sequence[Endpoint]) -> dict[int, str]:
        """The ranks that this rank cannot connect to, with the reason."""
        return unreachable(self.rank, endpoints)

    def start(self, endpoints: Sequence[Endpoint], resumes: bool = False) -> None:
        """Joins the process group and loads the model. `endpoints`: of all ranks; rank 0's store is used. `resumes`: as
        of `Trainer`."""
        config, rank = self.config, self.rank
        model_dir = local(self.model_dir)  # before the group exists, whose collectives would wait for a copy
        (store, check), self._sockets = self._sockets, ()
        check.close()
        if config.num_gpus > 0:  # also where the ranks share this node: a weight group has members on others
            bind_nccl(own_node()[1])
        torch.set_num_threads(config.num_threads)
        hf_logging.disable_progress_bar()
        if rank > 0 or len(endpoints) == 1:
            store.close()
        first, device = endpoints[0], "cuda" if config.num_gpus > 0 else "cpu"
        world = (rank, len(endpoints), first.address, first.store_port, config.step_timeout_s, device)
        process_group.start(*world, endpoints[rank].address, store)
        self.trainer = Trainer(model_dir, config, rank, len(endpoints), self.seed, self.temperature, resumes)
        self.marks = self.trainer.marks
        if rank == 0:
            memory = GpuMemory(self.trainer.device)
            self._copies = Copies(self._transfer, memory, config.step_timeout_s, _in_background())
        self._gpu = watch_gpu(f"learner-{rank}", config.num_gpus, config.dtype, counters)

    def stop(self) -> None:
        """Leaves the process group."""
        process_group.stop()

    # -- training ----------------------------------------------------------------------------------------------------

    def train_step(self, step: int, refs: Sequence[Any], group_ids: Sequence[str], terms: StepTerms) -> StepReport:
        """Fetches the groups' tables (`refs`, in order of `group_ids`) and learns from them."""
        start = time.perf_counter()
        if self._copies is not None:
            self._copies.free()
        groups = self._fetch(f"step {step}", refs, group_ids)
        fetch = time.perf_counter() - start
        with self._explained():
            report = self.trainer.train_step(step, groups, terms)
        gpu = self._gpu.take()
        return replace(report, seconds={**report.seconds, "fetch": fetch}, gpus=() if gpu is None else (gpu,))

    def decompose(self, refs: Sequence[Any], group_ids: Sequence[str]) -> Decomposition:
        """The gradient decomposition of these groups; no update is made."""
        groups = self._fetch("gradients", refs, group_ids)
        with self._explained():
            return decompose(self.trainer, groups)

    def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        """One supervised optimizer step on the rows."""
        with self._explained():
            return imitation.imitate(self.trainer, rows, step)

    def imitation_loss(self, rows: Sequence[Row]) -> float:
        """The mean loss of the rows, nats per sampled token; the weights do not change."""
        with self._explained():
            return imitation.imitation_loss(self.trainer, rows)

    def _explained(self) -> AbstractContextManager[None]:
        copies = self._copies
        return full_gpu_explained(self.config, lambda: 0 if copies is None else copies.gpu_bytes)

    def _fetch(self, what: str, refs: Sequence[Any], group_ids: Sequence[str]) -> Groups:
        """The groups' trajectories. Raises RuntimeError when their tables do not arrive within `step_timeout_s`."""
        try:
            packed = ray.get(list(refs), timeout=self.config.step_timeout_s)
        except GetTimeoutError as error:
            raise RuntimeError(
                f"{what}: the payload of groups {', '.join(group_ids)} did not arrive within "
                f"{self.config.step_timeout_s} s"
            ) from error
        return [(group_id, from_table(unpacked(rows))) for group_id, rows in zip(group_ids, packed, strict=True)]

    # -- weights -----------------------------------------------------------------------------------------------------

    def publish(self, version: int, dtype: str) -> WeightBundle | None:
        """The weights as `version` in `dtype`, which rank 0 puts into the object store; other ranks return None."""
        with self._explained():
            return self.trainer.publish(version, ray.put, DTYPES.get(dtype, torch.float32), self._copies)

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """A chunk of the version that was published last, on rank 0. A thread of its own makes these calls."""
        assert self._copies is not None, "only rank 0 publishes"
        return self._copies.chunk(number)

    def open_group(self) -> tuple[str, int]:
        """Leaves the present weight group and listens for the members of a new one; the address and port."""
        self._leave_group()
        self._rendezvous = listen(own_node()[1])
        return self._rendezvous.getsockname()[:2]

    def join_group(self, member: GroupMember) -> str | None:
        """Forms the weight group that `open_group` announced; waits for all members. The reason if that fails, because
        the learner itself is as well as before."""
        assert self._rendezvous is not None, "open_group comes first"
        listener, self._rendezvous = self._rendezvous, None
        try:
            self._group = WeightGroup(member, self.trainer.device, listener)
        except RuntimeError as error:
            return str(error)
        return None

    def send(self, dtype: str) -> str | None:
        """Broadcasts the weights in the weight group, of which only rank 0 is a member; the reason if that fails."""
        failure = publish.send(self.trainer.policy, self._group, DTYPES.get(dtype, torch.float32))
        if failure is not None:
            self._leave_group()
        return failure

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    # -- folders -----------------------------------------------------------------------------------------------------

    def save(self, path: Path | str, loop: Mapping[str, Any]) -> dict[str, float]:
        """Writes a checkpoint that contains the coordinator's data `loop`; the seconds of each part."""
        with self._waiting():
            return self.trainer.save(Path(path), loop)

    def write(self, path: Path | str, loop: Mapping[str, Any]) -> dict[str, float]:
        """As `save`, but the driver, which is on this node, seals the checkpoint."""
        with self._waiting():
            return self.trainer.save(Path(path), loop, sealed=False)

    def load(self, folder: Folder | Path) -> dict[str, Any]:
        """Loads a checkpoint, of which this node gets what its ranks read; returns the coordinator's data."""
        with self._waiting():
            return self.trainer.load(*outline(folder))

    def forget(self, folder: Folder | Path) -> None:
        """Removes this node's copy of a loaded checkpoint, if there is one."""
        if isinstance(folder, Folder):
            forget(folder)

    def export(self, path: Path | str) -> None:
        """Writes the policy as a Hugging Face folder."""
        with self._waiting():
            self.trainer.export(Path(path))

    def _waiting(self) -> AbstractContextManager[None]:
        """Other ranks may wait for this one as long as a checkpoint may take."""
        return process_group.waiting(self.config.checkpoint_timeout_s, self.config.step_timeout_s)

    def sees(self, folder: str, token: str) -> bool:
        """Whether this rank sees the driver's folder."""
        return staging.sees(Path(folder), token)

    def stage(self, token: str) -> str:
        """Creates the staging folder `token` on this node; returns the path to write to."""
        return Staging(token).create()

    def staged(self, token: str) -> tuple[Entry, ...]:
        """The files in the staging folder."""
        return Staging(token).entries()

    def read_staged(self, token: str, name: str, number: int) -> bytes:
        """A chunk of a file in the staging folder."""
        return Staging(token).read(name, number)

    def unstage(self, token: str) -> None:
        """Removes the staging folder."""
        Staging(token).remove()
