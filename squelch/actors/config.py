"""Settings of the Ray actors. Imports neither Ray, torch nor vLLM, because the command line imports this at start."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.filter.rules import RULES, EpsilonUnit
from squelch.actors.filter.scores import STATISTICS
from squelch.actors.labels import LabelSelector, require_gpu_share
from squelch.envs.settings import Settings, whole_or_auto
from squelch.envs.user_files import NAMES_FILES

DEFAULT_REPLAYS = 4
"""Replays of a trajectory if the statistic needs them. They generate no tokens. With 2, intervals of the policy
variance are too short if few replays are rewarded (docs/research/policy-variance.md)."""

MIN_TEMPERATURE = 0.01
"""vLLM raises any lower temperature to this value, while the learner would divide the logits by the lower one."""


class SamplingConfig(Settings):
    """Sampling of tokens. top_p = 1, top_k off and min_p = 0 are fixed, so that the stored log-probabilities are those
    of the distribution that was sampled from."""

    temperature: float = Field(1.0, ge=MIN_TEMPERATURE)
    """Softmax temperature of training rollouts."""
    max_tokens_per_turn: int = Field(48, ge=1)
    """Most sampled tokens in one turn. A turn that reaches the limit is closed with masked ids and counts as badly
    formatted."""
    group_size: int = Field(16, ge=1)
    """G, the number of trajectories per task (paper, section 4.1)."""


class EnvironmentActorConfig(Settings):
    """Environment actors, which play tickets."""

    count: int = Field(1, ge=1)
    """Number of environment actors."""
    num_cpus: float = Field(0.25, ge=0)
    """Ray CPUs that each actor requests."""
    label_selector: LabelSelector = Field(default_factory=dict)
    """Labels of the nodes that may run them (`actors.labels`); empty: near a rollout worker if there is room."""
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
    (docs/guide/cluster.md)."""
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
    """Labels of the nodes that may run them (`actors.labels`); empty: any node with the resources."""
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
    share while it starts, and fails if another process frees memory of the card meanwhile. Set on a GPU, the cache has
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
    weight_transfer: Literal["auto", "object_store", "shared_memory", "ipc", "nccl", "gloo"] = "auto"
    """How new weights reach the workers. `nccl`: the learner broadcasts from GPU to GPU, which needs a whole GPU for
    each learner rank and worker. `ipc`: workers that share the learner's GPU read the weights there; needs shares of
    one GPU, and ends the run where a worker cannot. `shared_memory`: workers on the learner's host map its weights in
    memory, the others use the object store. `object_store`: all through Ray's object store. `auto`: `nccl` where that
    is possible, `ipc` where learner and workers have shares of GPUs, with the object store for a worker that cannot,
    else `shared_memory`. `gloo`: as `nccl`, but between CPUs, to try a broadcast without GPUs."""
    linger_s: float = Field(0.01, ge=0)
    """Seconds that a finished sequence waits for others, so that one call returns several."""
    engine_metrics: bool = False
    """Whether vLLM reports its own metrics through Ray's Prometheus endpoints (docs/guide/dashboards.md). Every engine
    step then costs the time to record them."""

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

    @model_validator(mode="after")
    def _counts_are_ordered(self) -> "RolloutConfig":
        if self.count == "auto" and self.max_count is None:
            raise ValueError("count=auto needs a bound; set rollout.max_count to the most workers that may run")
        high = self.max_count if self.max_count is not None else max(self.start_count, self.min_count)
        if not self.min_count <= self.start_count <= high:
            raise ValueError(
                f"count={self.count} with min_count={self.min_count} and max_count={self.max_count}; it needs "
                "min_count <= count <= max_count"
            )
        return self

    @model_validator(mode="after")
    def _gpus_can_be_given(self) -> "RolloutConfig":
        require_gpu_share("rollout", self.num_gpus)
        if self.tensor_parallel_size > 1 and 0 < self.num_gpus < self.tensor_parallel_size:
            raise ValueError(
                f"tensor_parallel_size={self.tensor_parallel_size} splits the model over as many GPUs, and "
                f"num_gpus={self.num_gpus:g} reserves fewer; set rollout.num_gpus={self.tensor_parallel_size}"
            )
        if 0 < self.num_gpus < min(1.0, self.gpu_memory_utilization or 0.0):
            raise ValueError(
                f"gpu_memory_utilization={self.gpu_memory_utilization:g} is more of the GPU than "
                f"num_gpus={self.num_gpus:g}, and other processes use the rest; set "
                f"rollout.gpu_memory_utilization={self.num_gpus:g} or lower, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _fp32_head_does_something(self) -> "RolloutConfig":
        if self.fp32_head and self.dtype == "float32":
            raise ValueError(
                "fp32_head does nothing with dtype=float32; set rollout.dtype to bfloat16 or float16, or drop fp32_head"
            )
        return self


class FilterConfig(Settings):
    """Selection of the groups that are learned from (paper, section 3.3 and appendix G)."""

    statistic: Literal[*STATISTICS] = "reward_variance"
    """Statistic by which groups are scored, an entry of `actors.filter.scores.STATISTICS`."""
    replays: int | None = Field(None, ge=2, le=64)
    """Replays of each trajectory under fresh environment noise, from which the policy variance is estimated; nothing is
    replayed where the environment declares no noise. Unset: 4 under `statistic=policy_variance`, else none. Set under
    another statistic, the policy variance is exported and does not select."""
    rule: Literal[*RULES] = "top_p"
    """Rule by which groups are selected from their scores, an entry of `actors.filter.rules.RULES`."""
    rho: float = Field(0.9, gt=0, le=1)
    """top_p: kept mass. top_k: kept share of groups. min_p: share of the largest score."""
    band: tuple[float, float] = (0.0, 1.0)
    """band: lower and upper quantile of the scores that are kept."""
    keep: Literal["largest", "smallest"] = "largest"
    """Whether the groups with the largest or with the smallest scores are kept."""
    include_zero: bool = False
    """Whether groups whose |score| <= 1e-10 may be kept."""
    epsilon: float = Field(0.01, ge=0)
    """top_p: tolerance of the threshold, in `epsilon_unit`."""
    epsilon_unit: EpsilonUnit | None = None
    """top_p: unit of `epsilon`. `relative`: a share of the largest eligible score, so that the rewards' scale does not
    matter and only a window of zeros is rejected. `absolute`: the statistic's unit, which rejects a window whose scores
    sum to no more than `epsilon / rho`. Unset: relative; under `compat=ragen` absolute, the only one there."""
    compat: Literal["paper", "ragen"] = "paper"
    """`paper`: as in the paper. `ragen`: as in the authors' released code (standard deviation of rewards with format
    penalties, at least one group for top_k)."""
    window: Literal["whole", "sliding"] = "whole"
    """whole: a step's groups are ranked together. sliding: each group is ranked on arrival, among the last
    `window_size` groups."""
    window_size: int = Field(64, ge=1)
    """Number of groups in the sliding window."""
    scope: Literal["run", "environment"] = "run"
    """In a run of several environments, what a group is ranked among. `run`: the whole window. `environment`: the
    window's groups of its own environment, so that rewards of different scales are not compared; floors hold within
    each then."""
    refill: bool = False
    """Play as many further groups as were dropped, up to `max_refill_rounds` times."""
    max_refill_rounds: int = Field(3, ge=0)
    """Most refill rounds in one step."""
    target: Literal["groups", "regulariser", "task"] = "groups"
    """What dropped groups do not enter. `groups`: the step, as in the paper. `regulariser`: entropy bonus and KL term
    alone; `task`: the policy's surrogate alone. In the last two every group counts in the loss's means, and the loss is
    not scaled; a step of which nothing is kept is skipped under each (docs/guide/filter.md)."""
    on_no_signal: Literal["warn", "abort", "passthrough"] = "warn"
    """Action if nothing is selected: skip the update (warn), end the run (abort), or learn from all valid groups
    (passthrough)."""
    no_signal_limit: int = Field(5, ge=1)
    """Number of consecutive steps without signal after which the run ends under every `on_no_signal`."""
    kind_window: int = Field(64, ge=1)
    """Number of groups over which the coverage of kinds of tasks is measured (docs/guide/filter.md)."""
    kind_floor: float = Field(0.0, ge=0, le=1)
    """Least share of the groups of each kind of task that is kept, over `kind_window` groups and the present step;
    the best of the dropped groups are added. 0: no floor."""
    min_groups: int = Field(0, ge=0)
    """Fewest groups that a step keeps if the rule keeps any and so many have a score above zero; the best of the
    dropped groups are added. 0: no floor."""

    @model_validator(mode="after")
    def _floors_do_something(self) -> "FilterConfig":
        if self.rule == "none" and (self.kind_floor or self.min_groups):
            raise ValueError("kind_floor and min_groups do nothing with rule=none, which keeps every group; drop them")
        if self.window == "sliding" and self.min_groups:
            raise ValueError(
                f"min_groups={self.min_groups} counts the groups of a step, and window=sliding decides on each on its "
                "arrival; set filter.window=whole"
            )
        return self

    @property
    def limit_reached(self) -> str:
        """The setting that ended a run without signal."""
        aborts = self.on_no_signal == "abort"
        return "filter.on_no_signal=abort" if aborts else f"filter.no_signal_limit={self.no_signal_limit}"

    def describe(self) -> str:
        """The rule and its settings as text, which is archived with every decision."""
        names = ("statistic", "keep", "include_zero", *RULES[self.rule].settings)
        values = vars(self) | {"epsilon_unit": self.unit_of_epsilon}
        parts = [f"{name}={_text(values[name])}" for name in names]
        window = f"sliding/{self.window_size}" if self.window == "sliding" else "whole"
        scope = [] if self.scope == "run" else [f"scope={self.scope}"]
        return " ".join([self.rule, *parts, f"window={window}", *scope, f"compat={self.compat}"])

    @property
    def unit_of_epsilon(self) -> EpsilonUnit:
        """`epsilon_unit`; the default depends on `compat`."""
        return self.epsilon_unit or ("absolute" if self.compat == "ragen" else "relative")

    @model_validator(mode="after")
    def _epsilon_has_a_unit(self) -> "FilterConfig":
        if self.compat == "ragen" and self.epsilon_unit == "relative":
            raise ValueError(
                "epsilon_unit=relative is not in the authors' code; set filter.compat=paper, or drop epsilon_unit"
            )
        if self.rule == "top_p" and self.unit_of_epsilon == "relative" and self.epsilon > 1:
            raise ValueError(
                f"epsilon={self.epsilon:g} is a share of the largest score and cannot exceed 1; lower it, or set "
                "filter.epsilon_unit=absolute"
            )
        return self

    @property
    def num_replays(self) -> int:
        """Replays of each trajectory; 0 for none."""
        if self.replays is None:
            return DEFAULT_REPLAYS if STATISTICS[self.statistic].of == "replay_returns" else 0
        return self.replays

    @model_validator(mode="after")
    def _replays_are_ranked_by(self) -> "FilterConfig":
        if STATISTICS[self.statistic].of != "replay_returns":
            return self
        if self.rule == "none":
            raise ValueError(
                f"statistic={self.statistic} selects nothing with rule=none; set filter.replays={self.num_replays} and "
                "leave filter.statistic out to export the policy variance of unfiltered groups"
            )
        if self.compat == "ragen":
            raise ValueError(f"statistic={self.statistic} is not in the authors' code; set filter.compat=paper")
        return self

    @model_validator(mode="after")
    def _band_is_ordered(self) -> "FilterConfig":
        low, high = self.band
        if not 0 <= low <= high <= 1:
            raise ValueError(f"band is {low:g}..{high:g}; it needs two quantiles with 0 <= lower <= upper <= 1")
        return self


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "..".join(_text(item) for item in value)
    return str(value).lower() if isinstance(value, bool | str) else f"{value:g}"


PROBE_TASKS, PROBE_SAMPLES = 32, 4
"""Tasks of the fixed probe, and trajectories of each, if they are not set."""
PROBE_TWINS = 7
"""Other prompts of a task's cluster of hard negatives, at most (`actors.diagnosis.hard_negatives`)."""


class ProbeConfig(Settings):
    """The fixed probe: the same validation tasks, sampled and scored again and again (docs/guide/reasoning.md)."""

    every: int = Field(25, ge=0)
    """Steps between two probe evaluations; 0 turns the probe off. The first is before step 1, the last after the last
    step."""
    tasks: int | None = Field(None, ge=2)
    """Number of tasks (N), the first of the fixed validation tasks; unset: 32, or all of them if there are fewer. The
    estimate cannot exceed log N nats."""
    samples: int | None = Field(None, ge=2)
    """Trajectories of each task (K); the spread between them gives the standard error. Unset: 4, or 2 if `scorer.share`
    has no room for the links from 4."""
    max_others: int | None = Field(None, ge=2)
    """Other prompts under which each reasoning is scored, drawn at random; unset: all of them."""
    hard: bool | None = None
    """Whether each reasoning is also scored under the prompts of seven near variations of its task (hard negatives,
    `actors.diagnosis.hard_negatives`). Unset: if the environment has such variations and `scorer.share` has room.
    `true`: whatever it costs, and where the environment has none under the nearest of 1,000 further tasks, which are
    started once when the run starts; refused where they are pictures."""
    links: bool | None = None
    """Whether the answers are scored too, to measure whether they follow from the reasoning
    (`actors.diagnosis.links`). Unset: yes, unless even the fewest would cost more than `scorer.share` allows."""
    answer_tasks: int | None = Field(None, ge=4)
    """Tasks whose answers are scored, the first of the probe's, each after reasonings of the others among them; unset:
    all. From 8 on the intervals were tested (docs/research/known-links.md)."""
    answer_references: int | None = Field(None, ge=1)
    """Reasonings of each other task under which the answers of a prompt are scored, drawn at random; unset: all. At
    least 2 are needed to correct the estimate for their number."""
    answer_prompts: int | None = Field(None, ge=2)
    """Other prompts under which each answer is scored after its own reasoning, drawn at random; unset: all of them."""

    @property
    def scores_answers(self) -> bool:
        """Whether the answers are scored too; `links` is unset only if they fit into `scorer.share`."""
        return self.links is not False

    def scores_twins(self, available: bool) -> bool:
        """Whether hard negatives are scored in an environment that has twins, or has none."""
        return available if self.hard is None else self.hard

    @property
    def num_samples(self) -> int:
        """K."""
        return self.samples or PROBE_SAMPLES

    def num_tasks(self, available: int) -> int:
        """N, out of `available` fixed validation tasks."""
        return self.tasks or min(PROBE_TASKS, available)


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
    """Labels of the nodes that may run it (`actors.labels`); empty: the driver's node if it has room."""
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
    (docs/guide/reasoning.md, "With a budget"). Unset: all pairs, or as many as `share` allows."""
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

    @model_validator(mode="after")
    def _budget_is_of_equation_1(self) -> "ScorerConfig":
        if self.max_pairs is not None and self.compat == "ragen":
            raise ValueError("max_pairs estimates Eq. 1's mixture; drop it, or set scorer.compat=paper")
        return self


class RecorderConfig(Settings):
    """The metrics endpoint, and the report at the end."""

    host: str = "127.0.0.1"
    """Address on which the metrics endpoint listens. Beyond loopback SQUELCH_METRICS_TOKEN must hold a token."""
    port: int | None = Field(None, ge=0, le=65535)
    """Port of `/metrics`; 0 selects any free port. Unset: the first free one from 9464 to 9473."""
    report: bool = True
    """Whether a run that ends writes its report, `report.html` in its folder, which takes some seconds of one core."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Further loggers of each step's metrics, each an optional extra of the installation: `tensorboard` writes to the
    run's folder, `wandb` to Weights & Biases."""
    wandb_project: str = "squelch"
    """Project of the W&B run."""
    wandb_entity: str = ""
    """Team or user of the W&B run; empty takes W&B's default."""
    wandb_mode: Literal["online", "offline"] | None = None
    """`offline` keeps the metrics in the run's folder for `wandb sync`. Unset: WANDB_MODE, or online."""
    logger_timeout_s: float = Field(60.0, gt=0)
    """Seconds that a logger may take to start, and to send what is left at the end of the run."""
