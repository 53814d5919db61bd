"""A miniature of the tiny policy, for tests; what the shipped recipes reach is measured by `benchmarks/tiny.py`."""

import itertools

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.learner.warmup.demonstrations import Demonstration, encode, transcripts
from squelch.learner.warmup.tiny_recipe import TinyRecipe

LAKE = EnvironmentConfig(name="FrozenLake")
SMALL = TinyRecipe(width=32, layers=2, heads=2, kv_heads=1, feed_forward=64, tokens=16_000, batch_tokens=512)


def demonstrations(codec: ChatCodec, count: int, first_seed: int = 0) -> list[Demonstration]:
    some = itertools.islice(transcripts(LAKE, SMALL.quality, first_seed), count)
    return [encode(codec, one) for one in some]
