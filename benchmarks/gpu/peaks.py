"""Peak memory of a learner rank at SmolLM2's shape against the estimate, for the settings that change it.

Each case trains two steps in the same process. On CPU there is no counter of a peak of tensors, so that only the
estimates are printed; `benchmarks.memory` measures peaks on CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.common import SMOLLM, Setting, alone, shape_of, steps_of, write_model
from benchmarks.gpu.parts import installed
from benchmarks.gpu.step import GROUP_SIZE, QUICK, WHOLE, against_estimate, settings
from benchmarks.learner import random_work
from squelch.learner.trainer import Trainer

CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "bfloat16, recomputed activations": {"activation_checkpointing": True},
    "float32": {"dtype": "float32"},
    "bfloat16, KL": {"objective": {"kl": {"coefficient": 0.001}}},
    "bfloat16, critic": {"algorithm": "ppo"},
    "bfloat16, state on the host": {"cpu_offload": True},
    "bfloat16, LoRA": {"lora": {"rank": 16}},
}


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """One row for each case, of two training steps with one micro-batch each."""
    work = QUICK if setting.quick else WHOLE
    config = shape_of(SMOLLM, setting.quick)
    model = write_model(config, setting.folder / "model")
    groups = random_work.random_groups(work.num_groups, GROUP_SIZE, work.prompt, work.answer, config.vocab_size)
    alone(setting.device)
    for name, case in CASES.items():
        if "lora" in case and not installed("peft"):
            yield {name: {"skipped": "peft is not installed"}}
        elif "cpu_offload" in case and setting.device == "cpu":
            yield {name: {"skipped": "there is no device from which to take the state"}}
        else:
            setting.forget_peak()
            before, learner = setting.peak_gib() or 0.0, settings(work, setting.device, **case)
            list(steps_of(Trainer(model, learner), groups, 2))  # the second has optimizer state from the beginning
            yield {name: against_estimate(setting, config, learner, work.tokens, before)}
