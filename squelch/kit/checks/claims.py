"""What a run claims of itself: from the caller's options, or from the trainer's own settings beside the data. Pure.

A trainer's settings are YAML or TOML; a pickle of them is never opened. Keys are looked up by their end, since trainers
nest them differently: `actor_rollout_ref.rollout.n` and `rollout.n` are one. An option has precedence.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from squelch.kit.base.errors import UserError, did_you_mean
from squelch.kit.checks.result import Result
from squelch.kit.untrusted.files import MIB, is_file, read_bytes
from squelch.kit.untrusted.text import parse_yaml

CONFIGS = ("config.yaml", ".hydra/config.yaml", "config.yml", "orch.toml", "rl.toml", "config.toml")
"""Settings that trainers keep with their output."""
DTYPES = {
    **{name: name for name in ("float32", "bfloat16", "float16")},
    **{"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32"},
}
"""Names of precisions, by what settings call them."""
ABOVE = 3
"""Folders above the data in which they are looked for."""
MAX_CONFIG = MIB
LONGEST_LINE = 2_000
"""Characters of a line of TOML: Python's parser takes time with the square of a dotted key's length."""
KEYS: Mapping[str, tuple[str, ...]] = {
    "group_size": (
        "actor_rollout_ref.rollout.n",
        "grpo.num_generations_per_prompt",
        "gconfig.n_samples",
        "generator.n_samples_per_prompt",
        "orchestrator.rollouts_per_example",
        "rollouts_per_example",
        "num_generations",
        "sampling.group_size",
        "n_samples_per_prompt",
    ),
    "temperature": (
        "actor_rollout_ref.rollout.temperature",
        "policy.generation.temperature",
        "gconfig.temperature",
        "generator.sampling_params.temperature",
        "sampling.temperature",
        "rollout.temperature",
        "rollout_temperature",
    ),
    "top_p": (
        "actor_rollout_ref.rollout.top_p",
        "policy.generation.top_p",
        "gconfig.top_p",
        "generator.sampling_params.top_p",
        "sampling.top_p",
        "rollout_top_p",
    ),
    "top_k": (
        "actor_rollout_ref.rollout.top_k",
        "policy.generation.top_k",
        "generator.sampling_params.top_k",
        "rollout_top_k",
    ),
    "min_p": ("generator.sampling_params.min_p",),
    "dtype": ("actor_rollout_ref.rollout.dtype", "policy.generation.vllm_cfg.precision", "rollout.dtype"),
    "max_tokens": (
        "actor_rollout_ref.rollout.response_length",
        "data.max_response_length",
        "policy.generation.max_new_tokens",
        "gconfig.max_new_tokens",
        "generator.sampling_params.max_generate_length",
        "sampling.max_tokens",
        "sampling.max_completion_tokens",
        "rollout_max_response_len",
        "max_completion_length",
    ),
    "stop_strings": (
        "policy.generation.stop_strings",
        "gconfig.stop",
        "generator.sampling_params.stop",
        "sampling.stop",
        "rollout_stop",
    ),
    "max_staleness": (
        "async_training.staleness_threshold",
        "rollout.max_head_offpolicyness",
        "grpo.async_grpo.max_trajectory_age_steps",
        "max_off_policy_steps",
        "loop.max_staleness",
    ),
    "dynamic_sampling": ("algorithm.filter_groups.enable", "grpo.use_dynamic_sampling", "dynamic_sampling"),
    "advantage": (),
    "reward_weights": ("reward_weights",),
}
"""Of each claim, the trainers' settings that say it, by the ends of their dotted keys."""
SYNC_EVERY = ("async_training.trigger_parameter_sync_step",)
"""verl's steps from one sync of weights to the next; its staleness counts syncs."""
BOOLEANS = {"true": True, "false": False}
EVALUATIONS = frozenset({"eval", "evaluation", "val", "validation"})
"""Parts of a dotted key whose settings are not those of training."""
NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "group_size": (1, math.inf, True),
    "temperature": (1e-3, math.inf, False),
    "top_p": (1e-3, 1, False),
    "top_k": (-math.inf, math.inf, True),
    "min_p": (0, 1, False),
    "max_tokens": (1, math.inf, True),
    "max_staleness": (0, math.inf, True),
    "sync_every": (1, math.inf, True),
}
"""The smallest and the largest value of a claim, and whether it is a whole number. Below them sampling is greedy, whose
log-probabilities are no temperature's."""


@dataclass(frozen=True)
class Claims:
    """What is claimed; None where nothing is. `sources`: where each is from."""

    group_size: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """At most 0 where it is off."""
    min_p: float | None = None
    dtype: str | None = None
    """In which the engine computes: one of `DTYPES`."""
    max_tokens: int | None = None
    """New tokens of a turn, at most; of all turns where a trainer limits these."""
    stop_strings: bool | None = None
    """Whether a stop string may end a turn."""
    max_staleness: int | None = None
    dynamic_sampling: bool | None = None
    advantage: str | None = None
    """The name of a rule of `advantages.RULES`."""
    reward_weights: tuple[float, ...] | None = None
    """By the rewards' names in the order of the file."""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> dict[str, Any]:
        """Those that are made."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "sources"}
        return {name: value for name, value in found.items() if value is not None}


def given_claims(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Claims as a mapping, or of the form NAME=VALUE. UserError for an unknown name or a value of another kind."""
    pairs = given.items() if isinstance(given, Mapping) else (word.split("=", 1) for word in given)
    found: dict[str, Any] = {}
    for name, value in ((name, *rest, "")[:2] for name, *rest in pairs):
        word = f"{name}={value}"
        if name not in KEYS or value in ("", None):
            known = ", ".join(KEYS)
            raise UserError(f"--claim {word}: {did_you_mean(name, list(KEYS))}give NAME=VALUE; names: {known}")
        if (read := _value(name, value)) is None:
            raise UserError(f"--claim {word}: {value!r} is no value of {name}")
        found[name] = read
    return found


def claims_of(path: Path, given: Mapping[str, Any]) -> Claims:
    """The caller's claims, and those of settings in the data's folder or in one of the three above it."""
    found, sources = dict(given), {name: "given" for name in given}
    for file in _configs(path):
        flat = _settings(file)
        for name, keys in KEYS.items():
            if name not in found and (value := _find(flat, name, keys)) is not None:
                found[name], sources[name] = value, file.name
                if name == "max_staleness":
                    found[name] = (value + 1) * (_find(flat, "sync_every", SYNC_EVERY) or 1) - 1
    return Claims(**found, sources=sources)


def claims_result(claims: Claims) -> Result:
    """What is known of the claims, as the first line of the results."""
    if not claims.known:
        needs = "--claim NAME=VALUE, or the trainer's settings (config.yaml) in the folder of its files"
        return Result("claims", "unknown", "Nothing says what the run claims of its sampling", needs=needs)
    text = ", ".join(f"{name} {value} ({claims.sources[name]})" for name, value in claims.known.items())
    return Result("claims", "sound", f"The run claims: {text}", of=len(claims.known))


def _configs(path: Path) -> Iterator[Path]:
    place = path if path.is_dir() else path.parent
    for _ in range(1 + ABOVE):
        yield from (place / name for name in CONFIGS if is_file(place / name))
        if place == place.parent:
            return
        place = place.parent


def _settings(file: Path) -> dict[str, Any]:
    """The settings in a file by dotted key; none if it cannot be read, as it may be another program's."""
    try:
        text = read_bytes(file, MAX_CONFIG).decode()
        return dict(_flat(_toml(text) if file.suffix == ".toml" else parse_yaml(text, str(file))))
    except (ValueError, RecursionError):  # of these are Unreadable, and the errors of both parsers
        return {}


def _toml(text: str) -> dict[str, Any]:
    if any(len(line) > LONGEST_LINE for line in text.splitlines()):
        raise ValueError(f"a line has more than {LONGEST_LINE} characters")
    return tomllib.loads(text)


def _flat(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _flat(one, f"{before}.{key}" if before else str(key))
    else:
        yield before, value


def _find(flat: Mapping[str, Any], name: str, keys: Sequence[str]) -> Any:
    """The value of the first of the keys that the settings have."""
    for key in keys:
        for own, value in flat.items():
            is_key = own == key or own.endswith(f".{key}")
            if is_key and not EVALUATIONS & set(own.split(".")) and (read := _value(name, value)) is not None:
                return read
    return None


def _value(name: str, value: Any) -> Any:
    """A claim's value as its kind; None if it is none."""
    try:
        if name == "reward_weights":
            weights = tuple(float(one) for one in (value.split(",") if isinstance(value, str) else value))
            return weights if all(map(math.isfinite, weights)) else None
        if name == "dynamic_sampling":
            return BOOLEANS.get(str(value).lower())
        if name == "stop_strings":
            return None if value is None else BOOLEANS.get(str(value).lower(), bool(value))
        if name == "advantage":
            return str(value)
        if name == "dtype":
            return DTYPES.get(str(value).removeprefix("torch."))
        low, high, is_whole = NUMBERS[name]
        number = float(value)
        number = math.ceil(number) if name == "max_staleness" else number  # verl's is a share of a batch
    except (TypeError, ValueError, OverflowError):
        return None
    if not (low <= number <= high and math.isfinite(number)) or (is_whole and number != int(number)):
        return None
    return int(number) if is_whole else number
