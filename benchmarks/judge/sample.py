"""Samples reasonings of a language model in the prompt style `natural`, for labelling by hand.

Each reasoning is sampled after a few demonstrated turns of other tasks, because a model that was not warmed up hardly
follows the turn format without them. The prompts of an environment have all but their state in common, so that part is
computed once for all of them.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from envs.config import FormatConfig
from envs.episode import Episode, Message
from envs.format import THINK_CLOSE, THINK_OPEN, well_formed
from envs.registry import make
from envs.wording import QUALITIES

ENVIRONMENTS = ("FrozenLake", "Sokoban", "Countdown")
TEMPERATURES = (0.7, 1.0)
SHOWN = 4
"""Demonstrated turns before a reasoning."""
MAX_TOKENS = 48
FIRST_SEED = 3_000_000_000
SHOWN_SEED = 4_000_000_000


@dataclass(frozen=True)
class Sampled:
    """One reasoning, and the message that showed its state."""

    environment: str
    state: str
    reasoning: str


class Sampler:
    """A model of a folder, in bfloat16."""

    def __init__(self, model_dir: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()

    def sample(self, name: str, temperature: float, first: int, count: int) -> list[Sampled]:
        """`count` reasonings about the validation tasks of an environment from the one numbered `first` on."""
        torch.manual_seed(first)
        opening = demonstrated(name)
        states = [asked(name, FIRST_SEED + k) for k in range(first, first + count)]
        texts = [self._rendered([*opening, state]) for state in states]
        cut = texts[0].rindex(states[0]["content"])
        prefix = self._ids(texts[0][:cut])
        rows = [self._ids(text[cut:]) for text in texts]
        said = self._continued(prefix, rows, temperature)
        return [
            Sampled(name, state["content"], text.partition(THINK_CLOSE)[0].strip())
            for state, text in zip(states, said, strict=True)
        ]

    @torch.inference_mode()
    def _continued(self, prefix: list[int], rows: list[list[int]], temperature: float) -> list[str]:
        """What the model says after the prefix and each row."""
        cache = DynamicCache()
        self._model(torch.tensor([prefix]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = copy.deepcopy(cache)
        cache.batch_repeat_interleave(len(rows))
        longest = max(map(len, rows))
        pads = [longest - len(row) for row in rows]
        ids = torch.tensor([[*prefix, *[0] * pad, *row] for pad, row in zip(pads, rows, strict=True)])
        mask = torch.ones_like(ids)
        for row, pad in zip(mask, pads, strict=True):
            row[len(prefix) : len(prefix) + pad] = 0
        settings: dict[str, Any] = {
            "do_sample": True,
            "temperature": temperature,
            "top_k": 0,
            "max_new_tokens": MAX_TOKENS,
        }
        out = self._model.generate(ids, attention_mask=mask, past_key_values=cache, pad_token_id=0, **settings)
        return self._tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)

    def _rendered(self, messages: list[Message]) -> str:
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text + THINK_OPEN

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


def demonstrated(name: str) -> list[Message]:
    """The system message, and `SHOWN` demonstrated turns of other tasks."""
    env, rng = make(name, "train", {}, "natural"), random.Random(name)
    system, _ = Episode(env, SHOWN_SEED, 0, FormatConfig()).start()
    messages: list[Message] = [system]
    for k in range(SHOWN):
        _, user = Episode(env, SHOWN_SEED + k, 0, FormatConfig()).start()
        turn = THINK_OPEN + well_formed(*env.demonstrate(rng, QUALITIES["natural"]))
        messages += [user, {"role": "assistant", "content": turn}]
    return messages


def asked(name: str, seed: int) -> Message:
    """The first user message of a task."""
    return Episode(make(name, "validation", {}, "natural"), seed, 0, FormatConfig()).start()[1]
