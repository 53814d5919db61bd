"""Measures what `squelch.Monitor.observe` adds to a training loop, at the size of a real language model on a CPU.

python -m benchmarks.monitor [--quick] [--json]

The work has the shape of Countdown: prompts of 120 tokens, 8 samples each of 48 new tokens, of which 36 are the
reasoning and 11 the answer, for several numbers of prompts a step. The model has SmolLM2-135M's shape with random
weights, on which no time depends, in float32 on one thread. A step is transformers' `generate`, a forward and a
backward pass of all sequences and an update by AdamW, without what a trainer adds. `observe` scores the samples of such
a step by its defaults.

`share` is the time of one `observe` over that of ten steps: what is added if every tenth step is observed. Times are
processor seconds, which other load disturbs less. `--quick` has a few short
samples: it shows that everything works, and judges nothing.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common

WANTED = 0.10
"""Largest share."""
EVERY = 10
PROMPTS = (8, 16)
SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 8, 120, 48
ANSWER = 0.25
"""Share of the new tokens after the reasoning, its closing marker included."""
VOCABULARY, OPEN, CLOSE = 49_152, 5, 6
"""Ids of the markers, which no sample holds otherwise."""
SEQUENCES = 8
"""Sequences of a micro-batch of the plain step."""
COLUMNS = ("prompts", "generate s", "update s", "step s", "observe s", "without links s", "share", "without links")


@dataclass(frozen=True)
class Work:
    """The samples of a step, all of one length."""

    num_prompts: int
    num_samples: int
    prompt_tokens: int
    new_tokens: int


def work_of(prompts: int, quick: bool) -> Work:
    """The work of a step."""
    return Work(prompts, *((2, 24, 8) if quick else (SAMPLES, PROMPT_TOKENS, NEW_TOKENS)))


def samples_of(work: Work) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions, ids, one of each for every sample."""
    rng = np.random.default_rng(0)
    answer = max(1, round(ANSWER * work.new_tokens) - 1)

    def ids(size: int) -> list[int]:
        return rng.integers(CLOSE + 1, VOCABULARY, size).tolist()

    prompts = [[*ids(work.prompt_tokens - 1), OPEN] for _ in range(work.num_prompts)]
    completions = [
        [*ids(work.new_tokens - answer - 1), CLOSE, *ids(answer)] for _ in range(work.num_prompts * work.num_samples)
    ]
    return [prompt for prompt in prompts for _ in range(work.num_samples)], completions


class PlainStep:
    """A training step of nothing but generation, one pass forward and backward, and the optimizer."""

    def __init__(self, model: Any, work: Work) -> None:
        import torch

        self.model, self.work = model, work
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def generate(self, prompts: list[list[int]]) -> None:
        """Samples the completions."""
        import torch

        ids = torch.tensor(prompts)
        new = {"min_new_tokens": self.work.new_tokens, "max_new_tokens": self.work.new_tokens}
        self.model.eval()
        with torch.no_grad():
            self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, pad_token_id=common.PAD_ID, **new
            )
        self.model.train()

    def update(self, prompts: list[list[int]], completions: list[list[int]]) -> None:
        """The loss of the completions' tokens, its gradient, and the update."""
        import torch

        ids = torch.tensor([[*x, *y] for x, y in zip(prompts, completions, strict=True)])
        for rows in ids.split(SEQUENCES):
            logits = self.model(rows[:, :-1], logits_to_keep=self.work.new_tokens).logits
            wanted = rows[:, -self.work.new_tokens :]
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(folder: Path, prompts: int, quick: bool) -> dict[str, float]:
    """The row of one number of prompts: processor seconds, and shares."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    import squelch

    work = work_of(prompts, quick)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    given, completions = samples_of(work)
    step = PlainStep(model, work)
    markers = (common.word(OPEN), common.word(CLOSE))
    monitors = {links: squelch.Monitor(tokenizer, markers=markers, links=links) for links in (True, False)}
    seconds = {"generate": lambda: step.generate(given), "update": lambda: step.update(given, completions)}
    found = {name: cpu_seconds(call) for name, call in seconds.items()}
    for links, monitor in monitors.items():
        name = "observe" if links else "without_links"
        found[name] = cpu_seconds(lambda m=monitor: m.observe(1, model, given, completions))
    found["step"] = found["generate"] + found["update"]
    found["share"] = found["observe"] / (EVERY * found["step"])
    found["share_without_links"] = found["without_links"] / (EVERY * found["step"])
    return found


def cpu_seconds(call: Any) -> float:
    """Processor seconds of a call, all threads together."""
    start = time.process_time()
    call()
    return time.process_time() - start


def run(quick: bool) -> dict[str, Any]:
    """All metrics."""
    with tempfile.TemporaryDirectory(prefix="squelch-monitor-") as name:
        common.random_smollm2(Path(name), 0)
        sizes = PROMPTS[:1] if quick else PROMPTS
        return {"rows": {str(size): measure(Path(name), size, quick) for size in sizes}}


def notes(metrics: dict[str, Any], quick: bool) -> list[str]:
    """The lines under the table."""
    worst = max(row["share"] for row in metrics["rows"].values())
    verdict = "not judged on less than the whole work" if quick else "reached" if worst <= WANTED else "NOT reached"
    return [f"one observe in {EVERY} steps adds at most {worst:.1%}; at most {WANTED:.0%} is wanted: {verdict}"]


def main() -> int:
    """Prints the table."""
    chosen = common.arguments(__doc__, "8 prompts of a few short samples")
    metrics = run(chosen.quick)
    keys = ("generate", "update", "step", "observe", "without_links", "share", "share_without_links")
    rows = [[size, *(row[key] for key in keys)] for size, row in metrics["rows"].items()]
    common.print_metrics(metrics, chosen.json, COLUMNS, rows, notes(metrics, chosen.quick))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
