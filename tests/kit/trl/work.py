"""A tiny model with random weights and a real chat template, and TRL's trainer on it; in TRL's environment alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import trl
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

torch.set_num_threads(1)  # the model is tiny, and another test may have the other core
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ("system", "user", "assistant", "<think>", "</think>", "<answer>", "</answer>", *(f"w{i}" for i in range(6)))
PROMPTS, GROUP, STEPS, NEW = 8, 4, 10, 20
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3_5_think.jinja"


def write_model(folder: Path) -> None:
    """Qwen2 with random weights, a word tokenizer, and the template of Qwen3.5, which opens the reasoning itself."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, "<unk>", *WORDS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(SPECIAL))
    _write(folder, inner, max_position_embeddings=256)


def _write(folder: Path, inner: Tokenizer, **shape: int) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE.read_text()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=inner.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def write_byte_model(folder: Path) -> None:
    """The same with bytes for words, for the text of tool calls."""
    marks = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIAL))
    inner.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    _write(folder, inner, max_position_embeddings=2048)


def loaded(folder: Path) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """The model and its tokenizer."""
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")


class Capturing:
    """Writes, at each step, the weights that sample, and the ids that were sampled; before a trainer's class."""

    captured: Path

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        trainer: Any = self
        step, rank = trainer.state.global_step + 1, trainer.accelerator.process_index
        folder = self.captured / f"step-{step}"
        if rank == 0:
            trainer.model.save_pretrained(folder)
            trainer.processing_class.save_pretrained(folder)
        batch = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        columns: dict[str, Any] = {
            "prompt_ids": _under(batch["prompt_ids"], batch["prompt_mask"]),
            "completion_ids": _under(batch["completion_ids"], batch["completion_mask"]),
        }
        pad = trainer._tokenizer.pad_token_id
        for place, row in enumerate(batch["completion_ids"].tolist()):
            if not columns["completion_ids"][place]:  # masked: cut, or dropped
                columns["completion_ids"][place] = _without_end(row, pad)
        columns["kept"] = batch["completion_mask"].any(1).tolist()
        columns["num_items"] = [int(batch["num_items_in_batch"])] * len(columns["kept"])
        columns["unmasked"] = batch["completion_mask"].sum(1).tolist()
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / f"ids-{rank}.parquet")
        return batch


def _under(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[own.bool()].tolist() for row, own in zip(ids, mask, strict=True)]


def _without_end(row: list[int], pad: int) -> list[int]:
    return _without_end(row[:-1], pad) if row and row[-1] == pad else row


def rows(count: int) -> Dataset:
    """Prompts of six words."""
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS[7:], 6)) for _ in range(count)]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in texts])


def reward(completions: list[Any], **_: Any) -> list[float | None]:
    """The share of words with an even number; None, not scored, for a text of a length that is divisible by five."""
    texts = [one[0]["content"].split() for one in completions]
    even = [[int(word[1:]) % 2 == 0 for word in text if word[0] == "w"] for text in texts]
    return [None if len(text) % 5 == 0 else sum(own) / max(1, len(own)) for text, own in zip(texts, even, strict=True)]


def settings(folder: Path, **changes: Any) -> GRPOConfig:
    """TRL's settings for ten steps of eight prompts with four completions each."""
    return GRPOConfig(**given(folder, **changes))


def given(folder: Path, **changes: Any) -> dict[str, Any]:
    """The same for any trainer that samples."""
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": PROMPTS * GROUP // 2,
        "gradient_accumulation_steps": 2,
        "num_generations": GROUP,
        "max_completion_length": NEW,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "log_completions": True,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "seed": 5,
        **changes,
    }


def trained(
    model_folder: Path,
    config: GRPOConfig | RLOOConfig,
    functions: list[Callable[..., Any]],
    kind: type[GRPOTrainer | RLOOTrainer] = GRPOTrainer,
    resume: str | None = None,
    **others: Any,
) -> GRPOTrainer:
    """A trainer that has trained."""
    model, tokenizer = loaded(model_folder)
    trainer = kind(
        model=others.pop("model", model),
        args=config,
        reward_funcs=functions,
        train_dataset=rows(PROMPTS * (config.max_steps + 1)),
        processing_class=tokenizer,
        **others,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def fingerprint(trainer: GRPOTrainer) -> dict[str, Any]:
    """Digests of parameters, optimizer and random states, and the gradient norms that were logged."""
    inner = trainer.optimizer.optimizer.state
    moments = [value for parameter in trainer.model.parameters() for value in sorted_values(inner[parameter])]
    state = random.getstate(), np.random.get_state()
    return {
        "parameters": digest(trainer.model.parameters()),
        "optimizer": digest(moments),
        "torch_rng": digest([torch.get_rng_state()]),
        "other_rngs": hashlib.sha256(repr(state).encode()).hexdigest(),
        "grad_norm": [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row],
    }


def sorted_values(state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """An optimizer's tensors of one parameter by name."""
    return [state[name] for name in sorted(state)]


def digest(tensors: Any) -> str:
    """Of the bytes of tensors in their order."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
