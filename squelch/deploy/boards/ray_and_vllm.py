"""Rows of the board of the system: metrics of Ray and vLLM themselves, from the Prometheus endpoints of Ray's nodes.

Ray exports vLLM's metrics as its own, under `ray_vllm_`, if `rollout.engine_metrics` is on; `model_name` is then the
rollout worker. The names are not in our registry, so a test looks them up in the sources of both packages. Pure.
"""

from __future__ import annotations

from squelch.deploy.boards.panel import Query, amount, row, seconds, share, size

NO_RAY = "Prometheus does not scrape Ray"
NO_GPU = f"{NO_RAY}, or its nodes have no GPU"
NO_VLLM = f"{NO_RAY}, or rollout.engine_metrics is off"
NO_PREEMPTION = f"{NO_VLLM}, or no request was preempted"


def _engines(how: str, name: str, rate: bool = False) -> str:
    """One of vLLM's metrics, as Ray exports it, by rollout worker; `how`: sum or max over a worker's processes."""
    value = f"ray_vllm_{name}"
    return f"{how} by (model_name) ({f'rate({value}[$__rate_interval])' if rate else value})"


def _slowest(name: str) -> str:
    """The 90th percentile of one of vLLM's histograms over all rollout workers."""
    return f"histogram_quantile(0.9, sum by (le) (rate(ray_vllm_{name}_bucket[$__rate_interval])))"


RAY = row(
    "Ray",
    "guide/cluster.md",
    amount(
        "Ray's actors",
        "Actors of the whole Ray cluster by state.",
        Query('sum by (State) (ray_actors{Source="gcs"})', "{{State}}", NO_RAY),
    ),
    share(
        "Memory and CPU of nodes",
        "Share of each node's memory and CPU that is in use.",
        Query("ray_node_mem_used / ray_node_mem_total", "memory, {{instance}}", NO_RAY),
        Query("ray_node_cpu_utilization / 100", "CPU, {{instance}}", NO_RAY),
    ),
    size(
        "Object store",
        "Bytes in Ray's object store by where they are; spilled ones are on disk and slow.",
        Query("sum by (Location) (ray_object_store_memory)", "{{Location}}", NO_RAY),
    ),
    size(
        "Memory by component",
        "Resident bytes of Ray's components and of the actors, by kind, summed over the cluster.",
        Query("sum by (Component) (ray_component_rss_bytes)", "{{Component}}", NO_RAY),
    ),
    amount(
        "Ray's tasks",
        "Calls of actors by state; many that wait for arguments or a node point to a full object store or cluster.",
        Query("sum by (State) (ray_tasks)", "{{State}}", NO_RAY),
    ),
    share(
        "GPUs of nodes",
        "Share of each GPU's time in use, and of its memory.",
        Query("ray_node_gpus_utilization / 100", "{{instance}} GPU {{GpuIndex}}", NO_GPU),
        Query(
            "ray_node_gram_used / (ray_node_gram_used + ray_node_gram_available)",
            "memory, {{instance}} GPU {{GpuIndex}}",
            NO_GPU,
        ),
    ),
)

VLLM = row(
    "vLLM",
    "guide/cluster.md",
    amount(
        "Requests in the engines",
        "Requests that each rollout worker's engine runs, and that wait in its queue.",
        Query(_engines("sum", "num_requests_running"), "{{model_name}}, running", NO_VLLM),
        Query(_engines("sum", "num_requests_waiting"), "{{model_name}}, waiting", NO_VLLM),
    ),
    share(
        "KV cache",
        "Share of each engine's KV cache in use; at 1 it preempts requests and computes them again.",
        Query(_engines("max", "kv_cache_usage_perc"), "{{model_name}}", NO_VLLM),
        Query(
            f"{_engines('sum', 'prefix_cache_hits_total', rate=True)} / "
            f"{_engines('sum', 'prefix_cache_queries_total', rate=True)}",
            "{{model_name}}, prefix found",
            NO_VLLM,
        ),
    ),
    amount(
        "Tokens of the engines",
        "Tokens per second that each engine read and sampled.",
        Query(_engines("sum", "prompt_tokens_total", rate=True), "{{model_name}}, read", NO_VLLM),
        Query(_engines("sum", "generation_tokens_total", rate=True), "{{model_name}}, sampled", NO_VLLM),
    ),
    seconds(
        "Latency of the engines",
        "90th percentiles of the seconds that a request waits in the queue, and until its first token.",
        Query(_slowest("request_queue_time_seconds"), "queue", NO_VLLM),
        Query(_slowest("time_to_first_token_seconds"), "first token", NO_VLLM),
        Query(_slowest("inter_token_latency_seconds"), "between tokens", NO_VLLM),
    ),
    amount(
        "Preemptions",
        "Requests per second that an engine interrupted because its KV cache was full.",
        Query(_engines("sum", "num_preemptions_total", rate=True), "{{model_name}}", NO_PREEMPTION),
    ),
)
