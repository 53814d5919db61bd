"""Rollout worker: samples completions for its clients' requests, and loads the learner's new weights.

`Engine` does not depend on Ray; `RolloutWorker` is the actor: it resolves object references and delegates to `Engine`.
`actors.rollout.engine` wraps vLLM.

Invariants:

- From the moment that a weight update pauses sampling until its parity probe passes, the worker delivers no completion
  and starts no request. Before, while the weights are fetched and copied for the engine, it serves on.
- Engine processes map weights that the learner shares in memory, or open its block on their GPU, while this process
  holds the memory. Where it cannot, or nothing could be loaded, it takes the object store and says why in its report.
- After a damaged transfer or a failed copy the worker keeps serving the old version. It never serves weights that
  failed the probe or were only partly loaded: it discards all completions that were sampled under them, and refuses
  requests until an update passes.
- Every submitted request ends: it returns a completion (with finish reason `error` if it failed), or its client aborts
  it, or `collect` raises because the worker can no longer serve. The requests of a client that is gone are
  aborted (`actors.rollout.mailboxes`).

| call | waits for | unblocked by | on time-out |
|---|---|---|---|
| `ready` | engine process, a first token | engine | RuntimeError naming the worker, `start_timeout_s` |
| `submit`, `abort`, `stats`, `progress` | nothing | | |
| `collect` | a finished sequence | engine, or a failure | empty list after `timeout_s` |
| `update_weights` | memory or chunks, pause, load, probe | object store, engine | RuntimeError, `update_timeout_s` |
| `join_group` | the learner, all other workers | each one's own call | RuntimeError, the group's `timeout_s` |
| `receive_weights` | a broadcast, pause, load, probe | learner, engine | RuntimeError, `update_timeout_s` |
| `health` | one token, if no update holds it up | engine | RuntimeError naming the worker |
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from squelch.actors.config import RolloutConfig
from squelch.actors.formats.choice import open_format
from squelch.actors.gpus.watch import watch_gpu
from squelch.actors.messages import (
    Completion,
    GenerationRequest,
    GroupMember,
    TransferRefused,
    UpdateReport,
    WeightBundle,
)
from squelch.actors.process.interfaces import bind_collectives
from squelch.actors.process.log import last_error
from squelch.actors.process.shipping import Folder, local, own_node
from squelch.actors.process.spans import Span, Spans
from squelch.actors.rollout.engine import LoadTimes, VllmEngine
from squelch.actors.rollout.mailboxes import ClientGone, Mailbox, Mailboxes
from squelch.actors.rollout.stop_strings import Spell
from squelch.actors.weight_ways import BROADCAST
from squelch.actors.weights_file import Unreachable, opened
from squelch.kit.process.progress_marks import Progress
from squelch.kit.untrusted.files import reason

HEALTH_TIMEOUT_S = 30.0


@dataclass
class _Usage:
    """Counts since the start. The engine is busy while at least one request is in flight."""

    requests: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    errors: int = 0
    updates: int = 0
    in_flight: int = 0
    seconds_busy: float = 0.0
    busy_since: float = 0.0

    def change_in_flight(self, change: int) -> None:
        self.seconds_busy = self.seconds_until(time.monotonic())
        self.busy_since = time.monotonic()
        self.in_flight += change

    def count(self, request: GenerationRequest, completion: Completion) -> None:
        self.requests += 1
        self.prompt_tokens += len(request.prompt_ids)
        self.sampled_tokens += len(completion.token_ids)

    def seconds_until(self, now: float) -> float:
        return self.seconds_busy + (now - self.busy_since if self.in_flight else 0.0)


class Engine:
    """One engine for many clients. All calls must come from one event loop. Each of `stop_ids` ends a sampled turn;
    `spell`: the bytes of a token, for requests with stop strings."""

    def __init__(
        self,
        name: str,
        model_dir: str | Path,
        config: RolloutConfig,
        stop_ids: Iterable[int],
        spell: Spell | None = None,
    ) -> None:
        self.name = name
        self.vllm = VllmEngine(name, model_dir, config, stop_ids, spell)
        self.version = self.vllm.version
        """Policy version that is served; the model folder's version is 0."""
        self._config = config
        self._mailboxes = Mailboxes()
        self._serving = asyncio.Event()
        self._updating = asyncio.Lock()
        self._unproven: str | None = None
        self._usage = _Usage()
        self.spans = Spans()
        """Intervals in which the engine had something to sample."""

    # --- life ---

    async def start(self) -> None:
        """Start the engine and sample one token. Raises RuntimeError after `start_timeout_s`, or if the engine's
        process ends; the cause is then in this worker's log, to which that process writes."""
        bound = self._config.start_timeout_s
        try:
            async with asyncio.timeout(bound):
                await self.vllm.start()
                await self.vllm.token()
        except TimeoutError:
            raise RuntimeError(f"{self._name}: engine not ready within rollout.start_timeout_s={bound:g}") from None
        except RuntimeError as error:
            cause = last_error() or str(error).removeprefix(f"{self._name}: ")
            raise RuntimeError(
                f"{self._name}: its engine did not start ({cause}); log/{self.name}.log says more"
            ) from error
        self._serve()

    async def stop(self) -> None:
        """Cancel all requests, and end the engine with its processes."""
        self._serving.clear()
        for client in list(self._mailboxes):
            self._mailboxes.drop(client)
        await self.vllm.stop()

    async def health(self, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any]:
        """Sample one token; returns {worker, version, seconds}.

        Raises RuntimeError if no token is sampled within `timeout_s`, unless a weight update delays it: an update has
        its own time-out, and passes only if the engine answers.
        """
        started, updates = time.monotonic(), self._usage.updates
        try:
            async with asyncio.timeout(timeout_s):
                self._require_serving()
                await self._serving.wait()
                await self.vllm.token()
        except TimeoutError:
            self._require_serving()
            if not self._updating.locked() and self._usage.updates == updates:
                raise RuntimeError(f"{self._name}: no token within {timeout_s:g} s") from None
        return {"worker": self.name, "version": self.version, "seconds": time.monotonic() - started}

    def stats(self) -> dict[str, float]:
        """requests, prompt_tokens, sampled_tokens, errors, updates, in_flight, seconds_busy, version."""
        counts = vars(self._usage) | {"seconds_busy": self._usage.seconds_until(time.monotonic())}
        return {name: value for name, value in counts.items() if name != "busy_since"} | {"version": self.version}

    def progress(self) -> Progress:
        """A progress mark for each step of the engine; busy while requests run. While weights are loaded, which has its
        own time-out, no mark is expected. Raises RuntimeError with the worker's name if the engine has died."""
        self.vllm.require_alive()
        return self.vllm.marks.seen(self._usage.in_flight > 0 and self._serving.is_set())

    # --- generation ---

    def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        """Start sampling; results come through `collect` under the same client name."""
        self._require_serving()
        mailbox = self._mailboxes.of(client)
        for request in requests:
            mailbox.tasks[request.request_id] = asyncio.create_task(self._play(mailbox, request))

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        """All finished sequences of a client.

        Waits up to `timeout_s` for the first one, then up to `linger_s` for more of them. The list is empty after
        `timeout_s`. Raises RuntimeError with the worker's name if the worker can no longer serve, or has aborted the
        client's requests because it seemed gone.
        """
        try:
            with self._mailboxes.collecting(client) as mailbox:
                return await self._collect(mailbox, time.monotonic() + timeout_s)
        except ClientGone as error:
            raise RuntimeError(f"{self._name}: {error}") from None

    async def _collect(self, mailbox: Mailbox, deadline: float) -> list[Completion]:
        await self._until(mailbox, lambda: bool(mailbox.finished) and self._serving.is_set(), deadline)
        if mailbox.finished:
            await self._until(mailbox, lambda: not mailbox.tasks, time.monotonic() + self._config.linger_s)
        if not self._serving.is_set():
            return []
        completions = list(mailbox.finished)
        mailbox.finished.clear()
        return completions

    def abort(self, client: str, request_ids: Iterable[str]) -> None:
        """Stop sampling for requests that their client no longer wants; it gets no completions for them."""
        mailbox, unwanted = self._mailboxes.get(client, Mailbox()), set(request_ids)
        for request_id in unwanted & mailbox.tasks.keys():
            mailbox.tasks.pop(request_id).cancel()
        mailbox.finished = deque(one for one in mailbox.finished if one.request_id not in unwanted)

    async def _until(self, mailbox: Mailbox, condition: Callable[[], bool], deadline: float) -> None:
        """Wait for the condition or the deadline; raises RuntimeError if the worker can no longer serve."""
        while True:
            self._require_serving()
            remaining = deadline - time.monotonic()
            if condition() or remaining <= 0:
                return
            mailbox.changed.clear()
            try:
                await asyncio.wait_for(mailbox.changed.wait(), remaining)
            except TimeoutError:
                return

    async def _play(self, mailbox: Mailbox, request: GenerationRequest) -> None:
        if not self._usage.in_flight:
            self.vllm.marks.begin()
        self._usage.change_in_flight(1)
        try:
            await self._serving.wait()
            self.spans.begin()
            try:
                completion = await self._complete(request)
                mailbox.finished.append(completion)  # not an earlier reference: `_refuse` and `abort` replace the deque
            finally:
                self.spans.end()
        finally:
            self._usage.change_in_flight(-1)
            mailbox.tasks.pop(request.request_id, None)
            mailbox.changed.set()

    async def _complete(self, request: GenerationRequest) -> Completion:
        """One sampled turn; an error of this one request becomes a completion with finish reason `error`."""
        try:
            completion = await self.vllm.complete(request)
        except Exception as error:  # if the task raised instead, its client would wait until its time-out
            self._usage.errors += 1
            return self._failed(request.request_id, f"{type(error).__name__}: {error}")
        self._usage.count(request, completion)
        return completion

    def _failed(self, request_id: str, text: str) -> Completion:
        ids, log_probs = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
        return Completion(request_id, ids, log_probs, "error", self.version, self.version, text)

    # --- weights ---

    async def update_weights(
        self, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]] | None = None, path: Path | None = None
    ) -> UpdateReport:
        """Load and serve another version. `arrays`: the bundle's parameters in published order; `path`: to the memory
        in which the bundle shares them; without either, the weights come from the weight group.

        Raises RuntimeError with worker, version and the measured difference if the transfer or the parity probe fails,
        or if the update takes longer than `update_timeout_s`; TransferRefused if nothing was loaded.
        """
        async with self._updating, AsyncExitStack() as held:  # a copy is released outside of the bound
            deadline = asyncio.get_running_loop().time() + self._config.update_timeout_s
            if path is not None:
                return await self._loaded(bundle, self.vllm.mapped(bundle, path), deadline)
            if arrays is None:
                return await self._loaded(bundle, None, deadline)
            started = time.monotonic()
            source = await self._copied(held, bundle, arrays, deadline)
            copied = time.monotonic() - started
            return replace(await self._loaded(bundle, source, deadline), seconds_copied=copied)

    async def _copied(
        self, held: AsyncExitStack, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]], deadline: float
    ) -> dict[str, Any]:
        """The copy of the arrays that the engine reads, until `held` is closed. TransferRefused if there is none by the
        deadline: the engine has seen nothing of it."""
        try:
            async with asyncio.timeout_at(deadline):
                return await held.enter_async_context(self.vllm.copied(bundle, arrays))
        except Exception as error:  # of memory, of a file, of a thread
            late = isinstance(error, TimeoutError)
            why = f"not finished after {self._config.update_timeout_s:g} s" if late else reason(error)
            raise TransferRefused(
                f"{self._name}: weights of version {bundle.version} could not be copied for the engine ({why}), which "
                f"serves version {self.version}"
            ) from error

    async def _loaded(self, bundle: WeightBundle, source: dict[str, Any] | None, deadline: float) -> UpdateReport:
        """Loads a version and proves it; whatever may have loaded a part of it leaves the worker refusing requests."""
        update = f"weight update to version {bundle.version}"
        try:
            async with asyncio.timeout_at(deadline):
                self._serving.clear()
                return await self._update(bundle, source)
        except TransferRefused:
            self._serve_unless_unproven()
            raise
        except TimeoutError:
            self._refuse(f"{update} not finished after {self._config.update_timeout_s:g} s")
            raise RuntimeError(self._unproven) from None
        except BaseException as error:  # a cancelled call, too, may have loaded a part
            self._refuse((str(error) or f"{update} ended by {type(error).__name__}").removeprefix(f"{self._name}: "))
            raise

    async def join_group(self, member: GroupMember) -> None:
        """Join a new weight group. The engine samples nothing while it waits for the other members; RuntimeError with
        the worker's name if they do not join in time."""
        async with self._updating:
            self._serving.clear()
            try:
                await self.vllm.join_group(member)
            finally:
                self._serve_unless_unproven()

    async def _update(self, bundle: WeightBundle, source: dict[str, Any] | None) -> UpdateReport:
        times = await (self.vllm.receive(bundle) if source is None else self.vllm.load(bundle, source))
        started = time.monotonic()
        mean, largest = await self._probe(bundle)
        self.version, self._unproven = bundle.version, None
        self._usage.updates += 1
        self._serve()
        return self._report(bundle, times, (mean, largest), time.monotonic() - started)

    def _report(
        self, bundle: WeightBundle, times: LoadTimes, parity: tuple[float, float], seconds_probe: float
    ) -> UpdateReport:
        return UpdateReport(
            worker=self.name,
            version=bundle.version,
            checksum=bundle.checksum,
            parity=parity[0],
            parity_max=parity[1],
            seconds_paused=times.paused,
            seconds_loaded=times.loaded,
            seconds_probe=seconds_probe,
        )

    async def _probe(self, bundle: WeightBundle) -> tuple[float, float]:
        """(mean, largest) absolute difference, nats, between our log-probabilities and the learner's on the probe."""
        ours = await self.vllm.prompt_log_probs(np.asarray(bundle.probe_ids), bundle.probe_pictures)
        theirs = np.asarray(bundle.probe_log_probs, dtype=np.float64)
        if ours.shape != theirs.shape:
            raise RuntimeError(
                f"{self._name}: the probe of version {bundle.version} has {len(bundle.probe_ids)} ids and "
                f"{len(theirs)} log-probabilities; it needs {len(ours)}"
            )
        difference = np.abs(ours - theirs)
        mean, bound = float(difference.mean()), self._config.parity_limit
        if not mean <= bound:  # `not <=` also catches NaN
            raise RuntimeError(
                f"{self._name}: weights of version {bundle.version} failed the parity probe: mean absolute "
                f"log-probability difference {mean:.3g} nats, bound {bound:.3g}"
            )
        return mean, float(difference.max())

    # --- state ---

    @property
    def _name(self) -> str:
        return f"rollout worker {self.name}"

    def _serve(self) -> None:
        self._serving.set()
        self._wake_all()

    def _serve_unless_unproven(self) -> None:
        """After a call that loaded nothing, serve again if the present weights are proven."""
        if self._unproven is None:
            self._serve()

    def _refuse(self, reason: str) -> None:
        """Stop serving, and discard requests in flight and undelivered completions: their weights are unproven. A
        client that still collects gets an error completion for each once the worker serves again."""
        self._unproven = f"{self._name}: {reason}"
        for mailbox in self._mailboxes.values():
            lost = [completion.request_id for completion in mailbox.finished] + list(mailbox.tasks)
            for task in mailbox.tasks.values():
                task.cancel()
            mailbox.tasks.clear()  # a task that has not started does not remove itself
            mailbox.finished = deque(self._failed(request_id, self._unproven) for request_id in lost)
        self._wake_all()

    def _require_serving(self) -> None:
        """Raises RuntimeError with the worker's name if it cannot serve and no update that could change this runs."""
        self.vllm.require_alive()
        if self._unproven is not None and not self._updating.locked():
            raise RuntimeError(self._unproven)

    def _wake_all(self) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.changed.set()


class RolloutWorker:
    """The actor, all of whose calls run in one event loop."""

    def __init__(self, name: str, model: Folder | str, config: RolloutConfig) -> None:
        if config.way and config.way.group:
            bind_collectives(own_node()[1])  # before the engine's process, which inherits the choice, starts
        model_dir = local(model)
        one = open_format(model_dir)
        self._engine = Engine(name, model_dir, config, one.stop_ids, one.token_bytes)
        self._update_timeout_s = config.update_timeout_s
        self._started = asyncio.Lock()
        self._ready = False
        self._gpu = watch_gpu(name, config.num_gpus, config.dtype)

    async def ready(self) -> dict[str, Any]:
        """Starts the engine at the first call; returns {worker, version, process_id, engine_process_ids}."""
        async with self._started:
            if not self._ready:
                await self._engine.start()
                gc.freeze()  # objects made by imports live forever, so collections need not visit them
                self._ready = True
        return {
            "worker": self._engine.name,
            "version": self._engine.version,
            "process_id": os.getpid(),
            "engine_process_ids": self._engine.vllm.process_ids,
        }

    async def take_spans(self) -> list[Span]:
        """Intervals since the last call in which the engine had something to sample."""
        return self._engine.spans.take()

    async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        """As `Engine.submit`."""
        self._engine.submit(client, requests)

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        """As `Engine.collect`."""
        return await self._engine.collect(client, timeout_s)

    async def abort(self, client: str, request_ids: list[str]) -> None:
        """As `Engine.abort`."""
        self._engine.abort(client, request_ids)

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Maps the memory, or opens the block, in which the learner shares the weights, or, if that fails, fetches the
        bundle's chunks from the object store; then does as `Engine.update_weights`."""
        if bundle.shared is None:
            return await self._from_store(bundle)
        try:
            with opened(bundle.shared) as path:
                return self._reported(await self._engine.update_weights(bundle, path=path), way=bundle.shared.way)
        except (Unreachable, TransferRefused) as error:
            return replace(await self._from_store(bundle), why_not_shared=str(error))

    async def _from_store(self, bundle: WeightBundle) -> UpdateReport:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._update_timeout_s):
                chunks = await asyncio.gather(*bundle.chunks)
        except TimeoutError:
            raise RuntimeError(
                f"rollout worker {self._engine.name}: weights of version {bundle.version} did not arrive from "
                f"the object store within {self._update_timeout_s:g} s"
            ) from None
        fetched = time.monotonic() - started
        arrays = [(name, array) for chunk in chunks for name, array in chunk.items()]
        return self._reported(await self._engine.update_weights(bundle, arrays), seconds_fetched=fetched)

    def _reported(self, report: UpdateReport, **facts: Any) -> UpdateReport:
        """The engine's report with what this process knows."""
        return replace(report, gpu=self._gpu.take(), **facts)

    async def join_group(self, member: GroupMember) -> None:
        """As `Engine.join_group`."""
        await self._engine.join_group(member)

    async def receive_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Loads the weights that the learner broadcasts in the weight group, then does as `Engine.update_weights`."""
        return self._reported(await self._engine.update_weights(bundle), way=BROADCAST)

    async def health(self, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any]:
        """As `Engine.health`."""
        return await self._engine.health(timeout_s)

    def progress(self) -> Progress:
        """As `Engine.progress`."""
        return self._engine.progress()

    async def stats(self) -> dict[str, float]:
        """As `Engine.stats`."""
        return self._engine.stats()

    async def stop(self) -> None:
        """As `Engine.stop`."""
        await self._engine.stop()
