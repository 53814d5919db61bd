"""Trajectories of realistic lengths for the learner's benchmark, without a policy, and the padded step for comparison.

An environment's trajectories are its own demonstrations: its prompts, observations and answers in its own tokens; the
demonstrator plays each task once per member of the group. Rewards are random; the arithmetic does not depend on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks import common
from benchmarks.learner.random_work import Groups, random_groups, trajectory
from squelch.cluster import config as runs
from squelch.envs.contract import Demonstrator, require
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.registry import make
from squelch.kit.packed.layout import Layout
from squelch.learner.config import LoraSettings
from squelch.learner.kernels.head import log_probabilities
from squelch.learner.policy.model import Policy, shard
from squelch.learner.trainer import Trainer
from squelch.learner.warmup.demonstrations import Transcript, encode
from squelch.learner.warmup.tiny import write_tokenizer
from squelch.learner.warmup.tiny_model import new_model
from squelch.learner.warmup.tiny_recipe import TinyRecipe, recipe_for

LAYERS = {"width": 128, "layers": 4, "hidden": 384, "heads": 4}


def demonstrated(recipe: str, num_groups: int, group_size: int, folder: Path) -> Groups:
    """Groups of the recipe's environment; writes a random tiny policy with its tokenizer into `folder`."""
    environment = runs.load(recipe).environment
    tiny: TinyRecipe = recipe_for(environment.name)
    folder.mkdir(parents=True)
    codec = write_tokenizer(folder, environment, 0, tiny)
    new_model(codec, tiny, 0).save_pretrained(folder)
    env = make(environment.name, "train", environment.options, environment.prompt)
    demonstrator = require(environment.name, env, Demonstrator, "trajectories that it demonstrates")
    rng, groups = np.random.default_rng(0), []
    for task in range(num_groups):
        members = []
        for member in range(group_size):
            episode = Episode(env, task, int(rng.integers(2**31)), environment.format)
            opening, turns = episode.start(), []
            while not turns or turns[-1][1] is not None:
                said = well_formed(*demonstrator.demonstrate(rng, tiny.quality))
                turns.append((said, episode.act(said).next_message))
            played = encode(codec, Transcript(opening, turns))
            members.append(trajectory(rng, member, played.token_ids, played.loss_mask))
        groups.append((f"{task:03d}", members))
    return groups


def single_turn(num_groups: int, group_size: int, prompt: int, answer: int, folder: Path) -> Groups:
    """Groups of random tokens with lengths `prompt` and `answer`; writes a random policy into `folder`."""
    common.random_qwen2(folder, vocabulary=512, seed=0, **LAYERS)
    return random_groups(num_groups, group_size, prompt, answer, 512)


class PaddedPolicy(Policy):
    """The policy's forward pass as in TRL and the paper's authors' code: rows padded to the longest, causal SDPA with a
    mask. The head is the learner's own.
    """

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        layout: Layout,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        starts = (layout.position_ids == 0).nonzero()[:, 0]
        lengths = torch.diff(starts, append=torch.tensor([input_ids.shape[1]]))
        column = torch.arange(int(lengths.max()))
        mask = column < lengths[:, None]
        index = torch.where(mask, starts[:, None] + column, 0)
        row = torch.searchsorted(starts, positions, right=True) - 1
        states = self.model.base_model(
            input_ids=input_ids[0][index], attention_mask=mask.long(), use_cache=False
        ).last_hidden_state
        hidden = states[row, positions - starts[row]]
        head: Any = self.model.get_output_embeddings()
        return log_probabilities(hidden, head.weight, head.bias, targets, temperature, entropy_gradient)


class PaddedTrainer(Trainer):
    """The learner with padded rows through transformers' own modules, as in TRL and the paper's authors' code. It needs
    `share_openings: false`, so that its layout has one row after another."""

    def _load(self, lora: LoraSettings | None = None, resumes: bool = False) -> Policy:
        model = AutoModelForCausalLM.from_pretrained(
            self.model_dir, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        return shard(PaddedPolicy(model), self.mesh, self.config)
