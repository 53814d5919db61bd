"""Compares the speed of cross-scoring with the method's published form, and with the ratio of counted operations.

python -m benchmarks.cross_scoring [--quick] [--json]

On a CPU with one thread and float32, in CPU seconds, because other processes disturb them less than wall time: 64
prompts x 8 reasonings of 22 tokens (32,768 pairs). The engine (squelch/kit/scoring/cross_scoring.py) scores a quarter
of the prompts, the authors' form (benchmarks/cross_scoring/work.py) 512 random pairs of those; both times are scaled to
all pairs. The forms alternate after two prompts and 64 pairs, and use batches of the same number of tokens. `floor` is
the ratio of the counted operations; the engine must reach 85% of it. One row has a vocabulary of 151,936 and fewer
pairs.

docs/research/reasoning-metrics.md compares what a quarter of the pairs estimates with what all pairs do.
`benchmarks.gpu` measures the scorer on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.common import arguments, print_metrics, restart_with
from benchmarks.cross_scoring.work import POLICIES, Operations, padded, random_policy, random_rows, small_shape
from squelch.actors.process.allocator import ALLOCATOR
from squelch.kit.scoring.cross_scoring import CPU_TOKENS, CrossScorer

PROMPTS, SAMPLES, REASONING = 64, 8, 22
PROMPT_TOKENS = (40, 220, 400, 1000)
PAIRS, TURNS = 512, 8
TIMED = 4
"""One in TIMED prompts is timed."""
LARGE_VOCABULARY = 151_936


def forms(name: str, prompt: int, turns: int, vocabulary: int | None = None, prompts: int = PROMPTS) -> dict[str, Any]:
    """One row: times both forms in `turns` of the turns into which a quarter of the prompts is divided."""
    shape = small_shape(name, vocabulary)
    plain, scorer = random_policy(shape), CrossScorer(random_policy(shape), CPU_TOKENS)
    operations, rng = Operations.of(plain), np.random.default_rng(prompt)
    columns = random_rows(prompts, prompt, shape.vocab_size, 0)
    reasonings = random_rows(prompts * SAMPLES, REASONING, shape.vocab_size, 1)
    engine = peer = worst = 0.0
    each, pairs = max(1, prompts // (TURNS * TIMED)), PAIRS * prompts // (PROMPTS * TURNS)
    scorer.matrix(columns[:2], reasonings[:8])  # the first calls include set-up
    for turn in range(turns):
        chosen = columns[turn * each : (turn + 1) * each]
        drawn = rng.integers((len(reasonings), each), size=(pairs, 2))
        start = time.thread_time()
        matrix = scorer.matrix(chosen, reasonings)
        middle = time.thread_time()
        found = padded(plain, chosen, reasonings, drawn.tolist(), CPU_TOKENS)
        engine, peer = engine + middle - start, peer + time.thread_time() - middle
        worst = max(worst, float(np.abs(found - matrix[tuple(drawn.T)]).max()) / REASONING)
    cost, peer_cost = engine / (turns * each * len(reasonings)), peer / (turns * pairs)
    least, most = operations.engine(prompt, REASONING, len(reasonings)), operations.plain(prompt, REASONING)
    return {
        "policy": name,
        "vocabulary": shape.vocab_size,
        "prompt_tokens": prompt,
        "pairs": prompts * len(reasonings),
        "pairs_timed": {"engine": turns * each * len(reasonings), "peer": turns * pairs},
        "engine_seconds": cost * prompts * len(reasonings),
        "peer_seconds": peer_cost * prompts * len(reasonings),
        "ratio": peer_cost / cost,
        "floor": most / least,
        "reached": peer_cost / cost / (most / least),
        "largest_difference_nats_per_token": worst,
    }


def measure(quick: bool) -> dict[str, Any]:
    """All metrics of a CPU."""
    torch.set_num_threads(1)
    cases = [("0.8 M", 40), ("0.8 M", 220)] if quick else [(name, p) for name in POLICIES for p in PROMPT_TOKENS]
    rows = [forms(name, prompt, 1 if quick else TURNS) for name, prompt in cases]
    rows.append(forms("0.8 M", 220, 1 if quick else TURNS, LARGE_VOCABULARY, prompts=8))
    return {"benchmark": "cross_scoring", "threads": 1, "rows": rows}


HEADS = ("policy", "vocabulary", "prompt", "pairs", "engine s", "peer s", "ratio", "floor", "reached", "difference")


def cells(row: Mapping[str, Any]) -> list[Any]:
    """The printed cells of one row."""
    found = [row[k] for k in ("policy", "vocabulary", "prompt_tokens", "pairs")]
    found += [f"{row[k]:.1f}" for k in ("engine_seconds", "peer_seconds", "ratio", "floor")]
    return [*found, f"{row['reached']:.0%}", f"{row['largest_difference_nats_per_token']:.1e}"]


def main() -> None:
    """Prints the table."""
    args = arguments(__doc__, "under a minute: two prompt lengths, one turn")
    restart_with(ALLOCATOR, "benchmarks.cross_scoring", None)
    metrics = measure(args.quick)
    print_metrics(metrics, args.json, HEADS, [cells(row) for row in metrics["rows"]], [])


if __name__ == "__main__":
    main()
