"""TRL's drift of tokens: python -m research.check_bank.complaint_worker FOLDER, on the packages of TRL 0.29.0.

That release decodes what the policy says before it calls a tool, and encodes it again for the next turn and for the
loss. Its trainer runs here as it is; of each call of the model the ids are written (`turns/`), and by the guide's
`keep_ids` those that the trainer learned. What has to stand in for the transformers of that time is the tokenizer's
method for calls of tools, which took other arguments.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import load_dataset
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from research.check_bank import policy
from research.check_bank.plan import CELLS
from research.check_bank.trainer_worker import double, keeper, right, settings, write_turns


class Parsing(PreTrainedTokenizerFast):
    """Reads calls of tools as that release asks for it."""

    response_schema = policy.RESPONSE

    def parse_response(self, response: Any, schema: Any = None, *, prefix: Any = "", tools: Any = None) -> Any:
        """The message of what the policy says."""
        return super().parse_response(response, prefix=prefix, tools=tools)


class TurnsKept(trl.GRPOTrainer):
    """Writes the ids of each call."""

    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *more: Any) -> Any:
        self._rows = [row for row, one in enumerate(completions) if one[0].get("tool_calls")]
        return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *more)

    def _generate_single_turn(self, prompts: list[Any]) -> Any:
        found = super()._generate_single_turn(prompts)
        for row, fed, said in zip(self._rows, *found[:2], strict=True):
            self._calls[row].append({"prompt_ids": list(fed), "completion_ids": list(said)})
        return found

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows, self._calls = list(range(len(inputs))), [list[dict[str, Any]]() for _ in inputs]
        batch = super()._generate_and_score_completions(inputs)
        write_turns(Path(self.args.output_dir), self.state.global_step, self._calls)
        return batch


def main() -> None:
    """Trains."""
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    shared, folder = policy.ready(root), root / "complaint"
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("ids", "turns", "completions"):
        (folder / name).mkdir(parents=True)
    trainer = TurnsKept(
        model=Qwen2ForCausalLM.from_pretrained(shared, dtype=torch.float32),
        args=settings(folder, CELLS["clean-tools"]),
        reward_funcs=[right, keeper(folder)],
        train_dataset=load_dataset("json", data_files=str(shared / "double.jsonl"), split="train"),
        processing_class=Parsing.from_pretrained(shared, padding_side="left"),
        tools=[double],
    )
    trainer.train()
    (folder / "done").write_text(trl.__version__)


if __name__ == "__main__":
    main()
