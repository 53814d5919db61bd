"""Settings of the learner. The module imports no torch, because the command line reads it at start."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from squelch.actors.node_labels import LabelSelector, require_gpu_share
from squelch.kit.base.settings import Settings, whole_or_auto
from squelch.learner.objective.algorithms import ALGORITHMS, with_algorithm
from squelch.learner.objective.components import ADVANTAGES, AGGREGATIONS, RATIOS
from squelch.learner.objective.kl_estimators import KL_ESTIMATORS

AUTO_TOKENS = 8192
"""Tokens of a micro-batch where `token_budget: auto` is on a CPU: more save nothing there, and cost memory."""
MAX_GRADIENTS = 11
"""Gradients that a rank holds at once in a decomposition, besides the model's own: four sums of a bucket, five of a
group, and two that are being computed."""


class KLConfig(Settings):
    """The KL term, KL(policy || reference) per sampled token (Schulman's k1, k2, k3 estimators)."""

    coefficient: float = Field(0.0, ge=0)
    """lambda_KL; 0 turns it off and no reference policy is loaded."""
    estimator: Literal[*KL_ESTIMATORS] = "k3"
    """k1 is refused as a loss, because its expected on-policy gradient is zero; that of k3 is the gradient of
    KL(reference || policy)."""
    place: Literal["loss", "reward"] = "loss"
    """`loss`: the KL is a term of the loss, with its own gradient. `reward`: lambda_KL times a token's KL at the start
    of the step is subtracted from the token's reward; it enters the advantage, never the filter."""

    def _faults(self) -> Iterator[str]:
        if self.coefficient > 0 and self.estimator == "k1" and self.place == "loss":
            yield (
                "kl.estimator=k1 as a loss has zero expected gradient on policy (E[grad log p] = 0); use k2 or k3, or "
                "kl.place=reward"
            )


class GAEConfig(Settings):
    """Generalised advantage estimation (Schulman et al. 2016, Eq. 16) over sampled tokens; `advantage: gae` only."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount from one sampled token to the next; fed tokens are not time steps."""
    lam: float = Field(1.0, ge=0, le=1)
    """lambda: 1 gives the return minus the value, 0 the one-token temporal difference."""
    whiten: bool = True
    """Subtract the mean and divide by the std over all kept sampled tokens of the training step."""


class OverlongConfig(Settings):
    """DAPO's soft over-long penalty (Yu et al. 2025, Eq. 13), for each turn against its own limit."""

    penalty: float = Field(0.0, ge=0)
    """Penalty of a turn that reaches the limit; 0 turns it off. It enters the advantage, never the filter."""
    max_tokens: int = Field(0, ge=0)
    """L_max, sampled tokens of a turn; 0 takes `sampling.max_tokens_per_turn`."""
    cache_tokens: int = Field(0, ge=0)
    """The penalty ramps up over the last L_cache tokens before L_max; 0 takes a fifth of L_max (as DAPO)."""

    def _faults(self) -> Iterator[str]:
        if self.max_tokens and self.cache_tokens > self.max_tokens:
            yield f"cache_tokens={self.cache_tokens} exceeds max_tokens={self.max_tokens}, of which it is a part"


class ObjectiveConfig(Settings):
    """The policy objective. The defaults are GRPO's; `learner.algorithm` sets the others (docs/guide/algorithms.md)."""

    advantage: Literal[*ADVANTAGES] = "grpo"
    """`grpo_no_std` subtracts the group mean; `grpo` also divides by the group's std; `gae` uses a critic's values as
    the baseline."""
    divisor: Literal["group", "window"] = "group"
    """What advantage=grpo divides by. `group`: the std of the group's returns. `window`: the root of the mean reward
    variance of the step's groups before the filter, so that the groups' relative weights are those of `grpo_no_std`."""
    ratio: Literal[*RATIOS] = "token"
    """Probability ratio of the policy to the anchor. `token`: of each token. `sequence`: of all sampled tokens of a
    trajectory together, to the power 1 / (their number); it needs far smaller clipping ranges (GSPO: 0.0003,
    0.0004)."""
    aggregation: Literal[*AGGREGATIONS] = "sequence_mean"
    """`sequence_mean`: mean over sequences of the mean over their tokens; `token_mean`: mean over all tokens;
    `constant`: mean over sequences of the sum over their tokens / `normaliser_tokens`."""
    normaliser_tokens: int = Field(0, ge=0)
    """The constant of aggregation=constant. 0 takes the most tokens that an episode may sample, max_turns x
    `sampling.max_tokens_per_turn`."""
    reward: Literal["episode", "turn"] = "episode"
    """`episode`: the episode's last sampled token gets the return. `turn`: each turn's last sampled token gets the
    turn's reward. Group advantages compare whole episodes, so `turn` needs advantage=gae."""
    gae: GAEConfig = GAEConfig()
    overlong: OverlongConfig = OverlongConfig()
    clip_low: float = Field(0.2, ge=0)
    """Asymmetric clipping (appendix B.2): the ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = Field(0.28, ge=0)
    """The other end of that range."""
    dual_clip: float | None = Field(None, gt=1)
    """Where the advantage is negative, a token's loss is at most this times |advantage|, and a larger ratio has no
    gradient (verl's `clip_ratio_c`, 3.0 there); with ratio=sequence the whole sequence's. Unset: no such bound."""
    anchor: Literal["rollout", "recomputed"] = "rollout"
    """Denominator of the ratio: the sampler's probability (`rollout`), or the learner's own at the start of the
    training step (`recomputed`)."""
    mismatch_cap: float = Field(2.0, ge=0)
    """anchor=recomputed: cap of the detached weight exp(recomputed - rollout); 0: no such weight."""
    max_mismatch: float = Field(0.0, ge=0)
    """Sequences whose mean |log p(learner) - log p(rollout)| at step start exceeds this value (nats) are excluded from
    the loss; 0 excludes none. With anchor=rollout this costs an additional forward pass."""
    entropy_coefficient: float = Field(0.001, ge=0)
    """Factor of the entropy bonus: the entropy of the sampled tokens, nats, is added to the objective."""
    kl: KLConfig = KLConfig()
    loss_scale: Literal["none", "rho", "kept_mass", "kept_fraction", "sqrt_kept_fraction"] = "rho"
    """Factor on the loss of a filtered step (section 4.1)."""
    include_format_penalty: bool = True
    """Whether the return that advantages compare includes format penalties (the reward variance never does)."""

    def _faults(self) -> Iterator[str]:
        if self.reward == "turn" and not self.needs_critic:
            yield f"reward=turn needs advantage=gae: advantage={self.advantage} ranks the returns of whole episodes"
        if self.gae != GAEConfig() and not self.needs_critic:
            yield f"gae settings do nothing with advantage={self.advantage}; set advantage=gae or drop them"
        if self.divisor == "window" and not ADVANTAGES[self.advantage].divides_by_std:
            yield f"divisor=window does nothing with advantage={self.advantage}, which divides by no std"
        if self.divisor == "window" and self.kl.coefficient > 0 and self.kl.place == "reward":
            yield "divisor=window needs kl.place=loss: a KL term in the reward has no part in the window's std"
        if RATIOS[self.ratio].one_advantage and self.needs_critic:
            yield (
                f"ratio={self.ratio} needs one advantage for a whole sequence, and advantage={self.advantage} gives "
                "each token its own; set advantage=grpo or ratio=token"
            )

    @property
    def needs_critic(self) -> bool:
        """Whether a critic computes the advantages."""
        return ADVANTAGES[self.advantage].needs_critic

    @property
    def needs_whole(self) -> str:
        """The setting for which all segments of a trajectory must be in one micro-batch; "" if there is none."""
        if RATIOS[self.ratio].one_advantage:
            return f"learner.objective.ratio={self.ratio}"
        return f"learner.objective.max_mismatch={self.max_mismatch:g}" if self.max_mismatch else ""

    @property
    def kl_in_loss(self) -> float:
        """lambda_KL of the loss; 0 when the KL term is in the reward."""
        return self.kl.coefficient if self.kl.place == "loss" else 0.0


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Settings):
    """Settings of AdamW and its learning rate."""

    learning_rate: float = Field(2e-4, gt=0)
    """The policy's largest learning rate."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps of linear warm-up."""
    decay_steps: int = Field(0, ge=0)
    """Optimizer steps over which the learning rate decays; 0 keeps it constant. See `decay` for the curve."""
    decay: Literal["linear", "cosine"] = "linear"
    """`linear`: the factor decreases by 1 / `decay_steps` per step; the decay reaches its floor `final_factor` after
    (1 - final_factor) * decay_steps steps. `cosine`: half a cosine from 1 to `final_factor` over `decay_steps`
    steps."""
    final_factor: float = Field(0.1, ge=0, le=1)
    """The smallest factor on the learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the two moments of AdamW."""
    epsilon: float = Field(1e-8, gt=0)
    """Added to the root of AdamW's second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay (Loshchilov & Hutter 2019)."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient is scaled down to this norm."""


class CriticConfig(Settings):
    """The value model of `advantage: gae`: the policy's architecture and initial weights, and a value head initialised
    to 0. It trains on the policy's micro-batches, with weight decay, betas and epsilon of `learner.optimizer`."""

    learning_rate: float = Field(1e-5, gt=0)
    """Learning rate of the critic; it is constant (appendix B.2)."""
    clip: float = Field(0.2, ge=0)
    """Value clipping: the loss stops decreasing once a value is this far from its value at step start; 0 disables
    it."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The critic's gradient is scaled down to this norm."""


class LoraSettings(Settings):
    """Low-rank adapters on every linear layer except the output head and routers, and on every expert of a mixture (Hu
    et al. 2021)."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """The adapters' product is scaled by alpha / rank."""


class LearnerConfig(Settings):
    """Settings of the learner and its FSDP2 ranks."""

    algorithm: Literal[*ALGORITHMS] = "grpo"
    """Sets the keys in which algorithms differ (`learner.objective.algorithms`). Keys that are also given explicitly
    override it, and the run reports them."""
    algorithm_filter: bool = True
    """Whether to use the algorithm's own filter, if it has one (DAPO does); `filter` must not contradict it then."""
    ranks: int = Field(1, ge=1)
    """Number of learner ranks, over which FSDP2 shards the model."""
    num_cpus: float = Field(0.5, ge=0)
    """Ray CPUs that each rank reserves."""
    num_gpus: float = Field(0.0, ge=0)
    """Ray GPUs that each rank reserves; with 0, ranks run on CPU and communicate by gloo. A fraction shares a GPU with
    other actors; several ranks need a GPU each."""
    placement: Literal["pack", "spread"] = "pack"
    """`pack`: ranks on as few nodes as possible. `spread`: on as many as possible, for nodes whose memory holds one
    rank only; collectives then cross the network."""
    label_selector: LabelSelector = Field(default_factory=dict)
    """Labels of the nodes that may run ranks (`actors.node_labels`); empty: any node with the resources."""
    num_threads: int = Field(2, ge=1)
    """Torch threads of each rank on CPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the parameters in forward and backward; master weights and optimizer state stay float32."""
    fp32_head: bool = False
    """With dtype=bfloat16: embedding, last norm and output head compute in float32; rollout.fp32_head does the same in
    the rollout workers."""
    freeze_vision: bool = False
    """Do not train the vision tower of a model that has one. With learner.lora it is never trained."""
    activation_checkpointing: bool = False
    """Store only each layer's input for the backward pass, and recompute the other activations."""
    cpu_offload: bool = False
    """On GPUs: keep master weights, gradients and optimizer state in host memory, and run the optimizer on the host."""
    min_num_params: int = Field(1 << 20, ge=0)
    """FSDP gathers a layer separately if it has at least this many parameters; smaller layers are gathered together
    with the embedding and the head, in one collective. (FSDP's hooks around four layers of 0.2 M parameters took a
    tenth of a step.)"""
    kernels: Literal["fast", "plain"] = "fast"
    """`fast`: kernels written for packed rows and for the CPU. `plain`: their definitions in PyTorch's public
    operators, for comparison; they are slower and need more memory than the estimate says. The scorer uses the same
    kind of attention. Results differ by rounding only."""
    compile: bool = False
    """Compile each decoder layer (torch.compile). On a GPU attention is a part of its one graph, for all lengths; on
    CPU it stays outside, and a C++ compiler is needed. A vision tower is not compiled. The first step takes half a
    minute longer; later ones take 0.8 to 1.1 of the time on a CPU, and are not yet measured on a GPU."""
    lora: LoraSettings | None = None
    """Train adapters instead of the model's own parameters; merged weights are published."""
    minibatches: int = Field(4, ge=1)
    """Optimizer steps in one training step, among which the kept groups are split evenly; with fewer groups than steps,
    their trajectories."""
    token_budget: Annotated[int | Literal["auto"], whole_or_auto(64)] = AUTO_TOKENS
    """Largest number of tokens fed in one micro-batch; common prefixes of its trajectories count once. A whole number
    of at least 64, or `auto`: on CPU 8192, or `rollout.max_model_len` if that is more; on a GPU as many, up to 65536,
    as fit into the rank's share of it by the estimate of `squelch plan`. The start of a run writes the number to
    `config.yaml`, and a resumed run keeps it."""
    share_openings: bool = True
    """Feed a common prefix (prompt, common turns) of a micro-batch's trajectories once instead of once per trajectory.
    This changes the cost, not the results."""
    max_memory_gib: float | None = Field(None, gt=0)
    """Memory that one rank may use, in GiB; if unset, its share of its GPU, or of the host's free memory."""
    objective: ObjectiveConfig = ObjectiveConfig()
    critic: CriticConfig = CriticConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    step_timeout_s: float = Field(600.0, gt=0)
    """Seconds that one training step may take; after that the late rank is named, and all ranks are replaced."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Seconds until every rank must have loaded the model."""
    checkpoint_timeout_s: float = Field(1800.0, gt=0)
    """Seconds that the ranks may take to write a checkpoint or an export (of 7 billion parameters about 114 GiB), or to
    load one."""
    export: Literal["float32", "bfloat16"] | None = "float32"
    """Data type of the Hugging Face folder `hf/` in each checkpoint, from which `squelch eval`, other programs and new
    runs (`model.path`) take the weights; null: none is written. A resume reads none, so its weights are exact."""
    hung_after_s: float = Field(60.0, gt=0)
    """Ranks that finish no micro-batch for this long, or for 10 times their median if that is longer, count as hung and
    are replaced. Time without a processor does not count. Until its first micro-batch, and with `compile`, a rank must
    only answer."""
    regroup_timeout_s: float = Field(60.0, ge=0)
    """Seconds that lost ranks wait for the resources of all `ranks`; after that as many ranks as fit are started."""
    max_bad_steps: int = Field(3, ge=1)
    """The run ends after this many consecutive steps that are refused for non-finite values."""

    @property
    def tokens(self) -> int:
        """`token_budget`; `AUTO_TOKENS` where nobody has resolved `auto`."""
        return AUTO_TOKENS if self.token_budget == "auto" else self.token_budget

    def with_tokens(self, tokens: int) -> "LearnerConfig":
        """The settings with this `token_budget`."""
        return self.model_copy(update={"token_budget": tokens})

    @model_validator(mode="before")
    @classmethod
    def _algorithm_beneath(cls, given: Any) -> Any:
        return with_algorithm(given) if isinstance(given, Mapping) else given

    def _faults(self) -> Iterator[str]:
        require_gpu_share("learner", self.num_gpus)
        if self.ranks > 1 and 0 < self.num_gpus < 1:
            yield (
                f"learner.num_gpus={self.num_gpus:g} would put several of learner.ranks={self.ranks} on one GPU, which "
                "NCCL refuses; set learner.num_gpus=1 or learner.ranks=1"
            )
        if not self.objective.needs_critic and self.critic != CriticConfig():
            yield (
                f"learner.critic does nothing with objective.advantage={self.objective.advantage}; set "
                "learner.algorithm=ppo or drop it"
            )
        if self.fp32_head and self.dtype == "float32":
            yield "fp32_head does nothing with dtype=float32; set dtype=bfloat16 or drop it"
        if self.cpu_offload and self.num_gpus == 0:
            yield "cpu_offload does nothing without a GPU; set num_gpus or drop it"
        if not self.algorithm_filter and not ALGORITHMS[self.algorithm].filter:
            yield f"algorithm_filter=false does nothing: algorithm={self.algorithm} has no filter"
