"""MetaMathQA: answer a mathematics question, with further attempts at half the reward each (paper, appendix B.1).

Reward of a right answer: 1 at the first attempt, 1/2 at the second, 1/4 at the third, ...; of a wrong one 0. An attempt
is an answer; a turn without one costs the turn, not the reward.

Tasks: generated word problems (`envs.meta_math_qa.problems`), or with `data` the published data set in its published
form (meta-math/MetaMathQA: `query`, `response` that ends in "The answer is: X", `original_question`). It publishes only
`train`: one of eight original questions is held out for validation, with all its rephrasings. Consecutive seeds of a
run use the rows of a split in a fixed shuffled order, each row once before any is repeated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field

from squelch.envs.base import TextEnv
from squelch.envs.contract import Demonstrator
from squelch.envs.data.rows import Part, shuffled, split_rows
from squelch.envs.meta_math_qa import answers
from squelch.envs.meta_math_qa.problems import generate
from squelch.envs.text import printable
from squelch.envs.wording import (
    DEFAULT_QUALITY,
    DemonstrationQuality,
    Rng,
    choose,
    generic_reasoning,
    listed,
    wordings_beside,
)
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NAMES_FILES
from squelch.kit.records.splits import MAX_DRAWS, Split, no_task, split_of, task_key_of

ANSWER_MARK = "The answer is:"
MAX_WORKED = 400
"""Characters of a published solution that a demonstration contains."""
_NUMBER = re.compile(r"\d+")


class PublishedQuestion(BaseModel):
    """A row of the published data set, with the published names of its columns."""

    query: str
    response: str
    original_question: str


class MetaMathQAOptions(Settings):
    """The source of questions, and the comparison of answers."""

    compare: answers.Comparison = "value"
    """`value`: equal numbers and expressions in any notation, by math-verify. `exact`: the same text, as in the paper.
    `text`: the same in lower case and without white space, as in the authors' code."""
    data: Annotated[str | None, NAMES_FILES] = None
    """The published data set: a Parquet or JSON file, a folder of them, or its id on the Hugging Face hub
    (`meta-math/MetaMathQA`, downloaded). Unset: generated word problems, offline."""
    largest: int = Field(12, ge=3, le=1000)
    """Largest operand of generated problems; without effect if `data` is set."""


@dataclass(frozen=True)
class Question:
    """One task. `worked`: the solution in words, for demonstrations."""

    text: str
    answer: str
    worked: str
    source: str
    key: str


@lru_cache(maxsize=4096)
def generated(seed: int, split: Split, options: MetaMathQAOptions) -> Question:
    """The generated question of `seed`: problems are drawn until one belongs to `split`."""
    for draw in range(MAX_DRAWS):
        problem = generate(f"MetaMathQA {seed} {draw}", options.largest)
        worked = ", ".join(problem.steps)
        # the split follows from the arithmetic alone: the same numbers with other people are the same problem
        if split_of(task_key_of("MetaMathQA", f"{problem.schema} {worked}")) == split:
            return Question(
                problem.question, problem.answer, worked, problem.schema, task_key_of("MetaMathQA", problem.question)
            )
    raise no_task("MetaMathQA", options)


@lru_cache(maxsize=4)
def published(data: str, split: Split) -> Part[PublishedQuestion]:
    """The split's rows, opened once per process."""
    return split_rows(data, split, PublishedQuestion, group_by="original_question")


def published_question(rows: Part[PublishedQuestion], seed: int) -> Question:
    """The question in the row of `seed`. Raises ValueError with file, row and column if the response has no answer."""
    index = shuffled(seed, len(rows))
    row = rows[index]
    worked, mark, answer = row.response.rpartition(ANSWER_MARK)
    if not mark or not answer.strip():
        where = f"{rows.location(index)}, column response"
        raise ValueError(f"{where}: it must end in '{ANSWER_MARK} X' (got {row.response[-60:]!r})")
    key = task_key_of("MetaMathQA", f"{row.query}\n{answer.strip()}")
    return Question(row.query, answer.strip(), " ".join(worked.split())[:MAX_WORKED], rows.location(index), key)


class MetaMathQA(TextEnv, Demonstrator):
    """Answer the question; each further attempt pays half: 1, 0.5, 0.25, ..."""

    name = "MetaMathQA"
    Options = MetaMathQAOptions
    max_turns = 3
    max_action_length = answers.MAX_LENGTH
    max_observation_length = 8000
    wordings = wordings_beside(__file__)
    options: MetaMathQAOptions

    def __init__(self, split: Split = "train", render_mode: str | None = None, **options: Any) -> None:
        super().__init__(split, render_mode, **options)
        if self.options.data is not None:
            published(self.options.data, split)  # raises errors in the data before actors start

    def observation(self) -> str:
        """The current state as text."""
        shown = self.wording.shown
        if self._right or self._wrong:
            return shown["right" if self._right else "wrong"]
        return printable(shown["problem"].format(question=self._question.text), self.max_observation_length)

    def read_action(self, text: str) -> str | None:
        """The answer without surrounding white space; None if it is empty or too long."""
        answer = text.strip()
        return answer if 0 < len(answer) <= self.max_action_length else None

    def same_action(self, one: str, other: str) -> bool:
        """As `Environment.same_action`: whether the reward's comparison takes each for right where the other one is the
        truth. Alone it is not symmetric: 0.5 is right where 0.50 cents is the truth, and not the reverse."""
        return all(answers.verdict(*pair, self.options.compare) == "equal" for pair in ((one, other), (other, one)))

    def task_key(self) -> str:
        """Digest of the task's content."""
        return self._question.key

    def task_kind(self) -> str | None:
        """The schema of a generated problem."""
        return self._question.source if self.options.data is None else None

    def solution(self) -> list[str] | None:
        """Actions to success from the current state; None if none is known."""
        return [] if self._right else [self._question.answer]

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """The worked solution; at the rates in `quality` a number in it, or the answer, is slightly wrong."""
        truth, said = self._question.answer, self.wording.said
        grounded = rng.random() < quality.grounded
        reasoning = self._worked(choose(rng, said["worked"])) if grounded else generic_reasoning(rng, self.wording)
        if grounded and rng.random() < quality.wrong_coordinates:
            reasoning = _slip(rng, reasoning)
        wrong = rng.random() < (quality.random_plan if grounded else quality.generic_random_plan)
        answer = _slip(rng, truth) if wrong else truth
        if grounded and "answer" in said:
            reasoning = f"{reasoning} {choose(rng, said['answer']).format(answer=answer)}"
        return reasoning, [answer]

    def _worked(self, text: str) -> str:
        """The worked solution in a demonstration's text; a generated one as a sentence has spaces around its signs."""
        question = self._question
        own = self.options.data is None
        spaced = re.sub(r"([-+*/=])", r" \1 ", question.worked) + "." if own else question.worked
        numbers = listed(_NUMBER.findall(question.text)) or "the problem"
        return text.format(worked=question.worked, sentence=spaced, numbers=numbers)

    def _load(self, seed: int) -> dict[str, Any]:
        data = self.options.data
        if data is None:
            self._question = generated(seed, self.split, self.options)
        else:
            self._question = published_question(published(data, self.split), seed)
        if self.options.compare == "value":
            answers.prepare()  # the comparing process starts now, to be ready when the first answer arrives
        self._right, self._wrong = False, 0
        self._verdict: answers.Verdict | None = None
        return {"source": self._question.source}

    def _move(self, action: str) -> float:
        self._verdict = answers.verdict(action, self._question.answer, self.options.compare)
        self._right = self._verdict == "equal"
        reward = 0.5**self._wrong if self._right else 0.0
        self._wrong += not self._right
        return reward

    def _details(self) -> dict[str, Any]:
        return {"attempts": self._wrong + self._right, "verdict": self._verdict}

    def _terminated(self) -> bool:
        return self._right

    def _succeeded(self) -> bool:
        return self._right


def _slip(rng: Rng, text: str) -> str:
    """`text` with one of its numbers slightly changed; unchanged if it has none."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    at = choose(rng, numbers)
    changed = abs(int(at[0]) + choose(rng, (-10, -2, -1, 1, 2, 10)))
    return f"{text[: at.start()]}{changed}{text[at.end() :]}"
