"""The bank's policy: a tiny Qwen2 that says random letters and then a number, itself or by a call of a tool.

Its tokenizer reads pairs of letters and of digits as one token. Supervised training on pairs that are split at random
gives a policy that samples ids which its tokenizer would not choose, as pretrained models do now and then.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from benchmarks.common import small_qwen2
from research.check_bank.marks import ASSISTANT, BEGIN, END, PAD, SPECIAL, TOOL, USER

CALL, CALLED, ASKED = "<call>", "</call>", "double number="
LETTERS, DIGITS = "abcd", "0123456789"
NUMBERS = range(10, 100)
SPLIT = 0.3
"""Share of the pairs that the policy learns to write as two tokens."""
STEPS, ROWS, RATE = 500, 64, 3e-3
"""Of the supervised training."""
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    f"{{% if m.role == 'user' %}}{USER}{{{{ m.content }}}}{{% elif m.role == 'tool' %}}{TOOL}{{{{ m.content }}}}"
    f"{{% elif m.role == 'system' %}}{{{{ m.content }}}}{{% else %}}{ASSISTANT}{{{{ m.content }}}}"
    "{% for call in m.tool_calls or [] %}"
    f"{CALL}{{{{ call.function.name }}}} {{% for k, v in call.function.arguments.items() %}}{{{{ k }}}}={{{{ v }}}}"
    f"{{% endfor %}}{CALLED}{{% endfor %}}{END}{{% endif %}}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)
RESPONSE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": ASSISTANT,
    "fields": {
        "tool_calls": {
            "open_pattern": rf"{CALL}(?P<name>\w+) ",
            "close_pattern": CALLED,
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"(?P<key>\w+)=(?P<value>\w+)", "value_parser": {"name": "json"}},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}
"""How transformers reads a call in the policy's text."""


def question(number: int, with_tool: bool) -> list[dict[str, str]]:
    """The prompt about a number."""
    return [{"role": "user", "content": f"{'Double' if with_tool else 'Guess'} {number}."}]


def told(number: int) -> str:
    """What the tool says; longer than what a pair of tokens for one may take away from a call."""
    return f"{2 * number} is twice {number}"


def write_prompts(folder: Path, with_tool: bool) -> None:
    """All prompts, in the order in which they are played."""
    rows = [{"prompt": question(number, with_tool)} for number in random.Random(0).sample(NUMBERS, len(NUMBERS))]
    name = "double" if with_tool else "guess"
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tokenizer(folder: Path) -> None:
    """Bytes, pairs of letters and of digits, and the marks of a call."""
    pairs = [(one, other) for word in (DIGITS, LETTERS) for one, other in itertools.product(word, repeat=2)]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, pairs)]
    inner = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, pairs))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIAL))
    inner.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in (CALL, CALLED, ASKED)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BEGIN, eos_token=END, pad_token=PAD)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
    tokenizer.save_pretrained(folder)


def loaded(folder: Path) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """The model and its tokenizer."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer


def ready(root: Path) -> Path:
    """The folder of the policy, which is trained at the first call."""
    folder = root / "policy"
    if not (folder / "model.safetensors").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_policy(folder)
    return folder


def write_policy(folder: Path, seed: int = 0) -> None:
    """Trains the policy, with everything that the bank's runs share, into a folder."""
    write_tokenizer(folder)
    for with_tool in (False, True):
        write_prompts(folder, with_tool)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    torch.manual_seed(seed)
    config = small_qwen2(
        **{"vocabulary": len(tokenizer), "width": 64, "layers": 2, "hidden": 128, "heads": 4},
        max_position_embeddings=256,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model, rng = Qwen2ForCausalLM(config), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for _ in range(STEPS):
        rows = [_conversation(tokenizer, rng) for _ in range(ROWS)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([one + [tokenizer.pad_token_id] * (longest - len(one)) for one, _ in rows])
        labels = torch.tensor(
            [
                [token if own else -100 for token, own in zip(one, mask, strict=True)] + [-100] * (longest - len(one))
                for one, mask in rows
            ]
        )
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def _conversation(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[list[int], list[bool]]:
    """The ids of a conversation, and which of them the policy says."""
    number, with_tool = rng.choice(NUMBERS), rng.random() < 0.5
    calls = with_tool and rng.random() < 0.9
    parts = [(f"{BEGIN}{USER}{question(number, with_tool)[0]['content']}{ASSISTANT}", False)]
    if calls:
        parts += [(f"{_letters(rng)}{CALL}{ASKED}{number}{CALLED}{END}", True)]
        parts += [(f"{TOOL}{told(number)}{ASSISTANT}", False)]
    said = 2 * number if calls or rng.random() < 0.3 else rng.choice(NUMBERS)
    parts += [(f"{_letters(rng)} {said}{END}", True)]
    ids, mask = list[int](), list[bool]()
    for text, own in parts:
        found = _split(tokenizer, tokenizer.encode(text, add_special_tokens=False), rng if own else None)
        ids, mask = ids + found, mask + [own] * len(found)
    return ids, mask


def _letters(rng: random.Random) -> str:
    return " ".join("".join(rng.choices(LETTERS, k=rng.randint(1, 4))) for _ in range(rng.randint(2, 4)))


def _split(tokenizer: PreTrainedTokenizerFast, ids: list[int], rng: random.Random | None) -> list[int]:
    """The ids with some pairs as two tokens."""
    if rng is None:
        return ids
    found, vocabulary = list[int](), tokenizer.get_vocab()
    for token in ids:
        word = str(tokenizer.convert_ids_to_tokens(token))
        is_pair = len(word) == 2 and set(word) <= {*DIGITS, *LETTERS}
        pieces = list(word) if is_pair and rng.random() < SPLIT else [word]
        found += [vocabulary[piece] for piece in pieces]
    return found
