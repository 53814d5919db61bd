"""A TRL run at `/metrics`, under the names that a run of Squelch exports, so that its dashboards and alerts serve both
(`kit.api.metrics`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import squelch
from squelch.kit.api.metrics import REGISTRY
from squelch.kit.metrics.served import serve
from squelch.kit.metrics.settings import RecorderConfig

LOGGED_BY_TRL = {
    "loss": "learner/loss",
    "policy_loss": "learner/policy_loss",
    "grad_norm": "learner/grad_norm",
    "learning_rate": "learner/learning_rate",
    "entropy": "learner/entropy",
    "kl": "learner/kl",
    "clip_ratio/low_mean": "learner/clip_fraction_low",
    "clip_ratio/high_mean": "learner/clip_fraction_high",
    "reward": "reward_mean",
    "step_time": "seconds/step",
}
"""The flat key of each value that TRL logs and a run of Squelch exports."""


SEEN_IN_TRL = LOGGED_BY_TRL | {
    "completions/mean_length": "reasoning_length",
    "completions/clipped_ratio": "groups/cut",
    "frac_reward_zero_std": "groups/equal",
    "sampling/sampling_logp_difference/mean": "learner/mismatch_abs",
}
"""The flat key of each value that TRL logs and a finding is about. What it calls equal may be solved by all or none."""


def seen(logs: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a step, for the findings, from what TRL logged."""
    found = {key: float(logs[name]) for name, key in SEEN_IN_TRL.items() if logs.get(name) is not None}
    if logs.get("reward_std") is not None:
        found["reward_variance_mean"] = float(logs["reward_std"]) ** 2
    return found


class Endpoint:
    """The metrics of one TRL run, served on the ports of `squelch train`. ValueError if none is free."""

    def __init__(self, host: str, port: int | None, run: str, rule: str) -> None:
        settings = RecorderConfig(host=host, port=port)
        self._recorder = serve(settings, REGISTRY, squelch.__version__, run=run, environment="TRL", filter=rule)
        self._pending: dict[str, float] = {}

    @property
    def url(self) -> str:
        """The address that Prometheus scrapes."""
        return self._recorder.url

    def add(self, flat: Mapping[str, float]) -> None:
        """Keeps values of the present step for `step`."""
        self._pending |= flat

    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        """Exports what TRL logged at a step."""
        found = {key: logs[name] for name, key in LOGGED_BY_TRL.items() if logs.get(name) is not None}
        self._recorder.step(step, {key: float(value) for key, value in found.items()})

    def step(self, step: int, planned: int) -> None:
        """Exports a finished step, with what was kept for it."""
        self._recorder.step(step, {**self._pending, "total_steps": planned, "optimizer_steps": 1.0})
        self._pending = {}

    def close(self) -> None:
        """Says that training has ended, and stops listening."""
        self._recorder.set("squelch_run_ended", 1)
        self._recorder.close()
