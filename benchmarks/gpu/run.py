"""Two steps of the demo whose learner rank and vLLM engine share the GPU, after a very short warm-up on the CPU.

The figures are the seconds of the last step and its parity figures: the mean difference in log-probability (nats)
between learner and engine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.common import Place
from squelch.cluster.config import load
from squelch.learner.warmup.tiny import build_tiny
from squelch.learner.warmup.tiny_recipe import recipe_for

TOKENS = 60_000
STEPS = 2
SHARE = 0.3
"""Share of the GPU for each of the two."""


def measure(place: Place) -> Iterator[dict[str, Any]]:
    """The seconds of a step, once the run has ended."""
    recipe = recipe_for("FrozenLake").model_copy(update={"tokens": TOKENS})
    model = place.folder / "tiny"
    build_tiny(model, load("frozenlake").environment, 0, recipe)
    cuda = place.device == "cuda"
    share = SHARE if cuda else 0
    settings = {
        "name": "gpu",
        "runs_dir": place.folder,
        "model.path": model,
        "loop.steps": STEPS,
        "loop.prompts": 4,
        "sampling.group_size": 8,
        "learner.ranks": 1,
        "learner.num_gpus": share,
        "rollout.num_gpus": share,
        "rollout.kv_cache_gib": 0.25,
        "rollout.max_num_seqs": 64,
        "scorer.enabled": "false",
        "validation.every": 0,
        "recorder.port": 0,
        "recorder.report": "false",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    done = subprocess.run(
        [sys.executable, "-m", "squelch.cluster.cli", "train", "frozenlake", *words], stdout=sys.stderr, check=False
    )
    if done.returncode:
        raise RuntimeError(f"squelch train ended with {done.returncode}; its output is above")
    lines = (place.folder / "gpu" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    yield {name: value for name, value in last.items() if name.startswith(("seconds/", "mismatch", "rollout/parity"))}
