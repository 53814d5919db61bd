"""Rollout worker: one vLLM engine behind one adapter, and the Ray shell around it.

The only module, with its plugin `actors.weight_transfer`, that imports vLLM. `Engine` knows nothing of Ray and can be
used in any asyncio program; `RolloutWorker` is the actor: it resolves object references and delegates.

Invariants:

- Tokens in, tokens out: prompts are ids, and no tokenizer is loaded. The log-probability of a sampled token is that of the
  distribution it was drawn from: temperature applied, nothing truncated (top_p = 1, top_k off, min_p = 0).
- A request's tokens are determined by weights, prompt, temperature and the request's own seed, whatever it is batched with
  (up to floating-point ties).
- No completion leaves, and no request enters, between the start of a weight update and the passed parity probe. A
  completion carries the oldest and the newest version that sampled one of its tokens, as the engine counted them.
- A failed transfer leaves the old version serving; weights that fail the probe are never served from: the worker refuses
  until an update passes. The prefix cache never outlives the weights that filled it.

| call | waits for | who unblocks it | on time-out |
|---|---|---|---|
| `ready` | engine process | engine | RuntimeError naming the worker, `start_timeout_s` |
| `submit` | nothing | | |
| `collect` | a finished sequence | engine; a failure wakes it too | empty list after `timeout_s` |
| `update_weights` | pause, load, probe | engine; sequences in flight when `pause=wait` | RuntimeError, `update_timeout_s` |
| `health` | one token | engine | RuntimeError naming the worker |
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.config import RolloutConfig
from actors.messages import Completion, GenerationRequest, UpdateReport, WeightBundle
from actors.parent_watch import PARENT_VARIABLE

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

HEALTH_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_BATCHED_TOKENS = 8192
_CPU_BLOCK_SIZE = 32
_ALLOCATOR = {"MALLOC_TOP_PAD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""Bytes. Keeps freed activations instead of handing them back to the kernel after each step: a fifth less CPU time."""
_LOW_PRECISION_PARITY = 0.05
_FULL_PRECISION_PARITY = 1e-3


def engine_environment(config: RolloutConfig) -> dict[str, str]:
    """Variables that vLLM, torch and OpenMP read when the engine's process starts."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(config.start_timeout_s)),
        PARENT_VARIABLE: str(os.getpid()),
    }
    if config.num_gpus == 0:
        # Unbound threads: bound ones put every engine of a host on the same cores.
        variables |= {"OMP_NUM_THREADS": str(config.num_threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        variables |= _ALLOCATOR
    if config.enforce_eager:
        # vLLM compiles one helper of the log-probabilities even then: 12 s on the first batch.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


def parity_bound(config: RolloutConfig) -> float:
    """Largest mean absolute difference on the probe, nats; by the type of the rollout weights unless given."""
    if config.parity_bound is not None:
        return config.parity_bound
    return _FULL_PRECISION_PARITY if config.dtype == "float32" else _LOW_PRECISION_PARITY


@dataclass
class _Client:
    """What one environment actor has in flight and has not yet collected."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    finished: deque[Completion] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """vLLM's asynchronous engine: submit, collect, update weights, probe. All calls come from one event loop."""

    def __init__(self, name: str, model_dir: str | Path, config: RolloutConfig, stop_ids: Iterable[int]) -> None:
        self.name = name
        self.version = 0
        """Policy version of the weights served; the model folder's are version 0 until an update says otherwise."""
        self._model_dir = str(model_dir)
        self._config = config
        self._stop_ids = [int(index) for index in stop_ids]
        self._llm: AsyncLLM | None = None
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._clients: dict[str, _Client] = {}
        self._serving = asyncio.Event()
        self._updating = asyncio.Lock()
        self._unproven: str | None = None
        self._counts = dict.fromkeys(("requests", "prompt_tokens", "sampled_tokens", "errors", "updates"), 0)
        self._seconds_busy = 0.0
        self._busy_since = 0.0
        self._num_running = 0

    # --- life ---

    async def start(self) -> None:
        """Start the engine's process and sample one token. Raises RuntimeError naming the worker when it is late."""
        if self._llm is not None:
            return
        bound = self._config.start_timeout_s
        started = time.monotonic()
        try:
            self._llm = await asyncio.wait_for(asyncio.to_thread(self._create), bound)
        except TimeoutError:
            raise RuntimeError(f"rollout worker {self.name}: engine not ready after {bound:g} s") from None
        await self._llm.update_weight_version(str(self.version))
        self._serving.set()
        await self.health(max(bound - (time.monotonic() - started), 1.0))

    def _create(self) -> AsyncLLM:
        os.environ.update(engine_environment(self._config))
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        before = set(multiprocessing.active_children())
        settings = AsyncEngineArgs(**self._engine_arguments()).create_engine_config()
        if self._config.num_gpus == 0 and self._config.tensor_parallel_size == 1:
            # vLLM's CPU platform asks for a further process only to bind threads, which `nobind` does not.
            settings.parallel_config.distributed_executor_backend = "uni"
        llm = AsyncLLM.from_vllm_config(settings, disable_log_stats=True)
        self._processes = [process for process in multiprocessing.active_children() if process not in before]
        return llm

    def _engine_arguments(self) -> dict[str, Any]:
        from actors.weight_transfer import BACKEND

        config = self._config
        arguments: dict[str, Any] = dict(
            model=self._model_dir,
            skip_tokenizer_init=True,
            load_format="safetensors",
            generation_config="vllm",
            dtype=config.dtype,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=max(_BATCHED_TOKENS, config.max_model_len),
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            enforce_eager=config.enforce_eager,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            weight_transfer_config={"backend": BACKEND},
            disable_log_stats=True,
        )
        if config.num_gpus == 0:
            arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
            arguments["block_size"] = _CPU_BLOCK_SIZE
            # A prompt cut into chunks rewinds its seeded generator, which torch's CPU generator cannot do: vLLM dies.
            arguments["enable_chunked_prefill"] = False
        return arguments

    async def stop(self) -> None:
        """Shut the engine down; no process of it is left."""
        self._serving.clear()
        for client in self._clients.values():
            for task in client.tasks.values():
                task.cancel()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, STOP_TIMEOUT_S)
        for process in self._processes:
            if process.is_alive():
                process.kill()
            await asyncio.to_thread(process.join, STOP_TIMEOUT_S)

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the engine."""
        return [process.pid for process in self._processes if process.pid is not None]

    # --- generation ---

    def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        """Start sampling; results come through `collect` under the same client name."""
        self._require_serving()
        mailbox = self._clients.setdefault(client, _Client())
        for request in requests:
            task = asyncio.create_task(self._play(mailbox, request))
            mailbox.tasks[request.request_id] = task

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        """All finished sequences of a client: as soon as there is one, and `linger_s` for others to join it.

        Empty after `timeout_s`. Raises RuntimeError naming the worker when its engine has died.
        """
        mailbox = self._clients.setdefault(client, _Client())
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
        mailbox = self._clients.get(client, _Client())
        for request_id in request_ids:
            task = mailbox.tasks.pop(request_id, None)
            if task is not None:
                task.cancel()

    async def _until(self, mailbox: _Client, condition: Callable[[], bool], deadline: float) -> None:
        """Wait for the condition or the deadline; raises once the engine cannot serve any more."""
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

    async def _play(self, mailbox: _Client, request: GenerationRequest) -> None:
        self._count_running(1)
        try:
            await self._serving.wait()
            mailbox.finished.append(await self._complete(request))
        finally:
            self._count_running(-1)
            mailbox.tasks.pop(request.request_id, None)
            mailbox.changed.set()

    async def _complete(self, request: GenerationRequest) -> Completion:
        """One sampled turn; whatever goes wrong with this one request comes back as an `error` completion."""
        try:
            output = await self._generate(request.prompt_ids, self._sampling(request))
        except Exception as error:  # the boundary: a task that raised instead would leave its client waiting
            self._wake_all()
            return self._failed(request, f"{type(error).__name__}: {error}")
        self._counts["requests"] += 1
        self._counts["prompt_tokens"] += len(request.prompt_ids)
        return self._completion(request, output)

    def _completion(self, request: GenerationRequest, output: RequestOutput) -> Completion:
        sampled = output.outputs[0]
        if sampled.finish_reason not in ("stop", "length"):
            return self._failed(request, f"generation ended with {sampled.finish_reason}")
        self._counts["sampled_tokens"] += len(sampled.token_ids)
        versions = [int(span.version) for span in sampled.weight_versions or ()] or [self.version]
        return Completion(
            request_id=request.request_id,
            token_ids=np.asarray(sampled.token_ids, dtype=np.int32),
            log_probs=np.asarray(sampled.logprobs.logprobs, dtype=np.float32),
            finish_reason=sampled.finish_reason,
            version_min=min(versions),
            version_max=max(versions),
        )

    def _failed(self, request: GenerationRequest, error: str) -> Completion:
        self._counts["errors"] += 1
        empty = np.zeros(0)
        return Completion(
            request.request_id, empty.astype(np.int32), empty.astype(np.float32), "error", self.version, self.version, error
        )

    def _sampling(self, request: GenerationRequest) -> SamplingParams:
        return self._parameters(
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            seed=request.seed,
            logprobs=0,
            stop_token_ids=self._stop_ids,
        )

    @staticmethod
    def _parameters(**chosen: Any) -> SamplingParams:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        return SamplingParams(
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            detokenize=False,
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
            **chosen,
        )

    async def _generate(self, prompt_ids: np.ndarray, parameters: SamplingParams) -> RequestOutput:
        """One request through the engine. Raises RuntimeError naming the worker when the engine has died."""
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        llm, key = self._running(), uuid.uuid4().hex
        self._require_known_ids(prompt_ids)
        try:
            queue = await llm.add_request(key, tokens_input(prompt_ids.tolist()), parameters)
            return await queue.get()
        except asyncio.CancelledError:
            if not llm.errored:
                await llm.abort(key)
            raise
        except EngineDeadError as error:
            raise RuntimeError(self._death()) from error

    def _require_known_ids(self, prompt_ids: np.ndarray) -> None:
        """Without a tokenizer vLLM does not check ids, and one outside the embedding ends the engine."""
        rows = self._running().model_config.get_vocab_size()
        if len(prompt_ids) == 0 or prompt_ids.min() < 0 or prompt_ids.max() >= rows:
            raise ValueError(f"a prompt needs at least one id, all in [0, {rows}); got {len(prompt_ids)} ids")

    # --- weights ---

    async def update_weights(self, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]]) -> UpdateReport:
        """Serve another version. `arrays`: the bundle's parameters in published order.

        Raises RuntimeError, with worker, version and figures, when the transfer's checksum or the parity probe fails, or
        when it takes longer than `update_timeout_s`.
        """
        bound = self._config.update_timeout_s
        async with self._updating:
            try:
                return await asyncio.wait_for(self._update(bundle, arrays), bound)
            except TimeoutError:
                self._refuse(f"weight update to version {bundle.version} not finished after {bound:g} s")
                raise RuntimeError(self._unproven) from None

    async def _update(self, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]]) -> UpdateReport:
        self._running()
        self._serving.clear()
        seconds_paused, seconds_loaded = await self._load(bundle, arrays)
        started = time.monotonic()
        mean, largest = await self._probe(bundle)
        self.version, self._unproven = bundle.version, None
        self._counts["updates"] += 1
        self._serve()
        seconds_probe = time.monotonic() - started
        return UpdateReport(
            self.name, bundle.version, bundle.checksum, mean, largest, seconds_paused, seconds_loaded, seconds_probe
        )

    async def _load(self, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]]) -> tuple[float, float]:
        """Pause, transfer, resume; returns (seconds paused, seconds loading)."""
        from actors.weight_transfer import written_arrays

        llm = self._running()
        with written_arrays(arrays, bundle.bfloat16_names) as (path, table):
            started = time.monotonic()
            await llm.pause_generation(mode=self._config.pause, clear_cache=True)
            loading = time.monotonic()
            await self._transfer(llm, bundle, str(path), table)
            loaded = time.monotonic()
            await llm.resume_generation()
        return time.monotonic() - started, loaded - loading

    async def _transfer(self, llm: AsyncLLM, bundle: WeightBundle, path: str, table: list[dict[str, Any]]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
        from vllm.v1.engine.exceptions import EngineDeadError

        info = {"path": path, "version": bundle.version, "checksum": bundle.checksum, "arrays": table}
        try:
            await llm.start_weight_update()
            await llm.update_weights(WeightTransferUpdateRequest(update_info=info))
            await llm.finish_weight_update(str(bundle.version))
        except EngineDeadError as error:
            raise RuntimeError(self._death()) from error
        except Exception as error:  # what the engine's process raised arrives as a bare Exception with its message
            await llm.resume_generation()
            self._serve()
            raise RuntimeError(f"rollout worker {self.name}: weights of version {bundle.version} refused: {error}") from error

    async def _probe(self, bundle: WeightBundle) -> tuple[float, float]:
        """(mean, largest) absolute difference, nats, between our log-probabilities and the learner's on the probe."""
        parameters = self._parameters(temperature=1.0, max_tokens=1, prompt_logprobs=0)
        output = await self._generate(np.asarray(bundle.probe_ids), parameters)
        ours = np.asarray(output.prompt_logprobs.logprobs, dtype=np.float64)
        theirs = np.asarray(bundle.probe_log_probs, dtype=np.float64)
        if ours.shape != theirs.shape:
            raise ValueError(f"probe of {len(bundle.probe_ids)} ids needs {ours.shape} log-probabilities, got {theirs.shape}")
        difference = np.abs(ours - theirs)
        mean, bound = float(difference.mean()), parity_bound(self._config)
        if not mean <= bound:  # also when it is no number
            self._refuse(
                f"weights of version {bundle.version} failed the parity probe: mean absolute log-probability difference "
                f"{mean:.3g} nats, bound {bound:.3g}"
            )
            raise RuntimeError(self._unproven)
        return mean, float(difference.max())

    def _refuse(self, reason: str) -> None:
        """From now on nothing is served: what is in flight or undelivered was sampled under unproven weights."""
        self._unproven = f"rollout worker {self.name}: {reason}"
        for mailbox in self._clients.values():
            for task in list(mailbox.tasks.values()):
                task.cancel()
            mailbox.finished.clear()
        self._wake_all()

    def _serve(self) -> None:
        self._serving.set()
        self._wake_all()

    # --- state ---

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise RuntimeError(f"rollout worker {self.name}: the engine is not running; call ready() first")
        return self._llm

    def _require_serving(self) -> None:
        """Raises RuntimeError naming the worker when it cannot serve and no update in progress will change that."""
        if self._running().errored:
            raise RuntimeError(self._death())
        if self._unproven is not None and not self._updating.locked():
            raise RuntimeError(self._unproven)

    def _death(self) -> str:
        codes = [process.exitcode for process in self._processes]
        return f"rollout worker {self.name}: its vLLM engine has died (exit codes {codes}, processes {self.process_ids})"

    def _wake_all(self) -> None:
        for mailbox in self._clients.values():
            mailbox.changed.set()

    def _count_running(self, change: int) -> None:
        now = time.monotonic()
        if self._num_running == 0:
            self._busy_since = now
        self._num_running += change
        if self._num_running == 0:
            self._seconds_busy += now - self._busy_since

    async def health(self, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any]:
        """Sample one token. Raises RuntimeError naming the worker when none comes within `timeout_s`."""
        started = time.monotonic()
        prompt = np.zeros(1, dtype=np.int32)
        try:
            await asyncio.wait_for(self._healthy(prompt), timeout_s)
        except TimeoutError:
            raise RuntimeError(f"rollout worker {self.name}: no token within {timeout_s:g} s") from None
        return {"worker": self.name, "version": self.version, "seconds": time.monotonic() - started}

    async def _healthy(self, prompt: np.ndarray) -> None:
        self._require_serving()
        await self._serving.wait()
        await self._generate(prompt, self._parameters(temperature=1.0, max_tokens=1, logprobs=0, seed=0))

    def stats(self) -> dict[str, float]:
        """Counts since the start; `seconds_busy` had at least one request in flight."""
        running = time.monotonic() - self._busy_since if self._num_running else 0.0
        return {
            **self._counts,
            "in_flight": self._num_running,
            "seconds_busy": self._seconds_busy + running,
            "version": self.version,
        }


class RolloutWorker:
    """The Ray actor (asynchronous): resolves references, delegates to `Engine`."""

    def __init__(self, name: str, model_dir: str, config: RolloutConfig) -> None:
        from actors.codec import ChatCodec

        self._engine = Engine(name, model_dir, config, ChatCodec(model_dir).stop_ids)
        self._update_timeout_s = config.update_timeout_s

    async def ready(self) -> dict[str, Any]:
        """Starts the engine at the first call; returns {worker, version, process_id, engine_process_ids}."""
        await self._engine.start()
        return {
            "worker": self._engine.name,
            "version": self._engine.version,
            "process_id": os.getpid(),
            "engine_process_ids": self._engine.process_ids,
        }

    async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        self._engine.submit(client, requests)

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        return await self._engine.collect(client, timeout_s)

    async def abort(self, client: str, request_ids: list[str]) -> None:
        self._engine.abort(client, request_ids)

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Fetches the bundle's chunks from the object store, then as `Engine.update_weights`."""
        bound = self._update_timeout_s
        try:
            chunks = await asyncio.wait_for(asyncio.gather(*bundle.chunks), bound)
        except TimeoutError:
            raise RuntimeError(
                f"rollout worker {self._engine.name}: weights of version {bundle.version} did not arrive from the object "
                f"store within {bound:g} s"
            ) from None
        arrays = [(name, array) for chunk in chunks for name, array in chunk.items()]
        return await self._engine.update_weights(bundle, arrays)

    async def health(self) -> dict[str, Any]:
        return await self._engine.health()

    async def stats(self) -> dict[str, float]:
        return self._engine.stats()

    async def stop(self) -> None:
        await self._engine.stop()
