"""Samples reasonings of a language model in the prompt style `natural`, for labelling by hand.

The rollout engine samples them, at two temperatures. Each is sampled after a few demonstrated turns of other tasks,
because a model that was not warmed up hardly follows the turn format without them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from squelch.actors.config import RolloutConfig
from squelch.actors.messages import GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.rollout.engine import VllmEngine
from squelch.envs.config import FormatConfig
from squelch.envs.contract import Demonstrator, require
from squelch.envs.episode import Episode, Message
from squelch.envs.format import THINK_CLOSE, THINK_OPEN, well_formed
from squelch.envs.registry import make
from squelch.envs.wording import TRUE_QUALITY

ENVIRONMENTS = ("FrozenLake", "Sokoban", "Countdown")
TEMPERATURES = (0.7, 1.0)
SHOWN = 3
"""Demonstrated turns before a reasoning."""
MAX_TOKENS = 48
FIRST_SEED = 3_000_000_000
SHOWN_SEED = 4_000_000_000
CONFIG = RolloutConfig(max_model_len=1536, max_num_seqs=64, kv_cache_gib=0.5, num_threads=2)


@dataclass(frozen=True)
class Sampled:
    """One reasoning, and the message that showed its state."""

    environment: str
    state: str
    reasoning: str


async def sampled(model_dir: str, each: int) -> list[Sampled]:
    """`each` reasonings of every environment, about the first validation tasks; half of them at each temperature."""
    codec = ChatCodec(model_dir)
    engine = VllmEngine("judge", model_dir, CONFIG, codec.stop_ids)
    await engine.start()
    try:
        tasks = [(name, k) for name in ENVIRONMENTS for k in range(each)]
        return await asyncio.gather(*(_sampled(codec, engine, name, k) for name, k in tasks))
    finally:
        await engine.stop()


async def _sampled(codec: ChatCodec, engine: VllmEngine, name: str, k: int) -> Sampled:
    state = asked(name, FIRST_SEED + k)
    ids = codec.first_turn([*demonstrated(name), state])
    temperature = TEMPERATURES[k % len(TEMPERATURES)]
    completion = await engine.complete(GenerationRequest(f"{name} {k}", ids, MAX_TOKENS, temperature, k))
    reasoning = codec.text(completion.token_ids).partition(THINK_CLOSE)[0]
    return Sampled(name, state["content"], reasoning.strip())


def demonstrated(name: str) -> list[Message]:
    """The system message, and `SHOWN` demonstrated turns of other tasks."""
    env, rng = make(name, "train", {}, "natural"), random.Random(name)
    demonstrator = require(name, env, Demonstrator, "demonstrated turns")
    messages: list[Message] = []
    for k in range(SHOWN):
        system, user = Episode(env, SHOWN_SEED + k, 0, FormatConfig()).start()
        turn = THINK_OPEN + well_formed(*demonstrator.demonstrate(rng, TRUE_QUALITY))
        messages += [*([] if messages else [system]), user, {"role": "assistant", "content": turn}]
    return messages


def asked(name: str, seed: int) -> Message:
    """The first user message of a task."""
    return Episode(make(name, "validation", {}, "natural"), seed, 0, FormatConfig()).start()[1]
