"""Where the reasoning of a turn lies: between markers, before its answer, or nowhere in particular.

    marked           between `<think>` and `</think>`, or other markers (`kit.text.tags`)
    before_answer    from the turn's begin to the begin of its answer, which a text or a regular expression finds:
                     `\\boxed{`, `####`, `Answer:`, `re:(?i)final answer`
    completion       the turn is not divided: what depends on the prompt may be reasoning, answer or an echo

Runs (`actors.formats.tokens`), files of other trainers and the Python API (`kit.api.completions`) cut alike:

- The first occurrence counts, so that no answer of that form stands in the reasoning: a right answer carries its
  prompt's information, and a template that ends in it must not look like reasoning.
- A turn without an answer's beginning has not ended its reasoning, like one that never closes `</think>`.
- Expressions are RE2's, by way of pyarrow: the time grows with the text's length alone, whatever either holds. RE2
  refuses references and look-around, and repetitions beyond 1,000.

Pure: imports pyarrow, for a regular expression only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from squelch.kit.text.tags import ANSWER_OPEN

Reasoning = Literal["marked", "before_answer", "completion"]
MARKED, BEFORE_ANSWER, COMPLETION = get_args(Reasoning)
EXPRESSION = "re:"
"""With which a regular expression begins."""
MOST_CHARACTERS = 200
"""Of what finds an answer."""
COMMON = (r"\boxed{", "####", ANSWER_OPEN, "Answer:")
"""What prompts commonly ask an answer to begin with."""
ASKING_SHARE = 0.5
"""Smallest share of prompts that ask for such an answer, for it to be proposed."""

OF_A_RUN = '"model.{}={}"'
"""How a run's settings are written, which a shell and YAML leave as they are."""


class AnswerStart:
    """Finds where answers begin. `pattern`: a text, or `re:` with a regular expression. ValueError for one that finds
    nothing, or is none."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._expression = pattern.removeprefix(EXPRESSION) if pattern.startswith(EXPRESSION) else None
        sought = pattern if self._expression is None else self._expression
        if not sought.strip() or len(sought) > MOST_CHARACTERS:
            raise ValueError(f"answer={pattern[:MOST_CHARACTERS]!r} must have 1 to {MOST_CHARACTERS} characters")
        if self._expression is not None and self.find("") == 0:
            raise ValueError(f"answer={pattern!r} matches an empty text; it must match what an answer begins with")

    def find(self, text: str) -> int:
        """The position at which the answer begins; -1 if none does."""
        return text.find(self.pattern) if self._expression is None else self._found(text, self._expression)

    def _found(self, text: str, expression: str) -> int:
        import pyarrow as pa
        import pyarrow.compute

        search: Any = pyarrow.compute.find_substring_regex
        data = text.encode(errors="replace")  # one character stands for a lone surrogate
        try:
            place = search(pa.array([data.decode()]), pattern=expression)[0].as_py()
        except pa.ArrowInvalid as error:
            raise ValueError(f"answer={self.pattern!r}: {error}") from error
        return place if place < 0 else len(data[:place].decode())


def asked_for(prompts: Iterable[str]) -> str:
    """What at least half of the prompts ask answers to begin with, one of COMMON; empty if nothing."""
    texts = list(prompts)
    least = max(1.0, ASKING_SHARE * len(texts))
    return next((name for name in COMMON if sum(name in text for text in texts) >= least), "")


def other_ways(asked: str = "", setting: str = "{}={}") -> str:
    """What to do where no turn marks a reasoning, in words. `asked`: as of `asked_for`; `setting`: how a setting is
    written, of name and value."""
    where = f"prompts ask for {asked}: " if asked else "if answers begin with a fixed text, "
    named = f"'{asked}'" if asked else "TEXT"
    before = f"{setting.format('reasoning', BEFORE_ANSWER)} and {setting.format('answer', named)}"
    return (
        f"{where}{before} take what stands before it as the reasoning; else {setting.format('reasoning', COMPLETION)} "
        "measures the whole completion, without a regime"
    )
