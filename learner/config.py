"""Settings of the learner. Imports no torch: the command line reads this at start."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from envs.settings import Settings
from learner.objective.algorithms import ALGORITHMS, with_algorithm
from learner.objective.components import ADVANTAGES, AGGREGATIONS, KL_ESTIMATORS, RATIOS


class KLConfig(Settings):
    """KL(policy || reference), per sampled token (Schulman's k1, k2, k3 estimators)."""

    coefficient: float = Field(0.0, ge=0)
    """lambda_KL; 0 turns it off and no reference policy is loaded."""
    estimator: Literal[*KL_ESTIMATORS] = "k3"
    """k1 is refused as a loss: its expected on-policy gradient is zero. k3's is that of KL(reference || policy)."""
    place: Literal["loss", "reward"] = "loss"
    """`loss`: a term with a gradient of its own. `reward`: every sampled token's reward is less by lambda_KL times its
    KL at the start of the step; it enters the advantage, never the filter."""

    @model_validator(mode="after")
    def _k1_is_no_loss(self) -> "KLConfig":
        if self.coefficient > 0 and self.estimator == "k1" and self.place == "loss":
            raise ValueError(
                "kl.estimator=k1 as a loss has zero expected gradient on policy (E[grad log p] = 0); use k2 or k3, or "
                "kl.place=reward"
            )
        return self


class GAEConfig(Settings):
    """Generalised advantage estimation (Schulman et al. 2016, Eq. 16) over sampled tokens; `advantage: gae` only."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount from one sampled token to the next; tokens that were fed count as no time."""
    lam: float = Field(1.0, ge=0, le=1)
    """lambda: 1 is the return less the value, 0 the one-token temporal difference."""
    whiten: bool = True
    """Subtract the mean and divide by the std over all kept sampled tokens of the training step."""


class OverlongConfig(Settings):
    """DAPO's soft over-long penalty (Yu et al. 2025, Eq. 13), for each turn against its own limit."""

    penalty: float = Field(0.0, ge=0)
    """What a turn loses at its limit; 0 turns it off. It enters the advantage, never the filter."""
    max_tokens: int = Field(0, ge=0)
    """L_max, sampled tokens of a turn; 0 takes `sampling.max_tokens_per_turn`."""
    cache_tokens: int = Field(0, ge=0)
    """L_cache, over so many tokens before L_max the penalty rises from 0; 0 takes a fifth of L_max (as DAPO)."""

    @model_validator(mode="after")
    def _cache_within_limit(self) -> "OverlongConfig":
        if self.max_tokens and self.cache_tokens > self.max_tokens:
            raise ValueError(
                f"cache_tokens={self.cache_tokens} exceeds max_tokens={self.max_tokens}, of which it is a part"
            )
        return self


class ObjectiveConfig(Settings):
    """The policy objective. The defaults are GRPO's; `learner.algorithm` sets the others (docs/algorithms.md)."""

    advantage: Literal[*ADVANTAGES] = "grpo"
    """Group mean subtracted; `grpo` also divides by the group's std. `gae`: a critic's values are the baseline."""
    ratio: Literal[*RATIOS] = "token"
    """Ratio of the policy to the anchor. `token`: of each token. `sequence`: of a trajectory's sampled tokens together,
    to the power 1 / their number; the clipping ranges then are far smaller (GSPO: 0.0003 and 0.0004)."""
    aggregation: Literal[*AGGREGATIONS] = "sequence_mean"
    """`sequence_mean`: mean over sequences of the mean over their tokens; `token_mean`: mean over all tokens;
    `constant`: mean over sequences of the sum over their tokens / `normaliser_tokens`."""
    normaliser_tokens: int = Field(0, ge=0)
    """aggregation=constant: 0 takes what an episode may sample, max_turns x `sampling.max_tokens_per_turn`."""
    reward: Literal["episode", "turn"] = "episode"
    """Where rewards stand: the return on the episode's last sampled token, or each turn's on that turn's last. Groups
    rank whole episodes, so `turn` needs advantage=gae."""
    gae: GAEConfig = GAEConfig()
    overlong: OverlongConfig = OverlongConfig()
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.28, ge=0)
    """Asymmetric clipping (appendix B.2): ratio in [1 - clip_low, 1 + clip_high]."""
    anchor: Literal["rollout", "recomputed"] = "rollout"
    """What the ratio is taken to (design decision 5)."""
    mismatch_cap: float = Field(2.0, gt=0)
    """anchor=recomputed: cap of the detached weight exp(recomputed - rollout)."""
    max_mismatch: float = Field(0.0, ge=0)
    """Sequences whose mean |log p(learner) - log p(rollout)| at step start exceeds this (nats) are left out; 0 keeps
    all. Costs a forward pass where anchor=rollout."""
    entropy_coefficient: float = Field(0.001, ge=0)
    kl: KLConfig = KLConfig()
    loss_scale: Literal["none", "rho", "kept_mass", "kept_fraction", "sqrt_kept_fraction"] = "rho"
    """Factor on the loss under filtering (section 4.1)."""
    include_format_penalty: bool = True
    """Whether the format penalty enters the advantage's return (it never enters the reward variance)."""

    @model_validator(mode="after")
    def _what_a_group_can_rank(self) -> "ObjectiveConfig":
        if self.needs_critic:
            return self
        if self.reward == "turn":
            raise ValueError(
                f"reward=turn needs advantage=gae: advantage={self.advantage} ranks the returns of whole episodes"
            )
        if self.gae != GAEConfig():
            raise ValueError(f"gae settings do nothing with advantage={self.advantage}; set advantage=gae or drop them")
        return self

    @model_validator(mode="after")
    def _one_advantage_where_the_ratio_is_one(self) -> "ObjectiveConfig":
        if RATIOS[self.ratio].one_advantage and self.needs_critic:
            raise ValueError(
                f"ratio={self.ratio} needs one advantage for a whole sequence, and advantage={self.advantage} gives "
                "each token its own; set advantage=grpo or ratio=token"
            )
        return self

    @property
    def needs_critic(self) -> bool:
        """Whether advantages are a critic's."""
        return ADVANTAGES[self.advantage].needs_critic

    @property
    def kl_in_loss(self) -> float:
        """lambda_KL of the loss; 0 where the KL is in the reward."""
        return self.kl.coefficient if self.kl.place == "loss" else 0.0


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Settings):
    """AdamW."""

    learning_rate: float = Field(2e-4, gt=0)
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps of linear warm-up."""
    decay_steps: int = Field(0, ge=0)
    """Length of the fall of the learning rate, in optimizer steps, after which `final_factor` of it is left; 0 keeps
    it."""
    decay: Literal["linear", "cosine"] = "linear"
    """`linear`: less by 1 / `decay_steps` of the whole a step until `final_factor` is left. `cosine`: half a cosine
    from the whole down to `final_factor`."""
    final_factor: float = Field(0.1, ge=0, le=1)
    """The least share of the learning rate that is left."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)


class CriticConfig(Settings):
    """The value model of `advantage: gae`: the policy's architecture and first weights, and a value head that begins
    at 0. It trains on the policy's micro-batches, with weight decay, betas and epsilon of `learner.optimizer`."""

    learning_rate: float = Field(1e-5, gt=0)
    """Constant (appendix B.2)."""
    clip: float = Field(0.2, ge=0)
    """How far a value may move from that at step start before its loss stops falling; 0 does not clip."""
    max_grad_norm: float = Field(1.0, gt=0)


class LoraSettings(Settings):
    """Low-rank adapters on every linear layer but the output head (Hu et al. 2021)."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    """The adapters' product is scaled by alpha / rank."""


class LearnerConfig(Settings):
    """The learner: FSDP2 ranks."""

    algorithm: Literal[*ALGORITHMS] = "grpo"
    """Sets what tells the algorithms apart (`learner.objective.algorithms`); keys given beside it win and are
    reported."""
    algorithm_filter: bool = True
    """Whether an algorithm that has a filter of its own (DAPO) brings it; `filter` may then not contradict it."""
    ranks: int = Field(1, ge=1)
    num_cpus: float = Field(0.5, ge=0)
    """Ray CPUs that each rank asks for."""
    num_gpus: float = Field(0.0, ge=0)
    """Ray GPUs that each rank asks for; 0 uses gloo on CPU."""
    num_threads: int = Field(2, ge=1)
    """Torch threads of each rank on CPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the parameters in forward and backward; masters and optimizer state stay float32."""
    fp32_head: bool = False
    """dtype=bfloat16: embedding, last norm and output head compute in float32; rollout.fp32_head is the other side."""
    activation_checkpointing: bool = False
    """Keep only each layer's input between forward and backward pass, and compute the rest again."""
    cpu_offload: bool = False
    """On GPUs: masters, gradients and optimizer state live in the host's memory, and the optimizer runs there."""
    min_num_params: int = Field(1 << 20, ge=0)
    """Parameters from which on FSDP gathers a layer by itself; smaller ones go with the embedding and the head, all in
    one collective. FSDP's hooks around four layers of 0.2 M took a tenth of a step."""
    kernels: Literal["fast", "plain"] = "fast"
    """`fast`: kernels written for packed rows and for the CPU. `plain`: their definitions in PyTorch's public
    operators, for comparison; they are slower and need more memory than the estimate says. The scorer's attention
    follows. Results differ by rounding only."""
    compile: bool = False
    """Compile each layer (torch.compile; attention stays outside). Needs a C++ compiler on CPU."""
    lora: LoraSettings | None = None
    """Train adapters instead of the model's own parameters; merged weights are published."""
    minibatches: int = Field(4, ge=1)
    """Optimizer steps in one training step; the kept trajectories are split evenly among them."""
    token_budget: int = Field(8192, ge=64)
    """Tokens fed in one micro-batch; what its trajectories begin with in common counts once."""
    share_openings: bool = True
    """Feed what trajectories of a micro-batch begin with in common (prompts, common turns) once instead of once each.
    It changes cost, not results."""
    max_memory_gib: float | None = Field(None, gt=0)
    """Memory that one rank may use; unset: what its device, or its share of the host, has."""
    objective: ObjectiveConfig = ObjectiveConfig()
    critic: CriticConfig = CriticConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    step_timeout_s: float = Field(600.0, gt=0)
    """Seconds one training step may take before the run fails, naming the rank that is late."""
    start_timeout_s: float = Field(300.0, gt=0)
    max_bad_steps: int = Field(3, ge=1)
    """Steps in a row refused for non-finite values after which the run ends."""

    @model_validator(mode="before")
    @classmethod
    def _algorithm_beneath(cls, given: Any) -> Any:
        return with_algorithm(given) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _critic_is_used(self) -> "LearnerConfig":
        if not self.objective.needs_critic and self.critic != CriticConfig():
            raise ValueError(
                f"learner.critic does nothing with objective.advantage={self.objective.advantage}; set "
                "learner.algorithm=ppo or drop it"
            )
        return self

    @model_validator(mode="after")
    def _options_do_something(self) -> "LearnerConfig":
        if self.fp32_head and self.dtype == "float32":
            raise ValueError("fp32_head does nothing with dtype=float32; set dtype=bfloat16 or drop it")
        if self.cpu_offload and self.num_gpus == 0:
            raise ValueError("cpu_offload does nothing without a GPU; set num_gpus or drop it")
        return self

    @model_validator(mode="after")
    def _has_a_filter_to_leave(self) -> "LearnerConfig":
        if not self.algorithm_filter and not ALGORITHMS[self.algorithm].filter:
            raise ValueError(f"algorithm_filter=false does nothing: algorithm={self.algorithm} has no filter")
        return self
