"""The tiny policy: its own tokenizer and a Qwen2 of about a million parameters, warmed up on demonstrations.

It is the default model, with which the whole system runs without any download. The warm-up stops early on purpose, so
that RL has something to learn, and part of the demonstrated reasoning ignores the state, so that input dependence can
fall. `learner.warmup.demonstrations` makes the demonstrations and `learner.warmup.training` trains on them.

Invariants:

- The folder is a standard Hugging Face folder. It is built under a temporary name and then renamed, so that it is never
  incomplete.
- The weights depend only on (recipe, seed, environment), to the byte, for any number of torch threads.
  `squelch_tiny.json` holds a digest of these three and of the first demonstrations, so that a folder is reused exactly
  as long as a new build would equal it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter, ValidationError

from squelch.actors.play.codec import ChatCodec
from squelch.actors.process.stage import OnStage, ignore_stage
from squelch.envs.config import EnvironmentConfig
from squelch.envs.format import phrases, reads_words
from squelch.envs.mixture import Mixture
from squelch.envs.registry import environment_class, resolved
from squelch.kit.untrusted.files import MIB, read_bytes
from squelch.kit.untrusted.text import parse_object
from squelch.learner.refusal import SettingRefused
from squelch.learner.warmup.demonstrations import Demonstration, Transcript, encode, mixed
from squelch.learner.warmup.tiny_recipe import TinyRecipe, qualities_of, recipe_of
from squelch.learner.warmup.tiny_tokenizer import make_byte_tokenizer, make_tokenizer, save_tokenizer, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STAMP = "squelch_tiny.json"
DEMONSTRATION_SEED = 2_000_000_000
"""Seed of the first demonstrated task; training and validation use other seeds."""
SEED_STRIDE = 1_000_003
"""Between the first tasks of two seeds, more than any number of demonstrations, so that seeds share none."""
NUM_FINGERPRINT = 16
"""Demonstrations whose texts enter the digest, so that a change of wording or dynamics causes a rebuild."""
NUM_VOCABULARY = {"words": 200, "bytes": 1000}
"""Demonstrations that the tokenizer is built from, together with the environment's own list of phrases."""

COLLECTED = 0.07
"""Share of a build's time in which its demonstrations are collected."""
TOLD_EVERY = 64
"""Demonstrations between two words on how far the collection is."""


def first_demonstration(seed: int) -> int:
    """The seed of the first task that a warm-up of `seed` demonstrates."""
    return DEMONSTRATION_SEED + SEED_STRIDE * seed


@dataclass(frozen=True)
class TinyReport:
    """Report of a build. For a reused folder, the fields after `digest` describe the original build."""

    directory: str
    reused: bool
    digest: str
    seconds: float
    seconds_demonstrations: float
    tokens: int
    optimizer_steps: int
    loss: float
    """Mean negative log-likelihood (nats per demonstrated token) over the last tenth of the steps."""
    num_parameters: int
    vocab_size: int


def build_digest(environment: EnvironmentConfig | Mixture, seed: int, recipe: TinyRecipe) -> str:
    """Digest of everything that determines the folder's content: the settings, and the first demonstrations as text."""
    mixture = Mixture.of(environment)
    some = itertools.islice(_demonstrations(mixture, seed, recipe), NUM_FINGERPRINT)
    turns = {"format_penalty", "max_turns", "max_actions_per_turn"}  # the format's other settings are of other styles
    played = mixture.with_each(resolved).facts(include={"name": True, "options": True, "format": turns})
    shown = [[one.texts(), *one.identities()] if one.identities() else one.texts() for one in some]
    content = [recipe.model_dump(mode="json", exclude_none=True), seed, played, shown]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _demonstrations(mixture: Mixture, seed: int, recipe: TinyRecipe) -> Iterator[Transcript]:
    return mixed(mixture, qualities_of(mixture, recipe), first_demonstration(seed))


def build_tiny(
    directory: str | Path,
    environment: EnvironmentConfig | Mixture,
    seed: int = 0,
    recipe: TinyRecipe | None = None,
    on_stage: OnStage = ignore_stage,
) -> TinyReport:
    """Build the tiny policy of an environment, or of several, in `directory`, or reuse the one there if its digest is
    the same.

    Raises ValueError when `directory` is not empty and is not a tiny policy's folder, or if the environment's prompts
    are not in the style `tiny`.
    """
    target, mixture = Path(directory), Mixture.of(environment)
    for entry in mixture.entries:
        if entry.environment.prompt != "tiny":
            raise ValueError(
                f"{entry.key}.prompt={entry.environment.prompt} is for pretrained language models, and the tiny policy "
                f"reads no English; set {entry.key}.prompt=tiny or model.path to the folder of a language model"
            )
    mixture = mixture.with_each(resolved)
    recipe = recipe or recipe_of(mixture)
    digest = build_digest(mixture, seed, recipe)
    if (found := _reusable(target, digest)) is not None:
        return found
    remove_abandoned(target.parent)
    building = building_path(target, os.getpid())
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        report = _build(building, target, mixture, seed, recipe, digest, on_stage)
        if (found := _reusable(target, digest)) is not None:
            return found  # another process finished first, and its folder may be in use
        if target.exists():
            shutil.rmtree(target)
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return report


def building_path(target: Path, process: int) -> Path:
    """Temporary path at which a process of this machine builds the folder `target`."""
    return target.with_name(f".{target.name}.building-{socket.gethostname()}-{process}")


def remove_abandoned(folder: Path) -> None:
    """Removes the temporary folders of builds in `folder` whose processes were killed on this machine.

    Other machines may share the folder. Their temporary folders are kept, because this machine cannot tell whether
    those builds still run.
    """
    mine = f".building-{socket.gethostname()}"
    for left in folder.glob(".*.building-*") if folder.is_dir() else ():
        place, _, process = left.name.rpartition("-")
        if place.endswith(mine) and process.isdigit() and not _runs(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process exists and belongs to another user
    return True


def _reusable(directory: Path, digest: str) -> TinyReport | None:
    """The report of the build in `directory` if it has this digest, else None. Raises ValueError as `_stamped` does."""
    found = _stamped(directory)
    return found if found is not None and found.digest == digest else None


def _stamped(directory: Path) -> TinyReport | None:
    """The report of the build in `directory`; None when it is empty or missing. Raises ValueError for other content."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return None
    if not (directory / STAMP).is_file():
        raise ValueError(f"{directory} exists and holds no {STAMP}: give a new folder, or one that a build left")
    path = directory / STAMP
    report = parse_object(read_bytes(path, MIB), str(path)).get("report")
    fields = report if isinstance(report, dict) else {}
    try:
        return TypeAdapter(TinyReport).validate_python(fields | {"directory": str(directory), "reused": True})
    except ValidationError as error:
        raise ValueError(f"{path} describes no build ({error.errors()[0]['msg']}): remove {directory}") from error


def _build(
    building: Path, target: Path, mixture: Mixture, seed: int, recipe: TinyRecipe, digest: str, on_stage: OnStage
) -> TinyReport:
    """Build all files in the folder `building`; the report names `target` as the directory."""
    # Both import torch, which the start of a run whose policy is built already does not need.
    from squelch.learner.warmup.tiny_model import new_model, write_configs

    start = time.perf_counter()
    on_stage("collecting demonstrations", 0.0)
    codec = write_tokenizer(building, mixture, seed, recipe)
    model = new_model(codec, recipe, seed)
    write_configs(model, building)
    codec = ChatCodec(building)
    source = _demonstrations(mixture, seed, recipe)
    demonstrations = collect(codec, source, recipe.tokens, on_stage)
    collected = time.perf_counter()

    def trained(what: str, share: float | None) -> None:
        on_stage(what, COLLECTED + (1 - COLLECTED) * (share or 0.0))

    losses, tokens = _train(model, codec, mixture, seed, recipe, demonstrations, source, trained)
    model.save_pretrained(building)
    last = losses[-max(len(losses) // 10, 1) :]
    report = TinyReport(
        directory=str(target),
        reused=False,
        digest=digest,
        seconds=round(time.perf_counter() - start, 1),
        seconds_demonstrations=round(collected - start, 1),
        tokens=tokens,
        optimizer_steps=len(losses),
        loss=round(float(np.mean(last)), 4),
        num_parameters=sum(p.numel() for p in model.parameters()),
        vocab_size=codec.vocab_size,
    )
    stamp = {"environment": mixture.facts(), "seed": seed, "recipe": recipe.model_dump(mode="json")}
    (building / STAMP).write_text(json.dumps({"report": asdict(report), **stamp}, indent=2) + "\n")
    return report


def _train(
    model: PreTrainedModel,
    codec: ChatCodec,
    mixture: Mixture,
    seed: int,
    recipe: TinyRecipe,
    demonstrations: list[Demonstration],
    further: Iterator[Transcript],
    on_stage: OnStage,
) -> tuple[list[float], int]:
    """Trains on the demonstrations; (loss of each optimizer step, tokens seen). A policy that is shown pictures learns
    to see first, and if it does not read them, goes on once with as many `further` ones. Raises ValueError if it does
    not read them then."""
    from squelch.learner.warmup.sight import primer, true_claims
    from squelch.learner.warmup.training import warm_up

    pad, vision, tower = codec.pad_id, codec.vision, recipe.tower
    if tower is None:
        return warm_up(model, demonstrations, recipe, seed, pad, on_stage)
    first = first_demonstration(seed) + SEED_STRIDE // 2
    short = recipe.model_copy(update={"batch_tokens": tower.primer_batch_tokens})
    on_stage("learning to see", 0.0)
    warm_up(model, primer(codec, mixture, recipe.quality, first, tower.primer_tokens), short, seed, pad, vision=vision)
    losses, tokens = warm_up(model, demonstrations, recipe, seed, pad, on_stage, vision)
    share = true_claims(model, codec, mixture, first)
    if share is not None and share < tower.least_true:
        more, added = warm_up(model, collect(codec, further, recipe.tokens), recipe, seed, pad, on_stage, vision)
        losses, tokens, share = losses + more, tokens + added, true_claims(model, codec, mixture, first)
    if share is not None and share < tower.least_true:
        raise SettingRefused(
            f"the tiny policy for {mixture.name} does not read its pictures: {share:.0%} of what it says of them is "
            f"true after {tokens} tokens, and {tower.least_true:.0%} is needed; set another model.tiny_seed, or a "
            "larger model.tiny_tokens where it is set"
        )
    return losses, tokens


def write_tokenizer(
    directory: Path, environment: EnvironmentConfig | Mixture, seed: int, recipe: TinyRecipe
) -> ChatCodec:
    """Write the tokenizer of the environments and return its codec, after a check that the vocabulary covers every
    text. It has one token per word if every environment has a closed vocabulary."""
    mixture = Mixture.of(environment)
    chosen = [entry.environment for entry in mixture.entries]
    kinds = [environment_class(one.name) for one in chosen]
    words = all(map(reads_words, kinds))
    told = (phrases(kind, one.options, one.format) for kind, one in zip(kinds, chosen, strict=True))
    known = list(dict.fromkeys(itertools.chain.from_iterable(told)))
    count = NUM_VOCABULARY["words" if words else "bytes"] * len(chosen)
    texts = [
        *known,
        *(text for one in itertools.islice(_demonstrations(mixture, seed, recipe), count) for text in one.texts()),
    ]
    sees = recipe.tower is not None
    if words:
        pieces = vocabulary([*texts, *(f" {text}" for text in known)])
        tokenizer = make_tokenizer(pieces, recipe.vocabulary_multiple, sees)
    else:
        tokenizer = make_byte_tokenizer(texts, recipe.byte_tokens, recipe.vocabulary_multiple, sees)
    save_tokenizer(tokenizer, directory)
    codec = ChatCodec(directory)
    codec.check(texts)
    return codec


def collect(
    codec: ChatCodec, demonstrations: Iterator[Transcript], num_tokens: int, on_stage: OnStage = ignore_stage
) -> list[Demonstration]:
    """The first of the demonstrations that have at least `num_tokens` tokens in total."""
    found: list[Demonstration] = []
    total = 0
    for transcript in demonstrations:
        found.append(encode(codec, transcript))
        total += len(found[-1].token_ids)
        if len(found) % TOLD_EVERY == 0:
            on_stage("collecting demonstrations", COLLECTED * min(total / num_tokens, 1.0))
        if total >= num_tokens:
            return found
    raise RuntimeError("demonstrations ended")
