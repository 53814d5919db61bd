"""The tiny policy: its own tokenizer and a Qwen2 of about a million parameters, warmed up on demonstrations.

It makes the whole system run with no download: the embedded default. It is deliberately unfinished, so that there is
something left to learn, and part of its reasoning ignores the state, so that input dependence is there to be lost.

Invariants:

- The folder is a standard Hugging Face folder; it appears whole or not at all (built beside, then renamed).
- Weights follow from (recipe, seed, environment), to the byte, whatever the number of torch's threads.
  `squelch_tiny.json` holds the digest of the three and of the first demonstrations, so that a folder is reused exactly
  while it would be rebuilt the same.
- The warm-up's loss covers demonstrated tokens only, predicted from exactly what a rollout would have been fed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional
from transformers import DynamicCache, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from actors.play.codec import ChatCodec
from envs.config import EnvironmentConfig
from envs.format import phrases, reads_words
from envs.registry import environment_class, resolved
from envs.settings import Settings
from envs.wording import DemonstrationQuality
from learner.warmup.demonstrations import Demonstration, encode, transcripts
from learner.warmup.tiny_tokenizer import make_byte_tokenizer, make_tokenizer, save_tokenizer, vocabulary

logger = logging.getLogger(__name__)

STAMP = "squelch_tiny.json"
DEMONSTRATION_SEED = 2_000_000_000
"""Seed of the first demonstrated task: apart from those of training and validation runs."""
NUM_FINGERPRINT = 16
"""Demonstrations whose texts enter the digest, so that a change of wording or dynamics rebuilds."""
NUM_VOCABULARY = {"words": 200, "bytes": 1000}
"""Demonstrations that the tokenizer is made from, beside the environment's own list of phrases."""
LOG_EVERY = 100
"""Optimizer steps between two lines of the log."""
SHARDS = 2
"""Parts of a batch computed side by side. Fixed, not the number of cores: the weights depend on it by rounding."""
POOL_BATCHES = 24
"""Batches' worth of demonstrations that are sorted by length together."""


class TinyRecipe(Settings):
    """How a tiny policy is built."""

    version: int = 1
    """Raised when the building itself changes."""
    width: int = Field(128, ge=16)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1)
    feed_forward: int = Field(384, ge=16)
    max_position: int = Field(1024, ge=128)
    """Longest sequence in tokens."""
    rope_theta: float = Field(100.0, gt=1)
    """Base of the rotary positions: low, because sequences are short and cells are found by their position."""
    vocabulary_multiple: int = Field(64, ge=1)
    byte_tokens: int = Field(1024, ge=320)
    """Tokens at most of a byte-level tokenizer; environments of a closed vocabulary have a token a word."""
    tokens: int = Field(1_000_000, ge=1)
    """Tokens of the warm-up, fed ones included, padding left out; every demonstration is seen once."""
    batch_tokens: int = Field(2048, ge=64)
    """Tokens of one optimizer step, padding included."""
    matrix_learning_rate: float = Field(6e-3, gt=0)
    """Muon's peak, for the layers' matrices, in AdamW's scale (updates matched in root mean square)."""
    learning_rate: float = Field(3e-3, gt=0)
    """AdamW's peak, for embeddings, norms and biases."""
    final_learning_rate: float = Field(0.1, ge=0, le=1)
    """Both fall along half a cosine to this share of their peak."""
    warmup_share: float = Field(0.03, ge=0, lt=1)
    """Share of the tokens in which the learning rates rise."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's."""
    weight_decay: float = Field(0.01, ge=0)
    """Muon's; AdamW's parameters do not decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    initial_std: float = Field(0.05, gt=0)
    """Standard deviation of the initial weights."""
    quality: DemonstrationQuality = DemonstrationQuality()


TEXT_RECIPE = TinyRecipe(max_position=2048, rope_theta=1000.0, tokens=1_200_000, batch_tokens=4096)
"""For environments of free text: longer sequences. They are to be trainable, not to be good."""

RECIPES: dict[str, TinyRecipe] = {
    # It reads the lake well and half the time does not look: what there is to learn is to reason about the state.
    "FrozenLake": TinyRecipe(
        tokens=1_400_000,
        quality=DemonstrationQuality(grounded=0.55, wrong_coordinates=0.05, random_plan=0.1, generic_random_plan=0.9),
    ),
    # Pushing takes more foresight than walking: more tokens, and fewer random plans among them.
    "Sokoban": TinyRecipe(
        tokens=3_400_000,
        quality=DemonstrationQuality(grounded=0.7, wrong_coordinates=0.05, random_plan=0.05, generic_random_plan=0.5),
    ),
    # Its episodes are the longest, so that a token costs most; it buys, well and badly, after fewer of them.
    "WebShop": TEXT_RECIPE.model_copy(update={"tokens": 800_000}),
}


@dataclass(frozen=True)
class TinyReport:
    """What a build took. All but `directory`, `reused` and `digest` are those of the build, also when reused."""

    directory: str
    reused: bool
    digest: str
    seconds: float
    seconds_demonstrations: float
    tokens: int
    optimizer_steps: int
    loss: float
    """Mean negative log-likelihood (nats) of a demonstrated token, over the last tenth of the steps."""
    num_parameters: int
    vocab_size: int


def recipe_for(environment: str) -> TinyRecipe:
    """The recipe of a registered environment; one without its own gets that of its kind of text."""
    words = reads_words(environment_class(environment))
    return RECIPES.get(environment, TinyRecipe() if words else TEXT_RECIPE)


def build_digest(environment: EnvironmentConfig, seed: int, recipe: TinyRecipe) -> str:
    """What the folder's content follows from: the settings, and the first demonstrations as text."""
    some = itertools.islice(transcripts(environment, recipe.quality, DEMONSTRATION_SEED + seed), NUM_FINGERPRINT)
    played = resolved(environment).model_dump(mode="json", include={"name", "options", "format"})
    content = [recipe.model_dump(mode="json"), seed, played, [one.texts() for one in some]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def build_tiny(
    directory: str | Path, environment: EnvironmentConfig, seed: int = 0, recipe: TinyRecipe | None = None
) -> TinyReport:
    """Build the tiny policy of an environment in `directory`, or reuse the one that is there and still the same.

    Raises ValueError when `directory` holds something else.
    """
    target, environment = Path(directory), resolved(environment)
    recipe = recipe or recipe_for(environment.name)
    digest = build_digest(environment, seed, recipe)
    if (found := _reusable(target, digest)) is not None:
        return found
    remove_abandoned(target.parent)
    building = building_path(target, os.getpid())
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        report = _build(building, target, environment, seed, recipe, digest)
        if (found := _reusable(target, digest)) is not None:
            return found  # another process was faster, and its folder may be in use
        if target.exists():
            shutil.rmtree(target)
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return report


def building_path(target: Path, process: int) -> Path:
    """Where a process of this machine fills a folder that is to become `target`."""
    return target.with_name(f".{target.name}.building-{socket.gethostname()}-{process}")


def remove_abandoned(folder: Path) -> None:
    """Removes what builds in `folder` left behind that were killed on this machine. Builds of other machines, which may
    share the folder, are left alone: whether they go on cannot be seen from here."""
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
        pass  # another user's
    return True


def _reusable(directory: Path, digest: str) -> TinyReport | None:
    """The report of the build in `directory` if it is the one asked for. ValueError as `_stamped`."""
    found = _stamped(directory)
    return found if found is not None and found.digest == digest else None


def _stamped(directory: Path) -> TinyReport | None:
    """The report of the build in `directory`, None when there is nothing; ValueError when there is something else."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return None
    if not (directory / STAMP).is_file():
        raise ValueError(f"{directory} exists and holds no {STAMP}: give a new folder, or one that a build left")
    report = json.loads((directory / STAMP).read_text())["report"]
    return TinyReport(**{**report, "directory": str(directory), "reused": True})


def _build(
    building: Path, target: Path, environment: EnvironmentConfig, seed: int, recipe: TinyRecipe, digest: str
) -> TinyReport:
    """Fill `building`; the report speaks of `target`."""
    start = time.perf_counter()
    codec = write_tokenizer(building, environment, seed, recipe)
    model = new_model(codec, recipe, seed)
    _write_configs(model, building)
    codec = ChatCodec(building)
    demonstrations = collect(codec, environment, seed, recipe.quality, recipe.tokens)
    collected = time.perf_counter()
    losses, tokens = warm_up(model, demonstrations, recipe, seed, codec.pad_id)
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
    stamp = {"environment": environment.model_dump(mode="json"), "seed": seed, "recipe": recipe.model_dump(mode="json")}
    (building / STAMP).write_text(json.dumps({"report": asdict(report), **stamp}, indent=2) + "\n")
    return report


def write_tokenizer(directory: Path, environment: EnvironmentConfig, seed: int, recipe: TinyRecipe) -> ChatCodec:
    """Write the environment's tokenizer and return the codec, which has checked that no word is missing."""
    played = environment_class(environment.name)
    words, known = reads_words(played), phrases(played, environment.format)
    count = NUM_VOCABULARY["words" if words else "bytes"]
    source = transcripts(environment, recipe.quality, DEMONSTRATION_SEED + seed)
    texts = [
        *known,
        *(text for one in itertools.islice(source, count) for text in one.texts()),
    ]
    if words:
        pieces = vocabulary([*texts, *(f" {text}" for text in known)])
        tokenizer = make_tokenizer(pieces, recipe.vocabulary_multiple)
    else:
        tokenizer = make_byte_tokenizer(texts, recipe.byte_tokens, recipe.vocabulary_multiple)
    save_tokenizer(tokenizer, directory)
    codec = ChatCodec(directory)
    codec.check(texts)
    return codec


def new_model(codec: ChatCodec, recipe: TinyRecipe, seed: int) -> Qwen2ForCausalLM:
    """An untrained model of the recipe's shape, float32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=codec.vocab_size,
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        intermediate_size=recipe.feed_forward,
        max_position_embeddings=recipe.max_position,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        tie_word_embeddings=True,
        initializer_range=recipe.initial_std,
        bos_token_id=None,
        eos_token_id=codec.stop_ids[0],
        pad_token_id=codec.pad_id,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def _write_configs(model: Qwen2ForCausalLM, directory: Path) -> None:
    """The configuration files, so that the codec reads the very folder that will be published."""
    model.config.save_pretrained(directory)
    ends, pad = model.config.eos_token_id, model.config.pad_token_id
    model.generation_config = GenerationConfig(eos_token_id=[ends], pad_token_id=pad, do_sample=True, top_k=0)
    model.generation_config.save_pretrained(directory)


def collect(
    codec: ChatCodec, environment: EnvironmentConfig, seed: int, quality: DemonstrationQuality, num_tokens: int
) -> list[Demonstration]:
    """Demonstrations of at least `num_tokens` tokens in total, each task demonstrated once."""
    found: list[Demonstration] = []
    total = 0
    for transcript in transcripts(environment, quality, DEMONSTRATION_SEED + seed):
        found.append(encode(codec, transcript))
        total += len(found[-1].token_ids)
        if total >= num_tokens:
            return found
    raise RuntimeError("demonstrations ended")


# --- the warm-up ---


def batches(
    demonstrations: list[Demonstration], batch_tokens: int, rng: np.random.Generator
) -> Iterator[list[Demonstration]]:
    """One pass over the demonstrations in random order, in batches of similar length.

    A batch holds at most `batch_tokens` tokens, padding included (one sequence longer than that is a batch alone).
    """
    order = rng.permutation(len(demonstrations))
    mean = sum(len(one.token_ids) for one in demonstrations) / len(demonstrations)
    pool_size = max(int(POOL_BATCHES * batch_tokens / mean), 1)
    for first in range(0, len(order), pool_size):
        pool = sorted((demonstrations[i] for i in order[first : first + pool_size]), key=lambda d: len(d.token_ids))
        cut: list[list[Demonstration]] = [[]]
        for one in pool:
            if (len(cut[-1]) + 1) * len(one.token_ids) > batch_tokens and cut[-1]:
                cut.append([])
            cut[-1].append(one)
        for index in rng.permutation(len(cut)):
            yield cut[index]


def shared_prefix(demonstrations: list[Demonstration]) -> int:
    """Number of leading tokens that all sequences have in common and that none demonstrates: the system message."""
    first = demonstrations[0]
    length = int(first.loss_mask.argmax()) - 1
    for one in demonstrations[1:]:
        same = one.token_ids[:length] == first.token_ids[: len(one.token_ids)][:length]
        length = length if same.all() else int(same.argmin())
    return length


def batch_loss(model: Qwen2ForCausalLM, batch: list[Demonstration], pad_id: int, prefix: int) -> torch.Tensor:
    """Mean negative log-likelihood (nats) of the batch's demonstrated tokens; a scalar.

    The first `prefix` tokens, the same in every row, go through the model once for the whole batch. Padding is on the
    right, where causal attention never looks, so no attention mask is needed.
    """
    width = max(len(one.token_ids) for one in batch)
    ids = np.full((len(batch), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(batch), width), dtype=bool)
    for row, one in enumerate(batch):
        ids[row, : len(one.token_ids)] = one.token_ids
        mask[row, : len(one.loss_mask)] = one.loss_mask
    tokens, wanted = torch.from_numpy(ids), torch.from_numpy(mask)[:, prefix + 1 :]
    cache = DynamicCache(config=model.config)
    if prefix:
        model.model(input_ids=tokens[:1, :prefix], past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(batch))
    hidden = model.model(input_ids=tokens[:, prefix:], past_key_values=cache, use_cache=True).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden[wanted])  # only where a token was demonstrated: under half of the positions
    return functional.cross_entropy(logits, tokens[:, prefix + 1 :][wanted])


def learning_rate_factor(progress: float, recipe: TinyRecipe) -> float:
    """Share of the peak learning rate at `progress` in [0, 1] of the tokens: a linear rise, then half a cosine."""
    if progress < recipe.warmup_share:
        return progress / recipe.warmup_share
    fall = min((progress - recipe.warmup_share) / (1 - recipe.warmup_share), 1.0)
    low = recipe.final_learning_rate
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * fall))


class Optimizer:
    """Muon for the layers' matrices, AdamW for the rest, on one schedule.

    With Muon the policy reads coordinates off the board after half the tokens that AdamW alone needs.
    """

    def __init__(self, model: Qwen2ForCausalLM, recipe: TinyRecipe) -> None:
        self._recipe = recipe
        matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
        chosen = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        decay, rate = recipe.weight_decay, recipe.matrix_learning_rate
        muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, ns_steps=4, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(rest, lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0)
        self._parts = ((muon, rate), (adam, recipe.learning_rate))
        self._parameters = [*matrices, *rest]

    def step(self, factor: float) -> None:
        """One clipped step at `factor` times the peak learning rates; clears the gradients."""
        torch.nn.utils.clip_grad_norm_(self._parameters, self._recipe.max_grad_norm)
        for part, peak in self._parts:
            for group in part.param_groups:
                group["lr"] = peak * factor
            part.step()
            part.zero_grad(set_to_none=True)


class Gradients:
    """Gradients of one batch, computed in `SHARDS` parts side by side, one torch thread each.

    Parts and their order are fixed, so the weights are the same bytes on any number of cores; and no part waits for
    another within an operation, which on busy cores costs torch's own threads more than they gain.
    """

    def __init__(self, model: Qwen2ForCausalLM, pad_id: int, prefix: int) -> None:
        self._model, self._pad_id, self._prefix = model, pad_id, prefix
        self._parameters = list(model.parameters())
        self._workers = ThreadPoolExecutor(SHARDS, initializer=torch.set_num_threads, initargs=(1,))

    def backward(self, batch: list[Demonstration]) -> float:
        """Set `.grad` of every parameter to the gradient of the batch's loss; returns the loss (nats)."""
        parts = [batch[shard::SHARDS] for shard in range(min(SHARDS, len(batch)))]
        counts = [int(sum(one.loss_mask.sum() for one in part)) for part in parts]
        shares = [count / sum(counts) for count in counts]
        losses, gradients = zip(*self._workers.map(self._part, parts, shares), strict=True)
        for parameter, *pieces in zip(self._parameters, *gradients, strict=True):
            parameter.grad = torch.stack(pieces).sum(0)
        return sum(losses)

    def _part(self, part: list[Demonstration], share: float) -> tuple[float, tuple[torch.Tensor, ...]]:
        loss = share * batch_loss(self._model, part, self._pad_id, self._prefix)
        return loss.item(), torch.autograd.grad(loss, self._parameters)

    def close(self) -> None:
        self._workers.shutdown()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Sets torch's threads to 1, and back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def warm_up(
    model: Qwen2ForCausalLM, demonstrations: list[Demonstration], recipe: TinyRecipe, seed: int, pad_id: int
) -> tuple[list[float], int]:
    """Train on every demonstration once; returns (loss of each optimizer step, tokens seen)."""
    optimizer, rng = Optimizer(model, recipe), np.random.default_rng(seed)
    total = sum(len(one.token_ids) for one in demonstrations)
    losses: list[float] = []
    seen = 0
    model.train()
    with one_torch_thread(), closing(Gradients(model, pad_id, shared_prefix(demonstrations))) as gradients:
        for batch in batches(demonstrations, recipe.batch_tokens, rng):
            losses.append(gradients.backward(batch))
            optimizer.step(learning_rate_factor(seen / total, recipe))
            seen += sum(len(one.token_ids) for one in batch)
            if len(losses) % LOG_EVERY == 0:
                logger.info("warm-up: %d of %d tokens, loss %.3f", seen, total, losses[-1])
    model.eval()
    return losses, seen
