"""The same questions, answers and reward functions in TRL's trainer and in the environment Prompts; in TRL's
environment alone."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import load_dataset
from transformers import PreTrainedTokenizerFast
from trl import GRPOTrainer
from trl.rewards import accuracy_reward, think_format_reward

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.kit.records.records import Group, Task, Ticket
from squelch.kit.text.shipped_templates import template_text
from tests.kit.trl import work

REWARDS = '''
import re
from trl.rewards import get_soft_overlong_punishment

short = get_soft_overlong_punishment(max_completion_len=80, soft_punish_cache=60)

def right(prompts, completions, answer, **kwargs):
    """GSM8K's answer is after the last ####."""
    wanted = [one.split("####")[-1].strip() for one in answer]
    said = [re.findall(r"-?\\d+", completion[0]["content"]) for completion in completions]
    return [2.0 if numbers and numbers[-1] == want else None for numbers, want in zip(said, wanted)]

def long(completions, **kwargs):
    """Another number for every other text."""
    return [len(completion[0]["content"]) / 100 for completion in completions]
'''


def write_questions(folder: Path) -> None:
    """Word problems with the columns of GSM8K, prompts as messages; one more for validation."""
    folder.mkdir()
    pairs = random.Random(0).sample(list(itertools.product(range(2, 10), repeat=2)), work.PROMPTS + 1)
    for split, chosen in (("train", pairs[1:]), ("validation", pairs[:1])):
        lines = []
        for bags, each in chosen:
            asked = f"Mia buys {bags} bags of {each} apples. How many apples are there?"
            answer = f"{bags} x {each} = <<{bags}*{each}={bags * each}>>{bags * each}.\n#### {bags * each}"
            row = {"prompt": [{"role": "user", "content": asked}], "answer": answer, "solution": f"${bags * each}$"}
            lines.append(json.dumps(row) + "\n")
        (folder / f"{split}.jsonl").write_text("".join(lines))


def answer_ids(tokenizer: PreTrainedTokenizerFast, prompt: list[int], row: int) -> list[int]:
    """What the model says to a prompt in a row, right in every other group: an answer in TRL's format, one that never
    ends, one with a control token and half a character, and one without reasoning."""
    bags, each = re.findall(r"\d", tokenizer.decode(prompt))
    number = int(bags) * int(each) + row // work.GROUP % 2
    odd = [*tokenizer.encode("é<|im_start|>", add_special_tokens=False), tokenizer.encode("é")[0]]
    texts = [
        f"<think>\nI count.\n</think>\nThere are $\\boxed{{{number}}}$<|im_end|>",
        "<think>\nHow many are there? They are so many that",
        f"</think>\\boxed{{{number}}}<|im_end|>",
        f"  It is {number}.<|im_end|>",
    ]
    said = tokenizer.encode(texts[row % work.GROUP], add_special_tokens=False)
    return [*odd, *said] if row % work.GROUP == 2 else said


def rewarded(folder: Path, model: Path) -> None:
    """Questions as GSM8K has them, scripted answers, TRL's own example functions and a user's: the completions that
    TRL's trainer gives them and the rewards that it computes, and those of the environment Prompts on the same ids."""
    work.write_byte_model(folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(template_text("chatml"))
    write_questions(folder / "data")
    (folder / "rewards.py").write_text(REWARDS)
    os.chdir(folder)
    found: dict[str, Any] = {}

    class Scripted(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids: list[list[int]], *given: Any, **others: Any) -> tuple[Any, None]:
            found["prompt_ids"] = prompt_ids
            found["ids"] = [answer_ids(self.processing_class, ids, row) for row, ids in enumerate(prompt_ids)]
            return found["ids"], None

        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
            rewards = super()._calculate_rewards(inputs, prompts, completions, ids)
            found["completions"] = [one[0]["content"] for one in completions]
            found["rewards"] = rewards.nansum(1).tolist()
            return rewards

    mine = importlib.import_module("rewards")
    trainer = Scripted(
        model=str(folder / "model"),
        args=work.settings(folder, max_steps=1),
        reward_funcs=[accuracy_reward, think_format_reward, mine.right, mine.short, mine.long],
        train_dataset=load_dataset("json", data_files="data/train.jsonl", split="train"),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder / "model", padding_side="left"),
    )
    trainer.train()
    (folder / "found.json").write_text(json.dumps({"trl": found, "squelch": in_prompts(folder, found)}))


def in_prompts(folder: Path, sampled: dict[str, Any]) -> dict[str, Any]:
    """Prompts, completions and rewards of the environment, for what was sampled, in the same order of rows."""
    codec = ChatCodec(folder / "model")
    rows = {tuple(prompt): index for index, prompt in enumerate(sampled["prompt_ids"][:: work.GROUP])}
    theirs, mine = ("accuracy_reward", "think_format_reward"), ("right", "short", "long")
    named = (*(f"trl.rewards:{name}" for name in theirs), *(f"rewards.py:{name}" for name in mine))
    options = {"data": str(folder / "data"), "reward": dict.fromkeys(named, 1.0)}
    prompts: dict[int, list[int]] = {}

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        prompt = tuple(request.prompt_ids.tolist())
        row = rows[prompt] * work.GROUP + int(request.request_id.split("/")[1])
        ids = np.array(sampled["ids"][row], np.int32)
        prompts[row] = list(prompt)
        ended = "stop" if ids[-1] in codec.stop_ids else "length"
        return Completion(request.request_id, ids, np.zeros(len(ids), np.float32), ended, 0, 0)

    environment = EnvironmentConfig(name="Prompts", options=options)
    player = EnvironmentPlayer(codec, environment, SamplingConfig(), EnvironmentActorConfig(), 4096, generate)

    async def played() -> list[Group]:
        tasks = [Task("Prompts", seed, options=tuple(options.items())) for seed in range(work.PROMPTS)]
        tickets = [Ticket(f"1-{task.seed}", 1, task, work.GROUP, 3, 1.0, "rollout-0") for task in tasks]
        return [await asyncio.wait_for(player.play(ticket), 60) for ticket in tickets]

    try:
        groups = asyncio.run(played())
    finally:
        player.close()
    found: dict[int, tuple[str, float]] = {}
    for group in groups:
        assert all(one.failure is None for one in group.trajectories), [one.failure for one in group.trajectories]
        for place, one in enumerate(group.trajectories):
            start = one.turns[0].sample_start
            row = rows[tuple(one.token_ids[:start].tolist())] * work.GROUP + place
            found[row] = (codec.completion_text(one.token_ids[start:]), one.episode_return)
    ordered = [found[row] for row in range(len(sampled["ids"]))]
    return {
        "prompt_ids": [prompts[row] for row in sorted(prompts)],
        "completions": [text for text, _ in ordered],
        "rewards": [reward for _, reward in ordered],
    }
