"""Reward functions as users write them, good and bad."""

import asyncio
import os
import time

import numpy as np


def right(prompts, completions, answer, **columns):
    """TRL's signature: 1 where the completion holds the answer."""
    assert len(prompts) == len(completions) == len(columns["completion_ids"])
    return [float(wanted in _text(said)) for said, wanted in zip(completions, answer, strict=True)]


async def short(completions, **_):
    """Does not apply to long completions."""
    await asyncio.sleep(0.001)
    return np.array([None if len(_text(said)) > 20 else np.float32(1) for said in completions])


def nothing(completions, **_):
    return [None] * len(completions)


def raising(completions, **_):
    raise KeyError("verdict")


def hanging(completions, **_):
    time.sleep(60)


def ending(completions, **_):
    print("about to go", flush=True)
    os._exit(3)


def nan(completions, **_):
    return [float("nan")] * len(completions)


def words(completions, **_):
    return ["1.0"] * len(completions)


def one_text(completions, **_):
    return "1.0"


def too_few(completions, **_):
    return [1.0] * (len(completions) - 1)


def needs_more(completions, trainer_state):
    return [1.0] * len(completions)


def _text(said):
    return said if isinstance(said, str) else said[0]["content"]
