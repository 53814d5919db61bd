"""vLLM's engine core and its output processor in one process, with a model that costs nothing.

Scheduler, pauses, messages and their decoding are vLLM's own; only the executor is a stand-in. The token of a request
at a position is a function of both, so that every scheduler has to give the same turns.
"""

from __future__ import annotations

import queue
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from transformers import Qwen2Config
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from squelch.actors.config import RolloutConfig
from squelch.actors.rollout.engine_args import engine_arguments

BLOCK_SIZE = 16


def settings_of(folder: Path, is_asynchronous: bool, **given: Any) -> Any:
    """vLLM's settings for a tiny model, of which the folder holds nothing but the shape. `given`: settings of the
    section `rollout`."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 64}
    network = Qwen2Config(vocab_size=512, intermediate_size=64, max_position_embeddings=4096, **shape)
    network.architectures = ["Qwen2ForCausalLM"]
    network.save_pretrained(folder)
    config = RolloutConfig(num_threads=1, **given)
    settings = AsyncEngineArgs(**engine_arguments(str(folder), config)).create_engine_config()
    settings.scheduler_config.async_scheduling = is_asynchronous  # on CPU vLLM would always turn it off
    return settings


def token(request_id: str, position: int, vocabulary: int) -> int:
    """The token that the model samples for a request at a position."""
    return zlib.crc32(f"{request_id}/{position}".encode()) % vocabulary


class Executor:
    """Samples for each scheduled request whose tokens are all computed. `seconds`: what that took of the processor;
    `scheduled`: a checksum of all that was scheduled, the blocks of the cache included."""

    def __init__(self, vocabulary: int) -> None:
        self.seconds, self.scheduled = 0.0, 0
        self._vocabulary = vocabulary
        self._lengths: dict[str, int] = {}
        self._scheduled: Any = None

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Future[ModelRunnerOutput | None]:
        """An empty step's output; None where `sample_tokens` follows."""
        self._scheduled = scheduled
        for request_id in scheduled.finished_req_ids:
            self._lengths.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            self._lengths[new.req_id] = len(new.prompt_token_ids)
        return _done(None if scheduled.total_num_scheduled_tokens else EMPTY_MODEL_RUNNER_OUTPUT)

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        """The output of the step before it."""
        began, scheduled = time.process_time(), self._scheduled
        cached = scheduled.scheduled_cached_reqs
        computed = {one.req_id: one.num_computed_tokens for one in scheduled.scheduled_new_reqs}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        ids = [*scheduled.num_scheduled_tokens]
        blocks = [one.block_ids for one in scheduled.scheduled_new_reqs], cached.new_block_ids
        self.scheduled = zlib.crc32(repr((scheduled.num_scheduled_tokens, computed, blocks)).encode(), self.scheduled)
        tokens = [self._sampled(one, computed[one] + scheduled.num_scheduled_tokens[one]) for one in ids]
        rows = np.array([[found[0] if found else 0] for found in tokens], dtype=np.int32).reshape(-1, 1)
        log_probs = LogprobsLists(rows, -(rows.astype(np.float32) + 1) / 7, np.ones(len(rows), dtype=np.int32))
        output = ModelRunnerOutput(ids, {one: row for row, one in enumerate(ids)}, tokens, log_probs)
        self.seconds += time.process_time() - began
        return _done(output) if non_block else output

    def _sampled(self, request_id: str, computed: int) -> list[int]:
        if computed < self._lengths[request_id]:
            return []
        self._lengths[request_id] = computed + 1
        return [token(request_id, computed, self._vocabulary)]

    def nothing(self, *arguments: Any, **named: Any) -> None:
        """What a model without a device does when it is to synchronise, or to clear a cache."""

    collective_rpc = reset_mm_cache = reset_encoder_cache = nothing


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Core(EngineCoreProc):
    """vLLM's engine core without sockets and threads."""

    def __init__(self, settings: Any, log_stats: bool, blocks: int) -> None:
        vocabulary = settings.model_config.get_vocab_size()
        self.vllm_config, self.log_stats, self._weight_version = settings, log_stats, "0"
        self.model_executor, self.mm_receiver_cache = Executor(vocabulary), None
        layer = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.float32)
        settings.cache_config.num_gpu_blocks = blocks
        self.scheduler = cast(Any, settings.scheduler_config.get_scheduler_cls())(
            vllm_config=settings,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], layer)]),
            structured_output_manager=SimpleNamespace(accept_tokens=lambda request, ids: True),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=log_stats,
        )
        self.async_scheduling = settings.scheduler_config.async_scheduling
        self.batch_queue_size = settings.max_concurrent_batches
        self.batch_queue = deque(maxlen=self.batch_queue_size) if self.batch_queue_size > 1 else None
        self.step_fn = self.step if self.batch_queue is None else self.step_with_batch_queue
        self.is_mm_encoder_only = self.is_pooling_model = self.check_for_draft_tokens = self.engines_running = False
        self.aborts_queue, self.output_queue, self._idle_state_callbacks = queue.Queue(), queue.Queue(), []
        hash_of = get_hash_fn_by_name(settings.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_of)
        self.request_block_hasher = get_request_block_hasher(BLOCK_SIZE, hash_of)

    def work(self) -> bool:
        """One round of vLLM's busy loop; whether there was work."""
        if self.has_work():
            self._process_engine_step()
            return True
        self._notify_idle_state_callbacks()
        return False


@dataclass
class StubEngine:
    """A core, and the worker's end of its messages. `seconds` of the processor: in the core without its executor, on
    encoding and decoding messages, and on their outputs; `num_bytes`: of all messages."""

    core: Core
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    messages: list[EngineCoreOutputs] = field(default_factory=list)
    turns: dict[str, CompletionOutput] = field(default_factory=dict)
    num_bytes: int = 0

    def __post_init__(self) -> None:
        self._processor = OutputProcessor(None, log_stats=False)
        self._encoder, self._decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreOutputs)
        self._queues: dict[str, RequestOutputCollector] = {}

    def add(self, name: str, prompt: list[int], step_by_step: bool = False, **sampling: Any) -> None:
        """Begins a request."""
        kind = RequestOutputKind.CUMULATIVE if step_by_step else RequestOutputKind.FINAL_ONLY
        given = SamplingParams(detokenize=False, flat_logprobs=True, output_kind=kind, logprobs=0, **sampling)
        request = EngineCoreRequest(name, prompt, None, given, None, 0.0, None, None, None, external_req_id=name)
        self._queues[name] = RequestOutputCollector(kind, name)
        self._processor.add_request(request, None, queue=self._queues[name])
        self.core.add_request(Request.from_engine_core_request(request, self.core.request_block_hasher))

    def step(self) -> bool:
        """One round of the core's loop, and what it sent; whether there was work."""
        sampling = self.core.model_executor.seconds
        with self._timed("scheduler"):
            worked = self.core.work()
        self.seconds["scheduler"] -= self.core.model_executor.seconds - sampling
        while not self.core.output_queue.empty():
            _, message = self.core.output_queue.get_nowait()
            with self._timed("messages"):
                frames = self._encoder.encode(message)
                decoded = self._decoder.decode(frames)
            self.num_bytes += sum(memoryview(cast(Any, frame)).nbytes for frame in frames)
            self.messages.append(decoded)
            with self._timed("worker"):
                self._processor.process_outputs(decoded.outputs, weight_version=decoded.weight_version)
                self._collect(output.request_id for output in decoded.outputs)
        return worked

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.step():
            pass

    def update(self, version: str) -> None:
        """What the adapter does at an update: pause, another version, resume."""
        pending = self.core.pause_scheduler(mode="keep", clear_cache=True)
        self.run()
        assert pending is None or pending.done()
        self.core.set_weight_version(version)
        self.core.resume_scheduler()

    def abort(self, name: str) -> None:
        """As a client's abort: first at the worker, then in the engine."""
        self.core.abort_requests(self._processor.abort_requests([name], internal=False))
        self._collect([name])

    def _collect(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._queues and (output := self._queues[name].get_nowait()) is not None:
                self.turns[name] = cast(Any, output).outputs[0]

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name] += time.process_time() - began
