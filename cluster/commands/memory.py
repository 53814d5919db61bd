"""Prints the memory that one learner rank of a recipe needs, computed from shapes; no weights are read.

    python -m cluster.commands.memory RECIPE [KEY=VALUE ...]

The shapes are those of the model's folder, or the published shapes in `learner.shapes` for a known model name.
"""

import sys
from pathlib import Path

from transformers import PreTrainedConfig

from actors.model_folder import model_config
from cluster.config import load
from cluster.errors import UserError
from cluster.terminal import complain, say
from learner import memory
from learner.shapes import LLAMA_SHAPES, QWEN2_SHAPES, published

USAGE = "usage: python -m cluster.commands.memory RECIPE [KEY=VALUE ...]"


def estimate_line(recipe: str, overrides: list[str]) -> str:
    """The model's name and the bytes that one rank needs, by part. UserError if recipe or model cannot be read."""
    run = load(recipe, overrides)
    path = Path(run.model.path)
    config = _shape(path)
    needed = memory.estimate(config, run.learner, run.learner.ranks, run.gradients.every > 0)
    return f"{path.name}: {needed.line()}"


def _shape(path: Path) -> PreTrainedConfig:
    if path.name in QWEN2_SHAPES or path.name in LLAMA_SHAPES:
        return published(path.name)
    try:
        return model_config(path)
    except ValueError as error:
        known = ", ".join([*QWEN2_SHAPES, *LLAMA_SHAPES])
        raise UserError(f"model.path={path}: give a local Hugging Face folder, or one named {known}") from error


def main(arguments: list[str]) -> int:
    """Prints the estimate; returns 0, or 2 for bad input."""
    try:
        if not arguments:
            raise UserError(USAGE)
        say(estimate_line(arguments[0], arguments[1:]))
    except UserError as error:
        complain(str(error))
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
