"""A GGUF file of a made-up model of a few thousand parameters, with a byte-level tokenizer."""

from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

WIDTH, LAYERS, HEADS, FEED_FORWARD = 32, 2, 4, 64
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_gguf(path: Path, architecture: str = "llama", quantised: bool = True) -> Path:
    """Writes the file; its weights are a function of the arguments."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    tokens = _add_tokenizer(writer)
    for name, tensor in _tensors(len(tokens)).items():
        if quantised and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> list[str]:
    tokens = [*CONTROL, *sorted(ByteLevel.alphabet()), "th"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_vocab_size(len(tokens))
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(CONTROL) + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    return tokens


def _tensors(vocabulary: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    half = WIDTH // 2
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (half, WIDTH),
        "attn_v": (half, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (FEED_FORWARD, WIDTH),
        "ffn_up": (FEED_FORWARD, WIDTH),
        "ffn_down": (WIDTH, FEED_FORWARD),
    }
    found = {"token_embd.weight": rng.normal(0, 0.1, (vocabulary, WIDTH)), "output_norm.weight": np.ones(WIDTH)}
    for layer in range(LAYERS):
        found |= {f"blk.{layer}.{name}.weight": rng.normal(0, 0.1, shape) for name, shape in shapes.items()}
        found |= {f"blk.{layer}.{name}_norm.weight": np.ones(WIDTH) for name in ("attn", "ffn")}
    return {name: tensor.astype(np.float32) for name, tensor in found.items()}
