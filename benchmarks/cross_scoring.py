"""Cross-scoring against its plain forms: the same score matrix, on one thread.

python -m benchmarks.cross_scoring [--quick] [--json]

Three ways to the matrix of N prompts x (N * K) reasonings, float32, tiny policy (Qwen2 architecture, 0.8 M parameters):
`engine` (actors/cross_scoring.py); `per_pair`, one full forward for every pair, logits at every position; `padded`, the
way of the method's published code: every pair a full sequence, equal batches padded to their longest, logits at every
position. Each form runs alternately, `rounds` times; the figure is the median of the thread's CPU seconds, which a
busy neighbour disturbs less than wall time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from actors.cross_scoring import CrossScorer

PADDED_ROWS = 64
VOCABULARY = 256
Rows = list[np.ndarray]
Form = Callable[[Rows, Rows], np.ndarray]


def tiny_policy() -> PreTrainedModel:
    """Random weights of the embedded default's shape, scaled so that the prompt matters."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
    return Qwen2ForCausalLM(config).eval()


def inputs(num_prompts: int, samples: int, prompt_tokens: int) -> tuple[Rows, Rows]:
    """Prompts of about `prompt_tokens`, half of them common to all as an instruction is; reasonings of 12 to 32."""
    rng = np.random.default_rng(prompt_tokens)
    shared = rng.integers(0, VOCABULARY, prompt_tokens // 2)
    sizes = rng.integers(
        prompt_tokens // 2 - prompt_tokens // 8, prompt_tokens // 2 + prompt_tokens // 8 + 1, num_prompts
    )
    prompts = [np.concatenate([shared, rng.integers(0, VOCABULARY, size)]) for size in sizes]
    lengths = rng.integers(12, 33, num_prompts * samples)
    return prompts, [rng.integers(0, VOCABULARY, size) for size in lengths]


@torch.inference_mode()
def padded(model: PreTrainedModel, prompts: Rows, reasonings: Rows, rows: int) -> np.ndarray:
    """One full sequence for each pair, `rows` at a time, padded on the right to the longest of the batch."""
    pairs = [(s, j) for s in range(len(reasonings)) for j in range(len(prompts))]
    result = np.empty((len(reasonings), len(prompts)))
    for start in range(0, len(pairs), rows):
        batch = pairs[start : start + rows]
        sequences = [torch.from_numpy(np.concatenate([prompts[j], reasonings[s]])) for s, j in batch]
        ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        mask = torch.arange(ids.shape[1]) < torch.tensor([len(x) for x in sequences]).unsqueeze(1)
        arguments = {} if len(batch) == 1 else {"attention_mask": mask.long()}
        log_probs = model(input_ids=ids, use_cache=False, **arguments).logits[:, :-1].float().log_softmax(-1)
        chosen = log_probs.gather(2, ids[:, 1:, None]).squeeze(2)
        for row, (s, j) in enumerate(batch):
            first = len(prompts[j]) - 1
            result[s, j] = float(chosen[row, first : first + len(reasonings[s])].sum())
    return result


def measure(forms: dict[str, Form], prompts: Rows, reasonings: Rows, rounds: int) -> dict[str, Any]:
    """Median CPU seconds of each form, ratios to the engine, and the largest difference in nats a token."""
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    matrices = {}
    for _ in range(rounds):
        for name, form in forms.items():
            start = time.thread_time()
            matrices[name] = form(prompts, reasonings)
            seconds[name].append(time.thread_time() - start)
    lengths = np.array([len(z) for z in reasonings])[:, None]
    engine = statistics.median(seconds["engine"])
    return {
        "prompts": len(prompts),
        "reasonings": len(reasonings),
        "prompt_tokens": float(np.mean([len(x) for x in prompts])),
        "reasoning_tokens": float(lengths.mean()),
        "cpu_seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratio": {name: statistics.median(values) / engine for name, values in seconds.items() if name != "engine"},
        "largest_difference_nats_per_token": float(
            max(np.abs((matrices[name] - matrices["engine"]) / lengths).max() for name in forms)
        ),
        "same_argmax": bool(all((m.argmax(1) == matrices["engine"].argmax(1)).all() for m in matrices.values())),
    }


def run(quick: bool) -> list[dict[str, Any]]:
    """One row for each prompt length."""
    torch.set_num_threads(1)
    model, scorer = tiny_policy(), CrossScorer(tiny_policy(), 16384)
    forms: dict[str, Form] = {
        "engine": scorer.matrix,
        "per_pair": lambda x, z: padded(model, x, z, 1),
        "padded": lambda x, z: padded(model, x, z, PADDED_ROWS),
    }
    num_prompts, samples, lengths, rounds = (4, 4, (40, 200), 1) if quick else (8, 4, (20, 40, 100, 200, 400), 3)
    measure(forms, *inputs(2, 2, 40), rounds=1)  # first calls pay for set-up
    return [measure(forms, *inputs(num_prompts, samples, size), rounds) for size in lengths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds: 4 prompts, 4 reasonings each, one round")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    arguments = parser.parse_args()
    rows = run(arguments.quick)
    if arguments.json:
        print(json.dumps({"benchmark": "cross_scoring", "threads": 1, "rows": rows}))
        return
    print(
        f"{'prompt':>7} {'pairs':>6} {'engine s':>9} {'per pair s':>11} {'padded s':>9} {'ratios':>13} {'max diff':>9}"
    )
    for row in rows:
        seconds, ratio = row["cpu_seconds"], row["ratio"]
        print(
            f"{row['prompt_tokens']:7.0f} {row['prompts'] * row['reasonings']:6d} {seconds['engine']:9.3f} "
            f"{seconds['per_pair']:11.3f} {seconds['padded']:9.3f} {ratio['per_pair']:9.1f} {ratio['padded']:7.1f}  "
            f"{row['largest_difference_nats_per_token']:9.1e}"
        )


if __name__ == "__main__":
    main()
