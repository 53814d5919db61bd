"""Scripts as users of TRL have them: a thinking model, LoRA, and tools; in TRL's environment:
python -m tests.kit.trl.scripts FOLDER. The model writes bytes, and is first taught to think, to call
the tool and to answer, so that what it samples can be read back from the files that TRL writes."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers.utils import get_json_schema
from trl import GRPOTrainer

from squelch.kit.api.completions import UNREADABLE
from squelch.trl import Observer
from tests.kit.trl import work

STEPS, WITH_TOOLS, TAUGHT = 4, 3, 300
"""Few steps: twenty of each script were run by hand."""
TEMPLATES = Path(trl.__file__).parent / "chat_templates"


def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number.
    """
    return 2 * number


def reward(completions: list[Any], number: list[int], **_: Any) -> list[float]:
    """1 where the last message has the doubled number; a little for each word, so that groups differ."""
    texts = [one[-1].get("content") or "" for one in completions]
    return [float(str(2 * want) in text) + 0.01 * (len(text) % 7) for want, text in zip(number, texts, strict=True)]


def keep_ids(prompts: list[Any], completion_ids: list[list[int]], trainer_state: Any, **_: Any) -> list[None]:
    """The reward function of docs/guide/use-with-other-trainers.md: TRL's own file has calls and reasonings as it
    parsed them, without the white space around."""
    step, pairs = trainer_state.global_step, zip(prompts, completion_ids, strict=True)
    rows = [{"prompt": prompt, "completion_ids": ids, "step": step} for prompt, ids in pairs]
    pq.write_table(pa.Table.from_pylist(rows), Path(sys.argv[1]) / "tools" / f"ids_{step}.parquet")
    return [None] * len(rows)


def asked(number: int) -> list[dict[str, Any]]:
    """The prompt."""
    return [{"role": "user", "content": f"Double {number}."}]


def thought(number: int, dice: random.Random) -> str:
    """A reasoning about a number, in one of some ways."""
    return f"{dice.choice(('So', 'I see', 'Well'))} {number}, {dice.choice(('twice', 'two of it', 'again'))}"


def spoken(tokenizer: Any, dice: random.Random, with_tools: bool) -> tuple[list[int], int]:
    """(the ids of a conversation, how many of them are its prompt)."""
    number = dice.randrange(10, 50)
    given: dict[str, Any] = {"tools": [double]} if with_tools else {}
    prompt = tokenizer.apply_chat_template(asked(number), add_generation_prompt=True, tokenize=False, **given)
    opening = "" if prompt.endswith("<think>\n") else "<think>\n"
    said = f"{opening}{thought(number, dice)}\n</think>\n\n"
    if not with_tools or dice.random() < 0.2:
        said += f"{2 * number}<|im_end|>"
    else:
        call = {"name": "double", "arguments": {"number": number}}
        said += f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>"
        if dice.random() < 0.5:
            prompt += f"{said}\n<|im_start|>user\n<tool_response>\n{2 * number}\n</tool_response><|im_end|>\n"
            prompt += "<|im_start|>assistant\n"
            said = f"<think>\nIt is {2 * number}\n</think>\n\n{2 * number}<|im_end|>"
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in (prompt, said)]
    return [*ids[0], *ids[1]], len(ids[0])


def teach(folder: Path, template: str, with_tools: bool) -> None:
    """Writes the model, which has learned what a policy says under the template."""
    work.write_byte_model(folder)
    (folder / "chat_template.jinja").write_text((TEMPLATES / template).read_text())
    model, tokenizer = work.loaded(folder)
    dice = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, TAUGHT)
    for _ in range(TAUGHT):
        inputs, labels = batch(
            [spoken(tokenizer, dice, with_tools) for _ in range(6 if with_tools else 16)], tokenizer.pad_token_id
        )
        loss = model(input_ids=inputs, labels=labels, attention_mask=(inputs != tokenizer.pad_token_id).long()).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"{template}: {loss.item():.3f} nats per token", file=sys.stderr)
    model.save_pretrained(folder)


def batch(rows: Sequence[tuple[list[int], int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, and labels of what the policy says alone."""
    longest = max(len(ids) for ids, _ in rows)
    inputs = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows])
    own = torch.tensor([[start <= at < len(ids) for at in range(longest)] for ids, start in rows])
    return inputs, torch.where(own, inputs, -100)


def trained(folder: Path, model: Path, steps: int = STEPS, **others: Any) -> None:
    """A user's script: the observer at each step, a checkpoint at each step, and the files of completions."""
    observer = Observer(every=1, export=False)
    policy, tokenizer = work.loaded(model)
    halves = [one for one in range(len(tokenizer)) if UNREADABLE in tokenizer.decode([one])]
    config = work.settings(
        folder,
        max_steps=steps,
        save_strategy="steps",
        save_steps=1,
        max_completion_length=120,
        learning_rate=1e-4,
        generation_kwargs={"suppress_tokens": halves},  # a text that lost half a character is not read back
    )
    dice = random.Random(1)
    numbers = [number for _ in range(steps) for number in dice.sample(range(10, 50), work.PROMPTS)]
    trainer = GRPOTrainer(
        model=str(model) if "peft_config" in others else policy,
        args=config,
        reward_funcs=[reward, observer, *([keep_ids] if "tools" in others else [])],
        train_dataset=Dataset.from_list([{"prompt": asked(number), "number": number} for number in numbers]),
        processing_class=tokenizer,
        callbacks=[observer],
        **others,
    )
    trainer.train()
    (folder / "found.json").write_text(json.dumps(trainer.state.log_history))


def main() -> None:
    """The three scripts, each in a folder of its name; `base` and `calls` are the models from which they start."""
    root = Path(sys.argv[1])
    torch.manual_seed(0)
    teach(root / "base", "qwen3_5_think.jinja", with_tools=False)
    trained(root / "thinking", root / "base")
    trained(root / "lora", root / "base", peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    teach(root / "calls", "qwen3.jinja", with_tools=True)
    (root / "tools.json").write_text(json.dumps([get_json_schema(double)]))
    (root / "tools").mkdir()
    trained(root / "tools", root / "calls", WITH_TOOLS, tools=[double])


if __name__ == "__main__":
    main()
