"""Functions of a user, as an agent's `call` names them."""

import asyncio
import json
import os
import runpy
import time
from pathlib import Path
from types import SimpleNamespace

GAME = Path(__file__).parents[3] / "docs" / "examples" / "frozen_lake_agent.py"

STARTED = 0


async def tells(task, client):
    """What it was given, and who plays how many at once."""
    global STARTED
    STARTED += 1
    await asyncio.sleep(0.2)
    said = f"{client.openai_base_url} {client.api_key} {task['seed']} {os.getpid()} {STARTED}"
    return {"reward": float(task["seed"]), "answer": said}


async def breaks(task, client):
    """Does what the seed says, after the others have begun."""
    await asyncio.sleep(0.3)
    if task["seed"] == 1:
        raise KeyError("no such tool")
    if task["seed"] == 2:
        raise SystemExit(5)
    if task["seed"] == 3:
        os._exit(7)
    if task["seed"] == 4:
        time.sleep(60)
    await asyncio.sleep(0.5)
    return {"reward": 1.0}


class Wrong(Exception):
    """What a framework of the user's raises."""


async def raises(task, client):
    """What the seed says."""
    await asyncio.sleep(0)
    raised = [KeyError("k"), IndexError("i"), json.JSONDecodeError("j", "", 0), Wrong("w"), OSError("o")]
    if task["seed"] == 6:
        raise SystemExit(1)
    if task["seed"] == 7:
        os._exit(1)
    raise raised[task["seed"] - 1]


async def odd_ones_end_the_process(task, client):
    """Calls the policy; a trajectory of an odd noise seed then ends the process that it shares with the others."""
    told = [{"role": "user", "content": "hi"}]
    await client.openai.chat.completions.create(model="policy", messages=told)
    await asyncio.sleep(0.3)
    if task["noise_seed"] % 2:
        os._exit(3)
    await asyncio.sleep(0.3)
    return {"reward": 1.0}


async def not_json(task, client):
    return {"reward": 1.0, "answer": object()}


async def surrogates(task, client):
    if task["seed"] == 2:
        raise ValueError("\ud800")
    return {"reward": 1.0, "answer": "\ud800" if task["seed"] == 1 else "fine"}


async def deaf(task, client):
    """Goes on after it was cancelled, if the seed says so."""
    while task["seed"] == 1:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
    await asyncio.sleep(0.1)
    return {"reward": float(os.getpid())}


def not_async(task, client):
    return {"reward": 1.0}


def right(completions, answer, **columns):
    return [float(said == wanted) for said, wanted in zip(completions, answer, strict=True)]


async def lake(task, client):
    """The example's game, whose reward is -1 where the noise seed is odd."""
    found = await runpy.run_path(str(GAME))["play"](task, client)
    return {"reward": -1.0, "success": False} if task["noise_seed"] % 2 else found


async def lake_with_side_calls(task, client):
    """The same, but for a call for a title before it, and an exception in place of the reward of -1."""
    title = [{"role": "user", "content": "Up Down Left Right"}]
    await client.openai.chat.completions.create(model="title", messages=title)
    found = await runpy.run_path(str(GAME))["play"](task, client)
    if task["noise_seed"] % 2:
        raise Wrong("the policy wrote prose")
    return found


async def frozen_lake_over_responses(task, client):
    """The example's game, whose calls go over the other API of the same package."""

    async def create(model, messages):
        items = [item for one in messages for item in (one.items if isinstance(one, SimpleNamespace) else [one])]
        answer = await client.openai.responses.create(model=model, input=items)
        message = SimpleNamespace(content=answer.output_text, items=[item.to_dict() for item in answer.output])
        finish = "length" if answer.status == "incomplete" else "stop"
        return SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason=finish)])

    chat = SimpleNamespace(completions=SimpleNamespace(create=create))
    return await runpy.run_path(str(GAME))["played"](task, SimpleNamespace(chat=chat))
