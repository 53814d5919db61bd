"""The rows of a supervised warm-up: training rows in their order, and held-out rows.

Invariants:

- The corpus depends only on the settings, the environment and the file: a warm-up that is continued, or repeated, sees
  the same rows in the same order.
- No row is held out and trained on. The environment's held-out demonstrations are of validation tasks, which are no
  training tasks; a conversation of a file that equals a held-out one is left out.
- Every row fits the context, and each of its turns the limit of a turn, so that a rollout could have sampled what is
  learned.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Mixture
from squelch.kit.records.content import Picture
from squelch.kit.untrusted.files import brief
from squelch.learner.batching import Row
from squelch.learner.warmup.chat_files import read_transcripts
from squelch.learner.warmup.demonstrations import Demonstration, Transcript, encode, mixed
from squelch.learner.warmup.settings import WarmupConfig
from squelch.learner.warmup.tiny import first_demonstration


@dataclass(frozen=True)
class Corpus:
    """Rows to train on and rows to hold out, as the codec of one model encodes them."""

    trained: tuple[Row, ...]
    held_out: tuple[Row, ...]
    num_left_out: int = 0
    """Conversations of the file that are not trained on, because they equal a held-out one."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the rows to train on, fed tokens included."""
        return sum(row.length for row in self.trained)

    def digest(self) -> str:
        """Digest of all rows, hexadecimal."""
        found = hashlib.sha256()
        for row in (*self.trained, *self.held_out):
            found.update(row.token_ids.tobytes() + row.positions.tobytes() + row.targets.tobytes())
            found.update("".join(f"{one.position} {one.digest} " for one in row.pictures).encode())
        return found.hexdigest()

    def num_steps(self, config: WarmupConfig) -> int:
        """Optimizer steps of the whole warm-up."""
        return config.epochs * -(-len(self.trained) // config.batch)

    def batch(self, step: int, config: WarmupConfig) -> list[Row]:
        """The rows of an optimizer step, which is counted from 1."""
        epoch, place = divmod(step - 1, -(-len(self.trained) // config.batch))
        order = np.random.default_rng([config.seed, epoch]).permutation(len(self.trained))
        return [self.trained[i] for i in order[place * config.batch : (place + 1) * config.batch]]


@dataclass(frozen=True)
class Limits:
    """The limits that a demonstration must fit, with their settings."""

    conversation: int
    """Most tokens of a conversation."""
    conversation_key: str
    turn: int
    """Most demonstrated tokens of a turn."""
    turn_key: str = "sampling.max_tokens_per_turn"


def make_corpus(
    codec: ChatCodec, environment: EnvironmentConfig | Mixture, config: WarmupConfig, limits: Limits
) -> Corpus:
    """Encodes the demonstrations of the environments, or those in the file `config.data`.

    Raises:
        ValueError: a conversation is malformed, too long, or cannot be encoded, or there are too few.
    """
    found, held_out = _from_file(config) if config.data else _from_environments(Mixture.of(environment), config)
    known = {_content(one) for one in held_out}
    trained = [one for one in found if _content(one) not in known]
    if not trained:
        raise ValueError(
            f"each of the {len(found) + len(held_out)} conversations of {config.data} equals one of the "
            f"model.warmup.held_out={config.held_out} that are held out; give different ones"
        )
    learned, held = _rows(codec, {"demonstration": trained, "held-out demonstration": held_out}, limits)
    return Corpus(learned, held, len(found) - len(trained))


def _content(one: Transcript) -> str:
    return repr((one.opening, one.turns))


def _from_environments(mixture: Mixture, config: WarmupConfig) -> tuple[list[Transcript], list[Transcript]]:
    first, qualities = first_demonstration(config.seed), [config.quality] * len(mixture.entries)
    trained = mixed(mixture, qualities, first)
    held_out = mixed(mixture, qualities, first, "validation")
    return list(itertools.islice(trained, config.demonstrations)), list(itertools.islice(held_out, config.held_out))


def _from_file(config: WarmupConfig) -> tuple[list[Transcript], list[Transcript]]:
    found = read_transcripts(Path(config.data))
    if len(found) <= config.held_out:
        raise ValueError(
            f"{config.data} holds {len(found)} conversations, of which model.warmup.held_out={config.held_out} are "
            "held out; give more, or lower that number"
        )
    order = np.random.default_rng([config.seed, len(found)]).permutation(len(found))
    return [found[i] for i in order[config.held_out :]], [found[i] for i in order[: config.held_out]]


def _rows(codec: ChatCodec, parts: Mapping[str, Sequence[Transcript]], limits: Limits) -> list[tuple[Row, ...]]:
    """The rows of each part. Lengths are compared over all parts, so that the longest is named."""
    named = [(name, number, one) for name, part in parts.items() for number, one in enumerate(part, 1)]
    conversations = [one for *_, one in named]
    encoded = [encode(codec, one) for one in conversations]
    names = [one.origin or f"{name} {number}" for name, number, one in named]
    _require_fit(names, [len(one.token_ids) for one in encoded], limits.conversation, limits.conversation_key)
    _require_fit(names, [_longest_turn(one) for one in encoded], limits.turn, limits.turn_key, " in a turn")
    for name, one in zip(names, conversations, strict=True):
        _require_known(name, codec.unknown_words(one.texts()))
    left = iter(encoded)
    return [tuple(_row(number, next(left)) for number in range(len(part))) for part in parts.values()]


def _require_known(name: str, unknown: Sequence[str]) -> None:
    if unknown:
        raise ValueError(
            f"{name} has words that the model's tokenizer has no tokens for: {brief(list(unknown))}; take a model "
            "whose tokenizer covers them, or other demonstrations"
        )


def _require_fit(names: Sequence[str], lengths: Sequence[int], most: int, key: str, where: str = "") -> None:
    number = int(np.argmax(lengths))
    if lengths[number] > most:
        raise ValueError(
            f"{names[number]} has {lengths[number]} tokens{where}, which exceeds {key}={most}; none has "
            f"more: raise {key} to that, or give shorter demonstrations"
        )


def _longest_turn(one: Demonstration) -> int:
    """Tokens of the longest demonstrated turn, end token included."""
    edges = np.flatnonzero(np.diff(one.loss_mask.astype(np.int8), prepend=0, append=0))
    return int(np.diff(edges)[::2].max())


def _row(number: int, one: Demonstration) -> Row:
    """The demonstration as a row of the learner; nothing that only a rollout knows is used."""
    said = np.flatnonzero(one.loss_mask)
    return Row(
        group_id=f"demonstration-{number:06d}",
        index=0,
        token_ids=one.token_ids[: said[-1]],
        positions=said - 1,
        targets=one.token_ids[said],
        log_probs=np.zeros(len(said), np.float32),
        pictures=tuple(Picture.of(at, picture) for at, picture in one.pictures if at < said[-1]),
        advantage=0.0,
        versions=np.full(len(said), -1, np.int64),
    )
