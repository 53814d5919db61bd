"""The control tokens of the bank's policy."""

PAD, BEGIN, USER, ASSISTANT, TOOL, END = "<|pad|>", "<|begin|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"
SPECIAL = (PAD, BEGIN, USER, ASSISTANT, TOOL, END)
