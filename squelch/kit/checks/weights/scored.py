"""Scores the drawn rows under every checkpoint, in float32.

One model is loaded at a time. Which tokens belong to the head of a distribution is decided by the first candidate and
is the same for all. This module loads torch and transformers; everything else of the checks goes without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.checks.weights.data import HEAD, HEAD_MASS, Candidate, Sample, Scores, TokenScores
from squelch.kit.checks.weights.likelihood import NODE_TEMPERATURES
from squelch.kit.models.adapter_folder import CONFIG, checkpoint_of, load_checkpoint
from squelch.kit.readers.weights import WeightsRule
from squelch.kit.scoring.cross_scoring import CrossScorer
from squelch.kit.untrusted.files import Unreadable, is_file

TOKEN_BUDGET = 16384
TOO_LONG = "longer than the model's context"
UNKNOWN_ID = "a token id outside the model's vocabulary"
PICTURES = "shows pictures, which are not fed here"
PLACEHOLDERS = ("image_token_id", "video_token_id")
"""Settings of a model that name the ids at which pictures stand."""


def candidates_in(folder: Path | None, rule: WeightsRule, base: Path | None = None) -> list[Candidate]:
    """The checkpoints of a trainer's folder, by number, and the initial model before them, if `base` is given or the
    checkpoints are adapters whose base is found. Of a checkpoint's folder without a model, the first folder in it that
    has one counts."""
    found = {} if folder is None else rule.checkpoints(folder)
    places = {number: _with_model(path) for number, path in found.items()}
    candidates = [
        Candidate(number, rule.name(number), path, adapter=is_file(path / CONFIG))
        for number, path in sorted(places.items())
        if path is not None
    ]
    if base is None and (adapter := next((one.path for one in candidates if one.adapter), None)) is not None:
        with suppress(Unreadable):  # scoring it says what is wrong
            base = checkpoint_of(adapter).model
    if base is None:
        return candidates
    return [Candidate(rule.first - 1, "the initial model", base, initial=True), *candidates]


def score(
    samples: Sequence[Sample],
    candidates: Sequence[Candidate],
    temperature: float | None = None,
    *,
    base: Path | None = None,
) -> Scores:
    """The samples' scores under every candidate, on a GPU if there is one.

    Args:
        samples: as `Draw.samples` gives them.
        candidates: of `candidates_in`.
        temperature: the claimed one.
        base: folder of the base model of adapters.

    Raises:
        UserError: a model cannot be loaded or scored with.
    """
    temperatures = (1.0,) if temperature is None or temperature == 1 else (1.0, float(temperature))
    left_out: Counter[str] = Counter()
    kept, heads, tokens = list(samples), [], []
    for candidate in candidates:
        scorer = _scorer(candidate, base)
        if not tokens:
            config = scorer.model.config.to_dict()
            shown = [config[name] for name in PLACEHOLDERS if name in config]
            kept = [one for one in samples if not (reason := _unfit(one, scorer, shown)) or left_out.update([reason])]
            heads = [_Head.of(_logits(scorer, one)) for one in kept]
        with as_user_error(ValueError, about=candidate.name):
            tokens.append([_scored(scorer, *pair, temperatures) for pair in zip(kept, heads, strict=True)])
        del scorer
    return Scores(kept, candidates, temperatures, tokens, dict(left_out))


class _Head(NamedTuple):
    """The likeliest tokens at each place of a completion: (num_tokens, HEAD) ids and whether they belong to the
    head."""

    ids: Tensor
    inside: Tensor

    @classmethod
    def of(cls, blocks: Iterable[tuple[Tensor, Tensor]]) -> _Head:
        ids, inside = [], []
        for logits, _ in blocks:
            size = min(HEAD, logits.shape[1])
            top = logits.log_softmax(-1).topk(size, dim=-1)
            mass = top.values.exp()
            ids.append(top.indices)
            inside.append(mass.cumsum(-1) - mass < HEAD_MASS)
        return cls(torch.cat(ids), torch.cat(inside))


def _scored(scorer: CrossScorer, sample: Sample, head: _Head, temperatures: Sequence[float]) -> TokenScores:
    start, nodes, exact, above, inside, places = 0, [], [], [], [], []
    for logits, targets in _logits(scorer, sample):
        own = logits.gather(1, targets[:, None])[:, 0]
        nodes.append(torch.stack([_log_prob(logits, own, float(one)) for one in NODE_TEMPERATURES]))
        exact.append(torch.stack([_log_prob(logits, own, one) for one in temperatures]))
        masses = (logits / temperatures[-1]).softmax(-1)
        above.append((masses * (logits > own[:, None])).sum(-1))
        part = slice(start, start + len(targets))
        ids, belongs = head.ids[part], head.inside[part]
        values = logits.gather(1, ids)
        values = values - values.amax(-1, keepdim=True)
        inside.append(values.masked_fill(~belongs, -torch.inf))
        matches = (ids == targets[:, None]) & belongs
        places.append(torch.where(matches.any(-1), matches.int().argmax(-1), -1))
        start += len(targets)
    return TokenScores(
        torch.cat(nodes, 1).double().cpu().numpy(),
        torch.cat(exact, 1).double().cpu().numpy(),
        torch.cat(above).double().cpu().numpy(),
        torch.cat(inside).cpu().numpy(),
        torch.cat(places).cpu().numpy(),
    )


def _logits(scorer: CrossScorer, sample: Sample) -> Iterable[tuple[Tensor, Tensor]]:
    """The logits of a sample's sampled tokens, and these, in blocks."""
    mask = torch.from_numpy(sample.mask).to(scorer.device)
    ids, start = torch.from_numpy(sample.completion.astype(np.int64)).to(scorer.device), 0
    for logits in scorer.token_logits(sample.prompt, sample.completion):
        part = slice(start, start + len(logits))
        start += len(logits)
        if mask[part].any():
            yield logits[mask[part]], ids[part][mask[part]]


def _log_prob(logits: Tensor, own: Tensor, temperature: float) -> Tensor:
    return own / temperature - (logits / temperature).logsumexp(-1)


def _unfit(sample: Sample, scorer: CrossScorer, shown: Sequence[int]) -> str:
    """Why a sample cannot be scored; empty if it can. `shown`: ids that stand for pictures."""
    if sample.cost > scorer.context_length:
        return TOO_LONG
    if np.isin(sample.prompt, shown).any() or np.isin(sample.completion, shown).any():
        return PICTURES
    largest = max(int(sample.prompt.max()), int(sample.completion.max()))
    smallest = min(int(sample.prompt.min()), int(sample.completion.min()))
    known = int(scorer.model.config.get_text_config().vocab_size)
    return "" if smallest >= 0 and largest < known else UNKNOWN_ID


def _scorer(candidate: Candidate, base: Path | None) -> CrossScorer:
    assert candidate.path is not None, "a candidate of a folder"
    chosen = "cuda" if torch.cuda.is_available() else "cpu"
    with as_user_error(ValueError, OSError, about=str(candidate.path)):
        checkpoint = checkpoint_of(candidate.path, base if candidate.adapter else None)
        model: Any = load_checkpoint(checkpoint, torch.float32)
        try:
            return CrossScorer(model.to(chosen), TOKEN_BUDGET)
        except RuntimeError as error:  # a GPU without room
            raise UserError(f"{candidate.path} on {chosen}: {str(error).splitlines()[0]}") from error


def _with_model(path: Path) -> Path | None:
    """The folder itself, or the first one in it, with a model or an adapter; None if there is none."""
    places = [path, *(one.parent for name in ("config.json", CONFIG) for one in sorted(path.glob(f"**/{name}")))]
    return next((one for one in places if is_file(one / "config.json") or is_file(one / CONFIG)), None)
