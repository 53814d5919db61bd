"""Runs one actor of `benchmarks.memory` in this process, and prints its peak and its estimate, GiB.

python -m benchmarks.memory.actor_worker '{"role": "rank" | "scorer" | "engine", "quick": false, ...}'

The other keys are settings of the actor.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import GIB, SMOLLM, alone, shape_of, steps_of, write_model
from squelch.actors.config import RolloutConfig, ScorerConfig
from squelch.actors.messages import GenerationRequest
from squelch.actors.model_counts import model_size

GROUPS, GROUP_SIZE, PROMPT, ANSWER = 4, 8, 100, 48
"""Work like that of Countdown; lengths in tokens."""
TOKEN_BUDGET = 1024
RANK = {"token_budget": TOKEN_BUDGET, "minibatches": 2, "num_threads": 2}
ENGINE = {"max_model_len": 512, "max_num_seqs": 32, "kv_cache_gib": 0.5, "num_threads": 2}
IN_FLIGHT = 32


def status_gib(name: str, pid: int | str = "self") -> float:
    """A metric of /proc/PID/status, GiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024 / GIB


def summary(before: float, measured: float, net_estimate: float, allowance: float) -> dict[str, float]:
    """The printed metrics, GiB. `before`: resident memory before the actor's model was made."""
    net = measured - before
    return {"measured": measured, "estimate": net_estimate + allowance, "net": net, "net_estimate": net_estimate}


def rank(folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    """Two training steps of a learner rank."""
    from benchmarks.learner.random_work import random_groups
    from squelch.cluster.commands.plan_memory import RANK_RUNTIME_GIB
    from squelch.learner import memory
    from squelch.learner.config import LearnerConfig
    from squelch.learner.trainer import Trainer

    alone("cpu")
    config = LearnerConfig.model_validate(RANK | settings)
    shape = json.loads((folder / "config.json").read_text())
    groups = random_groups(GROUPS, GROUP_SIZE, PROMPT, ANSWER, shape["vocab_size"])
    gc.collect()
    before = status_gib("VmRSS")
    trainer = Trainer(folder, config)
    list(steps_of(trainer, groups, 2))
    estimate = memory.estimate(trainer.policy.model.config, config, 1).total / GIB
    return summary(before, status_gib("VmHWM"), estimate, RANK_RUNTIME_GIB)


def scorer(folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    """Eight prompts with eight reasonings each, scored by the actor's own model, one prompt a pass and packed."""
    from benchmarks.cross_scoring.work import random_rows
    from squelch.actors.scorer import memory
    from squelch.actors.scorer.actor import load_model
    from squelch.kit.scoring.cross_scoring import CrossScorer

    config = ScorerConfig.model_validate(settings)
    gc.collect()
    before = status_gib("VmRSS")
    model = load_model(str(folder), config)
    size = model_size(model)
    prompts, reasonings = (random_rows(count, tokens, size.vocabulary, 0) for count, tokens in ((8, 100), (64, 40)))
    scorer = CrossScorer(model, config.token_budget)
    scorer.matrix(prompts, reasonings)
    scorer.columns = "packed"
    scorer.matrix(prompts, reasonings)
    allowance = memory.RUNTIME / GIB
    return summary(before, status_gib("VmHWM"), memory.estimate(size, config) / GIB - allowance, allowance)


def engine(folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    """32 sequences that fill their context, by vLLM behind the rollout worker's adapter."""
    from transformers import AutoConfig

    from squelch.actors.rollout import memory
    from squelch.actors.rollout.engine import VllmEngine
    from squelch.learner.memory import skeleton

    config = RolloutConfig.model_validate(ENGINE | settings)
    size = model_size(skeleton(AutoConfig.from_pretrained(folder)))
    before = status_gib("VmRSS")
    measured = asyncio.run(sampled(VllmEngine("memory", folder, config, []), config, size.vocabulary))
    estimate, allowance = memory.estimate(size, config), memory.RUNTIME[False] / GIB
    cache_gib = config.cache_gib
    assert cache_gib is not None, "the engine runs on CPU"
    net = (estimate.weights + estimate.working) / GIB + cache_gib
    return summary(before, measured, net, allowance)


async def sampled(engine: Any, config: RolloutConfig, vocabulary: int) -> float:
    """Peak of the engine's processes together with this one, GiB, after sequences that fill the context."""
    await engine.start()
    prompts = np.random.default_rng(0).integers(2, vocabulary, (IN_FLIGHT, config.max_model_len - ANSWER - 2))
    requests = [
        GenerationRequest(str(index), ids.astype(np.int32), ANSWER, 1.0, index) for index, ids in enumerate(prompts)
    ]
    await asyncio.gather(*(engine.complete(request) for request in requests))
    measured = sum(status_gib("VmHWM", pid) for pid in ("self", *engine.process_ids))
    await engine.stop()
    return measured


def main() -> None:
    """Runs the actor that the argument names."""
    case = json.loads(sys.argv[1])
    role, quick = case.pop("role"), case.pop("quick")
    actors = {"rank": rank, "scorer": scorer, "engine": engine}
    with tempfile.TemporaryDirectory() as folder:
        write_apart(Path(folder), quick)
        print(json.dumps(actors[role](Path(folder), case)), flush=True)


def write_apart(folder: Path, quick: bool) -> None:
    """Writes the model in a child, so that its memory does not count."""
    import multiprocessing

    child = multiprocessing.get_context("spawn").Process(target=_write, args=(folder, quick))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"writing the model ended with {child.exitcode}")


def _write(folder: Path, quick: bool) -> None:
    write_model(shape_of(SMOLLM, quick), folder)


if __name__ == "__main__":
    main()
