"""The tags of a turn in Squelch's own format (`envs.format`), and the rule that says where a turn's reasoning lies.

Runs (`envs.format`, `actors.formats`), files of other trainers and the Python API (`kit.api.completions`) cut alike:

- The prompt opens the reasoning, or the turn begins with `<think>`. Where the prompt opens it, a `<think>` within the
  turn is text. Where such a turn begins with `<think>` again, its reasoning begins behind that, except in the format
  `own`, which feeds the opening itself.
- The reasoning ends at the first `</think>` after that, also within code, a quotation or a string: a sampled text does
  not say what it quotes, and an engine that stops at `</think>` does not ask.
"""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
