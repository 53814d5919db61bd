"""Settings of the Ray actors; those of filter, fixed probe and metrics endpoint are in the module `settings` of each.
Imports neither Ray, torch nor vLLM, because the command line imports this at start."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.node_labels import LabelSelector, require_gpu_share
from squelch.actors.weight_ways import MEANING, WAYS, Way
from squelch.kit.base.settings import Settings, whole_or_auto
from squelch.kit.base.user_files import NAMES_FILES
from squelch.kit.scoring.settings import ProbeConfig


class EnvironmentActorConfig(Settings):
    """Environment actors, which play tickets."""

    count: int = Field(1, ge=1)
    """Number of environment actors."""
    num_cpus: float = Field(0.25, ge=0)
    """Ray CPUs that each actor requests."""
    label_selector: LabelSelector = Field(default_factory=dict)
    """Labels of the nodes that may run them (`actors.node_labels`); empty: near a rollout worker if there is room."""
    step_threads: int = Field(1, ge=1)
    """Threads for environment steps; more than one helps with environments that wait, such as sandboxed code."""
    step_timeout_s: float = Field(10.0, gt=0)
    """Most seconds for one environment step or reset; after them the trajectory fails with cause `step_timeout`."""
    generation_timeout_s: float = Field(120.0, gt=0)
    """Most seconds for the generation of one turn; after them the trajectory fails with cause `generation_timeout`."""
    episode_timeout_s: float = Field(300.0, gt=0)
    """Most seconds for one episode; after them the trajectory fails with cause `episode_timeout`."""
    endpoint: EndpointConfig = EndpointConfig()
    """The endpoint at which agents call the policy."""


class RolloutConfig(Settings):
    """Rollout workers, with one vLLM engine each."""

    count: Annotated[int | Literal["auto"], whole_or_auto(1)] = 1
    """Number of rollout workers at the start; `squelch scale` changes it while the run goes on. `auto`: start
    with `min_count` and add workers, up to `max_count`, until the learner no longer waits for groups
    (docs/guide/hosts.md)."""
    min_count: int = Field(1, ge=1)
    """Fewest rollout workers that the run is ever scaled to."""
    max_count: int | None = Field(None, ge=1)
    """Most rollout workers that the run is ever scaled to. Unset: as many as the cluster has room for; `count: auto`
    needs a number."""
    num_cpus: float = Field(0.5, ge=0)
    """Ray CPUs that each worker requests."""
    num_gpus: float = Field(0.0, ge=0)
    """Ray GPUs that each worker requests, all on one node: 0 runs vLLM's CPU build, a fraction shares a GPU, and
    its memory."""
    label_selector: LabelSelector = Field(default_factory=dict)
    """Labels of the nodes that may run them (`actors.node_labels`); empty: any node with the resources."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs over which vLLM splits the model."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the rollout weights."""
    fp32_head: bool = False
    """With a 16-bit dtype: compute the output head's logits in float32; learner.fp32_head does the same in the
    learner."""
    max_model_len: int = Field(1024, ge=32)
    """Context length in tokens, for the prompt and all turns."""
    max_num_seqs: int = Field(256, ge=1)
    """Most sequences that are decoded together."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """Size of the key-value cache on each device, GiB. Unset: 1 on CPU; on a GPU vLLM measures what is left of its
    share while it starts, and fails if another process frees memory of the GPU meanwhile. Set on a GPU, the cache has
    this size, whatever the share."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of a GPU's memory that vLLM may use, and that must be free when it starts. Unset: `num_gpus` if that is a
    fraction, at most 0.85."""
    enforce_eager: bool = True
    """Skip torch.compile and CUDA graphs. For tiny models on CPU compilation costs more time than it saves."""
    num_threads: int = Field(1, ge=1)
    """OpenMP threads of the engine on CPU."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Most seconds until the engine is ready."""
    update_timeout_s: float = Field(120.0, gt=0)
    """Most seconds for one weight update, including the parity probe."""
    parity_bound: float | None = Field(None, gt=0)
    """Largest allowed mean absolute difference in log-probability (nats) between worker and learner on the probe; a
    larger difference fails the update. Unset: 0.001 for float32, 0.5 for the 16-bit types."""
    pause: Literal["keep", "wait"] = "keep"
    """Treatment of requests in flight at a weight update: `keep` continues them under the new weights (the turn records
    both versions), `wait` completes them first."""
    weight_transfer: Literal["auto", *WAYS] = Field("auto", description=MEANING)
    linger_s: float = Field(0.01, ge=0)
    """Seconds that a finished sequence waits for others, so that one call returns several."""
    engine_metrics: bool = False
    """Whether vLLM reports its own metrics through Ray's Prometheus endpoints (docs/guide/dashboards.md). Every engine
    step then costs the time to record them."""

    @property
    def way(self) -> Way | None:
        """The row of `weight_transfer`; None while it is `auto`."""
        return WAYS.get(self.weight_transfer)

    @property
    def parity_limit(self) -> float:
        """Largest allowed mean |difference| on the parity probe, nats; the default depends on the dtype. Measured for
        bfloat16: 0.006 to 0.034 on sampled text, and 0.032 to 0.148 on random ids, which the probe uses. A partly
        loaded parameter causes more than 1."""
        if self.parity_bound is not None:
            return self.parity_bound
        return 1e-3 if self.dtype == "float32" else 0.5

    @property
    def cache_gib(self) -> float | None:
        """Size of the key-value cache on each device, GiB; None if vLLM measures how much there is room for."""
        return 1.0 if self.kv_cache_gib is None and self.num_gpus == 0 else self.kv_cache_gib

    @property
    def memory_share(self) -> float:
        """Share of a GPU's memory that vLLM may use."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return min(0.85, self.num_gpus or 1.0)

    @property
    def start_count(self) -> int:
        """Number of rollout workers with which a run starts."""
        return self.min_count if self.count == "auto" else self.count

    def _faults(self) -> Iterator[str]:
        if self.count == "auto" and self.max_count is None:
            yield "count=auto needs a bound; set rollout.max_count to the most workers that may run"
        high = self.max_count if self.max_count is not None else max(self.start_count, self.min_count)
        if not self.min_count <= self.start_count <= high:
            yield (
                f"count={self.count} with min_count={self.min_count} and max_count={self.max_count}; it needs "
                "min_count <= count <= max_count"
            )
        require_gpu_share("rollout", self.num_gpus)
        if self.tensor_parallel_size > 1 and 0 < self.num_gpus < self.tensor_parallel_size:
            yield (
                f"tensor_parallel_size={self.tensor_parallel_size} splits the model over as many GPUs, and "
                f"num_gpus={self.num_gpus:g} reserves fewer; set rollout.num_gpus={self.tensor_parallel_size}"
            )
        if 0 < self.num_gpus < min(1.0, self.gpu_memory_utilization or 0.0):
            yield (
                f"gpu_memory_utilization={self.gpu_memory_utilization:g} is more of the GPU than "
                f"num_gpus={self.num_gpus:g}, and other processes use the rest; set "
                f"rollout.gpu_memory_utilization={self.num_gpus:g} or lower, or leave it out"
            )
        if self.fp32_head and self.dtype == "float32":
            yield (
                "fp32_head does nothing with dtype=float32; set rollout.dtype to bfloat16 or float16, or drop fp32_head"
            )


class ScorerConfig(Settings):
    """The scorer, which measures how much reasoning depends on its input (paper, section 2.3, appendix F)."""

    enabled: bool = True
    """Whether steps are scored."""
    model: Annotated[str | None, NAMES_FILES] = None
    """Folder of a fixed causal model that scores instead of the policy (appendix F); it must have the policy's
    tokenizer. Unset: the weights that sampled the step."""
    compat: Literal["paper", "ragen"] = "paper"
    """Marginal of MI-Est, the z-scores and H(Z). `paper`: divided by |Z| after the mixture (Eq. 1); `ragen`: mixture of
    per-token means, as in the authors' code. Sequence estimates, retrieval, regime and alarm are the same under
    both."""
    share: float = Field(0.1, gt=0, le=1)
    """Largest share of the run's work for scoring. Unless `every` is set, `every` and, for large steps, `max_pairs` are
    computed from it at the start (`actors.scorer.share`); the run's config.yaml has the result."""
    environment: str = ""
    """In a run of several environments, the label of the one whose prompts are scored, and of which the fixed probe is;
    empty: that of the largest weight. A score matrix of several environments would measure little but which of them a
    reasoning belongs to, and alarms compare the levels of one."""
    every: int | None = Field(None, ge=1)
    """Every this many training steps one is scored; step 1 is always scored. Unset: from `share`."""
    num_cpus: float = Field(0.25, ge=0)
    """Ray CPUs that the scorer requests."""
    num_gpus: float = Field(0.0, ge=0, le=1)
    """Ray GPUs that the scorer requests: 0 scores on a CPU thread, 1 on its own GPU, a fraction on a shared GPU."""
    label_selector: LabelSelector = Field(default_factory=dict)
    """Labels of the nodes that may run it (`actors.node_labels`); empty: the driver's node if it has room."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the scorer's weights. Log-probabilities are float32 and their sums float64 with both types."""
    max_prompts: int = Field(64, ge=2)
    """First-turn scope: largest number of distinct prompts (N)."""
    samples_per_prompt: int = Field(8, ge=1)
    """First-turn scope: number of reasonings drawn from each group (K)."""
    trajectory_draws: int = Field(32, ge=2)
    """Trajectory scope: number of draws (uniform trajectory, then uniform turn), each with its own column (N, K =
    1)."""
    max_pairs: int | None = Field(None, ge=64)
    """Most pairs (reasoning, prompt) scored in one scope. In a larger matrix each reasoning is scored under its own
    prompt and a random subset of the others, never fewer than two of them, even if that takes more pairs
    (docs/guide/scorer.md, "With a budget"). Unset: all pairs, or as many as `share` allows."""
    token_budget: int = Field(16384, ge=64)
    """Most tokens in one scoring batch."""
    ema_alpha: float = Field(0.9, ge=0, lt=1)
    """alpha of MI-ZScore-EMA (section 2.3)."""
    half_width: float = Field(0.05, gt=0)
    """Half width, nats per token, of the 95% interval of MI-Est; the scorer reports how many prompts it needs."""
    zscore_epsilon: float = Field(1e-3, gt=0)
    """Added to the standard deviation in the z-scores, nats per token."""
    timeout_s: float = Field(120.0, gt=0)
    """Seconds after which a scorer step is reported as late."""
    probe: ProbeConfig = ProbeConfig()
    """The fixed probe."""

    @property
    def interval(self) -> int:
        """`every`, once it has been chosen; ValueError before, unless the scorer is off."""
        if self.every is None and self.enabled:
            raise ValueError("scorer.every is not chosen yet (cluster.fleet.bootstrap.choose_scoring)")
        return self.every or 1

    def _faults(self) -> Iterator[str]:
        if self.max_pairs is not None and self.compat == "ragen":
            yield "max_pairs estimates Eq. 1's mixture; drop it, or set scorer.compat=paper"
