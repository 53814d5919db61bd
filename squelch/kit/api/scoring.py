"""`squelch.score`: whether the reasoning in samples depends on its input, under a live model (docs/guide/reasoning.md).

rows ──inputs, samples──▶ X, Z, A ──CrossScorer──▶ matrix ──information──▶ proxies, intervals ─┐
                             └──────answers──────▶ links ────────────────────────────────────▶ regime
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from squelch.kit.api.answers import Answers, read_answers, regime_of
from squelch.kit.api.completions import MARKERS, NO_ANSWER, UNCLOSED, Markers, where_of
from squelch.kit.api.evidence import EvidenceResult, evidenced
from squelch.kit.api.information import MIResult, measured
from squelch.kit.api.inputs import reader_of, rows_of
from squelch.kit.api.modality import by_modality
from squelch.kit.api.samples import Reasonings, at_most, notes_on, within_context
from squelch.kit.api.turns import Turns
from squelch.kit.diagnosis.completion import CompletionScores, completion_metrics
from squelch.kit.diagnosis.proxies import Compat, EmaState, Proxies, usable
from squelch.kit.diagnosis.regime import decided_by
from squelch.kit.diagnosis.templates import Template, gaps, ranked
from squelch.kit.diagnosis.uncertainty import Uncertainty
from squelch.kit.scoring.completion_scoring import score_completions
from squelch.kit.text.answer_start import Reasoning, other_ways

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer

UNLIKELY_NATS = 0.5
"""By how much H(Z|X) must exceed the logarithm of the vocabulary size before the model cannot have written the text. A
model with random weights is near that logarithm, and text that is encoded again lies a little above."""


class CannotHaveWritten(ValueError):
    """The model did not write the reasonings."""


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """What one step's samples say."""

    matrix: np.ndarray
    """(num_samples, num_prompts) float64: log p(Z_s | X_j), nats, summed over the tokens of Z_s."""
    samples: Reasonings
    """What was scored: `prompts`, `ids`, `texts`, `source` (the prompt of each reasoning), `rows` (the row of each),
    and `excluded`, the number of rows that were left out, by reason."""
    proxies: Proxies
    """As of `squelch.MIResult`; its excluded reasonings include the rows left out."""
    uncertainty: Uncertainty
    """As of `squelch.MIResult`."""
    regime: str
    """One of `kit.diagnosis.metrics.REGIMES`, without a judge: never `private_code`. Empty for whole completions, of
    which none is named."""
    templates: tuple[Template, ...]
    """The distinct reasonings, those that fit any prompt first; `gap` in nats per sequence."""
    fits_any: int
    """Reasonings that fit the other prompts as well as their own, or better."""
    answers: Answers | None
    """`links`: whether the answers follow from their reasonings (`metrics()["dependence"]` is D, nats per answer);
    `excluded`: answers left out, by reason. None if there are no answers, or with links=False."""
    notes: tuple[str, ...]
    """What to know before believing the rest."""
    modality: Mapping[str, float] | None = None
    """What the reasoning takes from its prompt's pictures, and from its text (`kit.scoring.modality_scoring`), NaN
    where unknown; None if prompts show no pictures, or it was not asked for."""
    completion: Mapping[str, float] | None = None
    """Of whole completions: how they depend on their prompts (`kit.diagnosis.completion`), where `proxies` are no MI of
    reasoning; else None."""

    @property
    def regime_reason(self) -> str:
        """What decided the regime, in words: what was measured, and against which floor."""
        if self.completion is not None:
            return "the completions are not divided, so that their dependence on prompts tells nothing of reasoning"
        links = self.answers.links if self.answers is not None else None
        metrics = self.metrics() | {"reasoned": self.samples.reasoned, "repeated": self.samples.repeated}
        return decided_by(self.regime, metrics, {} if links is None else links.metrics())

    def metrics(self) -> dict[str, float]:
        """The proxies with their intervals, as of `MIResult.metrics`; of whole completions, `completion`."""
        return (
            dict(self.completion) if self.completion is not None else MIResult(self.proxies, self.uncertainty).metrics()
        )


@overload
def score(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    completions: Sequence[Any] | None = None,
    *,
    scorer: Literal[True],
    reasonings: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    reasoning: Reasoning = "marked",
    markers: Markers | None = MARKERS,
    answer: str = "",
    max_prompts: int | None = None,
    token_budget: int = 16384,
    seed: int = 0,
) -> EvidenceResult: ...


@overload
def score(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    completions: Sequence[Any] | None = None,
    *,
    reasonings: Sequence[Any] | None = None,
    answers: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    turns: Turns = "first",
    tools: Sequence[Mapping[str, Any]] | None = None,
    reasoning: Reasoning = "marked",
    markers: Markers | None = MARKERS,
    answer: str = "",
    temperature: float = 1.0,
    compat: Compat = "paper",
    links: bool = True,
    max_prompts: int | None = None,
    token_budget: int = 16384,
    seed: int = 0,
    force: bool = False,
    scorer: Literal[False] = False,
) -> ScoreResult: ...


def score(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    completions: Sequence[Any] | None = None,
    *,
    reasonings: Sequence[Any] | None = None,
    answers: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    turns: Turns = "first",
    tools: Sequence[Mapping[str, Any]] | None = None,
    reasoning: Reasoning = "marked",
    markers: Markers | None = MARKERS,
    answer: str = "",
    temperature: float = 1.0,
    compat: Compat = "paper",
    links: bool = True,
    max_prompts: int | None = None,
    token_budget: int = 16384,
    seed: int = 0,
    force: bool = False,
    scorer: bool = False,
) -> ScoreResult | EvidenceResult:
    """Scores every reasoning under every prompt with a model, and the answers after the reasonings. `squelch score` is
    this function on a file. The model stays as it was (`squelch.kit.api`); the work is about num_samples * num_prompts
    forward passes of a reasoning, without gradients.

    Args:
        model: a causal language model of transformers with full attention, on its device; the weights that sampled the
            completions. It may be training, and wrapped (`kit.scoring.borrowed_model`).
        tokenizer: its fast tokenizer, or a processor that holds one. It is needed for ids too, to find the markers.
        prompts: one for each completion: text as fed to the model, or messages, or token ids.
        completions: text, or messages, or sampled token ids. Ids are exact and may follow any kind of prompt; text goes
            with text.
        reasonings: in place of `completions`: text or ids of the reasoning alone; prompts end where it begins.
        answers: with `reasonings` that are ids: ids from the closing of the reasoning to the end of the answer.
        masks: with completions that are ids of several turns: for each id 1 if the policy sampled it, 0 if it was fed
            (a tool's output). Without masks the chat template's own text says where turns end.
        turns: which turns of a completion are scored, `first` or `all`, each under all that was fed before it.
        tools: JSON schemas that the chat template shows in prompts that are messages.
        reasoning: where it lies in completions: `marked`, between markers; `before_answer`, from the turn's begin to
            that of its answer; `completion`: not known, so that only the completion's dependence on its prompt is
            measured, which is no MI of reasoning.
        markers: texts that open and close the reasoning; the opening may be in the prompt. None: as `completion`.
        answer: with `before_answer`: the text with which answers begin, such as `\\boxed{`, `####` or `Answer:`, or a
            regular expression of RE2 behind `re:`. The first occurrence counts.
        temperature: of the sampling, above 0.
        compat: as of `squelch.mi`.
        links: whether the answers are scored too.
        max_prompts: score a random sample of so many prompts; None: all.
        token_budget: most tokens forwarded at once.
        seed: of the resampling and of `max_prompts`.
        force: give the result even if the model cannot have written the reasonings.
        scorer: the model did not sample the completions, and nobody has the weights that did. The result then says
            whether the reasonings depend on their prompts as far as this model shows (`EvidenceResult`), and asks what
            only you can know. Give the first turns' completions and no `answers`, `temperature`, `compat`, `links` or
            `force`, which are about the sampling model.

    Raises:
        ValueError: a row is malformed or longer than what the tokenizer or the model can express, fewer than two
            prompts have a usable reasoning, the model finds the reasonings less likely than random tokens, or it
            cannot be scored (sharded, a sliding window, no causal model). Rows count from 0.
    """
    from squelch.kit.scoring.borrowed_model import borrowed
    from squelch.kit.scoring.cross_scoring import CrossScorer

    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    if scorer:
        given = {"answers": answers is not None, "temperature": temperature != 1, "compat": compat != "paper"}
        _refuse_with_scorer(turns, {**given, "links": not links, "force": force})
    where, rows = where_of(reasoning, markers, answer), rows_of(prompts, completions, reasonings, answers, masks)
    with borrowed(model) as own:
        config: Any = own.config.get_text_config()
        found = reader_of(tokenizer, config.vocab_size, where, turns, tools).read(rows)
        found = at_most(within_context(found, config.max_position_embeddings), max_prompts, seed)
        require_two_prompts(found)
        engine = CrossScorer(own, token_budget, temperature)
        if scorer:
            return evidenced(engine, found, seed)
        return scored(engine, found, compat=compat, links=links, seed=seed, force=force)


def _refuse_with_scorer(turns: Turns, given: Mapping[str, bool]) -> None:
    """Raises ValueError for later turns, and for `given` arguments that have no effect with a scorer."""
    if turns != "first":
        raise ValueError(
            "`scorer` takes first turns only: the prompt of a later turn holds what the same rollout wrote, so that "
            "the rows would not be independent"
        )
    if idle := [name for name, value in given.items() if value]:
        raise ValueError(f"`{idle[0]}` is about the model that sampled the completions, and `scorer` is not that model")


def scored(
    engine: CrossScorer,
    found: Reasonings,
    *,
    compat: Compat = "paper",
    links: bool = True,
    seed: int = 0,
    ema: EmaState | None = None,
    force: bool = True,
    modality: bool = False,
) -> ScoreResult:
    """The result of samples of two prompts or more; arguments as of `score` and `mi`. `modality`: whether what the
    reasoning takes from pictures and from text is scored too."""
    whole = _completions(engine, found) if found.whole else None
    answered = links and not found.whole and any(answer is not None for answer in found.answers)
    answers, matrix = read_answers(engine, engine.context_length, found, seed) if answered else (None, None)
    if matrix is None and whole is not None:
        matrix = whole.whole
    matrix = engine.matrix(found.prompts, found.ids, pictures=found.pictures or None) if matrix is None else matrix
    lengths = np.array([len(z) for z in found.ids])
    report = measured(usable(matrix, lengths, found.source), compat=compat, seed=seed, ema=ema)
    config: Any = engine.model.config.get_text_config()
    unlikely = _unlikely(report.proxies, config.vocab_size)
    if not force and _impossible(report, config.vocab_size):
        raise CannotHaveWritten(*unlikely)
    excluded = dict(found.excluded) | report.proxies.excluded
    gap = gaps(matrix, found.source)
    parts = by_modality(engine, found, matrix, seed) if modality and not found.whole else None
    verdicts = answers.links if answers else None, parts["text_alone"] if parts else math.nan
    return ScoreResult(
        matrix=matrix,
        samples=found,
        proxies=replace(report.proxies, excluded=excluded, num_excluded=sum(excluded.values())),
        uncertainty=report.uncertainty,
        regime="" if found.whole else regime_of(report.metrics(), found, *verdicts),
        templates=tuple(ranked(gap, found.source, found.texts, lengths, found.rows)),
        fits_any=int((gap <= 0).sum()),
        answers=answers,
        notes=(*found.notes, *notes_on(found), *unlikely),
        modality=parts,
        completion=None if whole is None else completion_metrics(whole, report.uncertainty, found.prompts, found.ids),
    )


def _completions(engine: CrossScorer, found: Reasonings) -> CompletionScores:
    weights = np.ones(len(found.prompts))
    return score_completions(engine, found.prompts, found.ids, found.source, weights, found.pictures or None)


def require_two_prompts(found: Reasonings, setting: str = "{}={}") -> None:
    """Raises ValueError with what was left out unless two prompts have a usable reasoning. `setting`: as of
    `other_ways`."""
    if len(found.prompts) > 1:
        return
    left_out = "; ".join(f"{reason}: {count}" for reason, count in found.excluded.items()) or "none"
    hint = ""
    if found.marked == 0:
        hint = f". No turn marks a reasoning (regime unmarked): {other_ways(found.asked, setting)}"
    elif not found.ids and found.excluded[UNCLOSED] > 0:
        hint = ". The markers say where a reasoning ends; choose those of the model's template"
    elif not found.ids and found.excluded[NO_ANSWER] > 0:
        hint = ". Give as `answer` the text with which answers begin"
    raise ValueError(
        f"{len(found.ids)} reasonings of {len(found.prompts)} distinct prompts can be scored, but a comparison needs "
        f"at least 2 prompts (intervals need 6). Excluded rows: {'. '.join([left_out + hint, *found.notes])}"
    )


def _unlikely(found: Proxies, vocab_size: int) -> list[str]:
    """A note if the model finds the reasonings less likely than random tokens."""
    bound = math.log(vocab_size)
    if found.conditional_entropy is None or found.conditional_entropy < bound:
        return []
    return [
        f"H(Z|X) is {found.conditional_entropy:.2f} nats per token, above {bound:.2f}, the logarithm of the vocabulary "
        "size: the model finds these reasonings less likely than random tokens, so it did not write them, or not with "
        "this tokenizer and prompt format"
    ]


def _impossible(report: MIResult, vocab_size: int) -> bool:
    """Whether chance does not explain it either."""
    found, interval = report.proxies.conditional_entropy, report.uncertainty.intervals.get("conditional_entropy")
    bound = math.log(vocab_size)
    return found is not None and interval is not None and interval.low > bound and found > bound + UNLIKELY_NATS
