"""How a tiny policy learns to see, and whether it does.

Learning from demonstrations alone is all or nothing: without a start the policy never finds out what the tokens of a
picture mean, and learns to answer without them. So it first learns from short sequences, one picture and what the
demonstrator says of it, and afterwards what it says of pictures that it has not seen is judged.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from squelch.actors.play.codec import ChatCodec, Fed
from squelch.envs.contract import Judged, lacking
from squelch.envs.episode import Episode
from squelch.envs.mixture import Mixture
from squelch.envs.registry import environment_class, make
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.packed.vision import decoder
from squelch.kit.records.pictures import Picture, Shown
from squelch.kit.text.tags import THINK_CLOSE
from squelch.learner.warmup.demonstrations import Demonstration, Transcript, transcripts
from squelch.learner.warmup.inputs import inputs
from squelch.learner.warmup.tiny_recipe import shows_pictures

NUM_JUDGED = 128
"""Validation tasks whose first reasonings are judged."""
TEMPERATURE = 0.5
MOST_TOKENS = 48
"""Tokens of a reasoning that is judged."""


def _shown(transcript: Transcript) -> Iterator[tuple[tuple[Picture, ...], str]]:
    """The pictures before each turn, and what the demonstrator says there."""
    before = [transcript.opening[-1], *(message for _, message in transcript.turns if message is not None)]
    for message, (said, _) in zip(before, transcript.turns, strict=False):
        if isinstance(message["content"], Shown):
            yield message["content"].pictures, said


def primer(
    codec: ChatCodec, mixture: Mixture, quality: DemonstrationQuality, first_seed: int, num_tokens: int
) -> list[Demonstration]:
    """Short sequences of at least `num_tokens` tokens: pictures without any text, and what is said of them, which is
    true. `quality`: of the demonstrations, apart from that."""
    true = quality.model_copy(update={"grounded": 1.0, "wrong_coordinates": 0.0})
    seeing = [entry.environment for entry in mixture.entries if shows_pictures(entry.environment)]
    sources = [transcripts(environment, true, first_seed) for environment in seeing]
    end = np.array([codec.stop_ids[0]], dtype=np.int32)
    found, total = list[Demonstration](), 0
    for source in itertools.cycle(sources):
        for pictures, said in _shown(next(source)):
            fed = codec.first_fed([{"role": "user", "content": Shown(pictures)}])
            ids = np.concatenate([fed.ids, codec.encode(said), end])
            found.append(Demonstration(ids, np.arange(len(ids)) >= len(fed.ids), fed.pictures))
            total += len(ids)
        if total >= num_tokens:
            return found
    raise RuntimeError("no environment shows pictures")


def true_claims(model: PreTrainedModel, codec: ChatCodec, mixture: Mixture, first_seed: int) -> float | None:
    """Share of true claims, in [0, 1], in the first reasonings about validation tasks that show pictures; 0 if there is
    no claim, None if no such environment has a judge."""
    held, judged = list[bool](), False
    for entry in mixture.entries:
        kind = environment_class(entry.environment.name)
        if lacking(kind, Judged) or not shows_pictures(entry.environment):
            continue
        judge, judged = cast("type[Judged]", kind).judge(), True
        chosen = entry.environment
        env = make(chosen.name, "validation", chosen.options, chosen.prompt)
        tasks = range(first_seed, first_seed + NUM_JUDGED)
        fed = [codec.first_fed(Episode(env, seed, 0, chosen.format).start()) for seed in tasks]
        for one, said in zip(fed, reasonings(model, codec, fed), strict=True):
            facts = judge.facts(codec.text(one.ids), [picture for _, picture in one.pictures])
            held += [facts is not None and judge.holds(claim, facts) for claim in judge.claims(said)]
    return (float(np.mean(held)) if held else 0.0) if judged else None


def reasonings(model: PreTrainedModel, codec: ChatCodec, fed: Sequence[Fed]) -> list[str]:
    """A reasoning sampled after each prompt; the same ones for the same weights."""
    turns = sampled_turns(model, codec, fed, torch.Generator().manual_seed(0))
    return [codec.text(ids).partition(THINK_CLOSE)[0] for ids in turns]


@torch.no_grad()
def sampled_turns(
    model: PreTrainedModel, codec: ChatCodec, fed: Sequence[Fed], draws: torch.Generator
) -> list[np.ndarray]:
    """The ids of a turn sampled after each prompt at `TEMPERATURE`, up to its end, at most `MOST_TOKENS`."""
    by_length = defaultdict[int, list[int]](list)
    for index, one in enumerate(fed):
        by_length[len(one.ids)].append(index)
    found = [np.zeros(0, np.int32)] * len(fed)
    for indices in by_length.values():
        for index, ids in zip(indices, _sampled(model, codec, [fed[i] for i in indices], draws), strict=True):
            ends = np.flatnonzero(np.isin(ids, codec.stop_ids))
            found[index] = np.array(ids[: ends[0] + 1] if len(ends) else ids, np.int32)
    return found


def _sampled(model: PreTrainedModel, codec: ChatCodec, fed: Sequence[Fed], draws: torch.Generator) -> list[list[int]]:
    """The ids sampled after prompts of one length."""
    batch = [Demonstration(one.ids, np.zeros(len(one.ids), bool), one.pictures) for one in fed]
    tokens = torch.from_numpy(np.stack([one.ids for one in fed]).astype(np.int64))
    given = inputs(model, batch, tokens, codec.vision)
    arguments, cache = given.part(slice(None), slice(None)), DynamicCache(config=model.config.get_text_config())
    place = None if given.positions is None else given.positions[:, :, -1].amax(0)
    found: list[torch.Tensor] = []
    for _ in range(MOST_TOKENS):
        hidden = decoder(model)(**arguments, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
        shares = torch.softmax(model.get_submodule("lm_head")(hidden) / TEMPERATURE, -1)
        found.append(torch.multinomial(shares, 1, generator=draws))
        if place is None:
            arguments = {"input_ids": found[-1]}
            continue
        place = place + 1
        positions = place[None, :, None].expand(3, -1, 1)
        arguments = {"inputs_embeds": model.get_input_embeddings()(found[-1]), "position_ids": positions}
    return torch.cat(found, 1).tolist()
