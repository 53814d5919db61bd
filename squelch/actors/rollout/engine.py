"""Adapter of vLLM's asynchronous engine. Only this module, the scheduler that it gives to the engine
(`actors.rollout.scheduler` and `slots`), the plugin `actors.rollout.weight_transfer`, and the kernels and the model
that the plugin makes known, `actors.rollout.norms` and `pictures`, import vLLM, so all code that depends on the
interface of vLLM 0.32 is in these six.

The adapter does not depend on Ray: any asyncio program can use it.

Invariants:

- Requests and completions hold token ids; vLLM loads no tokenizer. The log-probability of a sampled token is computed
  under the distribution that the token was drawn from: with temperature, without truncation (top_p = 1, top_k off,
  min_p = 0).
- Weights, prompt, temperature and the request's own seed determine a request's tokens (up to floating-point ties),
  regardless of the other requests in the batch. On CPU in float32 they determine its log-probabilities bit for bit.
- A request with stop strings is watched step by step and aborted where one is complete; tokens that the engine sampled
  beyond it by then are dropped, so that they are not part of the turn however late they are seen. Other requests are
  read once, at their end.
- A completion carries the oldest and the newest version that sampled one of its tokens, as counted by the engine.
- The prefix cache, and that of encoded pictures, are cleared whenever weights are loaded.

Every call waits for the engine's process; callers set the time-outs (`actors.rollout.worker`). All calls must come from
one event loop.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.actors.config import RolloutConfig
from squelch.actors.messages import Completion, GenerationRequest, GroupMember, TransferRefused, WeightBundle
from squelch.actors.process.imports import importing
from squelch.actors.rollout.early_process import EarlyProcess, begun, inspecting_here, serving
from squelch.actors.rollout.engine_args import engine_arguments, engine_environment, require_build
from squelch.actors.rollout.stop_strings import Spell, StopStrings
from squelch.actors.weights_file import written_arrays
from squelch.kit.models.model_folder import check_model_folder
from squelch.kit.pictures.geometry import Vision, vision_of
from squelch.kit.process.progress_marks import Marks
from squelch.kit.records.content import PlacedPictures
from squelch.kit.records.records import VersionSpan

if TYPE_CHECKING:
    from vllm.inputs.engine import MultiModalInput, TokensInput
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestOutputCollector

STOP_TIMEOUT_S = 10.0
IMPORTED = ("vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")
"""The modules that an engine's process on CPU imports before it loads the model."""


@dataclass(frozen=True)
class LoadTimes:
    """Seconds for which sampling was paused to load a version, and the part of them that loading took."""

    paused: float
    loaded: float


class VllmEngine:
    """One vLLM engine and its process. `version` is the version last loaded; the model folder's version is 0. `spell`:
    the bytes of the model's tokens, for requests with stop strings."""

    def __init__(
        self,
        name: str,
        model_dir: str | Path,
        config: RolloutConfig,
        stop_ids: Iterable[int],
        spell: Spell | None = None,
    ) -> None:
        self.name = name
        self.version = 0
        self._model_dir = str(model_dir)
        self._config = config
        self._stop_ids = [int(index) for index in stop_ids]
        self._spell = spell
        self._llm: AsyncLLM | None = None
        self._vision: Vision | None = None
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self.marks = Marks(of_child=True)
        """One for each step of the engine, that is, for each token of the running requests."""

    # --- life ---

    async def start(self) -> None:
        """Start the engine's process, which loads the model folder. Does nothing if the engine already runs.

        Raises ValueError for a folder that cannot be used (`kit.models.model_folder`); vLLM itself accepts some of
        them.
        """
        if self._llm is None:
            self._llm = await asyncio.to_thread(self._create)
            await self._llm.update_weight_version(str(self.version))

    def _create(self) -> AsyncLLM:
        check_model_folder(Path(self._model_dir))
        self._vision = vision_of(Path(self._model_dir))
        os.environ.update(engine_environment(self._config))
        before = set(multiprocessing.active_children())
        with closing(begun(IMPORTED)) if self._config.num_gpus == 0 else nullcontext() as early:
            llm = self._made(early)
        self._processes = [process for process in multiprocessing.active_children() if process not in before]
        return llm

    def _made(self, early: EarlyProcess | None) -> AsyncLLM:
        with importing():
            from vllm.platforms import current_platform

            require_build(current_platform.is_cpu(), self._config)
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.model_executor.models import registry
            from vllm.v1.engine import utils as engine_processes
            from vllm.v1.engine.async_llm import AsyncLLM

            from squelch.actors.rollout.scheduler import mark_steps, scheduler_of

        arguments = engine_arguments(self._model_dir, self._config, self._vision is not None)
        with inspecting_here(registry) if self._config.num_gpus == 0 else nullcontext():
            settings = AsyncEngineArgs(**arguments, served_model_name=self.name).create_engine_config()
        if self._config.num_gpus == 0 and self._config.tensor_parallel_size == 1:
            # vLLM's CPU platform starts a further process only to bind threads, and `nobind` turns binding off.
            settings.parallel_config.distributed_executor_backend = "uni"
        settings.scheduler_config.scheduler_cls = scheduler_of(bool(settings.scheduler_config.async_scheduling))
        with serving(early, engine_processes):
            llm = AsyncLLM.from_vllm_config(settings, disable_log_stats=True, stat_loggers=self._reporters())
        mark_steps(llm, self.marks)
        return llm

    def _reporters(self) -> list[Any] | None:
        """The logger that reports vLLM's own metrics, labelled with this worker's name, to the Ray of this process."""
        if not self._config.engine_metrics:
            return None
        from ray.util import metrics
        from vllm.v1.metrics import ray_wrappers

        ray_wrappers.ray_metrics = metrics  # vLLM leaves it empty where Ray Serve is not installed
        return [ray_wrappers.RayPrometheusStatLogger]

    async def stop(self) -> None:
        """Shut the engine down and end all its processes."""
        llm, self._llm = self._llm, None
        if llm is not None:
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # otherwise it reports the engine's end as a failure
            await asyncio.to_thread(llm.shutdown, STOP_TIMEOUT_S)
        for process in self._processes:
            if process.is_alive():
                process.kill()
            await asyncio.to_thread(process.join, STOP_TIMEOUT_S)

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the engine."""
        return [process.pid for process in self._processes if process.pid is not None]

    def require_alive(self) -> AsyncLLM:
        """The running engine. Raises RuntimeError with the worker's name if it does not run or has died."""
        if self._llm is None:
            raise RuntimeError(f"rollout worker {self.name}: the engine is not running; call ready() first")
        if self._llm.errored:
            raise RuntimeError(self._death())
        return self._llm

    def _death(self) -> str:
        codes = [process.exitcode for process in self._processes]
        processes = f"processes {self.process_ids}, exit codes {codes}"
        return f"rollout worker {self.name}: its vLLM engine has died ({processes})"

    # --- generation ---

    async def complete(self, request: GenerationRequest) -> Completion:
        """One sampled turn. Errors that vLLM raises for this request pass through; cancelling stops the sampling."""
        from squelch.actors.rollout.scheduler import log_probs_of

        watch = self._watch(request)
        parameters = self._sampling_params(
            watch is not None,
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            seed=request.seed,
            logprobs=0,
            stop_token_ids=self._stop_ids,
        )
        output = await self._generate(request.prompt_ids, parameters, watch, request.pictures)
        sampled, end = output.outputs[0], None if watch is None else watch.end
        finish_reason = sampled.finish_reason if end is None else "stop"
        if finish_reason not in ("stop", "length"):
            raise RuntimeError(f"rollout worker {self.name}: generation ended with {finish_reason}")
        ids = np.asarray(sampled.token_ids, dtype=np.int32)[:end]
        spans = tuple(
            VersionSpan(s.start, min(s.end, len(ids)), int(s.version))
            for s in sampled.weight_versions or ()
            if s.start < len(ids)
        )
        versions = [span.version for span in spans] or [self.version]
        return Completion(
            request_id=request.request_id,
            token_ids=ids,
            log_probs=log_probs_of(sampled)[:end],
            finish_reason=finish_reason,
            version_min=min(versions),
            version_max=max(versions),
            version_spans=spans,
        )

    def _watch(self, request: GenerationRequest) -> StopStrings | None:
        if not request.stop:
            return None
        if self._spell is None:
            raise ValueError(f"rollout worker {self.name}: stop strings need the bytes of the model's tokens")
        return StopStrings(request.stop, self._spell, request.inside)

    async def token(self) -> None:
        """Sample one token and discard it: a check that the engine answers."""
        prompt = np.zeros(1, dtype=np.int32)
        await self._generate(prompt, self._sampling_params(False, temperature=1.0, max_tokens=1, logprobs=0, seed=0))

    async def prompt_log_probs(self, ids: np.ndarray, pictures: PlacedPictures = ()) -> np.ndarray:
        """(num_ids - 1,) float64: log-probabilities (nats) of ids 1.. at temperature 1, under the current weights."""
        parameters = self._sampling_params(False, temperature=1.0, max_tokens=1, prompt_logprobs=0)
        output = await self._generate(ids, parameters, pictures=pictures)
        return np.asarray(_flat(output.prompt_logprobs), dtype=np.float64)

    @staticmethod
    def _sampling_params(step_by_step: bool, **chosen: Any) -> SamplingParams:
        """`step_by_step`: whether the request yields what was sampled so far after each step, and not once."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        return SamplingParams(
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            detokenize=False,
            flat_logprobs=True,
            output_kind=RequestOutputKind.CUMULATIVE if step_by_step else RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
            **chosen,
        )

    async def _generate(
        self,
        prompt_ids: np.ndarray,
        parameters: SamplingParams,
        watch: StopStrings | None = None,
        pictures: PlacedPictures = (),
    ) -> RequestOutput:
        """Run one request; its last output. Raises RuntimeError with the worker's name if the engine has died."""
        from vllm.outputs import RequestOutput
        from vllm.v1.engine.exceptions import EngineDeadError

        llm, key = self.require_alive(), uuid.uuid4().hex
        self._require_known_ids(llm, prompt_ids)
        try:
            queue = await llm.add_request(key, self._input(prompt_ids.tolist(), pictures), parameters)
            output = await queue.get() if watch is None else await self._watched(llm, key, queue, watch)
        except asyncio.CancelledError:
            if not llm.errored:
                await llm.abort(key)
            raise
        except EngineDeadError as error:
            raise RuntimeError(self._death()) from error
        assert isinstance(output, RequestOutput), "a request to generate has no other output"
        return output

    def _input(self, ids: list[int], pictures: PlacedPictures) -> TokensInput | MultiModalInput:
        """vLLM's form of a prompt. Raises ValueError for pictures that the model cannot be shown."""
        from vllm.inputs import tokens_input

        if not pictures:
            return tokens_input(ids)
        if self._vision is None:
            raise ValueError(f"rollout worker {self.name}: the model has no vision tower and was given pictures")
        from squelch.actors.rollout.pictures import shown_input

        return shown_input(ids, pictures, self._vision)

    @staticmethod
    async def _watched(llm: AsyncLLM, key: str, queue: RequestOutputCollector, watch: StopStrings) -> Any:
        """The last output of a request, which is aborted where a stop string is complete. Only the last one says which
        versions sampled; for an aborted request vLLM makes it at once."""
        while True:
            output: Any = await queue.get()
            is_complete = watch.see(output.outputs[0].token_ids)
            if output.finished:
                return output
            if is_complete:
                await llm.abort(key)
                return await queue.get()

    @staticmethod
    def _require_known_ids(llm: AsyncLLM, prompt_ids: np.ndarray) -> None:
        """Raises ValueError for ids outside the embedding: without a tokenizer vLLM does not check, and would crash."""
        rows = llm.model_config.get_vocab_size()
        if len(prompt_ids) == 0 or prompt_ids.min() < 0 or prompt_ids.max() >= rows:
            raise ValueError(f"a prompt needs at least one id, all in [0, {rows}); got {len(prompt_ids)} ids")

    # --- weights ---

    async def join_group(self, member: GroupMember) -> None:
        """Leave the present weight group and join a new one; waits for its members. RuntimeError if that fails."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        request = WeightTransferInitRequest(init_info={"member": vars(member)})
        try:
            await self.require_alive().init_weight_transfer_engine(request)
        except Exception as error:  # vLLM raises an error of the engine's process as a bare Exception with its message
            raise RuntimeError(
                f"rollout worker {self.name} did not join weight group {member.number}: {error}"
            ) from error

    @asynccontextmanager
    async def copied(self, bundle: WeightBundle, arrays: list[tuple[str, np.ndarray]]) -> AsyncIterator[dict[str, Any]]:
        """A version's parameters, in published order, in memory that the engine's processes can map, for `load`.

        Threads copy them (0.7 s a GiB) and free them, so that the event loop goes on; where the call is cancelled, the
        copy ends by itself and is freed.
        """
        memory = written_arrays(arrays, bundle.bfloat16_names)
        path, table = await asyncio.to_thread(memory.__enter__)
        try:
            yield _in_file(bundle, path, table)
        finally:
            await asyncio.to_thread(memory.__exit__, None, None, None)

    @staticmethod
    def mapped(bundle: WeightBundle, path: Path) -> dict[str, Any]:
        """A version in the learner's sealed memory, which is open as `path`, or on its GPU, for `load`."""
        assert bundle.shared is not None, "the learner shares this version"
        if bundle.shared.gpu is not None:
            return _in_order(bundle) | {"gpu": vars(bundle.shared.gpu)}
        return _in_file(bundle, path, bundle.shared.arrays) | {"sealed": True}

    async def load(self, bundle: WeightBundle, info: dict[str, Any]) -> LoadTimes:
        """Pause sampling, load a version, clear the prefix cache, resume. `info`: from `copied` or `mapped`.

        Raises TransferRefused if nothing was loaded, and RuntimeError if the weights may be partly loaded.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        llm, started = self.require_alive(), time.monotonic()
        try:
            await llm.pause_generation(mode=self._config.pause, clear_cache=True)
            loading = time.monotonic()
            await self._transfer(llm, bundle, info)
            loaded = time.monotonic()
            await llm.resume_generation()
        except EngineDeadError as error:
            raise RuntimeError(self._death()) from error
        self.version = bundle.version
        return LoadTimes(paused=time.monotonic() - started, loaded=loaded - loading)

    async def receive(self, bundle: WeightBundle) -> LoadTimes:
        """As `load`, with the weights that the learner broadcasts in the weight group."""
        return await self.load(bundle, _in_order(bundle))

    async def _transfer(self, llm: AsyncLLM, bundle: WeightBundle, info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
        from vllm.v1.engine.exceptions import EngineDeadError

        from squelch.actors.rollout.weight_transfer import NOTHING_LOADED

        try:
            await llm.start_weight_update()
            await llm.update_weights(WeightTransferUpdateRequest(update_info=info))
            await llm.finish_weight_update(str(bundle.version))
        except EngineDeadError:
            raise
        except Exception as error:  # vLLM raises an error of the engine's process as a bare Exception with its message
            await llm.resume_generation()
            text = f"rollout worker {self.name}: weights of version {bundle.version} refused: {error}"
            raise (TransferRefused(text) if NOTHING_LOADED in text else RuntimeError(text)) from error


def _in_file(bundle: WeightBundle, path: Path, table: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"path": str(path), "version": bundle.version, "checksum": bundle.checksum, "arrays": list(table)}


def _in_order(bundle: WeightBundle) -> dict[str, Any]:
    table = [(entry.name, entry.dtype, list(entry.shape)) for entry in bundle.table]
    return {"version": bundle.version, "checksum": bundle.checksum, "table": table}


def _flat(log_probs: Any) -> list[float]:
    """Log-probabilities in vLLM's flat form, which `flat_logprobs` requests; vLLM's annotations do not declare it."""
    return log_probs.logprobs
