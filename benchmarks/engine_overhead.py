"""Measures the Python of a token step around the model: vLLM's scheduler, its messages, and the worker's end of them.

    python -m benchmarks.engine_overhead [--quick] [--json]

256 requests of 256 tokens run through vLLM's own engine core, message codec and output processor, in one process, with
a model that costs nothing (`tests.stand_ins.engine_core`): once with vLLM's scheduler, which sends every token, and
once with `actors.rollout.scheduler`, which sends each turn once; for engines on CPU, which schedule a step after the
one before it, and for those on CUDA, which schedule it meanwhile. Processor milliseconds a token step, medians:

    scheduler   scheduling, and taking in what was sampled
    messages    encoding and decoding; in a run the engine's second thread and the worker do these
    worker      vLLM's output processor, and the arrays of a completion

Sockets and the event loop are left out, and so is the model.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import arguments, print_metrics

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput

PARTS = ("scheduler", "messages", "worker")
PROMPT_TOKENS = 219


@dataclass(frozen=True)
class Size:
    """How much is sampled, and how often."""

    requests: int = 256
    tokens: int = 256
    rounds: int = 5


QUICK = Size(requests=32, tokens=16, rounds=2)


def own_log_probs(turn: CompletionOutput) -> np.ndarray:
    """The log-probabilities of a turn that vLLM's scheduler sent token by token."""
    found: Any = turn.logprobs
    return np.asarray(found.logprobs, dtype=np.float32)


def once(settings: Any, size: Size, log_probs_of: Callable[[CompletionOutput], np.ndarray]) -> dict[str, float]:
    """Samples everything once; the milliseconds of each part, messages and bytes, a token step."""
    from tests.stand_ins.engine_core import BLOCK_SIZE, Core, StubEngine

    blocks = size.requests * ((PROMPT_TOKENS + size.tokens) // BLOCK_SIZE + 2)
    engine = StubEngine(Core(settings, log_stats=False, blocks=blocks))
    random = np.random.default_rng(0)
    for number in range(size.requests):
        prompt = random.integers(0, 512, PROMPT_TOKENS).tolist()
        engine.add(f"request-{number}", prompt, max_tokens=size.tokens, ignore_eos=True)
    gc.collect()
    engine.run()
    began = process_time()
    arrays = [(np.asarray(turn.token_ids, dtype=np.int32), log_probs_of(turn)) for turn in engine.turns.values()]
    engine.seconds["worker"] += process_time() - began
    if {(len(ids), len(log_probs)) for ids, log_probs in arrays} != {(size.tokens, size.tokens)}:
        raise RuntimeError("a turn is not complete")
    found = {name: 1000 * engine.seconds[name] / size.tokens for name in PARTS}
    return found | {"total": sum(found.values()), "bytes": engine.num_bytes / size.tokens}


def measure(size: Size, folder: Path) -> dict[str, dict[str, float]]:
    """Medians of each way, whose rounds alternate."""
    from squelch.actors.rollout.scheduler import log_probs_of, scheduler_of
    from tests.stand_ins.engine_core import settings_of

    settings = {
        way: settings_of(folder, way, max_model_len=PROMPT_TOKENS + size.tokens, max_num_seqs=size.requests)
        for way in (False, True)
    }
    rounds: dict[str, list[Mapping[str, float]]] = {}
    for _ in range(size.rounds):
        for way, chosen in settings.items():
            for gathers, read in ((False, own_log_probs), (True, log_probs_of)):
                chosen.scheduler_config.scheduler_cls = scheduler_of(way) if gathers else None
                name = f"{'CUDA' if way else 'CPU'}, {'once a turn' if gathers else 'token by token'}"
                rounds.setdefault(name, []).append(once(chosen, size, read))
    return {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in rounds.items()
    }


def main() -> None:
    """The command."""
    given = arguments(__doc__, f"{QUICK.requests} requests of {QUICK.tokens} tokens")
    size = QUICK if given.quick else Size()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(size, Path(folder))
    columns = [f"ms a token step, {size.requests} requests", *PARTS, "total", "bytes"]
    rows = [[name, *(row[key] for key in (*PARTS, "total")), round(row["bytes"])] for name, row in found.items()]
    print_metrics({"size": vars(size), "found": found}, given.json, columns, rows, [])


if __name__ == "__main__":
    main()
