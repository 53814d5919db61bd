"""The fleet: brings the actors of a run up, replaces the ones that may be replaced, and takes all of them down.

Environment actors, rollout workers, filter service and scorer are replaced after their death, at most
`cluster.max_restarts` times each; a replaced rollout worker gets the current weights as any late joiner does, and one
that cannot join is itself replaced.
The learner's process group is never touched: the death of a rank ends the run, which resumes from its last
checkpoint."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from actors.filter.service import FilterService
from actors.messages import UpdateReport, WeightBundle
from actors.play.actor import EnvironmentActor
from actors.process.allocator import ALLOCATOR
from actors.process.ray_errors import DEAD
from actors.rollout.worker import RolloutWorker
from actors.scorer.actor import ScorerActor
from cluster.config import RunConfig
from learner.actor import LearnerGroup

log = logging.getLogger(__name__)
# The engine tells of every pause and start-up detail otherwise, and warns of what the CPU build chose on purpose.
QUIET_ENGINE = {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore::FutureWarning"}
Handle = Any  # a Ray actor handle; Ray exports no public type for it


class Fleet:
    """Handles of every actor, by name."""

    def __init__(self, config: RunConfig, model_dir: Path, on_event: Callable[..., None]) -> None:
        self.config = config
        self.model_dir = str(model_dir)
        self.on_event = on_event
        self.players: dict[str, Handle] = {}
        self.workers: dict[str, Handle] = {}
        self.filter: Handle = None
        self.scorer: Handle = None
        self.learner: LearnerGroup = None
        self.bundle: WeightBundle | None = None
        """The published version, which late joiners load."""
        self._boundary = asyncio.Lock()
        self._joins: dict[str, asyncio.Task[None]] = {}
        self._join_failure = ""
        self.restarts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()

    async def start(self, learning: bool = True) -> None:
        """Creates every actor at once and waits until each is ready; names the late ones.

        With `learning` false only what plays is started: rollout workers and environment actors.
        """
        config = self.config
        self.workers = {f"rollout-{i}": self._new_worker(f"rollout-{i}") for i in range(config.rollout.count)}
        self.players = {f"env-{i}": self._new_player(f"env-{i}") for i in range(config.environment_actor.count)}
        ready: dict[str, Awaitable[Any]] = {
            name: actor.ready.remote() for name, actor in (self.workers | self.players).items()
        }
        if learning:
            ready |= self._new_learning()
        await within(ready, config.cluster.start_timeout_s, "start")
        await self._introduce_workers()

    def _new_learning(self) -> dict[str, Awaitable[Any]]:
        config = self.config
        self.filter = self._new_filter()
        self.scorer = self._new_scorer() if config.scorer.enabled else None
        self.learner = LearnerGroup(self.model_dir, config.learner, config.seed, config.sampling.temperature)
        ready = {"filter": self.filter.state.remote(), "learner": asyncio.to_thread(self.learner.start)}
        return ready | ({"scorer": self.scorer.health.remote()} if self.scorer is not None else {})

    def _new_player(self, name: str) -> Handle:
        config = self.config
        shell = ray.remote(EnvironmentActor).options(num_cpus=config.environment_actor.num_cpus, max_concurrency=1000)
        return shell.remote(
            name,
            self.model_dir,
            config.environment,
            config.sampling,
            config.environment_actor,
            config.rollout.max_model_len,
        )

    def _new_worker(self, name: str) -> Handle:
        rollout = self.config.rollout
        shell = ray.remote(RolloutWorker).options(
            num_cpus=rollout.num_cpus,
            num_gpus=rollout.num_gpus,
            max_concurrency=1000,
            runtime_env={"env_vars": QUIET_ENGINE},
        )
        return shell.remote(name, self.model_dir, rollout)

    def _new_filter(self) -> Handle:
        return FilterService.options(num_cpus=0).remote(self.config.filter)

    def _new_scorer(self) -> Handle:
        config, scorer = self.config, self.config.scorer
        shell = ScorerActor.options(
            num_cpus=scorer.num_cpus, num_gpus=scorer.num_gpus, runtime_env={"env_vars": ALLOCATOR}
        )
        return shell.remote(self.model_dir, scorer, config.sampling.temperature, config.seed, config.loop.max_staleness)

    async def _introduce_workers(self) -> None:
        """Tells the environment actors who the rollout workers are; a dead one is found when it is next called."""
        calls = {name: player.set_workers.remote(self.workers) for name, player in self.players.items()}
        for name, outcome in (await outcomes(calls, self.config.cluster.start_timeout_s, "set_workers")).items():
            if isinstance(outcome, BaseException) and not isinstance(outcome, DEAD):
                raise RuntimeError(f"set_workers: {name} failed: {outcome}") from outcome

    async def update_workers(self, bundle: WeightBundle) -> list[UpdateReport]:
        """Loads a version into every rollout worker. A dead one is replaced and joins later; one that is late, or whose
        weights fail their proof, ends the run and is named."""
        async with self._boundary:
            self.bundle = bundle
            handles = dict(self.workers)
            calls = {name: worker.update_weights.remote(bundle) for name, worker in handles.items()}
            found = await outcomes(calls, self.config.rollout.update_timeout_s, "update_weights")
        reports = []
        for name, outcome in found.items():
            if isinstance(outcome, DEAD):
                self.lose_worker(name, handles[name], str(outcome))
            elif isinstance(outcome, BaseException):
                raise RuntimeError(f"update_weights: {name} failed: {outcome}") from outcome
            else:
                reports.append(outcome)
        await self.need_worker()
        return reports

    def allow_restart(self, name: str, cause: str) -> None:
        """Counts a restart; raises RuntimeError with the cause when the actor has used up its restarts."""
        self.restarts[name] += 1
        self.on_event(name, "restart", time.time(), time.time(), cause=cause, count=self.restarts[name])
        log.warning("%s died and is replaced (%d): %s", name, self.restarts[name], cause)
        if self.restarts[name] > self.config.cluster.max_restarts:
            raise RuntimeError(
                f"{name} died {self.restarts[name]} times (cluster.max_restarts={self.config.cluster.max_restarts}); "
                f"last cause: {cause}"
            )

    async def replace_player(self, name: str, dead: Handle, cause: str) -> None:
        """A new environment actor in place of `dead`; whoever noticed first replaces it, later callers find it done."""
        if self.players[name] is not dead:
            return
        self.allow_restart(name, cause)
        self.players[name] = player = self._new_player(name)
        await within({name: player.set_workers.remote(self.workers)}, self.config.cluster.start_timeout_s, "restart")

    def lose_worker(self, name: str, dead: Handle, cause: str) -> None:
        """Takes a dead rollout worker out and starts another in its place, which joins at a weight boundary."""
        if self.workers.get(name) is not dead:
            return
        del self.workers[name]
        self.allow_restart(name, cause)
        ray.kill(dead)
        self._joins[name] = asyncio.create_task(self._join(name))

    async def _join(self, name: str) -> None:
        """Takes a new rollout worker in. One that fails is ended, and another tried while restarts are left."""
        worker = self._new_worker(name)
        try:
            await self._take_in(name, worker)
        except (RuntimeError, TimeoutError, RayError) as error:
            self._join_failed(name, worker, str(error))
        else:
            self._drop_join(name)

    async def _take_in(self, name: str, worker: Handle) -> None:
        await within({name: worker.ready.remote()}, self.config.rollout.start_timeout_s, "restart")
        async with self._boundary:
            if self.bundle is not None:
                update = worker.update_weights.remote(self.bundle)
                await within({name: update}, self.config.rollout.update_timeout_s, "late join")
            self.workers[name] = worker
        await self._introduce_workers()

    def _drop_join(self, name: str) -> bool:
        """Drops the entry of the join that calls; false where the worker died since, and its successor has the name."""
        own = self._joins.get(name) is asyncio.current_task()
        if own:
            del self._joins[name]
        return own

    def _join_failed(self, name: str, worker: Handle, cause: str) -> None:
        now = time.time()
        self.on_event(name, "join_failed", now, now, cause=cause)
        log.error("%s: a replacement did not join: %s", name, cause)
        ray.kill(worker)
        if self.workers.get(name) is worker:
            del self.workers[name]
        self._join_failure = cause
        if self._drop_join(name) and self.restarts[name] < self.config.cluster.max_restarts:
            self.allow_restart(name, cause)
            self._joins[name] = asyncio.create_task(self._join(name))

    async def need_worker(self) -> None:
        """Returns once there is a rollout worker; raises RuntimeError when none is left and none is starting."""
        while not self.workers:
            if not self._joins:
                cause = f"; the last to start failed: {self._join_failure}" if self._join_failure else ""
                raise RuntimeError(f"no rollout worker is left, and none is starting{cause}")
            done, _ = await asyncio.wait(self._joins.values(), return_when=asyncio.FIRST_COMPLETED)
            for join in done:
                join.result()  # a fault of ours: what may fail in a join is taken care of there

    def replace_filter(self, cause: str) -> None:
        """A new filter service, which knows nothing yet."""
        self.allow_restart("filter", cause)
        self.filter = self._new_filter()

    def replace_scorer(self, cause: str) -> None:
        """A new scorer; nobody waits for it. Without restarts left the run goes on unscored, and says so."""
        if self.restarts["scorer"] >= self.config.cluster.max_restarts:
            log.error("scorer died %d times and stays down: %s", self.restarts["scorer"] + 1, cause)
            self.scorer = None
            return
        self.allow_restart("scorer", cause)
        self.scorer = self._new_scorer()

    def take_restarts(self) -> Counter[str]:
        """Restarts since they were last taken, by actor."""
        news = self.restarts - self._told
        self._told = Counter(self.restarts)
        return news

    def up(self) -> dict[str, bool]:
        """Which actors are there; one that died and was not replaced is not."""
        actors = {f"rollout-{i}": self.workers.get(f"rollout-{i}") for i in range(self.config.rollout.count)}
        actors |= {**self.players, "filter": self.filter}
        if self.config.scorer.enabled:
            actors["scorer"] = self.scorer
        return {name: handle is not None for name, handle in actors.items()}

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Ends every actor: asked first, killed when late. Leaves no process behind."""
        for join in self._joins.values():
            join.cancel()
        calls: dict[str, Awaitable[Any]] = {name: worker.stop.remote() for name, worker in self.workers.items()}
        if self.learner is not None:
            calls["learner"] = asyncio.to_thread(self.learner.stop)
        done = await asyncio.gather(*(bounded(call, timeout_s) for call in calls.values()), return_exceptions=True)
        for name, result in zip(calls, done, strict=True):
            if isinstance(result, BaseException):
                log.warning("%s did not stop when asked and is killed: %r", name, result)
        for handle in (self.filter, self.scorer, *self.players.values(), *self.workers.values()):
            if handle is not None:
                ray.kill(handle)


async def bounded(call: Awaitable[Any], timeout_s: float) -> Any:
    """The result of one call, e.g. an object reference; TimeoutError past the bound."""
    return await asyncio.wait_for(_as_future(call), timeout_s)


async def _as_future(call: Awaitable[Any]) -> Any:
    return await call


async def outcomes(calls: dict[str, Awaitable[Any]], timeout_s: float, what: str) -> dict[str, Any]:
    """Result or exception of named calls, awaited together; past the bound TimeoutError names the late parties."""
    tasks = {name: asyncio.ensure_future(_as_future(call)) for name, call in calls.items()}
    late = (await asyncio.wait(tasks.values(), timeout=timeout_s))[1] if tasks else set()
    for task in late:
        task.cancel()
    if late:
        names = ", ".join(name for name, task in tasks.items() if task in late)
        raise TimeoutError(f"{what}: {names} did not answer within {timeout_s:g} s")
    return {name: task.exception() or task.result() for name, task in tasks.items()}


async def within(calls: dict[str, Awaitable[Any]], timeout_s: float, what: str) -> dict[str, Any]:
    """Results of named calls; the first to fail raises RuntimeError with its name, at once."""
    tasks = {name: asyncio.ensure_future(_named(call, name, what)) for name, call in calls.items()}
    if not tasks:
        return {}
    done, late = await asyncio.wait(tasks.values(), timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in late:
        task.cancel()
    for task in done:
        task.result()
    if late:
        names = ", ".join(name for name, task in tasks.items() if task in late)
        raise TimeoutError(f"{what}: {names} did not answer within {timeout_s:g} s")
    return {name: task.result() for name, task in tasks.items()}


async def _named(call: Awaitable[Any], name: str, what: str) -> Any:
    try:
        return await call
    except (RayError, RuntimeError, ValueError, TimeoutError) as error:
        raise RuntimeError(f"{what}: {name} failed: {error}") from error
