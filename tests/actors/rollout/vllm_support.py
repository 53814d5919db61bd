"""For the tests that run a real vLLM engine: tiny policies made on the spot, and one event loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from benchmarks.common import small_qwen2
from squelch.actors.config import RolloutConfig
from squelch.actors.messages import Completion, GenerationRequest, TensorEntry, WeightBundle
from squelch.actors.rollout.worker import Engine
from squelch.actors.weights import checksum

VOCABULARY = 64
STOP_ID = 2
CALL_TIMEOUT_S = 120.0
T = TypeVar("T")

CONFIG = RolloutConfig(max_model_len=256, max_num_seqs=64, kv_cache_gib=0.1, num_threads=1, update_timeout_s=60.0)


SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "initializer_range", "eos_token_id", "bos_token_id"),
)


def make_policy(seed: int, tied: bool = True) -> Qwen2ForCausalLM:
    """A small random Qwen2 whose log-probabilities are far from uniform."""
    torch.manual_seed(seed)
    config = small_qwen2(
        **{"vocabulary": VOCABULARY, "width": 64, "layers": 2, "hidden": 96, "heads": 2},
        tie_word_embeddings=tied,
        max_position_embeddings=512,
        initializer_range=0.2,
        eos_token_id=STOP_ID,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config).eval()


def make_mixture(kind: str, seed: int) -> PreTrainedModel:
    """A small random mixture of experts, of the shape of `make_policy`."""
    shape = {name: vars(make_policy(seed).config)[name] for name in SHAPE} | {"head_dim": 32, "pad_token_id": None}
    torch.manual_seed(seed)
    if kind == "mixtral":
        return MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=4)).eval()
    routed = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
    if kind == "qwen2_moe":
        return Qwen2MoeForCausalLM(Qwen2MoeConfig(**shape, **routed, shared_expert_intermediate_size=48)).eval()
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **routed)).eval()


def save(policy: Qwen2ForCausalLM, folder: Path) -> str:
    policy.save_pretrained(folder)
    return str(folder)


def log_probs(policy: Qwen2ForCausalLM, ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """(num_tokens - 1,) float64: log-probabilities of tokens 1.. at the temperature."""
    with torch.no_grad():
        logits = policy(torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]).logits[0, :-1].double() / temperature
    targets = torch.from_numpy(np.asarray(ids[1:], dtype=np.int64))[:, None]
    return torch.log_softmax(logits, dim=-1).gather(1, targets)[:, 0].numpy()


def arrays_of(policy: Qwen2ForCausalLM) -> list[tuple[str, np.ndarray]]:
    return [(name, parameter.detach().numpy().copy()) for name, parameter in policy.named_parameters()]


def bundle_of(
    policy: Qwen2ForCausalLM, version: int, arrays: list[tuple[str, np.ndarray]] | None = None
) -> WeightBundle:
    probe = np.random.default_rng(0).integers(3, VOCABULARY, 48).astype(np.int32)
    digest = checksum(arrays_of(policy) if arrays is None else arrays)
    return WeightBundle(version, (), digest, probe, log_probs(policy, probe).astype(np.float32), table=table_of(policy))


def table_of(policy: Qwen2ForCausalLM) -> tuple[TensorEntry, ...]:
    return tuple(TensorEntry(name, "float32", tuple(p.shape)) for name, p in policy.named_parameters())


def request(name: str, seed: int, max_tokens: int = 24, prompt: np.ndarray | None = None, temperature: float = 0.8):
    ids = prompt if prompt is not None else np.random.default_rng(seed).integers(3, VOCABULARY, 20)
    return GenerationRequest(name, ids.astype(np.int32), max_tokens, temperature, seed)


class Loop:
    """An event loop in a thread, so that plain test functions share one engine."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        return self.begin(coroutine).result(timeout_s)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(180)
        self._loop.close()


async def sample(engine: Engine, requests: list[GenerationRequest], client: str = "test") -> dict[str, Completion]:
    """Submit together, collect all."""
    engine.submit(client, requests)
    found: dict[str, Completion] = {}
    for _ in range(len(requests) + 5):
        for completion in await engine.collect(client, 1.0):
            found[completion.request_id] = completion
        if len(found) == len(requests):
            break
    return found
