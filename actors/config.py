"""Settings of what runs as Ray actors. Imports neither Ray, torch nor vLLM: the command line reads this at start."""

from typing import Literal

from pydantic import Field, model_validator

from actors.filter.rules import RULES
from actors.filter.scores import STATISTICS
from envs.settings import Settings


class SamplingConfig(Settings):
    """How tokens are drawn. top_p = 1, top_k off and min_p = 0 are fixed, so that stored log-probabilities
    are those of the distribution that was sampled from."""

    temperature: float = Field(1.0, gt=0)
    """Softmax temperature of training rollouts."""
    max_tokens_per_turn: int = Field(48, ge=1)
    """Sampled tokens in one turn; a turn cut here is closed with masked ids and counts as badly formatted."""
    group_size: int = Field(16, ge=1)
    """G, trajectories per task (paper, section 4.1)."""


class EnvironmentActorConfig(Settings):
    """Environment actors: they play tickets."""

    count: int = Field(1, ge=1)
    """Environment actors."""
    num_cpus: float = Field(0.25, ge=0)
    """Ray CPUs that each asks for."""
    step_threads: int = Field(1, ge=1)
    """Threads that environment steps run in; more than one pays for environments that wait, such as sandboxed code."""
    step_timeout_s: float = Field(10.0, gt=0)
    """Seconds one environment step or reset may take; past it that trajectory fails with reason `step_timeout`."""
    generation_timeout_s: float = Field(120.0, gt=0)
    """Seconds one turn's generation may take; past it that trajectory fails with reason `generation_timeout`."""
    episode_timeout_s: float = Field(300.0, gt=0)
    """Seconds one episode may take; past it that trajectory fails with reason `episode_timeout`."""


class RolloutConfig(Settings):
    """Rollout workers: one vLLM engine each."""

    count: int = Field(1, ge=1)
    """Rollout workers."""
    num_cpus: float = Field(0.5, ge=0)
    """Ray CPUs that each asks for."""
    num_gpus: float = Field(0.0, ge=0)
    """Ray GPUs that each asks for; 0 runs vLLM's CPU build."""
    tensor_parallel_size: int = Field(1, ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the rollout weights."""
    fp32_head: bool = False
    """dtype below float32: the output head computes logits in float32; learner.fp32_head is the other side."""
    max_model_len: int = Field(1024, ge=32)
    """Context length in tokens: prompt and all turns."""
    max_num_seqs: int = Field(256, ge=1)
    """Sequences decoded together."""
    kv_cache_gib: float = Field(1.0, gt=0)
    """GiB of the key-value cache on CPU."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    enforce_eager: bool = True
    """Skip torch.compile and CUDA graphs. On CPU compilation costs more than it gives on tiny models."""
    num_threads: int = Field(1, ge=1)
    """OpenMP threads of the engine on CPU."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Seconds until the engine must be ready."""
    update_timeout_s: float = Field(120.0, gt=0)
    """Seconds one weight update may take, parity probe included."""
    parity_bound: float | None = Field(None, gt=0)
    """Largest mean absolute difference in log-probability (nats) between worker and learner on the probe; a
    larger one fails the update. Unset: 0.001 for float32, 0.1 for the 16-bit types."""
    pause: Literal["keep", "wait"] = "keep"
    """What happens to requests in flight at a weight update: `keep` continues them under the new weights (the turn
    is stamped with both versions), `wait` lets them end first."""
    linger_s: float = Field(0.01, ge=0)
    """Seconds that a finished sequence waits for others, so that calls carry lists."""

    @model_validator(mode="after")
    def _fp32_head_does_something(self) -> "RolloutConfig":
        if self.fp32_head and self.dtype == "float32":
            raise ValueError("fp32_head does nothing with dtype=float32; set rollout.dtype or drop it")
        return self


class FilterConfig(Settings):
    """Which groups are learned from (paper, section 3.3 and appendix G; design decision 2)."""

    statistic: Literal[*STATISTICS] = "reward_variance"
    """What groups are scored by, an entry of `actors.filter.scores.STATISTICS`."""
    rule: Literal[*RULES] = "top_p"
    """How groups are chosen by their scores, an entry of `actors.filter.rules.RULES`."""
    rho: float = Field(0.9, gt=0, le=1)
    """top_p: kept mass. top_k: kept share of groups. min_p: share of the largest score."""
    band: tuple[float, float] = (0.0, 1.0)
    """`band` rule: lower and upper quantile of the scores that are kept."""
    keep: Literal["largest", "smallest"] = "largest"
    include_zero: bool = False
    """Whether groups whose |score| <= 1e-10 may be kept."""
    epsilon: float = Field(0.01, ge=0)
    """top_p: absolute slack on the threshold, in the statistic's unit."""
    compat: Literal["paper", "ragen"] = "paper"
    """`ragen`: the authors' released code (std, format penalties inside the reward, at least one group for top_k)."""
    window: Literal["whole", "sliding"] = "whole"
    """Whole: a step's groups are ranked together. Sliding: each on arrival, against the last `window_size`."""
    window_size: int = Field(64, ge=1)
    """Groups in the sliding window."""
    refill: bool = False
    """Ask for as many further groups as were dropped, up to `max_refill_rounds` times."""
    max_refill_rounds: int = Field(3, ge=0)
    on_no_signal: Literal["warn", "abort", "passthrough"] = "warn"
    """When nothing is selected: skip the update, end the run, or learn from all valid groups."""
    no_signal_limit: int = Field(5, ge=1)
    """Steps in a row without signal after which the run ends whatever `on_no_signal` says."""

    @model_validator(mode="after")
    def _band_is_ordered(self) -> "FilterConfig":
        low, high = self.band
        if not 0 <= low <= high <= 1:
            raise ValueError(f"band is {low:g}..{high:g}; it needs two quantiles with 0 <= lower <= upper <= 1")
        return self


class ScorerConfig(Settings):
    """The scorer: how far reasoning depends on its input (paper, section 2.3, appendix F)."""

    enabled: bool = True
    model: str | None = None
    """Folder of a fixed causal model that scores instead of the policy (appendix F); it must have the policy's
    tokenizer. Unset: the weights that sampled the step."""
    compat: Literal["paper", "ragen"] = "paper"
    """Marginal of MI-Est, the z-scores and H(Z). `paper`: divided by |Z| after the mixture (Eq. 1); `ragen`: mixture of
    per-token means, as the authors' code. Sequence estimates, retrieval, regime and alarm do not depend on it."""
    every: int = Field(5, ge=1)
    """Steps between two scorings; step 1 is always scored."""
    num_cpus: float = Field(0.25, ge=0)
    """Ray CPUs that the scorer asks for."""
    num_gpus: float = Field(0.0, ge=0, le=1)
    """Ray GPUs that the scorer asks for: 0 scores on a CPU thread, 1 on a GPU of its own, less on a shared one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the scorer's weights. Log-probabilities are float32 and their sums float64 either way."""
    max_prompts: int = Field(64, ge=2)
    """First-turn scope: at most so many distinct prompts (N)."""
    samples_per_prompt: int = Field(8, ge=1)
    """First-turn scope: reasonings drawn from each group (K)."""
    trajectory_draws: int = Field(32, ge=2)
    """Trajectory scope: draws (uniform trajectory, then uniform turn), each its own column (N, K = 1)."""
    max_pairs: int | None = Field(None, ge=64)
    """Pairs (reasoning, prompt) scored in one scope; of a larger matrix each reasoning meets its own prompt and a
    random few of the others (docs/reasoning.md, "Under a budget"). Unset: all pairs."""
    token_budget: int = Field(16384, ge=64)
    """Tokens in one scoring batch."""
    ema_alpha: float = Field(0.9, ge=0, lt=1)
    """alpha of MI-ZScore-EMA (section 2.3)."""
    half_width: float = Field(0.05, gt=0)
    """Half width, nats per token, of the 95% interval of MI-Est for which the prompts needed are reported."""
    zscore_epsilon: float = Field(1e-3, gt=0)
    timeout_s: float = Field(120.0, gt=0)
    """Seconds one scoring may take before it is reported late."""

    @model_validator(mode="after")
    def _budget_is_of_equation_1(self) -> "ScorerConfig":
        if self.max_pairs is not None and self.compat == "ragen":
            raise ValueError("max_pairs estimates Eq. 1's mixture; drop it, or set scorer.compat=paper")
        return self


class RecorderConfig(Settings):
    """Archive and metrics endpoint."""

    host: str = "127.0.0.1"
    """Address the metrics endpoint listens on."""
    port: int = Field(9464, ge=0, le=65535)
    """Port of `/metrics`; 0 takes a free one."""
