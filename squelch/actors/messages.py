"""Messages between actors. Arrays are numpy arrays, which pickle cheaply."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from squelch.actors.gpus.records import GpuUse, Operations
from squelch.kit.records.content import PlacedPictures
from squelch.kit.records.records import VersionSpan


@dataclass(frozen=True)
class GenerationRequest:
    """One turn to be sampled. `prompt_ids`: (num_tokens,) int32, all ids fed and sampled so far; `seed`: the seed of
    this request's sampling."""

    request_id: str
    prompt_ids: np.ndarray
    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...] = ()
    """Texts at whose end the turn ends, behind its reasoning; the ids that hold the text stay part of it."""
    inside: bool | None = None
    """Whether the turn begins inside of its reasoning, for `stop`; None if it has none."""
    pictures: PlacedPictures = ()
    """Those that `prompt_ids` stand for."""


@dataclass(frozen=True)
class Completion:
    """A sampled turn. `token_ids`: (num_sampled,) int32, including the end token if it was sampled; `log_probs`:
    (num_sampled,) float32, nats, under the distribution that was sampled from (at the request's temperature)."""

    request_id: str
    token_ids: np.ndarray
    log_probs: np.ndarray
    finish_reason: str
    """`stop` (end token sampled, or a stop string complete), `length` (cut at its token limit) or `error`."""
    version_min: int
    version_max: int
    error: str | None = None
    version_spans: tuple[VersionSpan, ...] = ()
    """Runs of `token_ids` and the version that sampled each, in order; empty if the engine does not report them."""

    def spans_from(self, start: int) -> tuple[VersionSpan, ...] | None:
        """`version_spans` with `start` added to each position; None if the tokens of each version are not known."""
        if not self.version_spans and self.version_min != self.version_max:
            return None
        spans = self.version_spans or (VersionSpan(0, len(self.token_ids), self.version_min),)
        return tuple(VersionSpan(start + s.start, start + s.end, s.version) for s in spans if s.end > s.start)


class TransferRefused(RuntimeError):
    """A rollout worker got other weights than were published, or could not copy them; it serves its previous ones."""


@dataclass(frozen=True)
class TensorEntry:
    """One parameter as it is published. `dtype`: torch's name of its type, e.g. `bfloat16`."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GroupMember:
    """One member of a weight group (`actors.weight_group`). Rank 0, the learner's rank 0, listens at
    `address`:`port`. `number` distinguishes the weight groups of a run."""

    number: int
    address: str
    port: int
    rank: int
    size: int
    way: str
    """Name of the way (`actors.weight_ways`), which connects the group."""
    timeout_s: float
    """Seconds that a member waits for the others, while the group forms and in each broadcast."""


@dataclass(frozen=True)
class OnGpu:
    """A version's weights in a block of a GPU's memory (`actors.gpu_weights`)."""

    gpu: str
    """UUID of the GPU."""
    handle: bytes
    """CUDA's handle of the block."""
    num_bytes: int
    number: int
    """The block's last word as long as the block holds this version."""


@dataclass(frozen=True)
class SharedWeights:
    """A version's weights in memory that processes of the learner's host can map (`actors.weights_file`), until the
    learner's next step: the path to it, its name, its size and the table of its arrays.

    With `gpu`, the weights are in that block of the learner's GPU until the next weight sync, and whoever reads them
    holds the memory, which is empty, open meanwhile.
    """

    path: str
    name: str
    num_bytes: int
    arrays: tuple[dict[str, Any], ...]
    gpu: OnGpu | None = None
    way: str = ""
    """Name of the way by which they are read (`actors.weight_ways`)."""


@dataclass(frozen=True)
class WeightBundle:
    """One version of the policy's weights, in the Ray object store.

    `chunks` are object references; each resolves to a dict of parameter name to a contiguous numpy array (bfloat16 as
    uint16 with its name in `bfloat16_names`). `checksum` is the digest of all names and bytes in order
    (`actors.weights`), which identifies the weights however they travel. The probe is a fixed
    token sequence (num_probe,) with the learner's own log-probabilities (num_probe - 1,) of tokens 1.. under these
    weights at temperature 1; of a model with a vision tower it shows a picture.
    """

    version: int
    chunks: tuple[Any, ...]
    checksum: str
    probe_ids: np.ndarray
    probe_log_probs: np.ndarray
    num_bytes: int = 0
    bfloat16_names: frozenset[str] = frozenset()
    table: tuple[TensorEntry, ...] = ()
    """All parameters in published order, for a broadcast."""
    shared: SharedWeights | None = None
    """The same weights for processes of the learner's host; None if they are not shared."""
    why_not_on_gpu: str = ""
    """The reason if the learner should share the weights on its GPU and cannot."""
    seconds_gathered: float = 0.0
    """Seconds in which the learner gathered weights from its shards and copied them, to the host or into the shared
    block. Neither this nor `seconds_sent` includes probe and digest."""
    seconds_sent: float = 0.0
    """Seconds in which the learner put chunks into the object store; 0 for weights that it shares, which it stores
    meanwhile."""
    probe_pictures: PlacedPictures = ()
    """Those that `probe_ids` stand for."""


@dataclass(frozen=True)
class UpdateReport:
    """Durations and checks of one weight update of one rollout worker."""

    worker: str
    version: int
    checksum: str
    parity: float
    """Mean absolute difference of log-probabilities on the parity probe, nats."""
    parity_max: float
    seconds_paused: float
    seconds_loaded: float
    seconds_probe: float
    seconds_fetched: float = 0.0
    """Seconds until the worker had all chunks; it samples meanwhile."""
    seconds_copied: float = 0.0
    """Seconds in which the worker copied the chunks for its engine; it samples meanwhile."""
    way: str = "object_store"
    """Name of the way by which the worker got the version (`actors.weight_ways`)."""
    why_not_shared: str = ""
    """The reason if the learner shared the weights and this worker took them from the object store."""
    gpu: GpuUse | None = None
    """The use of the worker's first GPU since the update before; None on CPU, and where NVML does not show it."""


@dataclass(frozen=True)
class StepTerms:
    """What the filter decides of a training step's loss, beside the groups."""

    loss_scale: float = 1.0
    """Factor on the whole loss."""
    spared: tuple[str, ...] = ()
    """Ids of the groups that count in the means of the loss and lack one term of it, which `without` names."""
    without: Literal["task", "regulariser"] = "task"
    """`task`: the policy's surrogate; `regulariser`: entropy bonus and KL term."""
    window_std: float | None = None
    """Root of the mean reward variance of the step's groups before the filter, for `learner.objective.divisor=window`;
    None: that of the groups that are learned from."""


@dataclass(frozen=True)
class StepReport:
    """Result of one training step of the learner. Means are over kept sampled tokens unless stated otherwise."""

    step: int
    updated: bool
    optimizer_steps: int
    num_trajectories: int
    num_tokens: int
    """Number of sampled tokens that were learned from."""
    metrics: dict[str, float] = field(default_factory=dict)
    """loss, policy_loss, entropy, kl, ratio_mean, ratio_max, clip_fraction_low, clip_fraction_high, grad_norm,
    learning_rate, mismatch_abs, mismatch_on_policy, mismatch_k3, mismatch_outside, effective_sample_size, masked_share,
    clamped_share, advantage_std, zero_advantage_share; with a critic value_loss, value_mean, explained_variance,
    critic_grad_norm."""
    seconds: dict[str, float] = field(default_factory=dict)
    """fetch, prepare, forward_backward, optimizer, recompute, reference, critic."""
    refused: str | None = None
    """The reason if the step was refused, e.g. `non-finite gradient in group 000003-002`."""
    operations: Operations | None = None
    """Of the policy's passes in the step's optimizer steps; None without an update."""
    gpus: tuple[GpuUse, ...] = ()
    """The use of each rank's GPU since the step before."""


@dataclass(frozen=True)
class Imitation:
    """Result of one supervised optimizer step of the learner, over all ranks."""

    loss: float
    """Mean -log p of the demonstrated tokens before the step, nats per token."""
    num_tokens: int
    """Demonstrated tokens of the step."""
    grad_norm: float
    """Norm of the gradient before clipping."""
