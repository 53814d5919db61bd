"""`squelch tiny`: builds the embedded tiny policy."""

from __future__ import annotations

import argparse
from pathlib import Path

from squelch.kit.base.errors import as_user_error
from squelch.kit.commands.arguments import natural
from squelch.kit.process.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Builds a tokenizer and a small Qwen2 model, warms it up on the environment's demonstrations, and writes a "
        "Hugging Face folder. A folder built with the same settings is kept as it is."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--env", default="FrozenLake", help="environment of the demonstrations (default: %(default)s)")
    parser.add_argument(
        "--seed", type=natural, default=0, help="seed of weights and demonstrations (default: %(default)s)"
    )


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
