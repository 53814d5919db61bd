"""What a vLLM engine is started with: variables, arguments, and the build that its devices need.

Each says why it is set. Nothing here waits. How a request is sampled: `actors.sampling` is what a user sets,
`VllmEngine._sampling_params` (`engine`) what vLLM gets.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from squelch.actors.config import RolloutConfig
from squelch.actors.process.allocator import ALLOCATOR
from squelch.actors.process.parent_watch import PARENT_VARIABLE
from squelch.actors.rollout.memory import BATCHED_TOKENS, PRIMITIVES
from squelch.kit.process.compile_cache import own_compile_cache

_CPU_BLOCK_SIZE = 32
SOCKET_FOLDER_BYTES = 70
"""Longest path of a folder in which vLLM can make a socket: a socket's has 107 bytes, and its name 37 of them."""


def engine_environment(config: RolloutConfig) -> dict[str, str]:
    """Variables that vLLM, torch, OpenMP and the C library read when the engine's process starts."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(config.start_timeout_s)),
        # All processes of an engine share a host. By itself vLLM would look for an address of the host, which a host
        # without a default route does not show.
        "VLLM_HOST_IP": "127.0.0.1",
        PARENT_VARIABLE: str(os.getpid()),
    }
    if len(os.fsencode(tempfile.gettempdir())) > SOCKET_FOLDER_BYTES and "VLLM_RPC_BASE_PATH" not in os.environ:
        variables["VLLM_RPC_BASE_PATH"] = "/tmp"  # the engine's sockets; others may not connect, for lack of a right
    if not (config.way and config.way.group):  # the worker has chosen the interface that reaches the learner
        variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    if config.num_gpus == 0:
        # Threads are not bound to cores: vLLM would bind every engine of a host to the same cores.
        variables |= {"OMP_NUM_THREADS": str(config.num_threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        # Split-KV attention sums in an order that depends on the batch's load, so log-probabilities would vary in bits.
        variables |= {"VLLM_CPU_ATTN_SPLIT_KV": "0"}
        # Threads that spin at barriers, the default, run at 5% of the speed when other processes compete for the cores.
        variables |= {"OMP_WAIT_POLICY": "PASSIVE"} | ALLOCATOR
        capacity = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
        variables[capacity] = os.environ.get(capacity, str(PRIMITIVES))
    else:
        # A forked process cannot use CUDA once its parent has.
        variables["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        # FlashInfer's sampler serves truncated distributions only, and no request truncates.
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        # vLLM attends to float32 by a Triton kernel, which would round factors to TF32: on an H100 the tiny policy's
        # probe was then off by 0.00101 nats, more than the bound of float32.
        variables["TRITON_F32_DEFAULT"] = "ieee"
    if config.enforce_eager:
        # With enforce_eager vLLM still compiles one helper of the log-probabilities, which delays the first batch 12 s.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    else:
        variables |= own_compile_cache()
    return variables


def engine_arguments(model_dir: str, config: RolloutConfig, sees: bool = False) -> dict[str, Any]:
    """Keyword arguments of vLLM's `AsyncEngineArgs`; `sees`: the model has a vision tower."""
    from squelch.actors.rollout.norms import PRIORITY
    from squelch.actors.rollout.weight_transfer import BACKEND

    arguments: dict[str, Any] = dict(
        model=model_dir,
        skip_tokenizer_init=True,
        config_format="hf",  # otherwise a params.json in the folder is read instead of the config.json that was checked
        load_format="safetensors",
        generation_config="vllm",
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max(BATCHED_TOKENS, config.max_model_len),
        tensor_parallel_size=config.tensor_parallel_size,
        gpu_memory_utilization=config.memory_share,
        enforce_eager=config.enforce_eager,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        weight_transfer_config={"backend": BACKEND},
        disable_log_stats=True,
    )
    if sees:
        # Patches are normalised already, no picture is tried at the start, and there is no processor to cache for.
        arguments |= {"mm_device_do_normalize": False, "skip_mm_profiling": True, "mm_processor_cache_gb": 0.0}
        if config.num_gpus > 0:
            arguments["mm_encoder_attn_backend"] = "TORCH_SDPA"  # its heads may be 80 wide, unlike any kernel's
    if config.fp32_head:
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    if config.cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(config.cache_gib * 2**30)
    if config.num_gpus == 0:
        arguments["block_size"] = _CPU_BLOCK_SIZE
        # Chunked prefill rewinds a request's seeded generator; torch's CPU generator cannot rewind, and vLLM would die.
        arguments["enable_chunked_prefill"] = False
        if config.enforce_eager:
            arguments["ir_op_priority"] = PRIORITY
    elif config.tensor_parallel_size > 1:
        # By itself vLLM would start Ray actors in this actor's bundle, and refuse it because it holds all the GPUs.
        arguments["distributed_executor_backend"] = "mp"
    return arguments


def require_build(is_cpu_build: bool, config: RolloutConfig) -> None:
    """Raises ValueError if the installed build of vLLM cannot serve the worker's devices."""
    if config.num_gpus == 0 and not is_cpu_build:
        raise ValueError(
            "rollout.num_gpus=0 needs vLLM's CPU build, and another is installed; set rollout.num_gpus to 1 or to a "
            "share of a GPU (docs/guide/real-models.md, On one GPU), or set up a virtual environment with make setup"
        )
    if config.num_gpus > 0 and is_cpu_build:
        raise ValueError(
            f"rollout.num_gpus={config.num_gpus:g} needs vLLM's CUDA build, and its CPU build is installed; set up a "
            "virtual environment with make setup KIND=gpu"
        )
