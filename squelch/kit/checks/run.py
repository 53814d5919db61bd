"""All checks of a run's files: `squelch.check`. See the folder's head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from squelch.kit.base.errors import UserError
from squelch.kit.checks import advantages, groups, rewards, tokens
from squelch.kit.checks.claims import Claims, claims_of, claims_result, given_claims
from squelch.kit.checks.collected import Collected, collect
from squelch.kit.checks.encoding import coder_of, encoding_results, tokenizer_folder
from squelch.kit.checks.ends import ends_missing
from squelch.kit.checks.prompts import prompts_lost
from squelch.kit.checks.result import Result
from squelch.kit.checks.weights.rows import WeightRows
from squelch.kit.readers.step_views import StepViews

CHECKS: Mapping[str, Callable[[Collected, Claims], Result]] = {
    one.__name__: one
    for one in (
        groups.group_sizes,
        groups.mixed_groups,
        groups.equal_completions,
        groups.validation_leak,
        rewards.rewards_missing,
        rewards.failures_as_rewards,
        advantages.advantages,
        tokens.fed_tokens_learned,
        tokens.sampled_tokens_unlearned,
        tokens.logprobs_impossible,
    )
}
"""Those that need the files alone, by name."""


@dataclass(frozen=True)
class CheckResult:
    """What the checks of a run's files found.

    Attributes:
        results: one for each check, in the order of the catalogue.
        notes: what to know of the files.
        rows: rows of training that were read.
    """

    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()
    rows: int = 0
    claims: Claims = field(default_factory=Claims)

    @property
    def faults(self) -> list[Result]:
        """Those of verdict `fault`."""
        return [one for one in self.results if one.verdict == "fault"]


def check(
    files: str | PathLike[str],
    *,
    checkpoints: str | PathLike[str] | None = None,
    base: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    format: str | None = None,
    claims: Mapping[str, Any] | Sequence[str] = (),
    tokens: int | None = None,
    seed: int = 0,
) -> CheckResult:
    """Whether a run was what it seemed, by the files that its trainer wrote (docs/guide/check-a-run.md).

    Args:
        files: a file of samples, or a folder of them.
        checkpoints: the folder into which the trainer saved its checkpoints.
        base: the folder of the model that training began with, or of its tokenizer.
        data: a file of the prompts that were to be played.
        format: the trainer's format, where its columns do not show it.
        claims: what the run says of itself, as a mapping or as `NAME=VALUE`.
        tokens: how many tokens are scored under each checkpoint at most; None for 100,000.
        seed: of the samples of rollouts that are decoded or scored.

    Raises:
        ValueError: a file is damaged, of no known format, or holds no rows of a training.
    """
    try:
        return checked(
            Path(files),
            checkpoints=_path(checkpoints),
            base=_path(base),
            data=_path(data),
            name=format,
            claims=claims,
            tokens=tokens,
            seed=seed,
        )
    except UserError as error:
        raise ValueError(str(error)) from error


def _path(given: str | PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given)


def _with_weights(base: Path | None) -> Path | None:
    """The folder, if it holds a model and not a tokenizer alone."""
    return base if base is not None and any(base.glob("*.safetensors")) else None


def checked(
    path: Path,
    *,
    checkpoints: Path | None = None,
    base: Path | None = None,
    data: Path | None = None,
    name: str | None = None,
    claims: Mapping[str, Any] | Sequence[str] = (),
    tokens: int | None = None,
    seed: int = 0,
    views: StepViews | None = None,
) -> CheckResult:
    """As `check`; `views` takes the rows of training, for the findings. UserError for bad input."""
    made = claims_of(path, given_claims(claims))
    coder = coder_of(tokenizer_folder(base, checkpoints))
    weights = WeightRows(checkpoints, _with_weights(base), made, coder, most_tokens=tokens, seed=seed)
    decode, encode = (None, None) if coder is None else (coder.text, coder.ids)
    kept = {"prompts": data is not None, "views": views, "weights": weights}
    found = collect(path, name, seed=seed, decode=decode, encode=encode, **kept)
    if not found.rows:
        raise UserError(f"{path} holds no rows of a training")
    results = [claims_result(made), *(one(found, made) for one in CHECKS.values())]
    results += [ends_missing(found, made, coder), prompts_lost(found, made, data, decode)]
    results += [*encoding_results(found, coder), *weights.results()]
    return CheckResult(tuple(results), (*found.notes, *weights.notes), found.rows, made)
