"""Tiny random models and trajectories for the learner's tests, made on the spot."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2ForCausalLM

from benchmarks.common import small_qwen2
from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.packed.vision import use_attention
from squelch.kit.records.records import Segment, Trajectory, Turn
from squelch.learner.config import LearnerConfig
from squelch.learner.kernels.choice import KERNELS

VOCABULARY = 61


def make_model(folder: Path, width: int = 32, layers: int = 2, vocabulary: int = VOCABULARY, tied: bool = True) -> Path:
    """Write a random Qwen2 model as a Hugging Face folder. Its weights are a function of the arguments."""
    torch.manual_seed(7)
    shape = {"vocabulary": vocabulary, "width": width, "layers": layers, "hidden": 2 * width, "heads": 4}
    config = small_qwen2(**shape, tie_word_embeddings=tied, max_position_embeddings=256, initializer_range=0.1)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def make_trajectory(
    rng: np.random.Generator, index: int, reward: float, prompt: list[int], turns: int = 2, fed: int = 6
) -> Trajectory:
    """`turns` turns of `fed` fed tokens (the first: `prompt`) and 2 to 9 sampled ones each."""
    ids, mask, records = [], [], []
    for turn in range(turns):
        sampled = int(rng.integers(2, 10))
        given = rng.integers(0, VOCABULARY, fed).tolist() if turn else prompt
        ids += given + rng.integers(0, VOCABULARY, sampled).tolist()
        mask += [False] * len(given) + [True] * sampled
        end = len(ids)
        value = reward if turn == turns - 1 else 0.0
        records.append(Turn(end - sampled, end, end - sampled, end, value, 0.0, True, False, 1, 0, 0))
    ids += rng.integers(0, VOCABULARY, 3).tolist()
    mask += [False] * 3
    loss_mask = np.array(mask)
    log_probs = np.where(loss_mask, -4 + 0.3 * rng.standard_normal(len(ids)), 0).astype(np.float32)
    return Trajectory(index, np.array(ids, dtype=np.int32), loss_mask, log_probs, records, False, False)


def make_groups(num_groups: int = 4, size: int = 4, seed: int = 0, turns: int = 2) -> list[tuple[str, list]]:
    """Groups of random trajectories with rewards 0 or 1, of `size` and `size + 1` members in turn.

    All prompts begin alike; those of a group are equal.
    """
    rng = np.random.default_rng(seed)
    system = rng.integers(0, VOCABULARY, 5).tolist()
    groups = []
    for g in range(num_groups):
        prompt = system + rng.integers(0, VOCABULARY, 4 + g % 2).tolist()
        counts = [1 + (i + g) % (2 * turns - 1) for i in range(size + g % 2)]
        members = [make_trajectory(rng, i, float(i % 2), prompt, count) for i, count in enumerate(counts)]
        groups.append((f"000001-{g:03d}", members))
    return groups


def in_segments(parts: Sequence[Trajectory]) -> Trajectory:
    """One trajectory, of which each part is a segment."""
    starts = np.cumsum([0, *(len(part.token_ids) for part in parts[:-1])]).tolist()
    places = ("sample_start", "sample_end", "reasoning_start", "reasoning_end")
    turns = [
        replace(turn, **{name: vars(turn)[name] + start for name in places})
        for part, start in zip(parts, starts, strict=True)
        for turn in part.turns
    ]
    return replace(
        parts[0],
        token_ids=np.concatenate([part.token_ids for part in parts]),
        loss_mask=np.concatenate([part.loss_mask for part in parts]),
        log_probs=np.concatenate([part.log_probs for part in parts]),
        turns=turns,
        segments=tuple(Segment(start, "history rewritten") for start in starts[1:]),
    )


def make_agents(num_groups: int = 3, size: int = 4, seed: int = 0) -> list[tuple[str, list]]:
    """Groups of random trajectories of 1 to 3 segments of 1 to 3 turns. All segments begin with the same 20 ids, and
    those of a group with 2 to 4 more."""
    rng = np.random.default_rng(seed)
    system = rng.integers(0, VOCABULARY, 20).tolist()
    groups = []
    for g in range(num_groups):
        prompt = system + rng.integers(0, VOCABULARY, 2 + g % 3).tolist()
        members = []
        for i in range(size):
            counts = rng.integers(1, 4, 1 + (i + g) % 3).tolist()
            rewards = [0.0] * (len(counts) - 1) + [float(i % 2)]
            parts = [make_trajectory(rng, i, r, prompt, n) for n, r in zip(counts, rewards, strict=True)]
            members.append(in_segments(parts))
        groups.append((f"000001-{g:03d}", members))
    return groups


def make_config(**changes: object) -> LearnerConfig:
    """Settings for tests: two optimizer steps, small micro-batches; `changes` replace top-level keys."""
    return LearnerConfig.model_validate({"minibatches": 2, "token_budget": 128, **changes})


def poison(groups: list[tuple[str, list]], place: int, kind: str = "gradient") -> list[tuple[str, list]]:
    """Makes the `gradient` (its square overflows) or also the `loss` of one trajectory non-finite, where advantages are
    not divided by their standard deviation."""
    trajectory = groups[place][1][1]
    trajectory.turns[-1].reward = 1e30 if kind == "gradient" else -3e38
    if kind == "loss":  # the ratio, about e^16, is not clipped
        trajectory.log_probs[trajectory.loss_mask] = -20
    return groups


def load_model(model_dir: Path, kernels: str = "fast") -> PreTrainedModel:
    """The whole model in float32 on CPU, in evaluation mode, as the reference of what a rank loads shard by shard."""
    model, chosen = load_model_folder(Path(model_dir), torch.float32), KERNELS[kernels]
    use_attention(model, chosen.attention)
    chosen.replace_layers(model)
    return model
