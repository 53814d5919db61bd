"""The tiny policy's tokenizer, of one of two kinds, which the environment's `tokenizer` selects.

`words`: one token per word of the environment's closed vocabulary, including the space before it.
`bytes`: byte pair encoding trained on the environment's own demonstrations, over all 256 bytes, so that it can encode
any text.

Invariants:

- Every text the environment shows and every demonstration encodes without `<unk>` and decodes to itself.
- Words: a marker is one token with the space before it (`Ġ</think>`), a grid cell is one token, a number is one token.
- Bytes: no token spans two words, a word and a digit, or a marker and the text next to it; each digit is a separate
  token, so that the policy can copy numbers that did not occur in training.
- Control tokens come first, so that their ids are fixed; with pictures, `VISION_TOKENS` are among them.
- Both depend only on the set of texts, not on their order; the size is a multiple of `multiple`, reached by adding
  unused control tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from squelch.kit.text.tokenizer import write_settings

UNKNOWN, PAD, END = "<unk>", "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CONTROL_TOKENS = (UNKNOWN, PAD, END, *ROLES)
VISION_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
"""Control tokens of a policy that is shown pictures, by their keys in config.json; they follow `CONTROL_TOKENS`."""
ALWAYS = "<think> </think> <answer> </answer>\n ||"
"""Markers of the turn format, which every vocabulary contains."""

PATTERN = r" ?</?(?:think|answer)>| ?\|\|| ?[A-Za-z]+| ?-?[0-9]+(?:\.[0-9]+)?| ?[^\sA-Za-z0-9]|\s"
BYTE_PATTERN = r" ?</?(?:think|answer)>| ?\|\|| ?\p{L}+| ?[0-9]| ?[^\s\p{L}0-9<|]+| ?[<|]|\n+| +"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _splitter(pattern: str = PATTERN) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, letters])


def vocabulary(texts: Iterable[str]) -> list[str]:
    """The distinct pieces of the texts, sorted, in the byte-level alphabet (`Ġ` is the space before a word)."""
    splitter = _splitter()
    distinct = {*texts, ALWAYS, ALWAYS.replace(" ", "")}
    return sorted({piece for text in distinct for piece, _ in splitter.pre_tokenize_str(text)})


def control_tokens(pictures: bool) -> list[str]:
    """The control tokens in the order of their ids; `pictures`: whether the policy is shown any."""
    return [*CONTROL_TOKENS, *(VISION_TOKENS.values() if pictures else ())]


def make_tokenizer(pieces: list[str], multiple: int, pictures: bool = False) -> Tokenizer:
    """A word-level tokenizer over the pieces."""
    control = control_tokens(pictures)
    names = [*control, *pieces]
    unused = [f"<|unused{index}|>" for index in range(-len(names) % multiple)]
    names += unused
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = _splitter()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*control, *unused])
    return tokenizer


def make_byte_tokenizer(texts: Iterable[str], size: int, multiple: int, pictures: bool = False) -> Tokenizer:
    """A byte-pair tokenizer of at most `size` tokens, trained on the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _splitter(BYTE_PATTERN)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=control_tokens(pictures),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([f"<|unused{index}|>" for index in range(-tokenizer.get_vocab_size() % multiple)])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the tokenizer files of a Hugging Face folder, chat template included."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "pad_token": PAD,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
    }
    write_settings(directory / "tokenizer_config.json", settings)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
