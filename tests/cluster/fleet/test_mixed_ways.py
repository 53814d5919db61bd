"""A run whose workers read the learner's GPU, its sealed memory or the object store, by the real protocols on fakes of
the GPU and of the store: every worker has every version's own weights, however they came."""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.actors import gpu_weights
from squelch.actors.messages import TensorEntry, UpdateReport, WeightBundle
from squelch.actors.weights import checksum
from squelch.actors.weights_file import ArraySpec, Unreachable, opened, read_arrays
from squelch.cluster.control.actor_errors import Failed
from squelch.cluster.control.scaling import Kind
from squelch.learner.published_copy import Copies, as_array
from squelch.learner.refusal import SettingRefused
from tests.cluster.loop.test_scaling import changing
from tests.fakes import actors
from tests.fakes.actors import FakeArchive, Fault, Learner, Worker, World
from tests.fakes.gpus import FakeGpu
from tests.fakes.run import check, drive
from tests.fakes.run import settings as configured

SHARES = ("learner.ranks=1", "learner.num_gpus=0.5", "rollout.num_gpus=0.2", "rollout.count=1", "validation.every=0")
ELSEWHERE = "rollout-1"
"""The worker on another GPU than the learner's."""


@dataclass
class Host(World):
    """With an object store, and what each worker read."""

    stored: defaultdict[tuple[Learner, int], dict[str, np.ndarray]] = field(default_factory=lambda: defaultdict(dict))
    read: list[tuple[str, int, str, str]] = field(default_factory=list)
    """(worker, version, way, digest) of each load."""


def parameters(weights: list[str]) -> list[tuple[str, torch.Tensor]]:
    """Tensors that stand for a list of updates."""
    number = zlib.crc32("|".join(weights).encode())
    return [
        ("w", torch.full((40, 3), number, dtype=torch.int64)),
        ("b", torch.full((3,), number % 97, dtype=torch.half)),
    ]


class Sharing(Learner):
    """Freezes a version as rank 0 does, and stores it a while later. The driver of a second learner exports nothing."""

    def __init__(self, world: Host, ranks: int, number: int) -> None:
        super().__init__(world, ranks, number)
        gpu = FakeGpu(refuses="allocated" if number > 1 else "")
        self.copies = Copies(world.config.way.name, gpu, 0.0, self._stored_later)
        self._version, self._storing = -1, set[asyncio.Task]()

    def _stored_later(self, number: int) -> int:
        async def store() -> None:
            await asyncio.sleep(self.world.pace("store"))
            arrays = self.copies.chunk(number)
            self.world.stored[self, self._version] = {name: array.copy() for name, array in arrays.items()}

        self._storing.add(asyncio.ensure_future(store()))
        return number

    async def train_step(self, *arguments):
        self.copies.free()
        return await super().train_step(*arguments)

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        bundle = await super().publish(version, dtype)
        await asyncio.gather(*self._storing)
        while self.copies.gpu is not None and not self._nobody_reads(self.copies.gpu._ticket):
            await asyncio.sleep(0.1)
        weights, self._version = parameters(self.weights), version
        table = tuple(TensorEntry(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in weights)
        copy = self.copies.next(table)
        for name, tensor in weights:
            copy.add(name, tensor)
        shared, digits = copy.seal(), checksum((name, as_array(tensor)) for name, tensor in weights)
        copy.stored()
        return replace(bundle, shared=shared, table=table, checksum=digits, why_not_on_gpu=self.copies.why_not_on_gpu)

    @staticmethod
    def _nobody_reads(ticket) -> bool:
        return ticket is None or ticket.left(0.0)


class Reading(Worker):
    """Reads a version by the best way that it has, as the worker and its engine do."""

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        why = ""
        try:
            with opened(bundle.shared) as path, ExitStack() as held:
                await self.while_alive(asyncio.sleep(self.world.pace("load")))
                if bundle.shared.gpu is None:
                    found = read_arrays(path, map(ArraySpec.of, bundle.shared.arrays)).items()
                else:
                    gpu = FakeGpu(gpu="GPU-1" if self.name == ELSEWHERE else "GPU-0")
                    reading = gpu_weights.read(gpu, bundle.shared.gpu, bundle.table, bundle.checksum)
                    found = ((name, as_array(tensor)) for name, tensor in held.enter_context(reading))
                way, digits = bundle.shared.way, checksum(found)
        except Unreachable as error:
            why, way, digits = str(error), "object_store", checksum((await self._from_store(bundle)).items())
        report = await super().update_weights(bundle)
        self.world.read.append((self.name, bundle.version, way, digits))
        return replace(report, way=way, why_not_shared=why)

    async def _from_store(self, bundle: WeightBundle) -> dict[str, np.ndarray]:
        owner, _ = bundle.chunks
        while (owner, bundle.version) not in self.world.stored:
            if not owner.alive:
                raise Failed("the owner of the weights is gone", RuntimeError("OwnerDiedError"))
            await self.while_alive(asyncio.sleep(0.1))
        return self.world.stored[owner, bundle.version]


@pytest.fixture(autouse=True)
def sharing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(actors, "Learner", Sharing)
    monkeypatch.setattr(actors, "Worker", Reading)
    yield


@pytest.mark.parametrize("staleness", [0, 2])
def test_workers_scaled_from_one_to_three_and_back_have_equal_versions_by_whatever_way(
    tmp_path: Path, staleness: int, caplog: pytest.LogCaptureFixture
) -> None:
    words = (*SHARES, "loop.steps=12", f"loop.max_staleness={staleness}", "cluster.max_restarts=9")
    config = configured(tmp_path, *words)
    assert config.way.name == "ipc"
    world = Host(config, (Fault("sharing.train", 8, "die"),), rewards=lambda ticket, index: float(index % 2))
    archive = FakeArchive()
    changes = [(30, Kind.ROLLOUT, 3, False), (130, Kind.ROLLOUT, 1, False)]
    outcome = drive(world, archive, changing(world, changes))
    check(outcome, world, archive)
    assert outcome.ledger.counts()["trained"] == 36 and outcome.actors.made["learner"] == 2
    assert {name for name, *_ in world.read} == {"rollout-0", "rollout-1", "rollout-2"}
    assert {way for *_, way, _ in world.read} == {"ipc", "shared_memory", "object_store"}
    digests = {version: {d for _, v, _, d in world.read if v == version} for _, version, *_ in world.read}
    own = {v: checksum((n, as_array(t)) for n, t in parameters(w)) for v, w in world.versions.items()}
    assert digests == {version: {own[version]} for version in digests} and max(digests) == 12
    assert f"{ELSEWHERE} takes weights from the object store: the weights are on GPU-0" in caplog.text
    assert "learner shares weights in the host's memory and not on its GPU: the driver refuses" in caplog.text
    facts = [f for (_, name), f in zip(archive.events, archive.facts, strict=True) if name == "weights"]
    assert facts[0]["ways"] == {"ipc": 1} and facts[-1]["ways"] == {"shared_memory": 1}


@pytest.mark.parametrize(
    ("count", "made", "reason"),
    [
        (
            2,
            0,
            r"rollout-1 takes .* the object store: the weights are on GPU-0, and this .* is on GPU-1",
        ),
        (1, 1, r"learner shares .* and not on its GPU: the driver refuses cuIpcGetMemHandle"),
    ],
)
def test_a_gpu_that_is_asked_for_by_name_and_cannot_be_shared_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, made: int, reason: str
) -> None:
    words = (*SHARES, f"rollout.count={count}", "rollout.weight_transfer=ipc")
    monkeypatch.setattr(actors, "Learner", lambda world, ranks, number: Sharing(world, ranks, number + made))
    with pytest.raises(SettingRefused, match=rf"rollout\.weight_transfer=ipc, but {reason}.*; set .*=auto"):
        drive(Host(configured(tmp_path, *words)), FakeArchive())
