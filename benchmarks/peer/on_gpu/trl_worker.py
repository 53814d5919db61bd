"""TRL's side on one GPU: python -m benchmarks.peer.on_gpu.trl_worker FOLDER OUT VARIANT...

TRL's GRPOTrainer generates with vLLM in its own process (`vllm_mode="colocate"`). The variants run one after another on
one engine, and OUT, a JSON file, has what is known after each. A variant is `as_it_comes` or `tuned-ROWS`: without
gradient checkpointing and without the second forward pass that corrects for vLLM's log-probabilities, ROWS rows per
pass; either with the ending `+sleep`, for which the engine gives its memory back while the learner works. vLLM's CPU
build packs its weights and cannot load them again this way, so that there nothing is synchronised.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
import trl.generation.vllm_generation as generation
import vllm
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from benchmarks.peer import work as peer_work
from benchmarks.peer.on_gpu import reward
from benchmarks.peer.on_gpu.work import GpuWork

SLEEP = "+sleep"
ENGINE_SHARE, CACHE_GIB = 0.15, 8
AS_IT_COMES = 8
"""TRL's rows per pass."""


class Clock:
    """Seconds of calls by name since the last `take`, with the GPU's work that they start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """The time, once the GPU has finished."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Times every call of the owner's method."""
        real: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            start = self.now()
            try:
                return real(*arguments, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - start

        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        """The seconds so far, which begin anew."""
        found, self.seconds = self.seconds, {}
        return found


class Steps(TrainerCallback):
    """The seconds of each step and of its parts. The first step includes the wait for the other side."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.rows, self.start = clock, list[dict[str, float]](), 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Takes the start of the first step; every other begins where the one before ended."""
        self.start = self.start or self.clock.now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Takes the end of a step."""
        now = self.clock.now()
        self.rows.append({"step": now - self.start, **self.clock.take()})
        self.start = now


class Engines:
    """Makes one engine in place of TRL's for each trainer."""

    def __init__(self, work: GpuWork) -> None:
        self.work, self.real, self.made = work, generation.LLM, None

    def __call__(self, **settings: Any) -> Any:
        """TRL's settings, with a cache of fixed size, beside which other processes may use the GPU."""
        if self.work.device == "cuda":
            settings["kv_cache_memory_bytes"] = CACHE_GIB << 30
        else:
            settings |= {"enforce_eager": True, "dtype": "float32", "max_num_batched_tokens": 4096}
        self.made = self.made or self.real(**settings)
        return self.made


def settings_of(variant: str, work: GpuWork, folder: Path) -> trl.GRPOConfig:
    """TRL's settings for a variant."""
    name, sleep = variant.removesuffix(SLEEP), variant.endswith(SLEEP)
    rows, own = min(AS_IT_COMES, work.sequences), dict[str, Any]()
    if name.startswith("tuned-"):
        rows = min(int(name.removeprefix("tuned-")), work.sequences)
        own = {"gradient_checkpointing": False, "vllm_importance_sampling_correction": False}
    elif name != "as_it_comes":
        raise SystemExit(f"no variant {variant}: as_it_comes or tuned-ROWS, with or without {SLEEP}")
    cpu = {} if work.device == "cuda" else {"use_cpu": True, "bf16": False}
    return trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=work.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=work.sequences // rows,
        num_generations=work.samples,
        max_completion_length=work.new_tokens,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=work.context,
        vllm_gpu_memory_utilization=ENGINE_SHARE,
        vllm_enable_sleep_mode=sleep,
        shuffle_dataset=False,
        loss_type="grpo",
        learning_rate=1e-6,
        epsilon_high=0.28,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **own,
        **cpu,
    )


def played(variant: str, work: GpuWork, folder: Path) -> dict[str, Any]:
    """The medians of a variant's steps after the first, and its memory."""
    rows = [json.loads(line) for line in (folder / "data" / "train.jsonl").read_text().splitlines()]
    clock, config = Clock(), settings_of(variant, work, folder)
    steps = Steps(clock)
    trainer = trl.GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=reward.share,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "model", padding_side="left"),
        callbacks=[steps],
    )
    if work.device != "cuda":
        trainer.vllm_generation.sync_weights = lambda *args, **kwargs: None
    lengths = list[int]()
    clock.wrap(trainer.vllm_generation, "sync_weights", "sync")
    clock.wrap(trainer.vllm_generation, "generate", "generation")
    clock.wrap(trainer, "_generate_and_score_completions", "generate_and_score")
    counted(trainer.vllm_generation, lengths)
    if work.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    return summary(steps.rows[1:], lengths) | {
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if work.device == "cuda" else None,
        "parameters": str(next(trainer.model.parameters()).dtype).removeprefix("torch."),
        "recomputes": config.gradient_checkpointing,
        "rows_per_pass": config.per_device_train_batch_size,
        "synchronised": work.device == "cuda",
    }


def counted(owner: Any, lengths: list[int]) -> None:
    """Notes the length of every completion that TRL's `generate` returns."""
    real: Callable[..., Any] = owner.generate

    def generate(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        lengths.extend(len(ids) for ids in found[1])
        return found

    owner.generate = generate


def summary(rows: list[dict[str, float]], lengths: list[int]) -> dict[str, Any]:
    """Medians of the steps' seconds. Without generation, reward and synchronisation a step is its update."""

    def median(name: str) -> float:
        return statistics.median(row.get(name, 0.0) for row in rows)

    own = {"step": median("step"), "generation": median("generation"), "sync": median("sync")}
    update = statistics.median(row["step"] - row.get("generate_and_score", 0.0) for row in rows)
    return own | {"update": update, "steps": rows, "new_tokens_mean": statistics.fmean(lengths)}


def main() -> None:
    """Plays the variants on the command line."""
    folder, out, variants = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    work = peer_work.load(GpuWork, folder)
    engines = Engines(work)
    vars(generation)["LLM"] = engines
    modules = (trl, transformers, vllm, torch)
    found: dict[str, Any] = {"versions": {module.__name__: module.__version__ for module in modules}}
    for variant in variants:
        found[variant] = played(variant, work, folder)
        partial = out.with_suffix(".partial")
        partial.write_text(json.dumps(found))
        partial.replace(out)
        gc.collect()
        if work.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
