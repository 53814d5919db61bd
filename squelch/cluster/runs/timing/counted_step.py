"""The constants of a step's time (`cluster.runs.timing.step_time`), counted from a model's size and a recipe. Pure.

A decoded token of a sequence reads all weights once, together with the other sequences of its batch, and the keys and
values of its own sequence:

    serial    one trajectory's tokens, each one read of the weights and `DECODING_S`
    parallel  reads of keys and values, and products, for all tokens; the prompts' products, once a group, or once a
              trajectory in episodes of several turns, because later observations are each trajectory's own
    train     three forward passes' products of all tokens (four with activation checkpointing), divided by the ranks
    publish   the weights' bytes at the rate of the way that the recipe takes (`WAYS`)

The counts are upper bounds (every turn reaches its limit, every group is kept, contexts are full), and the rates are
those of a data sheet times a share. What an environment takes for its steps is not counted, nor the time to
start kernels in training, most of the step of a small model. Times measured in a run (`step_time`) are better in every
respect.
"""

from __future__ import annotations

from squelch.actors.gpus.peaks import GPUS, Gpu
from squelch.actors.model_size import BYTES, ModelSize
from squelch.cluster.config import RunConfig
from squelch.cluster.runs.timing.step_time import StepModel
from squelch.learner.config import LearnerConfig

DEVICES = {24: GPUS["A10"], 48: GPUS["L40S"], 80: GPUS["H100 80GB HBM3"], 141: GPUS["H200"]}
"""A usual device by its memory in GiB."""
PRODUCTS, READING, DECODING_S = 0.2, 0.6, 5e-3
"""The shares of the data sheet that products and memory reach, and seconds of a decoding step beside its reading.
Measured on an H100 (docs/research/results.md): products by the learner on Qwen2.5-0.5B, 0.18 to 0.23, and decoding on
SmolLM2-135M with CUDA graphs. Assumed: reading."""


def device_of(gib: float) -> Gpu:
    """The usual device with this memory, or the next smaller one."""
    return DEVICES[max((size for size in DEVICES if size <= gib), default=min(DEVICES))]


def _passes(learner: LearnerConfig) -> int:
    """Forward passes' worth of products on each token: a backward pass counts twice, and recomputation once more."""
    trained, own = 4 if learner.activation_checkpointing else 3, learner.objective
    recomputed = own.anchor == "recomputed" or own.max_mismatch > 0
    return trained + recomputed + (own.kl.coefficient > 0) + (1 + trained) * own.needs_critic


def counted(size: ModelSize, config: RunConfig, device: Gpu) -> StepModel:
    """The model of the recipe's step on such devices."""
    loop, sampling, rollout, learner = config.loop, config.sampling, config.rollout, config.learner
    turns = config.mixture.most_turns
    sampled = min(config.most_episode_tokens, rollout.max_model_len)
    trajectories, fed = loop.prompts * sampling.group_size, rollout.max_model_len - sampled
    width, split = BYTES[rollout.dtype], rollout.tensor_parallel_size
    decoding, training = PRODUCTS * device.peak(rollout.dtype), PRODUCTS * device.peak(learner.dtype)
    bandwidth, context = READING * device.bandwidth, rollout.max_model_len / 2
    operations = size.operations(context)
    token = size.cache_bytes(width) * context / bandwidth + operations / decoding
    fed *= loop.prompts if turns == 1 else trajectories
    return StepModel(
        loop.prompts,
        serial=sampled * (size.parameters * width / split / bandwidth + DECODING_S),
        parallel=(trajectories * sampled * token + fed * operations / decoding) / split,
        train=_passes(learner) * (trajectories * sampled + fed) * operations / training / learner.ranks,
        publish=size.parameters * width / config.way.bytes_per_s,
        other=0.0,
        split="counted",
    )
