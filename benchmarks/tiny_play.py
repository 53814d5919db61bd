"""A quick batched sampler in plain torch, which measures how well a small policy plays, without Ray or vLLM.

It serves to tune and test the tiny policy. It feeds and samples as the rollout workers do (the same codec, the same
`Episode`, the full distribution at the same temperature), so its results differ from theirs only by the random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.envs.episode import Episode
from squelch.envs.registry import make
from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.records.splits import Split

ROWS_TOGETHER = 128
"""Episodes decoded together; with more, the data exceed the caches of a small CPU."""


@dataclass
class Played:
    """One episode: its token ids and its outcome."""

    seed: int
    token_ids: np.ndarray
    episode_return: float = 0.0
    success: bool = False
    turns: int = 0
    valid_turns: int = 0


@torch.inference_mode()
def sample_turn(
    model: PreTrainedModel,
    prompts: list[np.ndarray],
    codec: ChatCodec,
    temperature: float,
    max_tokens: int,
    generator: torch.Generator,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples one turn per prompt: (ids, log-probabilities in nats) of its tokens, including the end token if
    sampled."""
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), codec.pad_id)
    mask = torch.zeros((len(prompts), width + max_tokens), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, width - len(prompt) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    stops, cache = torch.tensor(codec.stop_ids), DynamicCache(config=model.config)
    alive = torch.ones(len(prompts), dtype=torch.bool)
    drawn, log_probs, lengths = [], [], torch.zeros(len(prompts), dtype=torch.long)
    start, feed = 0, ids
    for step in range(max_tokens):
        end = width + step
        out = model(
            input_ids=feed,
            attention_mask=mask[:, :end],
            position_ids=positions[:, start:end],
            past_key_values=cache,
            logits_to_keep=1,
        )
        scores = torch.log_softmax(out.logits[:, -1] / temperature, dim=-1)
        feed = torch.multinomial(scores.exp(), 1, generator=generator)
        drawn.append(feed)
        log_probs.append(scores.gather(1, feed))
        lengths += alive
        alive &= ~torch.isin(feed[:, 0], stops)
        start = end
        if not alive.any():
            break
    tokens, scores = torch.cat(drawn, 1).to(torch.int32).numpy(), torch.cat(log_probs, 1).numpy()
    return [(tokens[row, :n], scores[row, :n]) for row, n in enumerate(lengths.tolist())]


def _take_turn(played: Played, episode: Episode, codec: ChatCodec, ids: np.ndarray) -> bool:
    """Record one sampled turn; returns whether the episode continues."""
    closed = len(ids) > 0 and int(ids[-1]) in codec.stop_ids
    outcome = episode.act(codec.text(ids), hit_token_limit=not closed)
    played.turns += 1
    played.episode_return += outcome.reward
    played.valid_turns += outcome.format_valid
    played.success = outcome.success
    played.token_ids = np.concatenate([played.token_ids, ids])
    if outcome.done or outcome.next_message is None:
        return False
    played.token_ids = np.concatenate([played.token_ids, codec.next_turn(outcome.next_message, closed)])
    return True


def _play_together(
    model: PreTrainedModel,
    codec: ChatCodec,
    environment: EnvironmentConfig,
    seeds: list[tuple[int, int]],
    split: Split,
    temperature: float,
    max_tokens: int,
    generator: torch.Generator,
) -> list[Played]:
    episodes = [
        Episode(make(environment.name, split, environment.options, environment.prompt), seed, noise, environment.format)
        for seed, noise in seeds
    ]
    played = [
        Played(seed, codec.first_turn(episode.start())) for (seed, _), episode in zip(seeds, episodes, strict=True)
    ]
    active = list(range(len(seeds)))
    while active:
        prompts = [played[index].token_ids for index in active]
        turns = sample_turn(model, prompts, codec, temperature, max_tokens, generator)
        active = [
            index
            for index, (ids, _) in zip(active, turns, strict=True)
            if _take_turn(played[index], episodes[index], codec, ids)
        ]
    return played


def play_tasks(
    model: PreTrainedModel,
    codec: ChatCodec,
    environment: EnvironmentConfig,
    tasks: range,
    *,
    split: Split = "validation",
    group_size: int = 1,
    temperature: float = 0.5,
    max_tokens: int = 48,
    seed: int = 0,
) -> list[Played]:
    """Plays `group_size` episodes of each task (`tasks`: task seeds); episodes of one task are adjacent in the
    result."""
    generator = torch.Generator().manual_seed(seed)
    noise = np.random.default_rng(seed).integers(2**31, size=(len(tasks), group_size))
    seeds = [(task, int(noise[i, k])) for i, task in enumerate(tasks) for k in range(group_size)]
    played: list[Played] = []
    for first in range(0, len(seeds), ROWS_TOGETHER):
        part = seeds[first : first + ROWS_TOGETHER]
        played += _play_together(model, codec, environment, part, split, temperature, max_tokens, generator)
    return played


def load(directory: str | Path) -> tuple[PreTrainedModel, ChatCodec]:
    """Loads the policy of a folder, in float32, and its codec."""
    return load_model_folder(Path(directory), torch.float32), ChatCodec(directory)
