"""The learner on Ray: one actor per rank, and the group of actors that the coordinator calls.

| party | produces | waits for | unblocked by | on time-out |
|---|---|---|---|---|
| `LearnerRank` | report, bundle, files | payload of the kept groups | their owner | RuntimeError naming them |
| `LearnerRank` | | the model folder, chunk by chunk | the driver | ValueError naming file and host |
| `LearnerRank` | | a connection to each other rank | that rank's host | RuntimeError naming both, `REACH_S` |
| `LearnerRank` 0 | a broadcast | all members of its weight group | their own calls | it returns the reason |
| `LearnerRank` | | the other ranks, in a collective | each rank's own call | the process group's time-out |
| `LearnerGroup` | results to the coordinator | every rank's call | the ranks | TimeoutError naming the late ranks |

Invariants: all ranks get every call, in the same order. When a rank dies, the call fails with a `RankLost` that names
the rank; calls are not retried here. The process group contains learner ranks only and lives as long as they do. Ranks
may run on several hosts: collectives use the interface that holds a node's Ray address (`actors.process.interfaces`),
the model folder comes through the object store (`actors.process.shipping`), and files of ranks that do not see the
driver's disk are fetched from them (`learner.staging`). `progress` and `live` are no collectives: a thread of their own
answers them while another call is under way.

Only a rank's own process imports torch and the trainer (in `start`): the driver, which creates the actors, starts about
ten seconds sooner without them on a slow core.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from squelch.actors.archive.rows import from_table, unpacked
from squelch.actors.messages import GroupMember, Imitation, StepReport, WeightBundle
from squelch.actors.process.folders import Entry
from squelch.actors.process.interfaces import bind_nccl, listen
from squelch.actors.process.log import log_variable
from squelch.actors.process.progress_marks import WATCHING, Marks, Progress
from squelch.actors.process.ray_errors import DEAD, cause_of_death
from squelch.actors.process.shipping import Folder, forget, local, offer, own_node
from squelch.learner import staging
from squelch.learner.config import LearnerConfig
from squelch.learner.network import LOOPBACK, Home, Place, failures_in_words, unreachable
from squelch.learner.process_environment import ENVIRONMENT
from squelch.learner.staging import Staging, sees

if TYPE_CHECKING:
    from squelch.actors.weight_group import WeightGroup
    from squelch.learner.batching import Groups, Row
    from squelch.learner.decomposition.statistics import Decomposition

GRACE_S = 5.0
"""Seconds to wait, after a rank has failed, for failures of other ranks, so that the error names a rank that died."""
STOP_S = 10.0
"""Seconds to wait for the ranks to leave the process group before they are killed."""
REACH_S = 20.0
"""Seconds within which every rank must have tried to connect to every other; a cut-off rank is named after them."""
LOADED = ("*", "sharded/**/*")
"""The files of a checkpoint that a rank loads; the export is not among them."""


class RankLost(RuntimeError):
    """A rank died, or raised an error that is not about its input. The others may wait for it in a collective, and its
    shards are lost or unknown, so that the group is of no more use. `died`: whether its process is gone."""

    def __init__(self, message: str, died: bool) -> None:
        super().__init__(message)
        self.died = died


class LearnerRank:
    """One rank. `start` and the methods that train, publish, send, save and load are collectives: call them on all
    ranks."""

    def __init__(self, model_dir: Folder | str, config: LearnerConfig, seed: int, temperature: float) -> None:
        self.model_dir, self.config, self.seed, self.temperature = model_dir, config, seed, temperature
        self.marks = Marks()
        self._sockets: tuple[socket.socket, ...] = ()
        self._door: socket.socket | None = None
        """Listens for the members of a weight group that is being formed."""
        self._group: WeightGroup | None = None

    @ray.method(concurrency_group="watch")
    def live(self) -> None:
        """Never returns: the call fails when the process ends."""
        threading.Event().wait()

    @ray.method(concurrency_group="watch")
    def progress(self) -> Progress:
        """The progress marks so far, also in the middle of a step."""
        return self.marks.seen()

    def home(self) -> Home:
        """The node that this rank runs on."""
        return Home(*own_node(), os.getpid())

    def place(self, one_node: bool) -> Place:
        """Listens, until `start`, for the other ranks: on loopback if all ranks share a node."""
        address = LOOPBACK if one_node else own_node()[1]
        self._sockets = store, door = listen(address), listen(address)
        return Place(address, store.getsockname()[1], door.getsockname()[1])

    def unreachable(self, rank: int, places: Sequence[Place]) -> dict[int, str]:
        """The ranks that this rank cannot connect to, with the reason."""
        return unreachable(rank, places)

    def start(self, rank: int, places: Sequence[Place]) -> None:
        """Join the process group and load the model."""
        from squelch.learner.rank import start

        model_dir = local(self.model_dir)  # before the group exists, whose collectives would wait for a copy
        (store, door), self._sockets = self._sockets, ()
        door.close()
        if self.config.num_gpus > 0:  # also where the ranks share this node: a weight group has members on others
            bind_nccl(own_node()[1])
        self.trainer = start(model_dir, self.config, rank, places, store, self.seed, self.temperature)
        self.marks = self.trainer.marks

    def train_step(self, step: int, refs: Sequence[Any], group_ids: Sequence[str], loss_scale: float) -> StepReport:
        """Fetch the kept groups' tables (`refs`, in order of `group_ids`) and learn from them."""
        start = time.perf_counter()
        groups = self._fetch(f"step {step}", refs, group_ids)
        fetch = time.perf_counter() - start
        report = self.trainer.train_step(step, groups, loss_scale)
        return replace(report, seconds={**report.seconds, "fetch": fetch})

    def decompose(self, refs: Sequence[Any], group_ids: Sequence[str]) -> Decomposition:
        """The gradient decomposition of these groups; no update is made. See `learner.decomposition.decompose`."""
        from squelch.learner.decomposition.decompose import decompose

        return decompose(self.trainer, self._fetch("gradients", refs, group_ids))

    def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        """One supervised optimizer step on the rows. See `learner.imitation.imitate`."""
        from squelch.learner.imitation import imitate

        return imitate(self.trainer, rows, step)

    def imitation_loss(self, rows: Sequence[Row]) -> float:
        """The mean loss of the rows, nats per sampled token; the weights do not change."""
        from squelch.learner.imitation import imitation_loss

        return imitation_loss(self.trainer, rows)

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

    def publish(self, version: int, dtype: str) -> WeightBundle | None:
        """The weights, which rank 0 puts into the object store; other ranks return None."""
        from squelch.learner.rank import publish

        return publish(self.trainer, version, ray.put, dtype)

    def open_group(self) -> tuple[str, int]:
        """Leave the present weight group, and listen for the members of a new one; returns the address and port."""
        self._leave_group()
        self._door = listen(own_node()[1])
        return self._door.getsockname()[:2]

    def join_group(self, member: GroupMember) -> str:
        """Form the weight group that `open_group` announced; waits for all members. Returns the reason if it fails,
        because the learner itself is as well as before."""
        from squelch.learner.rank import join_group

        assert self._door is not None, "open_group comes first"
        door, self._door = self._door, None
        found = join_group(self.trainer, member, door)
        if isinstance(found, str):
            return found
        self._group = found
        return ""

    def send(self, dtype: str) -> str:
        """Broadcast the weights in the weight group, whose only learner is rank 0. Returns the reason if it fails."""
        from squelch.learner.rank import send

        failure = send(self.trainer, self._group, dtype)
        if failure:
            self._leave_group()
        return failure

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def save(self, path: str, loop: Mapping[str, Any]) -> None:
        """Write a checkpoint that contains the coordinator's data `loop`."""
        self.trainer.save(Path(path), loop)

    def load(self, folder: Folder | str) -> dict[str, Any]:
        """Load a checkpoint; returns the coordinator's data."""
        return self.trainer.load(local(folder))

    def forget(self, folder: Folder) -> None:
        """Remove this node's copy of a loaded checkpoint."""
        forget(folder)

    def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder."""
        self.trainer.export(Path(path))

    def optimizer_steps(self) -> int:
        """Optimizer steps taken so far, including those before a loaded checkpoint."""
        return self.trainer.optimizer_steps

    def sees(self, folder: str, token: str) -> bool:
        """Whether this rank sees the driver's folder."""
        return sees(Path(folder), token)

    def stage(self, token: str) -> str:
        """Create the staging folder `token` on this node; returns the path to write to."""
        return Staging(token).create()

    def staged(self, token: str) -> tuple[Entry, ...]:
        """The files in the staging folder."""
        return Staging(token).entries()

    def read_staged(self, token: str, name: str, number: int) -> bytes:
        """A chunk of a file in the staging folder."""
        return Staging(token).read(name, number)

    def unstage(self, token: str) -> None:
        """Remove the staging folder."""
        Staging(token).remove()

    def stop(self) -> None:
        """Leave the process group."""
        from squelch.learner import process_group

        process_group.stop()


def _process(config: LearnerConfig, rank: int, logs: Path | None) -> dict[str, Any]:
    """Ray's runtime environment of a rank's process."""
    variables = {**ENVIRONMENT, "OMP_NUM_THREADS": str(config.num_threads)}
    return {"env_vars": variables | (log_variable(logs, f"learner-{rank}") if logs else {})}


class LearnerGroup:
    """All ranks behind one interface, for the coordinator. Every method blocks until all ranks have finished, at most
    for the method's time-out. Each raises TimeoutError or RankLost, naming the ranks that are late or failed."""

    def __init__(
        self,
        model_dir: Folder | Path | str,
        config: LearnerConfig,
        seed: int = 0,
        temperature: float = 1.0,
        logs: Path | None = None,
        scheduling: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Create the actors. Each rank writes its output to a separate file in the folder `logs`.

        Args:
            scheduling: Ray's options for the node of each rank; without them Ray chooses.
        """
        self.config = config
        folder = model_dir if isinstance(model_dir, Folder) else str(model_dir)
        resources = {"num_cpus": config.num_cpus, "num_gpus": config.num_gpus}
        self.ranks = [
            ray.remote(concurrency_groups=WATCHING)(LearnerRank)
            .options(**resources, runtime_env=_process(config, rank, logs), **options)
            .remote(folder, config, seed, temperature)
            for rank, options in enumerate(scheduling or [{}] * config.ranks)
        ]
        self.homes: list[Home] = []
        self.pids: list[int] = []
        self.lives: list[Any] = []
        """A call to each rank that fails when the rank's process ends, and never returns."""
        self._broken = False
        """Whether a rank died or is late, so that others may be stuck in a collective."""

    def start(self) -> None:
        """Start the process group and load the model on every rank.

        RankLost if ranks cannot connect to one another; it names them with their addresses.
        """
        bound = self.config.start_timeout_s
        self.homes = self._all("home", bound)
        self.pids = [home.process_id for home in self.homes]
        places = self._all("place", REACH_S, len({home.node for home in self.homes}) == 1)
        self._require_reach(places)
        self.each("start", bound, [(rank, places) for rank in range(len(self.ranks))])
        self.lives = [actor.live.remote() for actor in self.ranks]

    def _require_reach(self, places: Sequence[Place]) -> None:
        tries = self.each("unreachable", REACH_S, [(rank, places) for rank in range(len(places))])
        if words := failures_in_words(places, dict(enumerate(tries))):
            raise RankLost(words, died=False)

    def train_step(self, step: int, refs: Sequence[Any], group_ids: Sequence[str], loss_scale: float) -> StepReport:
        """Learn from the kept groups. Returns rank 0's report (metrics are over all ranks) with the slowest rank's
        seconds for each part."""
        reports = self._all("train_step", self.config.step_timeout_s, step, list(refs), list(group_ids), loss_scale)
        slowest = {part: max(report.seconds[part] for report in reports) for part in reports[0].seconds}
        return replace(reports[0], seconds=slowest)

    def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        """One supervised optimizer step on the rows. ValueError if its loss or gradient is not finite."""
        return self._all("imitate", self.config.step_timeout_s, step, ray.put(list(rows)))[0]

    def imitation_loss(self, rows: Sequence[Row]) -> float:
        """The mean loss of the rows, nats per sampled token; the weights do not change."""
        return self._all("imitation_loss", self.config.step_timeout_s, ray.put(list(rows)))[0]

    def decompose(self, refs: Sequence[Any], group_ids: Sequence[str]) -> Decomposition:
        """The gradient decomposition of these groups at the current weights; all ranks compute the same result.

        The time-out is `step_timeout_s` per group, because each trajectory needs its own forward and backward pass.
        """
        bound = self.config.step_timeout_s * max(1, len(group_ids))
        return self._all("decompose", bound, list(refs), list(group_ids))[0]

    def publish(self, version: int, dtype: str = "float32") -> WeightBundle:
        """The current weights as `version`. The chunks exist as long as rank 0 and a reference to them do."""
        bundle = self._all("publish", self.config.step_timeout_s, version, dtype)[0]
        if bundle is None:
            raise RuntimeError("learner rank 0 published nothing")
        return bundle

    def open_group(self) -> tuple[str, int]:
        """Rank 0 leaves its weight group and listens for the members of a new one; the address and port."""
        return self.ask(0, "open_group", REACH_S)

    def join_group(self, member: GroupMember) -> str:
        """Rank 0 forms the weight group that it announced. Returns the reason if the other members do not come."""
        return self.ask(0, "join_group", member.timeout_s + GRACE_S, member)

    def send(self, dtype: str, timeout_s: float) -> str:
        """Broadcast the current weights in the weight group, whose own bound is `timeout_s`. Returns the reason if the
        group failed."""
        return next(filter(None, self._all("send", timeout_s + GRACE_S, dtype)), "")

    def save(self, path: Path | str, loop: Mapping[str, Any]) -> None:
        """Write a checkpoint with the caller's data to the caller's disk; see `learner.checkpoint`."""
        self._write("save", Path(path), dict(loop))

    def export(self, path: Path | str) -> None:
        """Write the policy as a Hugging Face folder to the caller's disk."""
        self._write("export", Path(path))

    def _write(self, method: str, path: Path, *arguments: Any) -> None:
        bound, nodes = self.config.step_timeout_s, [home.node for home in self.homes]
        if self._far():
            staging.write(self, nodes, path, method, bound, *arguments)
        else:
            self._all(method, bound, str(path), *arguments)

    def load(self, path: Path | str) -> dict[str, Any]:
        """Load a checkpoint of the caller's disk on all ranks; returns the caller's data."""
        bound, far = self.config.step_timeout_s, self._far() and Path(path).is_dir()
        folder = offer(Path(path), LOADED) if far else str(path)
        try:
            return self._all("load", bound, folder)[0]
        finally:
            if isinstance(folder, Folder):
                self.tell("forget", folder)

    def _far(self) -> bool:
        """Whether a rank runs on another node than the caller."""
        return any(home.node != own_node()[0] for home in self.homes)

    def optimizer_steps(self) -> int:
        """Optimizer steps taken so far, including those before a loaded checkpoint."""
        return self._all("optimizer_steps", self.config.step_timeout_s)[0]

    def progress(self, timeout_s: float) -> list[Progress | None]:
        """The progress of each rank, also while another call is under way; None for a rank that does not answer within
        `timeout_s`. Raises RankLost if a rank's process is gone."""
        calls = [actor.progress.remote() for actor in self.ranks]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        found = [_outcome(call) if call in ready else None for call in calls]
        for rank, outcome in enumerate(found):
            if isinstance(outcome, Failure):
                raise RankLost(
                    f"learner rank {rank}{self.site(rank)} died: {outcome.words}", died=True
                ) from outcome.error
        return found

    def stop(self) -> None:
        """Leave the process group, then end the actors in any case; waits at most `STOP_S`, and not for ranks of which
        one is lost."""
        if not self._broken:
            calls = [actor.stop.remote() for actor in self.ranks]
            ray.wait(calls, num_returns=len(calls), timeout=STOP_S)
        self.kill()

    def kill(self) -> None:
        """End the actors at once."""
        for actor in self.ranks:
            ray.kill(actor)

    def _all(self, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
        """Calls a method of every rank with the same arguments."""
        return self.each(method, timeout_s, [arguments] * len(self.ranks))

    def each(self, method: str, timeout_s: float, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every rank, each with its own arguments; the results by rank."""
        pairs = enumerate(zip(self.ranks, arguments, strict=True))
        calls = {rank: getattr(actor, method).remote(*own) for rank, (actor, own) in pairs}
        results = self._wait(method, calls, timeout_s)
        return [results[rank] for rank in sorted(results)]

    def ask(self, rank: int, method: str, timeout_s: float, *arguments: Any) -> Any:
        """Calls a method of one rank."""
        call = getattr(self.ranks[rank], method).remote(*arguments)
        return self._wait(method, {rank: call}, timeout_s)[rank]

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls a method of every rank; waits at most `GRACE_S`, and passes over ranks that do not answer."""
        calls = [getattr(actor, method).remote(*arguments) for actor in self.ranks]
        ray.wait(calls, num_returns=len(calls), timeout=GRACE_S)

    def _wait(self, method: str, calls: Mapping[int, Any], timeout_s: float) -> dict[int, Any]:
        """Results by rank. The first failure ends the wait: the other ranks may be stuck in a collective."""
        deadline = time.monotonic() + timeout_s
        ranks = {call: rank for rank, call in calls.items()}
        waiting, results = list(ranks), dict[int, Any]()
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._broken = True
                late = ", ".join(f"{ranks[call]}{self.site(ranks[call])}" for call in waiting)
                raise TimeoutError(f"learner rank {late} did not finish {method} within {timeout_s} s")
            for call in ready:
                outcome = _outcome(call)
                if isinstance(outcome, Failure):
                    raise self._named(method, ranks, call, outcome, waiting) from outcome.error
                results[ranks[call]] = outcome
        return results

    def _named(self, method: str, ranks: dict[Any, int], call: Any, first: Failure, waiting: list[Any]) -> Exception:
        """The error to raise: a ValueError (bad input) unchanged, else a RankLost that names the rank that died or
        failed, and those that have not answered either."""
        failures = [(ranks[call], first)]
        unclear = waiting and not first.died  # a rank may fail because another died, whose death is reported later
        ended, silent = ray.wait(waiting, num_returns=len(waiting), timeout=GRACE_S) if unclear else ([], [])
        failures += [(ranks[c], outcome) for c in ended if isinstance(outcome := _outcome(c), Failure)]
        if isinstance(first.cause, ValueError):
            return first.cause
        self._broken = True
        rank, failure = next(((r, f) for r, f in failures if f.died), failures[0])
        how = f"{'died' if failure.died else 'failed'} in {method}{self.site(rank)}"
        others = ", ".join(f"{ranks[c]}{self.site(ranks[c])}" for c in silent)
        unheard = f"; without an answer within another {GRACE_S:g} s: rank {others}" if others else ""
        return RankLost(f"learner rank {rank} {how}: {failure.words}{unheard}", failure.died)

    def site(self, rank: int) -> str:
        """The address of a rank, and of its caller, for a message; empty if they share a node."""
        node, address = own_node()
        if not self.homes or self.homes[rank].node == node:
            return ""
        return f" (on {self.homes[rank].address}, called from {address})"


class Failure:
    """The failure of one rank's call: its cause, and whether the rank's process died."""

    def __init__(self, error: RayActorError | RayTaskError) -> None:
        self.error = error
        self.died = isinstance(error, DEAD)
        self.cause: BaseException = error.cause if isinstance(error, RayTaskError) else error
        self.words = cause_of_death(error) if self.died else str(self.cause)


def _outcome(call: Any) -> Any:
    """The value of a call that is ready, or its `Failure`."""
    try:
        return ray.get(call, timeout=GRACE_S)
    except (*DEAD, RayTaskError) as error:
        return Failure(error)
