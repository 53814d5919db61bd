"""Rollout worker: clients' requests in, their completions out, weights in between; and the Ray actor around it.

`Engine` knows nothing of Ray; `RolloutWorker` is the actor: it resolves object references and delegates. vLLM is behind
`actors.rollout.engine`.

Invariants:

- No completion leaves, and no request enters, between the start of a weight update and its passed parity probe.
- A transfer that arrives damaged leaves the old version serving. Weights that fail the probe, or of which only a part
  was loaded, are never served from: what was sampled under them is thrown away, and the worker refuses until an update
  passes.
- Every request that was submitted ends: as a completion (of finish reason `error` if need be), aborted by its client,
  or with `collect` raising because the worker cannot serve any more.

| call | waits for | who unblocks it | on time-out |
|---|---|---|---|
| `ready` | engine process, a first token | engine | RuntimeError naming the worker, `start_timeout_s` |
| `submit`, `abort`, `stats` | nothing | | |
| `collect` | a finished sequence | engine; a failure wakes it too | empty list after `timeout_s` |
| `update_weights` | chunks, pause, load, probe | object store, engine | RuntimeError, `update_timeout_s` |
| `health` | one token | engine | RuntimeError naming the worker |
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from actors.config import RolloutConfig
from actors.messages import Completion, GenerationRequest, UpdateReport, WeightBundle
from actors.process.spans import Span, Spans
from actors.rollout.engine import LoadTimes, TransferRefused, VllmEngine

HEALTH_TIMEOUT_S = 30.0
_FULL_PRECISION_PARITY = 1e-3
_LOW_PRECISION_PARITY = 0.1  # bfloat16 was seen at 0.015 on sampled text and at 0.032 on random ids


def parity_bound(config: RolloutConfig) -> float:
    """Largest mean absolute difference on the probe, nats; by the type of the rollout weights unless given."""
    if config.parity_bound is not None:
        return config.parity_bound
    return _FULL_PRECISION_PARITY if config.dtype == "float32" else _LOW_PRECISION_PARITY


@dataclass
class _Mailbox:
    """What one client has in flight and has not yet collected."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    finished: deque[Completion] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Usage:
    """Counts since the start. Busy: at least one request in flight."""

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
    """One engine for many clients. All calls come from one event loop. `stop_ids` end a sampled turn."""

    def __init__(self, name: str, model_dir: str | Path, config: RolloutConfig, stop_ids: Iterable[int]) -> None:
        self.name = name
        self.vllm = VllmEngine(name, model_dir, config, stop_ids)
        self.version = self.vllm.version
        """Policy version that is served; the model folder's is 0."""
        self._config = config
        self._mailboxes: dict[str, _Mailbox] = {}
        self._serving = asyncio.Event()
        self._updating = asyncio.Lock()
        self._unproven: str | None = None
        self._usage = _Usage()
        self.spans = Spans()
        """When the engine had something to sample."""

    # --- life ---

    async def start(self) -> None:
        """Start the engine and sample one token. Raises RuntimeError naming the worker when it is late."""
        bound = self._config.start_timeout_s
        try:
            async with asyncio.timeout(bound):
                await self.vllm.start()
                await self.vllm.token()
        except TimeoutError:
            raise RuntimeError(f"{self._name}: engine not ready after {bound:g} s") from None
        self._serve()

    async def stop(self) -> None:
        """End all requests and the engine; no process of it is left."""
        self._serving.clear()
        for mailbox in self._mailboxes.values():
            for task in list(mailbox.tasks.values()):
                task.cancel()
        await self.vllm.stop()

    async def health(self, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any]:
        """Sample one token; returns {worker, version, seconds}. Raises RuntimeError when none comes in time."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                self._require_serving()
                await self._serving.wait()
                await self.vllm.token()
        except TimeoutError:
            raise RuntimeError(f"{self._name}: no token within {timeout_s:g} s") from None
        return {"worker": self.name, "version": self.version, "seconds": time.monotonic() - started}

    def stats(self) -> dict[str, float]:
        """requests, prompt_tokens, sampled_tokens, errors, updates, in_flight, seconds_busy, version."""
        counts = vars(self._usage) | {"seconds_busy": self._usage.seconds_until(time.monotonic())}
        return {name: value for name, value in counts.items() if name != "busy_since"} | {"version": self.version}

    # --- generation ---

    def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        """Start sampling; results come through `collect` under the same client name."""
        self._require_serving()
        mailbox = self._mailboxes.setdefault(client, _Mailbox())
        for request in requests:
            mailbox.tasks[request.request_id] = asyncio.create_task(self._play(mailbox, request))

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        """All finished sequences of a client: as soon as there is one, and `linger_s` for others to join it.

        Empty after `timeout_s`. Raises RuntimeError naming the worker when it cannot serve any more.
        """
        mailbox = self._mailboxes.setdefault(client, _Mailbox())
        deadline = time.monotonic() + timeout_s
        await self._until(mailbox, lambda: bool(mailbox.finished) and self._serving.is_set(), deadline)
        if mailbox.finished:
            await self._until(mailbox, lambda: not mailbox.tasks, time.monotonic() + self._config.linger_s)
        if not self._serving.is_set():
            return []
        completions = list(mailbox.finished)
        mailbox.finished.clear()
        return completions

    def abort(self, client: str, request_ids: Iterable[str]) -> None:
        """Stop sampling for requests whose client has given up on them; nothing is delivered for them."""
        mailbox = self._mailboxes.get(client, _Mailbox())
        for request_id in request_ids:
            task = mailbox.tasks.pop(request_id, None)
            if task is not None:
                task.cancel()

    async def _until(self, mailbox: _Mailbox, condition: Callable[[], bool], deadline: float) -> None:
        """Wait for the condition or the deadline; raises once the worker cannot serve any more."""
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

    async def _play(self, mailbox: _Mailbox, request: GenerationRequest) -> None:
        self._usage.change_in_flight(1)
        try:
            await self._serving.wait()
            self.spans.begin()
            try:
                mailbox.finished.append(await self._complete(request))
            finally:
                self.spans.end()
        finally:
            self._usage.change_in_flight(-1)
            mailbox.tasks.pop(request.request_id, None)
            mailbox.changed.set()

    async def _complete(self, request: GenerationRequest) -> Completion:
        """One sampled turn; whatever goes wrong with this one request comes back as an `error` completion."""
        try:
            completion = await self.vllm.complete(request)
        except Exception as error:  # the boundary: a task that raised instead would leave its client waiting
            self._usage.errors += 1
            ids, log_probs = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
            text = f"{type(error).__name__}: {error}"
            return Completion(request.request_id, ids, log_probs, "error", self.version, self.version, text)
        self._usage.count(request, completion)
        return completion

    # --- weights ---

    async def update_weights(self, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]]) -> UpdateReport:
        """Serve another version. `arrays`: the bundle's parameters in published order.

        Raises RuntimeError, with worker, version and figures, when the transfer's checksum or the parity probe fails,
        or when it takes longer than `update_timeout_s`.
        """
        bound = self._config.update_timeout_s
        async with self._updating:
            self._serving.clear()
            try:
                async with asyncio.timeout(bound):
                    return await self._update(bundle, arrays)
            except TransferRefused:
                self._serve_unless_unproven()
                raise
            except TimeoutError:
                self._refuse(f"weight update to version {bundle.version} not finished after {bound:g} s")
                raise RuntimeError(self._unproven) from None
            except Exception as error:
                self._refuse(str(error).removeprefix(f"{self._name}: "))
                raise

    async def _update(self, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]]) -> UpdateReport:
        times = await self.vllm.load(bundle, arrays)
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
        ours = await self.vllm.prompt_log_probs(np.asarray(bundle.probe_ids))
        theirs = np.asarray(bundle.probe_log_probs, dtype=np.float64)
        if ours.shape != theirs.shape:
            raise RuntimeError(
                f"{self._name}: the probe of version {bundle.version} has {len(bundle.probe_ids)} ids and needs "
                f"{len(ours)} log-probabilities, but came with {len(theirs)}"
            )
        difference = np.abs(ours - theirs)
        mean, bound = float(difference.mean()), parity_bound(self._config)
        if not mean <= bound:  # also when it is no number
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
        """After a transfer that loaded nothing: go on as before it."""
        if self._unproven is None:
            self._serve()

    def _refuse(self, reason: str) -> None:
        """From now on nothing is served: what is in flight or undelivered was sampled under unproven weights."""
        self._unproven = f"{self._name}: {reason}"
        for mailbox in self._mailboxes.values():
            for task in list(mailbox.tasks.values()):
                task.cancel()
            mailbox.finished.clear()
        self._wake_all()

    def _require_serving(self) -> None:
        """Raises RuntimeError naming the worker when it cannot serve and no update in progress can change that."""
        self.vllm.require_alive()
        if self._unproven is not None and not self._updating.locked():
            raise RuntimeError(self._unproven)

    def _wake_all(self) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.changed.set()


class RolloutWorker:
    """The Ray actor (asynchronous; give it a `max_concurrency` above the number of its clients)."""

    def __init__(self, name: str, model_dir: str, config: RolloutConfig) -> None:
        from actors.play.codec import ChatCodec

        self._engine = Engine(name, model_dir, config, ChatCodec(model_dir).stop_ids)
        self._update_timeout_s = config.update_timeout_s
        self._started = asyncio.Lock()
        self._ready = False

    async def ready(self) -> dict[str, Any]:
        """Starts the engine at the first call; returns {worker, version, process_id, engine_process_ids}."""
        async with self._started:
            if not self._ready:
                await self._engine.start()
                gc.freeze()  # what imports made is never garbage: collections need not walk it
                self._ready = True
        return {
            "worker": self._engine.name,
            "version": self._engine.version,
            "process_id": os.getpid(),
            "engine_process_ids": self._engine.vllm.process_ids,
        }

    async def take_spans(self) -> list[Span]:
        """When the engine had something to sample, since the last call."""
        return self._engine.spans.take()

    async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        self._engine.submit(client, requests)

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        return await self._engine.collect(client, timeout_s)

    async def abort(self, client: str, request_ids: list[str]) -> None:
        self._engine.abort(client, request_ids)

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Fetches the bundle's chunks from the object store, then as `Engine.update_weights`."""
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
        return replace(await self._engine.update_weights(bundle, arrays), seconds_fetched=fetched)

    async def health(self) -> dict[str, Any]:
        return await self._engine.health()

    async def stats(self) -> dict[str, float]:
        return self._engine.stats()

    async def stop(self) -> None:
        await self._engine.stop()
