"""Writes one demonstrated episode of each environment into docs/reference/episodes.md.

`python -m benchmarks.environments --write` replaces the text between two markers of that page.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.environments.own import demonstrator_of, own_environment
from squelch.envs.base import TextEnv
from squelch.envs.config import FormatConfig
from squelch.envs.episode import Episode, Message
from squelch.envs.format import well_formed
from squelch.envs.registry import environment_names
from squelch.envs.wording import DemonstrationQuality, PromptName
from squelch.kit.text.tags import THINK_OPEN

BEGIN, END = "<!-- episodes: begin -->", "<!-- episodes: end -->"
GOOD = DemonstrationQuality(grounded=1.0, wrong_coordinates=0.0, random_plan=0.0)
MAX_SEED = 200
NATURAL = ("FrozenLake", "Countdown")
"""Environments of which the page shows an episode in natural English, too."""


def episode_text(name: str, prompt: PromptName = "tiny") -> str:
    """The first validation episode that the demonstrator solves at its best quality, as the policy sees it."""
    last = ""
    for seed in range(MAX_SEED):
        last, solved = play(own_environment(name, "validation", None, prompt), seed)
        if solved:
            break
    return last


def play(env: TextEnv, seed: int) -> tuple[str, bool]:
    """Plays the episode of a seed; returns it as text, and whether it succeeded."""
    episode, rng = Episode(env, seed, 0, FormatConfig()), random.Random(seed)
    demonstrator, quality = demonstrator_of(env), GOOD.model_copy(update={"max_actions": env.max_actions_per_turn})
    lines = [_message(message) for message in episode.start()]
    while True:
        said = well_formed(*demonstrator.demonstrate(rng, quality))
        outcome = episode.act(said)
        lines.append(f"[policy]\n{THINK_OPEN}{said}")
        if outcome.next_message is None:
            end = "success" if outcome.success else "no success"
            return "\n".join([*lines, f"[end] reward {outcome.reward:.4g} in the last turn, {end}"]), outcome.success
        lines.append(_message(outcome.next_message))


def _message(message: Message) -> str:
    return f"[{message['role']}]\n{message['content']}"


def write_episodes(document: Path) -> None:
    """Replaces the text between the markers of the document; ValueError if they are missing."""
    text = document.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{document} holds no {BEGIN} and {END}, between which the episodes belong")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    episodes: list[tuple[str, PromptName]] = [
        *((name, "tiny") for name in environment_names()),
        *((name, "natural") for name in NATURAL),
    ]
    parts = [
        f"## {name}{'' if prompt == 'tiny' else ', natural'}\n\n````text\n{episode_text(name, prompt)}\n````\n"
        for name, prompt in episodes
    ]
    document.write_text(before + BEGIN + "\n\n" + "\n".join(parts) + "\n" + END + after)
