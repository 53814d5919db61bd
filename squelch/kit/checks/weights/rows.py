"""From a file's rows to the samples whose weights are checked, and from these to results. Pure until rows are scored.

Which checkpoints a row claims: those of the versions that its engine recorded, where the format counts versions as it
counts checkpoints; else that of its step, or of as many steps before as staleness is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from squelch.kit.base.errors import UserError
from squelch.kit.base.package import needs_extra
from squelch.kit.checks.fed_tokens import numbers_of
from squelch.kit.checks.result import Result
from squelch.kit.checks.weights.data import MOST_TOKENS, Draw, Sample, WeightClaims
from squelch.kit.checks.weights.verdicts import CHECKPOINTS, check_weights
from squelch.kit.readers.format import Format, Traits
from squelch.kit.readers.format_rows import Row, is_ids, marks_of
from squelch.kit.readers.weights import WeightsRule

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from squelch.kit.checks.claims import Claims

CHARACTERS = 4
"""Of a token, about."""
TRAINERS = "files of a trainer that numbers its checkpoints, or token ids"


class Encoder(Protocol):
    """The part of `encoding.Coder` that is used here."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Encodes texts."""
        ...

    def rendered(self, conversations: Sequence[tuple[Sequence[Mapping[str, Any]], Any]]) -> list[list[int] | None]:
        """The ids of each conversation, which is messages and the schemas of their tools; None for one without."""
        ...


class WeightRows:
    """Takes the rows of one pass and gives the results of `verdicts.check_weights`.

    Args:
        checkpoints: the folder of the trainer's checkpoints; None if there is none.
        base: the folder of the model that training began with.
        claims: of the run.
        coder: encodes the texts of rows without ids, and renders messages; None leaves them out.
        most_tokens: that are scored under each checkpoint; None for `MOST_TOKENS`.
        seed: of the draw.
    """

    def __init__(
        self,
        checkpoints: Path | None,
        base: Path | None,
        claims: Claims,
        coder: Encoder | None = None,
        *,
        most_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        self._checkpoints, self._base, self._claims, self._coder = checkpoints, base, claims, coder
        self._most_tokens, self._seed = most_tokens or MOST_TOKENS, seed
        self._rule: WeightsRule | None = None
        self._staleness = 0
        self._traits = Traits()
        self._unrendered: dict[str, tuple[Any, Any]] = {}
        """Messages and tools of prompts, by the sample's row."""
        self._draw: Draw | None = None
        self.notes: list[str] = []
        """What to know of the results, once they are made."""

    def offer(self, row: Row, where: str, found: Format | None, learned: Row | None = None) -> None:
        """Takes a row of training that did not fail and whose content was read. UserError if no
        checkpoint is where the user says. `learned`: what the row's function of
        that name gives."""
        if self._checkpoints is None and self._base is None and (learned is None or learned.get("trained") is None):
            return
        if self._draw is None:
            self._begin(found)
        assert self._draw is not None, "begun"
        name = f"{where}, turn {row['turn']}" if row.get("turn") else where
        if not self._draw.wants(row.get("step"), self._claimed(row)[0], name):
            return
        if (sample := self._sample(row, name, learned)) is not None:
            self._draw.add(sample)

    def results(self) -> list[Result]:
        """What the checks say; UserError if a checkpoint cannot be loaded."""
        own = self._claims
        claims = WeightClaims(own.temperature, cuts_tail(own), own.dtype, own.max_staleness)
        samples = self._samples()
        if self._checkpoints is None and self._base is None:
            return check_weights(None, claims, CHECKPOINTS, samples)
        if not samples or self._rule is None:
            needs = TRAINERS if self._coder else f"{TRAINERS}, or a tokenizer in --base DIR"
            return check_weights(None, claims, needs, samples)
        with needs_extra("score", "scoring rows under weights"):
            from squelch.kit.checks.weights.scored import candidates_in, score

        candidates = candidates_in(self._checkpoints, self._rule, self._base)
        if not candidates:
            return check_weights(None, claims, f"{CHECKPOINTS} with models in them", samples)
        scores = score(samples, candidates, claims.temperature, base=self._base)
        self.notes += [f"not scored, {reason}: {count}" for reason, count in sorted(scores.left_out.items())]
        return check_weights(scores, claims, f"rows that the model can score ({'; '.join(self.notes)})")

    def _begin(self, found: Format | None) -> None:
        if found is not None:
            self._rule, self._traits = found.checkpoints_rule, found.traits
            self._staleness = found.traits.staleness
        if self._claims.max_staleness is not None:
            self._staleness = self._claims.max_staleness
        saved = set[int]()
        if self._rule is not None and self._checkpoints is not None:
            saved |= self._rule.checkpoints(self._checkpoints).keys()
            if not saved:
                named = f"no folder in it is named {self._rule.folder}, as this trainer's are"
                raise UserError(f"--checkpoints {self._checkpoints}: {named}")
        if self._rule is not None and self._base is not None:
            saved.add(self._rule.first - 1)
        self._draw = Draw(saved, self._most_tokens, self._seed)

    def _claimed(self, row: Row) -> tuple[tuple[int, int] | None, bool]:
        """The oldest and the newest checkpoint that a row claims, and whether by recorded versions."""
        if self._rule is None:
            return None, False
        initial, versions = self._rule.first - 1, row.get("versions")
        if self._traits.versions_are_checkpoints and versions and None not in versions:
            first, last = (max(initial, self._rule.sampled_by(one)) for one in versions)
            return (min(first, last), max(first, last)), True
        if (step := row.get("step")) is None:
            return None, False
        newest = self._rule.sampled_by(step)
        return (max(initial, newest - self._staleness), max(initial, newest)), False

    def _sample(self, row: Row, name: str, learned: Row | None) -> Sample | None:
        """The row as a sample; None without ids, or texts that can be encoded. A prompt of messages is `_unrendered`
        until all are rendered at once."""
        prompt, completion = row.get("prompt_ids"), row.get("completion_ids")
        exact, fed = isinstance(completion, list), isinstance(prompt, list)
        said = row.get("prompt")
        if self._coder is not None:
            encode = self._coder.tokenizer.encode
            if not exact and isinstance(row.get("completion"), str):
                completion = encode(row["completion"], add_special_tokens=False).ids
            if not fed and isinstance(said, str):
                prompt = encode(said, add_special_tokens=self._traits.raw_prompts).ids
            if not fed and _are_messages(said):
                self._unrendered[name] = said, row.get("tools")
                prompt = [0] * (1 + len(str(said)) // CHARACTERS)
        if not (prompt and is_ids(prompt) and completion and is_ids(completion)):
            return None
        engine = _numbers(row.get("logprobs"), len(completion)) if exact else None
        engine = None if engine is None else np.where(engine == 0, np.nan, engine)  # what trainers write for fed tokens
        engine = None if engine is None or not np.isfinite(engine).any() else engine
        claimed, recorded = self._claimed(row)
        return Sample(
            name,
            row.get("step"),
            (row.get("step"), row["rollout"]) if row.get("rollout") is not None else name,
            np.array(prompt, dtype=np.int32),
            np.array(completion, dtype=np.int32),
            self._sampled(row, completion) if engine is None else np.isfinite(engine),
            claimed,
            recorded,
            engine,
            _trained(learned, prompt, completion) if exact else None,
            exact,
            fed,
        )

    def _sampled(self, row: Row, ids: list[int]) -> np.ndarray | None:
        """Which ids the policy sampled, by the row's mask. Without one, those up to the end of the first turn, which a
        control token marks: a tool's text may follow. None for all."""
        mask = row.get("completion_mask")
        if isinstance(mask, list) and len(mask) == len(ids):
            return np.frombuffer(marks_of(mask), bool)
        place = next((place for place, one in enumerate(ids) if place and one in self._control), len(ids) - 1)
        return None if place == len(ids) - 1 else np.arange(len(ids)) <= place

    @cached_property
    def _control(self) -> frozenset[int]:
        """Ids of the tokenizer's control tokens."""
        if self._coder is None:
            return frozenset()
        added = self._coder.tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, one in added.items() if one.special)

    def _samples(self) -> list[Sample]:
        """What was drawn, with every prompt rendered; without those that no template renders."""
        drawn = [] if self._draw is None else self._draw.samples()
        waiting = [one for one in drawn if one.row in self._unrendered]
        if not waiting or self._coder is None:
            return drawn
        rendered = self._coder.rendered([self._unrendered[one.row] for one in waiting])
        prompts = {one.row: ids for one, ids in zip(waiting, rendered, strict=True)}
        return [
            replace(one, prompt=np.array(prompts.get(one.row, one.prompt), dtype=np.int32))
            for one in drawn
            if prompts.get(one.row, one.prompt) is not None
        ]


def cuts_tail(claims: Claims) -> bool | None:
    """Whether distributions were cut, by what is claimed; None if that does not say."""
    cuts = (claims.top_p, 1.0), (claims.top_k, None), (claims.min_p, 0.0)
    known = [value for value, _ in cuts if value is not None]
    if (claims.top_p or 1) < 1 or (claims.top_k or 0) > 0 or (claims.min_p or 0) > 0:
        return True
    return False if len(known) == len(cuts) else None


def _are_messages(said: Any) -> bool:
    return isinstance(said, list) and bool(said) and all(isinstance(one, dict) and "role" in one for one in said)


def _numbers(values: Any, count: int) -> np.ndarray | None:
    """(count,) float64, NaN for None; None where these are no numbers of as many tokens."""
    found = numbers_of(values)
    return found if found is not None and len(found) == count else None


def _trained(learned: Row | None, prompt: list[int], completion: list[int]) -> np.ndarray | None:
    """The trainer's own log-probabilities of a completion, where the rollout has them and begins with it."""
    if learned is None or not isinstance(learned.get("trained"), list):
        return None
    ids, start, end = learned["ids"], len(prompt), len(prompt) + len(completion)
    if list(ids[start:end]) != completion or len(learned["trained"]) != len(ids):
        return None
    return _numbers(list(learned["trained"][start:end]), len(completion))
