"""Estimates the memory that a learner rank needs, from shapes before any weight is read, and compares it with the
memory available to the rank.

Every number is in bytes of one rank at the peak of a step. The estimate counts FSDP's shards (float32 master weights,
gradients, two Adam moments), on CPU the copies from which a refused step is undone, the parameters that FSDP gathers,
the activations of one micro-batch of `learner.token_budget` tokens, the head's tiles, and the gradients that
`learner.decomposition` holds if the run measures them. It does not count allocator overhead or the runtime's own
hundreds of MiB. The tests compare the estimate with a step's measured peak; `squelch plan RECIPE` prints it for a
recipe.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from squelch.actors.model_size import decoder_config
from squelch.kit.models.model_folder import auto_model, has_tower
from squelch.kit.packed import block_attention
from squelch.kit.packed.vision import tower
from squelch.learner.checkpoint.export import EXPORT_BYTES
from squelch.learner.checkpoint.shards import PART_BYTES
from squelch.learner.config import LearnerConfig
from squelch.learner.kernels.head import TILE_LOGITS, TILE_VOCABULARY
from squelch.learner.policy.lora import targets
from squelch.learner.policy.model import decoder_layers, layers_apart
from squelch.learner.publish import CHUNK_BYTES

GIB = 2**30
PICTURE_SHARE = 0.25
"""Largest share of a micro-batch's tokens that stand for pictures: observations of a hundred such tokens, with answers
of a few hundred, stay below it."""
RUNTIME = GIB
"""Bytes of a rank on a GPU for libraries, contexts and the allocator's overhead: an allowance, not in the estimate."""
MOST_TOKENS, TOKENS_STEP = 65536, 1024
"""The largest automatic token budget, and what it is a multiple of. On an H200, twice as many tokens saved 20% of an
update at 16k and 6% at 32k (docs/research/results.md)."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank. With `cpu_offload`, `state` is in host memory and is not counted."""

    state: int
    """Master weights, gradients and Adam moments of the policy and of a critic, all of whose parameters are trained;
    weights of the reference."""
    snapshot: int
    """Copies of master weights and moments during a training step of several optimizer steps (`learner.snapshot`);
    0 on a GPU, whose copies are in host memory."""
    decomposition: int
    """The gradients that `learner.decomposition` holds at once."""
    gathered: int
    """Unsharded parameters in the compute dtype, and unsharded gradients of one layer and of FSDP's root; with
    adapters, the merged experts of a mixture."""
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """Sum of all parts, bytes."""
        return sum(vars(self).values())

    def line(self) -> str:
        """The estimate as text: the total and its parts, in GiB."""
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in vars(self).items() if size)
        return f"{self.total / GIB:.2f} GiB per rank ({parts})"


def skeleton(config: PreTrainedConfig) -> PreTrainedModel:
    """The model on torch's meta device, without storage; not to be changed, because it is made once for equal
    configurations."""
    return _skeleton(type(config), config.to_json_string(use_diff=False))


@lru_cache(maxsize=4)
def _skeleton(kind: type[PreTrainedConfig], described: str) -> PreTrainedModel:
    with torch.device("meta"):
        config = kind.from_dict(json.loads(described))
        return auto_model(config).from_config(config)


def estimate(config: PreTrainedConfig, learner: LearnerConfig, world_size: int, held: int = 0) -> Estimate:
    """Estimate for training this model on `world_size` ranks. `held`: gradients that a rank holds at once besides the
    model's own (`RunConfig.held_gradients`)."""
    model = skeleton(config)
    numbers, own = _Numbers.of(model, learner), _Numbers.of(model, learner, world_size)
    sizes = [sum(p.numel() for p in x.parameters()) for x in layers_apart(model, learner)]
    layer, rest = max(sizes, default=0), numbers.policy - sum(sizes)
    width = 2 if learner.dtype == "bfloat16" else 4
    copied = learner.num_gpus == 0 and learner.minibatches > 1
    whole = numbers.policy if world_size == 1 else rest + 2 * layer
    gathered = width * whole + (4 if learner.fp32_head else width) * (layer + rest) * (learner.lora is None)
    return Estimate(
        state=0 if learner.cpu_offload else own.state,
        snapshot=own.snapshot * copied,
        decomposition=4 * held * own.trained,
        gathered=gathered + width * _merged_experts(model, learner),
        activations=int(learner.tokens * _per_token(config, learner, width)) + _scores(config, learner),
        logits=4 * 4 * _tile(config, learner),
    )


def fitting_tokens(
    config: PreTrainedConfig, learner: LearnerConfig, world_size: int, held: int, longest: int, room: int
) -> int:
    """The most tokens of a micro-batch whose estimate is at most `room` bytes, from `longest` (tokens of the longest
    trajectory) to `MOST_TOKENS`; `longest` also where that does not fit."""
    more = range(-(-longest // TOKENS_STEP) * TOKENS_STEP, MOST_TOKENS + 1, TOKENS_STEP)

    def needed(tokens: int) -> int:
        return estimate(config, learner.with_tokens(tokens), world_size, held).total

    fit = bisect_right(more, room, key=needed)
    return more[fit - 1] if fit else longest


@dataclass(frozen=True)
class HostEstimate:
    """Host memory of one rank on a GPU, bytes, beside its runtime. On CPU, `Estimate` is all host memory."""

    state: int
    """What `learner.cpu_offload` keeps there."""
    snapshot: int
    """Pinned copies of master weights and moments, from which a refused step is undone."""
    staging: int
    """The most that a rank holds at once of a weight that is converted while it is loaded (`kit.models.conversion`), of
    a checkpoint's part, of an export's file and the copies of a layer's experts, or of a weight sync's chunks; of a
    rank that is alone, also of a whole version, which it may share in memory with workers on its GPU; or of the state
    that
    a resume reads, beyond the room that `state` and `snapshot` take later."""

    @property
    def total(self) -> int:
        """Sum of all parts, bytes."""
        return sum(vars(self).values())

    def line(self) -> str:
        """The estimate as text: the total and its parts, in GiB."""
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in vars(self).items() if size)
        return f"{self.total / GIB:.2f} GiB of host memory per rank ({parts})"


def host_estimate(config: PreTrainedConfig, learner: LearnerConfig, world_size: int) -> HostEstimate | None:
    """The host memory of one rank on a GPU; None on CPU."""
    if learner.num_gpus == 0:
        return None
    model = skeleton(config)
    own, held = _Numbers.of(model, learner, world_size), 4 * _Numbers.of(model, learner).policy  # of float32
    copies = 2 * (CHUNK_BYTES + 4 * max(p.numel() for p in model.parameters()))
    exported = min(held, EXPORT_BYTES) + 4 * max((p.numel() for p in model.parameters() if p.dim() == 3), default=0)
    staging = max(exported, min(3 * held // world_size, PART_BYTES), copies, held * (world_size == 1))
    state, snapshot = own.state * learner.cpu_offload, own.snapshot * (learner.minibatches > 1)
    resumed = own.saved + own.weights * learner.cpu_offload
    return HostEstimate(state, snapshot, max(staging, resumed - state - snapshot))


@dataclass(frozen=True)
class _Numbers:
    """Numbers of parameters that a rank holds: the policy's, those of them that are trained, the critic's, those of
    them that are trained, and the reference's."""

    policy: int
    trained: int
    critic: int
    critic_trained: int
    reference: int

    @classmethod
    def of(cls, model: PreTrainedModel, learner: LearnerConfig, world_size: int = 1) -> "_Numbers":
        """Of the first of `world_size` ranks. No other holds more: FSDP divides rows, and a row of merged experts is an
        expert."""
        policy = sum(_shard(p, world_size) for p in model.parameters())
        seeing = tower(model)
        fixed = seeing.parameters() if seeing is not None and learner.freeze_vision else ()
        frozen = sum(_shard(p, world_size) for p in fixed)
        trained = _adapters(model, learner.lora.rank) // world_size if learner.lora else policy - frozen
        critic = policy if learner.objective.needs_critic else 0
        critic_trained = max(0, critic - frozen)
        return cls(policy, trained, critic, critic_trained, policy if learner.objective.kl.coefficient > 0 else 0)

    @property
    def state(self) -> int:
        """Bytes of master weights, gradients and moments, and of the reference's weights."""
        return 4 * (self.policy + 3 * self.trained + self.critic + 3 * self.critic_trained + self.reference)

    @property
    def weights(self) -> int:
        """Bytes of the weights alone."""
        return 4 * (self.policy + self.critic + self.reference)

    @property
    def saved(self) -> int:
        """Bytes of what a checkpoint holds: weights and moments."""
        return 4 * (self.policy + 2 * self.trained + self.critic + 2 * self.critic_trained)

    @property
    def snapshot(self) -> int:
        """Bytes of a copy of what is trained, and of its moments."""
        return 4 * 3 * (self.trained + self.critic_trained)


def _shard(parameter: torch.nn.Parameter, world_size: int) -> int:
    rows = parameter.shape[0] if parameter.dim() else 1
    return -(-rows // world_size) * (parameter.numel() // max(1, rows))


def _adapters(model: PreTrainedModel, rank: int) -> int:
    layers, inner = targets(model)
    weights = [model.get_parameter(name) for name in (*(f"{layer}.weight" for layer in layers), *inner)]
    return sum(rank * sum(weight.shape[-2:]) * math.prod(weight.shape[:-2]) for weight in weights)


def _merged_experts(model: PreTrainedModel, learner: LearnerConfig) -> int:
    """Numbers of a mixture's experts with their adapters, which PEFT adds up in each forward pass: those of all layers
    are kept for the backward pass, and the gradient of one layer's is as large."""
    if learner.lora is None:
        return 0
    of_layers = [sum(p.numel() for p in layer.parameters() if p.dim() == 3) for layer in decoder_layers(model)]
    largest = max(of_layers, default=0)
    return largest + (largest if learner.activation_checkpointing else sum(of_layers))


def _per_token(config: PreTrainedConfig, learner: LearnerConfig, width: int) -> float:
    """Upper bound of the bytes per token that the layers keep for the backward pass, counted from their saved tensors;
    with a tower that is trained, `PICTURE_SHARE` of them also its patches.

    Gated blocks in float32 on CPU keep only half of the bytes counted for them here (`learner.kernels.gated`), and
    attention on CPU keeps fewer weights if rows are short.
    """
    text = decoder_config(config)
    heads, hidden = text.num_attention_heads, text.hidden_size
    size = vars(text).get("head_dim") or hidden // heads
    projected = size * (heads + 2 * text.num_key_value_heads)
    attended = projected + size * heads
    layer = width * (6 * hidden + attended + _fed_forward(text)) + 4 * (2 * hidden + heads)
    if learner.num_gpus == 0:
        layer += 4 * heads * block_attention.KEPT_KEYS
    seen = has_tower(config) and not learner.freeze_vision and learner.lora is None
    pictures = PICTURE_SHARE * _per_picture_token(config, learner, width) if seen else 0
    if learner.activation_checkpointing:
        return text.num_hidden_layers * width * hidden + layer + pictures
    return text.num_hidden_layers * layer + pictures


def _fed_forward(text: Any) -> int:
    """Numbers that a layer's feed-forward part keeps per token; a mixture's experts each keep copies of what they are
    fed and of what they give, too."""
    sizes = vars(text)
    experts, each = sizes.get("num_experts_per_tok") or 0, sizes.get("moe_intermediate_size") or text.intermediate_size
    shared = sizes.get("shared_expert_intermediate_size") or (sizes.get("n_shared_experts") or 0) * each
    return max(4 * text.intermediate_size, experts * (4 * each + 3 * text.hidden_size) + 4 * shared)


def _per_picture_token(config: Any, learner: LearnerConfig, width: int) -> int:
    """Bytes that the vision tower keeps of the patches that become one token; as in the decoder's layers."""
    vision = config.vision_config
    hidden, patches = vision.hidden_size, vision.spatial_merge_size**2
    layer = width * (10 * hidden + 4 * vision.intermediate_size) + 4 * (2 * hidden + vision.num_heads)
    kept = width * hidden * vision.depth + layer if learner.activation_checkpointing else layer * vision.depth
    return patches * (kept + 2 * width * hidden)


def _scores(config: PreTrainedConfig, learner: LearnerConfig) -> int:
    """Bytes of attention's scores on CPU: the scores of one batch, their softmax, and the gradient of either."""
    heads = config.get_text_config().num_attention_heads
    return 3 * 4 * heads * block_attention.BATCH_PAIRS if learner.num_gpus == 0 else 0


def _tile(config: PreTrainedConfig, learner: LearnerConfig) -> int:
    device = "cuda" if learner.num_gpus > 0 else "cpu"
    words = min(config.get_text_config().vocab_size, TILE_VOCABULARY)
    return min(TILE_LOGITS[device], learner.tokens * words)


def configured(learner: LearnerConfig) -> int | None:
    """Bytes that a rank may use by `learner.max_memory_gib`; None if it is unset."""
    return None if learner.max_memory_gib is None else int(learner.max_memory_gib * GIB)


def available(learner: LearnerConfig) -> int | None:
    """Bytes that a rank may use: the configured value, else its share of the memory of the smallest GPU (or MIG slice)
    that this process sees, else its share of the memory that this host, or this container, has left. None if the rank
    uses a GPU and this process sees none."""
    if (given := configured(learner)) is not None:
        return given
    if learner.num_gpus > 0:
        smallest = _smallest_gpu()
        return None if smallest is None else int(smallest * min(1, learner.num_gpus))
    return _free() // learner.ranks


def _smallest_gpu() -> int | None:
    """Asks for properties alone: `mem_get_info` would create a context, which keeps hundreds of MiB of the GPU for as
    long as the process lives, and the run's driver lives as long as the run."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return min((torch.cuda.get_device_properties(gpu).total_memory for gpu in range(count)), default=None)


@contextmanager
def full_gpu_explained(learner: LearnerConfig, outside: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Within this context, memory that runs out on the rank's GPU is a RuntimeError which says who holds how much.
    `outside`: bytes that this process holds there, and PyTorch's allocator does not."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        own, share = torch.cuda.memory_reserved() + outside(), int(total * min(1, learner.num_gpus))
        others = total - free - own
        foreign = others > total - share + RUNTIME
        helps = (
            "other processes hold more than the learner's share leaves: end them (nvidia-smi names them), or lower "
            "learner.num_gpus and the token budget"
            if foreign
            else "lower learner.token_budget (not below rollout.max_model_len), or set "
            "learner.activation_checkpointing=true"
        )
        raise RuntimeError(
            f"the GPU's memory ran out: this rank holds {own / GIB:.1f} GiB of its share of {share / GIB:.1f}, "
            f"everything else, contexts included, {others / GIB:.1f}, and {free / GIB:.1f} of {total / GIB:.1f} are "
            f"free; {helps} ({error})"
        ) from error


def _free() -> int:
    from squelch.actors.process.free_memory import (
        free_memory,  # here: estimates need nothing beyond torch and transformers
    )

    return free_memory()


def _check_host(config: PreTrainedConfig, learner: LearnerConfig, world_size: int, sharing: int) -> None:
    """Raises ValueError if ranks on GPUs need more memory of their host than it has free."""
    needed = host_estimate(config, learner, world_size)
    if needed is None or not torch.cuda.is_available() or needed.total * sharing <= (has := _free()):
        return
    smaller = ["learner.minibatches=1"] * (needed.snapshot > 0) + ["learner.cpu_offload=false"] * (needed.state > 0)
    helps = f"set {' or '.join(smaller)}, " if smaller else ""
    raise ValueError(
        f"the learner needs {needed.line()}, and the {sharing} ranks of this host have {has / GIB:.1f} together: "
        f"{helps}raise learner.ranks over more hosts, or give the host more memory"
    )


def check(
    config: PreTrainedConfig,
    learner: LearnerConfig,
    world_size: int,
    held: int = 0,
    longest: int | None = None,
    sharing: int = 1,
) -> str:
    """The estimate as a line. Raises ValueError when the rank has less memory; the message names settings that help.
    `longest`: as in `advice`; `sharing`: ranks on this host, for the host memory of ranks on GPUs."""
    _check_host(config, learner, world_size, sharing)
    needed, has = estimate(config, learner, world_size, held), available(learner)
    if has is None or needed.total <= has:
        return f"learner needs {needed.line()}" + ("" if has is None else f", has {has / GIB:.1f}")
    raise ValueError(
        f"the learner needs {needed.line()}, has {has / GIB:.1f}: "
        f"{advice(config, learner, world_size, held, has, longest)}"
    )


def advice(
    config: PreTrainedConfig, learner: LearnerConfig, world_size: int, held: int, has: int, longest: int | None = None
) -> str:
    """Advice on settings with which the model fits: options are added one after another until the estimate fits.
    `longest`: tokens of the longest trajectory, below which the token budget cannot be; without it the budget stays."""
    if held and estimate(config, learner, world_size).total <= has:
        return "set gradients.every=0 (`squelch gradients` can decompose them later), or raise learner.ranks"
    changed, tried = learner, []
    options: list[Mapping[str, object]] = [{"activation_checkpointing": True}, {"dtype": "bfloat16"}]
    options += [{"cpu_offload": True}] * (learner.num_gpus > 0)
    if longest is not None and longest < learner.tokens:
        options.append({"token_budget": max(longest, learner.tokens // 4)})
    for option in options:
        option = {key: value for key, value in option.items() if vars(changed)[key] != value}
        changed = changed.model_copy(update=option)
        tried += [f"learner.{key}={str(value).lower()}" for key, value in option.items()]
        if estimate(config, changed, world_size, held).total <= has:
            return f"set {' '.join(tried)}"
    for ranks in (2, 4, 8, 16, 32, 64):
        if ranks > world_size and estimate(config, changed, ranks, held).total <= has:
            return f"set {' '.join([*tried, f'learner.ranks={ranks}'])}"
    lower = "lower learner.token_budget (not below rollout.max_model_len), " if longest is None else ""
    return f"{lower}set learner.lora, or take a smaller model"
