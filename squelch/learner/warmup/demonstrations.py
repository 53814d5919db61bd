"""Demonstrations: episodes that an environment's own demonstrator plays, as text and as training sequences.

Invariants:

- A demonstration is played through `envs.episode.Episode`, so its observations result from its own actions.
- The codec builds its sequence exactly like that of a rollout: it encodes each fed part and each sampled part
  separately, and every sampled part ends with the end token. The loss mask covers the sampled parts only.
- The demonstrator's text of the last allowed turn is recorded, but the environment is not stepped with it, because no
  further observation would be fed.
- Demonstrations depend only on (environment, seed, quality): the k-th demonstration is the same in every process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from squelch.actors.play.codec import ChatCodec, Fed, Message
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Demonstrator, Environment, require
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.mixture import Mixture
from squelch.envs.registry import make
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.records.content import PlacedPictures
from squelch.kit.records.pictures import Shown, text_of
from squelch.kit.records.splits import Split

_NOISE_SALT = 7_919
"""Added to the seed of the demonstrator's generator, so that its draws are not those of the task's own generator."""


@dataclass(frozen=True)
class Transcript:
    """One demonstration as text: `opening` messages, then per turn the demonstrator's text and the reply (or None).
    `origin`: the file and row that it comes from, if any."""

    opening: list[Message]
    turns: list[tuple[str, Message | None]]
    origin: str = ""

    def texts(self) -> list[str]:
        """Every text of the episode: the fed texts, then the demonstrator's."""
        return [*(text_of(message["content"]) for message in self.fed()), *(said for said, _ in self.turns)]

    def identities(self) -> list[str]:
        """The identity of every picture that is shown, in order."""
        contents = [message["content"] for message in self.fed()]
        return [picture.identity for content in contents if isinstance(content, Shown) for picture in content.pictures]

    def fed(self) -> list[Message]:
        """Every message of the episode that the demonstrator did not write, in order."""
        return [*self.opening, *(message for _, message in self.turns if message is not None)]


@dataclass(frozen=True)
class Demonstration:
    """One training sequence. `token_ids`: (length,) int32; `loss_mask`: (length,) bool, true at demonstrated tokens;
    `pictures`: each with the index of its first placeholder."""

    token_ids: np.ndarray
    loss_mask: np.ndarray
    pictures: PlacedPictures = ()


def play(env: Environment, environment: EnvironmentConfig, seed: int, quality: DemonstrationQuality) -> Transcript:
    """One demonstration of the task with this seed.

    Raises MissingCapabilityError when the environment has no demonstrator.
    """
    demonstrator = require(environment.name, env, Demonstrator, "a warm-up on its demonstrations")
    rng = np.random.default_rng([seed, _NOISE_SALT])
    episode = Episode(env, seed, int(rng.integers(2**31)), environment.format)
    opening: list[Message] = episode.start()
    turns: list[tuple[str, Message | None]] = []
    max_turns = environment.format.max_turns or env.max_turns
    max_actions = environment.format.max_actions_per_turn or env.max_actions_per_turn
    quality = quality.model_copy(update={"max_actions": min(quality.max_actions, max_actions)})
    for turn in range(1, max_turns + 1):
        said = well_formed(*demonstrator.demonstrate(rng, quality))
        message = episode.act(said).next_message if turn < max_turns else None
        turns.append((said, message))
        if message is None:
            break
    return Transcript(opening, turns)


def transcripts(
    environment: EnvironmentConfig, quality: DemonstrationQuality, first_seed: int, split: Split = "train"
) -> Iterator[Transcript]:
    """Yields demonstrations of the tasks `first_seed`, `first_seed + 1`, ... of a split, without end."""
    env = make(environment.name, split, environment.options, environment.prompt)
    seed = first_seed
    while True:
        yield play(env, environment, seed, quality)
        seed += 1


def mixed(
    mixture: Mixture, qualities: Sequence[DemonstrationQuality], first_seed: int, split: Split = "train"
) -> Iterator[Transcript]:
    """Yields demonstrations of the mixture's environments in the ratio of their weights, without end. `qualities`: one
    for each environment."""
    entries = zip(mixture.entries, qualities, strict=True)
    sources = [transcripts(entry.environment, quality, first_seed, split) for entry, quality in entries]
    return (next(sources[turn.entry]) for turn in map(mixture.schedule().turn, itertools.count()))


def encode(codec: ChatCodec, transcript: Transcript) -> Demonstration:
    """The token sequence that a rollout with these texts would have."""
    parts, sampled = [codec.first_fed(transcript.opening)], [False]
    end = np.array([codec.stop_ids[0]], dtype=np.int32)
    for said, message in transcript.turns:
        parts.append(Fed(np.concatenate([codec.encode(said), end])))
        sampled.append(True)
        if message is not None:
            parts.append(codec.next_fed(message, closed=True))
            sampled.append(False)
    mask = np.concatenate([np.full(len(part.ids), flag) for part, flag in zip(parts, sampled, strict=True)])
    whole = Fed.joined(parts)
    return Demonstration(whole.ids, mask, whole.pictures)
