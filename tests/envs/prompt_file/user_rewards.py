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


ONE_AT_A_TIME = asyncio.Semaphore(1)
TASKS = []
ENDED = []


async def one_at_a_time(completions, **_):
    """Binds the module's semaphore to the first loop that waits for it."""

    async def one():
        async with ONE_AT_A_TIME:
            await asyncio.sleep(0.001)
            return 1.0

    return await asyncio.gather(*(one() for _ in completions))


async def shares_a_task(completions, **_):
    """Awaits what the first group began."""
    if not TASKS:
        TASKS.append(asyncio.ensure_future(asyncio.sleep(0.001, 1.0)))
    return [await TASKS[0] for _ in completions]


def runs_a_loop(completions, **_):
    return asyncio.run(one_more(completions))


def uses_the_current_loop(completions, **_):
    return asyncio.get_event_loop().run_until_complete(one_more(completions))


async def one_more(completions, **_):
    await asyncio.sleep(0.001)
    return [1.0] * len(completions)


async def patient(completions, **_):
    try:
        await asyncio.sleep(60)
    finally:
        ENDED.append("patient")


async def late(completions, **_):
    await asyncio.sleep(0.001)
    raise KeyError("late")


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
