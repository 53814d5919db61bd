"""Samples reasonings of a language model in the prompt style `natural`, for labelling by hand.

`python -m benchmarks.judge --sample MODEL_FOLDER --write FILE`. Every other reasoning is sampled after two
demonstrated turns of other tasks, because a model that was not warmed up hardly follows the turn format without them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.config import FormatConfig
from envs.episode import Episode, Message
from envs.format import THINK_CLOSE, THINK_OPEN, well_formed
from envs.registry import make
from envs.wording import QUALITIES

ENVIRONMENTS = ("FrozenLake", "Sokoban", "Countdown")
MAX_TOKENS = 64
BATCH = 12
FIRST_SEED = 3_000_000_000


@dataclass(frozen=True)
class Sampled:
    """One reasoning, and the message that showed its state."""

    environment: str
    state: str
    reasoning: str


def sampled(model_dir: str, each: int) -> list[Sampled]:
    """`each` reasonings of every environment, at T = 1; they depend on the model's weights alone."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    torch.manual_seed(0)
    found = []
    for name in ENVIRONMENTS:
        chats = [chat(name, FIRST_SEED + k, shown=2 * (k % 2)) for k in range(each)]
        for first in range(0, each, BATCH):
            batch = chats[first : first + BATCH]
            texts = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in batch]
            ids = tokenizer([text + THINK_OPEN for text in texts], return_tensors="pt", padding=True)
            with torch.inference_mode():
                out = model.generate(**ids, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MAX_TOKENS)
            said = tokenizer.batch_decode(out[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
            found += [
                Sampled(name, one[-1]["content"], text.partition(THINK_CLOSE)[0].strip())
                for one, text in zip(batch, said, strict=True)
            ]
    return found


def chat(name: str, seed: int, shown: int) -> list[Message]:
    """The first messages of the task `seed`, after `shown` demonstrated turns of other tasks."""
    env, rng = make(name, "validation", {}, "natural"), random.Random(seed)
    messages: list[Message] = []
    for k in range(1, shown + 1):
        system, user = Episode(env, seed + 1_000_000 * k, 0, FormatConfig()).start()
        turn = THINK_OPEN + well_formed(*env.demonstrate(rng, QUALITIES["natural"]))
        messages += [*([] if messages else [system]), user, {"role": "assistant", "content": turn}]
    system, user = Episode(env, seed, 0, FormatConfig()).start()
    return [*([] if messages else [system]), *messages, user]
