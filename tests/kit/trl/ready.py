"""A trainer of TRL that is ready to train, as a recipe: python -m tests.kit.trl.ready FOLDER, in TRL's environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from squelch.kit.base.errors import UserError
from squelch.trl import recipe
from tests.kit.trl import ready, work

RATE, GROUP = 3e-5, 4
OWN = "own.jsonl"


def short(completions: list[Any], **_: Any) -> list[float]:
    """1 for few words."""
    return [float(len(one[0]["content"].split()) < 9) for one in completions]


def main() -> None:
    """Writes mine.yaml, the data beside it, what was asked for, and given.yaml, which has data of the user."""
    folder = Path(sys.argv[1])
    work.write_model(folder / "model")
    given = work.given(folder / "out", num_generations=GROUP, learning_rate=RATE, max_steps=-1, num_train_epochs=2)
    given |= {"reward_weights": [0.5, 2.0]}
    arguments = GRPOConfig(**given)
    trainer = GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=[work.reward, ready.short],
        args=arguments,
        train_dataset=work.rows(24),
        eval_dataset=work.rows(3),
    )
    recipe(trainer, folder / "mine.yaml")
    prompts = arguments.generation_batch_size // GROUP
    asked = {"prompts": prompts, "group": GROUP, "rate": RATE, "model": str(folder / "model")}
    asked |= {"minibatches": arguments.steps_per_generation // arguments.gradient_accumulation_steps}
    asked |= {"steps": -(-2 * 24 // prompts)}
    trainer.eval_dataset = {"near": work.rows(2), "far": work.rows(3)}
    try:
        recipe(trainer, folder / "given.yaml")
    except UserError as error:
        asked["refused"] = str(error)
    recipe(trainer, folder / "given.yaml", {"environment.options.data": OWN})
    (folder / "asked.json").write_text(json.dumps(asked))


if __name__ == "__main__":
    main()
