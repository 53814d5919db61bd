"""An agent that plays FrozenLake over OpenAI's client. An example of docs/guide/agents.md: copy it and change it.

It imports the game with its words, and knows of the policy only a base URL. As a command it is one process a
trajectory, as a function many trajectories share one:

    squelch train RECIPE environment.name=Agent environment.options.command='[python, frozen_lake_agent.py]'
    squelch train RECIPE environment.name=Agent environment.options.call=frozen_lake_agent.py:play
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI, BadRequestError

from squelch.envs.config import FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.registry import make

OPTIONS = {"max_distance": 4, "max_holes": 4}
"""Of the game, as in the recipe `frozenlake`."""


async def play(task: dict[str, Any], client: Any) -> dict[str, Any]:
    """Plays one task with the client of `environment.options.call`."""
    return await played(task, client.openai)


async def played(task: dict[str, Any], openai: AsyncOpenAI) -> dict[str, Any]:
    """Plays one task; the rewards and penalties are those of the calls, in their order."""
    game = Episode(make("FrozenLake", task["split"], OPTIONS), task["seed"], task["noise_seed"], FormatConfig())
    messages: list[Any] = list(game.start())
    rewards, penalties, success = [], [], False
    while True:
        try:
            reply = await openai.chat.completions.create(model="policy", messages=messages)
        except BadRequestError as error:
            if error.code != "context_length_exceeded" or not rewards:
                raise
            break
        choice = reply.choices[0]
        outcome = game.act(choice.message.content or "", choice.finish_reason == "length")
        rewards.append(outcome.reward)
        penalties.append(outcome.format_penalty)
        success = outcome.success
        if outcome.next_message is None:
            break
        messages += [choice.message, outcome.next_message]
    return {"rewards": rewards, "penalties": penalties, "success": success}


async def main() -> None:
    """Plays the task on standard input with the policy that the environment variables name."""
    async with AsyncOpenAI() as openai:
        print(json.dumps(await played(json.load(sys.stdin), openai)))


if __name__ == "__main__":
    asyncio.run(main())
