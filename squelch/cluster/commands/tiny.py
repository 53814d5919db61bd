"""`squelch tiny`: builds the embedded tiny policy."""

from __future__ import annotations

import argparse

from squelch.kit.base.errors import as_user_error
from squelch.kit.process.terminal import say


def run(options: argparse.Namespace) -> int:
    """Builds the policy and prints its size and loss."""
    from safetensors import SafetensorError

    from squelch.envs.config import EnvironmentConfig
    from squelch.learner.warmup.tiny import build_tiny

    with as_user_error(ValueError, OSError, SafetensorError, about=options.directory):
        report = build_tiny(options.directory, EnvironmentConfig(name=options.env), options.seed)
    done = "already built" if report.reused else f"built in {report.seconds:.0f} s"
    say(f"{options.directory}: {done}, {report.num_parameters} parameters, loss {report.loss:.3f} nats per token")
    return 0
