"""Compares the speed of cross-scoring with the method's published form, and with the ratio of counted operations.

python -m benchmarks.cross_scoring [--quick] [--json]

On a CPU with one thread and float32, in CPU seconds, because other processes disturb them less than wall time:

- forms: 64 prompts x 8 reasonings of 22 tokens (32,768 pairs). The engine (squelch/kit/scoring/cross_scoring.py)
  scores a quarter of the prompts, the authors' form (benchmarks/cross_scoring/work.py) 512 random pairs of those; both
  times are scaled to all pairs. The forms alternate after two prompts and 64 pairs, and use batches of the same number
  of tokens. `floor` is the ratio of the counted operations; the engine must reach 85% of it. One row has a vocabulary
  of 151,936 and fewer pairs. The rows `answers` are an evaluation of the fixed probe with the links to answers, of
  whose floor the engine must reach 80% (benchmarks/cross_scoring/answers.py);
- passes: 52 prompts under a budget of pairs, scored one prompt a pass (the old way), packed, and by the scorer's own
  choice, in turn: seconds, passes, tokens;
- cost at N prompts with 8 reasonings each: tokens forwarded (exact) and seconds, both fitted by a N + b N^2.

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
from benchmarks.cross_scoring.answers import answers
from benchmarks.cross_scoring.work import POLICIES, Operations, padded, random_policy, random_rows, small_shape
from squelch.actors.process.allocator import ALLOCATOR
from squelch.kit.diagnosis.pair_budget import draw_pairs
from squelch.kit.scoring.cross_scoring import CPU_TOKENS, CrossScorer, Ways

PROMPTS, SAMPLES, REASONING = 64, 8, 22
PROMPT_TOKENS = (40, 220, 400, 1000)
PAIRS, TURNS = 512, 8
COLUMNS = 52
"""Prompts of a scorer step under a budget of pairs."""
WAYS: tuple[Ways, ...] = ("one", "packed", "measured")
TIMED = 4
"""One in TIMED prompts is timed."""
LARGE_VOCABULARY = 151_936
SIZES = (8, 16, 24, 32, 48, 64)
FIT_PROMPT = 220


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
        "gflops": {"engine": least / cost / 1e9, "peer": most / peer_cost / 1e9},
        "largest_difference_nats_per_token": worst,
    }


def passes(name: str, prompt: int, others: int, turns: int) -> dict[str, Any]:
    """One row: a scorer step of COLUMNS prompts that begin alike, each reasoning under `others` other prompts, which
    each way scores `turns` times in turn."""
    shape, rng = small_shape(name), np.random.default_rng(prompt)
    opening, rest = np.arange(30), random_rows(COLUMNS, prompt - 30, shape.vocab_size, 4)
    columns = [np.concatenate([opening, row[: len(row) - j % 6]]) for j, row in enumerate(rest)]
    lengths = rng.integers(8, REASONING + 1, COLUMNS * SAMPLES)
    whole = random_rows(len(lengths), REASONING, shape.vocab_size, 5)
    reasonings = [z[:length] for z, length in zip(whole, lengths, strict=True)]
    wanted = draw_pairs(np.repeat(np.arange(COLUMNS), SAMPLES), COLUMNS, others, (6,))
    scorers = {way: CrossScorer(random_policy(shape), CPU_TOKENS, columns=way) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    work, found = {}, {}
    for turn in range(turns + 1):
        for way, scorer in scorers.items():
            before, start = (scorer.num_passes, scorer.num_forwarded), time.thread_time()
            found[way] = scorer.matrix(columns, reasonings, wanted)
            if turn:  # the first includes set-up and the scorer's measurement
                seconds[way].append(time.thread_time() - start)
            work[way] = {"passes": scorer.num_passes - before[0], "tokens": scorer.num_forwarded - before[1]}
    off = np.abs(found["one"] - found["packed"]) / lengths[:, None]
    return {
        "policy": name,
        "prompt_tokens": prompt,
        "pairs": int(wanted.sum()),
        "chosen": scorers["measured"].way,
        "largest_difference_nats_per_token": float(np.nanmax(off)),
        **{way: {"seconds": float(np.median(seconds[way])), **work[way]} for way in WAYS},
    }


def against_prompts(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Cost at N prompts with 8 reasonings each: tokens forwarded and seconds, both fitted by a N + b N^2."""
    shape = small_shape("0.8 M")
    scorer = CrossScorer(random_policy(shape), CPU_TOKENS)
    columns = random_rows(max(sizes), FIT_PROMPT, shape.vocab_size, 2)
    reasonings = random_rows(max(sizes) * SAMPLES, REASONING, shape.vocab_size, 3)
    seconds, tokens = [], []
    for size in sizes:
        before, start = scorer.num_forwarded, time.thread_time()
        scorer.matrix(columns[:size], reasonings[: size * SAMPLES])
        seconds.append(time.thread_time() - start)
        tokens.append(float(scorer.num_forwarded - before))
    return {"prompts": list(sizes), "seconds": _fit(sizes, seconds), "tokens": _fit(sizes, tokens)}


def _fit(sizes: tuple[int, ...], values: list[float]) -> dict[str, Any]:
    """Fit of a N + b N^2 by least squares of the relative errors, and the largest relative error."""
    n, y = np.array(sizes, dtype=float), np.array(values)
    terms = np.stack([n, n**2], axis=1)
    (a, b), *_ = np.linalg.lstsq(terms / y[:, None], np.ones(len(y)), rcond=None)
    off = float(np.abs(terms @ (a, b) / y - 1).max())
    return {"values": values, "linear": float(a), "quadratic": float(b), "largest_relative_error": off}


def measure(quick: bool) -> dict[str, Any]:
    """All metrics of a CPU."""
    torch.set_num_threads(1)
    cases = [("0.8 M", 40), ("0.8 M", 220)] if quick else [(name, p) for name in POLICIES for p in PROMPT_TOKENS]
    rows = [forms(name, prompt, 1 if quick else TURNS) for name, prompt in cases]
    rows.append(forms("0.8 M", FIT_PROMPT, 1 if quick else TURNS, LARGE_VOCABULARY, prompts=8))
    rows += [answers(name, FIT_PROMPT, 8 if quick else 32) for name in (["0.8 M"] if quick else POLICIES)]
    return {
        "benchmark": "cross_scoring",
        "threads": 1,
        "rows": rows,
        "passes": [passes(name, p, others, 3 if quick else TURNS) for name, p, others in _steps(quick)],
        "against_prompts": against_prompts(SIZES[:3] if quick else SIZES),
    }


def _steps(quick: bool) -> list[tuple[str, int, int]]:
    """Policy, prompt tokens and other prompts of each row of `passes`."""
    if quick:
        return [("0.8 M", 40, 1), ("0.8 M", 220, 3)]
    return [(name, prompt, others) for name in POLICIES for prompt in PROMPT_TOKENS[:3] for others in (1, 7)]


HEADS = ("policy", "vocabulary", "prompt", "pairs", "engine s", "peer s", "ratio", "floor", "reached", "difference")


def cells(row: Mapping[str, Any]) -> list[Any]:
    """The printed cells of one row."""
    found = [row[k] for k in ("policy", "vocabulary", "prompt_tokens", "pairs")]
    found += [f"{row[k]:.1f}" for k in ("engine_seconds", "peer_seconds", "ratio", "floor")]
    return [*found, f"{row['reached']:.0%}", f"{row['largest_difference_nats_per_token']:.1e}"]


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """The lines under the table."""
    fit = metrics["against_prompts"]
    lines = [
        f"{what} at N prompts ({', '.join(map(str, fit['prompts']))}; {FIT_PROMPT} tokens, 8 reasonings each): "
        f"{found['linear']:.3g} N + {found['quadratic']:.3g} N^2, at most {found['largest_relative_error']:.1%} off"
        for what, found in (("tokens forwarded", fit["tokens"]), ("seconds", fit["seconds"]))
    ]
    for row in metrics["passes"]:
        ways = ", ".join(f"{way} {row[way]['seconds']:.2f} s in {row[way]['passes']} passes" for way in WAYS)
        size = f"{row['policy']}, {COLUMNS} prompts of {row['prompt_tokens']} tokens, {row['pairs']} pairs"
        lines.append(f"{size}: {ways} (chosen: {row['chosen']})")
    return lines


def main() -> None:
    """Prints the table."""
    args = arguments(__doc__, "under a minute: two prompt lengths, one turn")
    restart_with(ALLOCATOR, "benchmarks.cross_scoring", None)
    metrics = measure(args.quick)
    print_metrics(metrics, args.json, HEADS, [cells(row) for row in metrics["rows"]], notes(metrics))


if __name__ == "__main__":
    main()
