"""Compares the scorer's estimates with mutual information that is known exactly.

python -m research.known_truth [--quick] [--json] [--write]

Channels with finitely many prompts and strings are enumerated (research/channels/reasonings.py), so I(X;Z) is a sum.
For a tiny random causal LM, all strings of up to 4 tokens are enumerated by its forward pass, and the estimates come
from the scorer's engine (squelch/kit/scoring/cross_scoring.py). By N, K and length, the benchmark prints the
estimate's mean and bias; how often the 95% interval covers the estimate's mean over draws of N prompts, and I(X;Z)
itself; and the rate of false positives. `--write` writes its tables in research/results, and the page and picture
that are made from them and from those of `research.known_links`: docs/research/known-truth.md, known_truth.svg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import small_qwen2
from research.channels.reasonings import Channel, draw, random_channel
from research.judging import Report, judge
from research.known_page import (
    COLUMNS,
    DATA,
    LM_LENGTH,
    LM_PROMPTS,
    NULLS,
    QUICK,
    SAMPLES,
    SIZES,
    TRIALS,
    cells,
    nulls,
    write,
)
from squelch.kit.diagnosis.proxies import Scores, proxies_of_scores
from squelch.kit.diagnosis.uncertainty import uncertainty

LM_TOKENS = 4
CHANNELS: Mapping[str, Mapping[str, Any]] = {
    "weak": {"strength": 0.5},
    "medium": {"strength": 1.0},
    "strong": {"strength": 2.5},
    "short": {"strength": 1.0, "max_length": 2},
    "long": {"strength": 1.0, "max_length": 7},
}


def study(channel: Channel, prompts: int, samples: int, trials: int, seed: int, terminated: bool) -> dict[str, float]:
    """Bias and coverage of MI-Seq-Est over `trials` draws of `prompts` prompts with `samples` strings each."""
    rng = np.random.default_rng((seed, prompts, samples))
    rows = [_one(draw(channel, rng, prompts, samples, terminated=terminated), trial) for trial in range(trials)]
    estimate, low, high, p_value = np.array(rows).T
    truth, mean = channel.information(terminated), float(estimate.mean())
    return {
        "prompts": prompts,
        "samples": samples,
        "truth": truth,
        "mean": mean,
        "bias": mean - truth,
        "half_width": float((high - low).mean() / 2),
        "covers_mean": float(((low <= mean) & (mean <= high)).mean()),
        "covers_truth": float(((low <= truth) & (truth <= high)).mean()),
        "told_from_null": float((p_value <= 0.05).mean()),
    }


def _one(scores: Scores, trial: int) -> tuple[float, float, float, float]:
    report = proxies_of_scores(scores)
    sure = uncertainty(scores, report, seed=(trial,))
    found, null = sure.intervals.get("mi_seq_est"), sure.nulls.get("mi_seq_est")
    if report.mi_seq_est is None or found is None or null is None:
        raise RuntimeError(f"a draw of {report.num_prompts} prompts has no interval: {sure.why_not}")
    return report.mi_seq_est, found.low, found.high, null.p_value


def false_positives(channel: Channel, prompts: int, samples: int, trials: int, seed: int) -> float:
    """Share of draws whose p-value is at most 0.05 although the strings do not depend on their prompts."""
    rng = np.random.default_rng((seed, prompts, samples, 1))
    return float(np.mean([_one(draw(channel, rng, prompts, samples, blind=True), t)[3] <= 0.05 for t in range(trials)]))


def tiny_lm(seed: int = 0) -> tuple[Any, list[np.ndarray]]:
    """A random causal LM of LM_TOKENS ids and a terminator (the last id), and LM_PROMPTS distinct prompts of 4 ids."""
    import torch
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = small_qwen2(
        **{"vocabulary": LM_TOKENS + 1, "width": 32, "layers": 2, "hidden": 48, "heads": 2},
        tie_word_embeddings=False,
        max_position_embeddings=32,
        initializer_range=0.45,
        bos_token_id=None,
        eos_token_id=None,
    )
    codes = np.random.default_rng(seed).choice((LM_TOKENS + 1) ** 4, size=LM_PROMPTS, replace=False)
    prompts = [np.array(np.unravel_index(code, [LM_TOKENS + 1] * 4)) for code in codes]
    return Qwen2ForCausalLM(config).eval(), prompts


def enumerate_lm(model: Any, prompts: Sequence[np.ndarray]) -> tuple[Channel, list[np.ndarray]]:
    """The model's channel from prompts to all strings of up to LM_LENGTH tokens, by plain forward passes, and the ids
    of each string with its terminator. A string of LM_LENGTH tokens is cut and has no terminator."""
    import torch

    bodies = [np.array(z, dtype=np.int64) for t in range(LM_LENGTH + 1) for z in np.ndindex(*[LM_TOKENS] * t)]
    lengths = np.array([len(z) for z in bodies])
    ends = (lengths < LM_LENGTH).astype(np.int64)
    strings = [np.append(z, np.full(end, LM_TOKENS)) for z, end in zip(bodies, ends, strict=True)]
    log_p, log_open = (np.zeros((len(prompts), len(strings))) for _ in range(2))
    for i, prompt in enumerate(prompts):
        for t in range(LM_LENGTH + 1):
            chosen = np.flatnonzero(lengths == t)
            rows = np.stack([np.concatenate([prompt, strings[s]]) for s in chosen])
            with torch.inference_mode():
                log = model(torch.from_numpy(rows)).logits[:, len(prompt) - 1 : -1].double().log_softmax(-1).numpy()
            each = np.take_along_axis(log, rows[:, len(prompt) :, None], axis=2)[..., 0]
            log_p[i, chosen], log_open[i, chosen] = each.sum(axis=1), each[:, :t].sum(axis=1)
    return Channel(log_p, log_open, lengths, ends), strings


def table(trials: int, seed: int = 0) -> list[dict[str, Any]]:
    """One row for each channel, N and K, with the terminator in Z; for the medium channel also without it."""
    rows = []
    for name, options in CHANNELS.items():
        channel = random_channel(1, **options)
        for terminated in (True, False) if name == "medium" else (True,):
            for samples in SAMPLES:
                for prompts in SIZES:
                    row = study(channel, prompts, samples, trials, seed, terminated)
                    rows.append({"channel": name, "terminator": terminated, "length": channel.mean_length()} | row)
    return rows


def language_model(trials: int, seed: int = 0) -> list[dict[str, Any]]:
    """The rows of the enumerated language model, with and without the terminator."""
    channel, _ = enumerate_lm(*tiny_lm(seed))
    return [
        {"channel": "tiny LM", "terminator": terminated, "length": channel.mean_length()}
        | study(channel, prompts, 8, trials, seed, terminated)
        for terminated in (True, False)
        for prompts in (12, 16, LM_PROMPTS)
    ]


def measure(trials: int) -> dict[str, Any]:
    """All metrics that are printed."""
    rows = table(trials) + language_model(trials)
    medium = random_channel(1, **CHANNELS["medium"])
    false = [
        {"prompts": n, "samples": k, "rate": false_positives(medium, n, k, 2 * trials, 0)}
        for n, k in ((8, 8), (32, 1), (64, 8))
    ]
    return {"trials": trials, "rows": rows, "false_positives": false}


def report(quick: bool = False) -> Report:
    """Draws from every channel and reports the estimates."""
    found = measure(QUICK if quick else TRIALS)
    rows = [cells(row) for row in found["rows"]]
    notes = [f"false positives (p <= 0.05): {nulls(found['false_positives'])}"]
    tables = {DATA: found["rows"], NULLS: found["false_positives"]}
    return Report(found, COLUMNS, rows, notes, lambda: write(tables))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    return judge(__doc__, report, argv, quick="40 draws a row instead of 400; under a minute", writes="known-truth.md")


if __name__ == "__main__":
    raise SystemExit(main())
