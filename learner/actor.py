"""The learner on Ray: one actor per rank, and the group of actors that the coordinator calls.

| party | produces | waits for | unblocked by | on time-out |
|---|---|---|---|---|
| `LearnerRank` | report, bundle, files | payload of the kept groups | their owner | RuntimeError naming them |
| `LearnerRank` | | the other ranks, in a collective | each rank's own call | the process group's time-out |
| `LearnerGroup` | results to the coordinator | every rank's call | the ranks | TimeoutError naming the late ranks |

Invariants: all ranks get every call, in the same order. When a rank dies, the call fails with a `RankLost` that names
the rank; calls are not retried here. The process group contains learner ranks only and lives as long as they do.
`progress` and `live` are no collectives: a thread of their own answers them while another call is under way.

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

from actors.messages import StepReport, WeightBundle
from actors.process.log import log_variable
from actors.process.ray_errors import DEAD
from actors.records import from_table
from learner.config import LearnerConfig
from learner.process_environment import ENVIRONMENT
from learner.progress import Marks, RankProgress

if TYPE_CHECKING:
    from learner.batching import Groups
    from learner.decomposition.statistics import Decomposition

GRACE_S = 5.0
"""Seconds to wait, after a rank has failed, for failures of other ranks, so that the error names a rank that died."""
STOP_S = 10.0
"""Seconds to wait for the ranks to leave the process group before they are killed."""
WATCHING = {"watch": 2}
"""The concurrency group of `live` and `progress`, each with a thread."""


class RankLost(RuntimeError):
    """A rank died, or raised an error that is not about its input. The others may wait for it in a collective, and its
    shards are lost or unknown, so that the group is of no more use. `died`: whether its process is gone."""

    def __init__(self, message: str, died: bool) -> None:
        super().__init__(message)
        self.died = died


class LearnerRank:
    """One rank. Methods other than `place`, `live` and `progress` are collectives: call them on all ranks."""

    def __init__(self, model_dir: str, config: LearnerConfig, seed: int, temperature: float) -> None:
        self.model_dir, self.config, self.seed, self.temperature = model_dir, config, seed, temperature
        self.marks = Marks()

    @ray.method(concurrency_group="watch")
    def live(self) -> None:
        """Never returns: the call fails when the process ends."""
        threading.Event().wait()

    @ray.method(concurrency_group="watch")
    def progress(self) -> RankProgress:
        """The progress marks so far, also in the middle of a step."""
        return self.marks.seen()

    def place(self) -> tuple[str, int, int]:
        """(address of this node, a port that is free on it now, process id)."""
        address = ray.util.get_node_ip_address()
        with socket.create_server((address, 0)) as probe:
            return address, probe.getsockname()[1], os.getpid()

    def start(self, rank: int, world_size: int, address: str, port: int) -> None:
        """Join the process group and load the model."""
        from learner.rank import start

        place = (rank, world_size, address, port)
        self.trainer = start(self.model_dir, self.config, place, self.seed, self.temperature)
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
        from learner.decomposition.decompose import decompose

        return decompose(self.trainer, self._fetch("gradients", refs, group_ids))

    def _fetch(self, what: str, refs: Sequence[Any], group_ids: Sequence[str]) -> Groups:
        """The groups' trajectories. Raises RuntimeError when their tables do not arrive within `step_timeout_s`."""
        try:
            tables = ray.get(list(refs), timeout=self.config.step_timeout_s)
        except GetTimeoutError as error:
            raise RuntimeError(
                f"{what}: the payload of groups {', '.join(group_ids)} did not arrive within "
                f"{self.config.step_timeout_s} s"
            ) from error
        return [(group_id, from_table(table)) for group_id, table in zip(group_ids, tables, strict=True)]

    def publish(self, version: int, dtype: str) -> WeightBundle | None:
        """The weights, which rank 0 puts into the object store; other ranks return None."""
        from learner.rank import publish

        return publish(self.trainer, version, ray.put, dtype)

    def save(self, path: str, loop: Mapping[str, Any]) -> None:
        """Write a checkpoint that contains the coordinator's data `loop`."""
        self.trainer.save(Path(path), loop)

    def load(self, path: str) -> dict[str, Any]:
        """Load a checkpoint; returns the coordinator's data."""
        return self.trainer.load(Path(path))

    def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder."""
        self.trainer.export(Path(path))

    def optimizer_steps(self) -> int:
        """Optimizer steps taken so far, including those before a loaded checkpoint."""
        return self.trainer.optimizer_steps

    def stop(self) -> None:
        """Leave the process group."""
        from learner import process_group

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
        model_dir: Path | str,
        config: LearnerConfig,
        seed: int = 0,
        temperature: float = 1.0,
        logs: Path | None = None,
    ) -> None:
        """Create the actors. Each rank writes its output to a separate file in the folder `logs`."""
        self.config = config
        self.ranks = [
            ray.remote(concurrency_groups=WATCHING)(LearnerRank)
            .options(num_cpus=config.num_cpus, num_gpus=config.num_gpus, runtime_env=_process(config, rank, logs))
            .remote(str(model_dir), config, seed, temperature)
            for rank in range(config.ranks)
        ]
        self.pids: list[int] = []
        self.lives: list[Any] = []
        """A call to each rank that fails when the rank's process ends, and never returns."""

    def start(self) -> None:
        """Start the process group and load the model on every rank."""
        places = self._all("place", self.config.start_timeout_s)
        self.pids = [pid for _, _, pid in places]
        one_node = len({address for address, _, _ in places}) == 1
        address = "127.0.0.1" if one_node else places[0][0]
        port, world = places[0][1], len(self.ranks)
        calls = [actor.start.remote(rank, world, address, port) for rank, actor in enumerate(self.ranks)]
        self._wait("start", calls, self.config.start_timeout_s)
        self.lives = [actor.live.remote() for actor in self.ranks]

    def train_step(self, step: int, refs: Sequence[Any], group_ids: Sequence[str], loss_scale: float) -> StepReport:
        """Learn from the kept groups. Returns rank 0's report (metrics are over all ranks) with the slowest rank's
        seconds for each part."""
        reports = self._all("train_step", self.config.step_timeout_s, step, list(refs), list(group_ids), loss_scale)
        slowest = {part: max(report.seconds[part] for report in reports) for part in reports[0].seconds}
        return replace(reports[0], seconds=slowest)

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

    def save(self, path: Path | str, loop: Mapping[str, Any]) -> None:
        """Write a checkpoint with the caller's data; see `learner.checkpoint`."""
        self._all("save", self.config.step_timeout_s, str(path), dict(loop))

    def load(self, path: Path | str) -> dict[str, Any]:
        """Load a checkpoint on all ranks; returns the caller's data."""
        return self._all("load", self.config.step_timeout_s, str(path))[0]

    def export(self, path: Path | str) -> None:
        """Write the policy as a Hugging Face folder."""
        self._all("export", self.config.step_timeout_s, str(path))

    def optimizer_steps(self) -> int:
        """Optimizer steps taken so far, including those before a loaded checkpoint."""
        return self._all("optimizer_steps", self.config.step_timeout_s)[0]

    def progress(self, timeout_s: float) -> list[RankProgress | None]:
        """The progress of each rank, also while another call is under way; None for a rank that does not answer within
        `timeout_s`. Raises RankLost if a rank's process is gone."""
        calls = [actor.progress.remote() for actor in self.ranks]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        found = [_outcome(call) if call in ready else None for call in calls]
        for rank, outcome in enumerate(found):
            if isinstance(outcome, Failure):
                raise RankLost(f"learner rank {rank} died: {outcome.cause}", died=True) from outcome.error
        return found

    def stop(self) -> None:
        """Leave the process group, then end the actors in any case; waits at most `STOP_S`."""
        calls = [actor.stop.remote() for actor in self.ranks]
        ray.wait(calls, num_returns=len(calls), timeout=STOP_S)
        self.kill()

    def kill(self) -> None:
        """End the actors at once."""
        for actor in self.ranks:
            ray.kill(actor)

    def _all(self, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
        calls = [getattr(actor, method).remote(*arguments) for actor in self.ranks]
        return self._wait(method, calls, timeout_s)

    def _wait(self, method: str, calls: list[Any], timeout_s: float) -> list[Any]:
        """Results by rank. The first failure ends the wait: the other ranks may be stuck in a collective."""
        deadline = time.monotonic() + timeout_s
        waiting = list(calls)
        results: dict[int, Any] = {}
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(str(calls.index(call)) for call in waiting)
                raise TimeoutError(f"learner rank {late} did not finish {method} within {timeout_s} s")
            for call in ready:
                outcome = _outcome(call)
                if isinstance(outcome, Failure):
                    raise self._named(method, calls, call, outcome, waiting) from outcome.error
                results[calls.index(call)] = outcome
        return [results[rank] for rank in range(len(calls))]

    def _named(self, method: str, calls: list[Any], call: Any, first: Failure, waiting: list[Any]) -> Exception:
        """The error to raise: a ValueError (bad input) unchanged, else a RankLost that names the rank that died or
        failed."""
        failures = [(calls.index(call), first)]
        unclear = waiting and not first.died  # a rank may fail because another has died, whose death is reported later
        ended, _ = ray.wait(waiting, num_returns=len(waiting), timeout=GRACE_S) if unclear else ([], [])
        failures += [(calls.index(c), outcome) for c in ended if isinstance(outcome := _outcome(c), Failure)]
        if isinstance(first.cause, ValueError):
            return first.cause
        rank, failure = next(((r, f) for r, f in failures if f.died), failures[0])
        what = "died" if failure.died else "failed"
        return RankLost(f"learner rank {rank} {what} in {method}: {failure.cause}", failure.died)


class Failure:
    """The failure of one rank's call: its cause, and whether the rank's process died."""

    def __init__(self, error: RayActorError | RayTaskError) -> None:
        self.error = error
        self.died = isinstance(error, DEAD)
        self.cause: BaseException = error.cause if isinstance(error, RayTaskError) else error


def _outcome(call: Any) -> Any:
    """The value of a call that is ready, or its `Failure`."""
    try:
        return ray.get(call, timeout=GRACE_S)
    except (*DEAD, RayTaskError) as error:
        return Failure(error)
