"""TRL's training of `benchmarks.peer.learning`: python -m benchmarks.peer.learning_worker FOLDER SEED

With TRL's packages (`benchmarks.peer.on_gpu.trl_side`) it trains the folder's model with GRPOTrainer on
`data/train.jsonl` and writes each step's mean reward and seconds to `trl.json`. Every setting that Squelch's run gets
as well is given explicitly.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from benchmarks.peer import work as peer_work
from benchmarks.peer.on_gpu import reward
from benchmarks.peer.work import Work


class Steps(TrainerCallback):
    """Keeps the mean reward and the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.rewards: list[float] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Takes the start of the first step."""
        self.ends = [time.perf_counter()]

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Takes the end of a step."""
        self.ends.append(time.perf_counter())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Takes the mean reward; the summary at the end has none."""
        if logs and "reward" in logs:
            self.rewards.append(float(logs["reward"]))


def settings(work: Work, folder: Path, seed: int) -> trl.GRPOConfig:
    """TRL's settings for the work: one optimizer step on all samples of a step, without KL term or filter."""
    return trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=work.num_steps,
        per_device_train_batch_size=work.num_sequences,
        gradient_accumulation_steps=1,
        num_iterations=1,
        num_generations=work.num_samples,
        max_completion_length=work.new_tokens,
        temperature=work.temperature,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        scale_rewards="group",
        importance_sampling_level="token",
        epsilon=work.clip_low,
        epsilon_high=work.clip_high,
        mask_truncated_completions=False,
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        optim="adamw_torch",
        adam_beta1=peer_work.BETAS[0],
        adam_beta2=peer_work.BETAS[1],
        adam_epsilon=peer_work.EPSILON,
        weight_decay=peer_work.WEIGHT_DECAY,
        max_grad_norm=peer_work.MAX_GRAD_NORM,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )


def main() -> None:
    """Trains with the folder and seed on the command line."""
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    work = peer_work.load(Work, folder)
    torch.set_num_threads(work.num_threads)
    rows = [json.loads(line) for line in (folder / "data" / "train.jsonl").read_text().splitlines()]
    steps = Steps()
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=reward.share,
        args=settings(work, folder, seed),
        train_dataset=Dataset.from_list(rows),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder / "model"),
        callbacks=[steps],
    )
    trainer.train()
    seconds = [end - start for start, end in zip(steps.ends, steps.ends[1:], strict=False)]
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    found = {"reward": steps.rewards, "seconds": seconds, "versions": versions}
    (folder / "trl.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
