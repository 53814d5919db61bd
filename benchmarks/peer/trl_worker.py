"""TRL's worker of the peer benchmark: python -m benchmarks.peer.trl_worker FOLDER [tuned], in TRL's own environment.

GRPO with TRL's default generation (transformers' `generate`), float32, and all sequences of a step in one batch. All
other settings are TRL's defaults. `tuned` turns off gradient checkpointing, which costs time and saves memory that this
model does not need.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from benchmarks.common import word
from benchmarks.peer import work as peer_work
from benchmarks.peer.work import Channel, Work


class TimedTrainer(trl.GRPOTrainer):
    """TRL's trainer; it measures the time of generation and checks prompts and completions against the work."""

    work: Work
    seconds_generation: float = 0.0
    completions: list[list[int]]
    grad_norm: float = 0.0

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.seconds_generation = time.perf_counter() - start
        self.completions = result[0]
        self.work.check(prompt_ids, self.completions, self.state.global_step)
        return result

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        found = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.grad_norm = float(found)
        return found


class OneStepAtATime(TrainerCallback):
    """Delays each step until the benchmark requests it, and answers with its seconds."""

    def __init__(self, trainer: TimedTrainer, channel: Channel) -> None:
        self.trainer, self.channel, self.start = trainer, channel, 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Waits for the request of a step; exits at the end of the input."""
        if not self.channel.next_step():
            sys.exit(0)
        self.start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Answers with the seconds of the step and its parts."""
        step = time.perf_counter() - self.start
        generation = self.trainer.seconds_generation
        rewards = [peer_work.reward(completion) for completion in self.trainer.completions]
        self.channel.answer(
            {
                "step": step,
                "generation": generation,
                "update": step - generation,
                "publication": 0.0,
                "reward_std": float(torch.tensor(rewards).std()),
                "grad_norm": self.trainer.grad_norm,
            }
        )


def settings(work: Work, folder: Path, tuned: bool) -> trl.GRPOConfig:
    """TRL's settings for the work."""
    return trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=not tuned,
        max_steps=work.num_steps,
        per_device_train_batch_size=work.num_sequences,
        num_generations=work.num_samples,
        max_completion_length=work.new_tokens,
        generation_kwargs={"min_new_tokens": work.new_tokens},
        temperature=work.temperature,
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        loss_type="grpo",
        epsilon=work.clip_low,
        epsilon_high=work.clip_high,
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


def texts(work: Work) -> Dataset:
    """The prompts of all steps in order, as texts that the folder's tokenizer converts back to their ids."""
    prompts = [prompt for step in range(work.num_steps) for prompt in work.prompts(step)]
    return Dataset.from_list([{"prompt": " ".join(word(token) for token in prompt)} for prompt in prompts])


def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The reward of each completion."""
    return [peer_work.reward(completion) for completion in completion_ids]


def main() -> None:
    """Runs the worker for the folder on the command line."""
    folder, channel = Path(sys.argv[1]), Channel()
    work = peer_work.load(folder)
    torch.set_num_threads(work.num_threads)
    trainer = TimedTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=rewards,
        args=settings(work, folder, tuned="tuned" in sys.argv[2:]),
        train_dataset=texts(work),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
    )
    trainer.work = work
    trainer.add_callback(OneStepAtATime(trainer, channel))
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    channel.answer({"ready": True, "versions": versions, "threads": torch.get_num_threads()})
    trainer.train()


if __name__ == "__main__":
    main()
