"""DeepCoder: write a program; the reward is the share of its tests that it passes (paper, appendix B.1).

An episode has one turn, as in the paper. With more turns (`environment.format.max_turns`) the policy sees how many
tests its program passed and may write another program. The reward of a turn is the increase of the best share so far,
so an episode's return is the share that its best program passed. Programs run in `envs.sandbox`; the expected outputs
stay outside of the sandbox.

Tasks: generated (`envs.deep_coder.tasks`), or with `data` the published problems (`envs.deep_coder.published`), or
those of HumanEval (`envs.deep_coder.human_eval`).

`step` waits for the sandbox, at most `sandbox.limits.total_s` plus the start of an interpreter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from squelch.envs.base import TextEnv
from squelch.envs.contract import Demonstrator
from squelch.envs.data.rows import shuffled
from squelch.envs.deep_coder.human_eval import DATA as HUMAN_EVAL
from squelch.envs.deep_coder.human_eval import problems, read_human_eval
from squelch.envs.deep_coder.published import published, read_problem
from squelch.envs.deep_coder.tasks import (
    DIFFICULTIES,
    Difficulty,
    Plan,
    Problem,
    draw_plan,
    key_of,
    near_miss,
    problem,
    program,
    words,
)
from squelch.envs.sandbox import SandboxConfig, Verdict, judge, shared_pool
from squelch.envs.sandbox.own_time import STRETCH
from squelch.envs.text import printable
from squelch.envs.wording import DEFAULT_QUALITY, DemonstrationQuality, Rng, choose, generic_reasoning, wordings_beside
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NamesFiles
from squelch.kit.records.splits import MAX_DRAWS, Split, no_task, split_of

MAX_PROGRAM = 20_000
MAX_TEXT = 16_000
FENCE = "```"
MAX_SHOWN = 160
"""Characters of a program's output that the policy sees after a public test failed."""


class DeepCoderOptions(Settings):
    """The problems, the number of their tests, and the sandbox."""

    difficulty: Difficulty | Literal["mixed"] = "mixed"
    """Difficulty of generated problems; `mixed`: a third of each. Without effect if `data` is set."""
    data: Annotated[str | None, NamesFiles("human-eval")] = None
    """Published problems: a Parquet or JSON file, a folder of them, or an id on the Hugging Face hub
    (`agentica-org/DeepCoder-Preview-Dataset`, downloaded); `human-eval`: HumanEval's 164 problems, from the package of
    that name. Unset: generated problems, offline."""
    subset: str | None = None
    """Subset of `data`, if it has several: `taco`, `primeintellect`, `lcbv5`."""
    max_tests: int = Field(15, ge=1)
    """Most tests of a published problem that are run: those with the longest inputs. Generated problems have 6
    tests."""
    sandbox: SandboxConfig = SandboxConfig()
    """The sandbox in which programs run."""


@lru_cache(maxsize=4096)
def generated(seed: int, split: Split, options: DeepCoderOptions) -> Problem:
    """The generated problem of `seed`: drawn until one belongs to `split`."""
    level = DIFFICULTIES[seed % len(DIFFICULTIES)] if options.difficulty == "mixed" else options.difficulty
    for draw in range(MAX_DRAWS):
        plan = draw_plan(random.Random(f"DeepCoder {seed} {draw}"), level)
        if split_of(key_of(plan, level)) == split:
            return problem(plan, level)
    raise no_task("DeepCoder", options)


class DeepCoder(TextEnv, Demonstrator):
    """Write a program; the reward is the share of the tests that it passes."""

    name = "DeepCoder"
    Options = DeepCoderOptions
    max_turns = 1
    max_action_length = MAX_PROGRAM
    max_observation_length = MAX_TEXT
    wordings = wordings_beside(__file__)
    options: DeepCoderOptions

    def __init__(self, split: Split = "train", render_mode: str | None = None, **options: Any) -> None:
        super().__init__(split, render_mode, **options)
        self._pool = shared_pool(
            self.options.sandbox
        )  # what is wrong with sandbox or data is said before a task begins
        if self.options.data == HUMAN_EVAL:
            problems(split)
        elif self.options.data is not None:
            published(self.options.data, split, self.options.subset)

    def notes(self) -> list[str]:
        """The sandbox's back end and its missing limits."""
        backend, missing = self._pool.backend, self._pool.missing
        lacks = f"; not to be had here: {'; '.join(missing)}" if missing else ""
        return [
            f"{'sandbox' if backend.isolates else 'WARNING: NO SANDBOX, allow_unsafe is set'}: {backend.name}{lacks}"
        ]

    def longest_call(self) -> tuple[float, str]:
        """The longest time of a program's tests on a machine without a free core."""
        settings = f"{STRETCH} x sandbox.limits.total_s, where programs wait for a core"
        return STRETCH * self.options.sandbox.limits.total_s, settings

    def observation(self) -> str:
        """The current state as text."""
        return printable(self._shown or self._statement(), self.max_observation_length)

    def _statement(self) -> str:
        """The problem; a generated one in the words of the prompt style."""
        problem = self._problem
        if problem.plan is None:
            return problem.text
        _, _, tests = problem.text.partition("\n")
        return f"{self.wording.shown[problem.source].format(words=self._words(problem.plan))}\n{tests}"

    def _words(self, plan: Plan) -> str:
        return words(plan).replace(" , ", self.wording.shown["comma"])

    def read_action(self, text: str) -> str | None:
        """The program without a Markdown fence around it; None if it is empty or too long."""
        if len(text) > 2 * self.max_action_length:
            return None
        lines = text.split("\n")
        first, end = 0, len(lines)
        while first < end and _is_rim(lines[first]):
            first += 1
        while end > first and _is_rim(lines[end - 1]):
            end -= 1
        read = "\n".join(lines[first:end]).strip()
        return read if 0 < len(read) <= self.max_action_length else None

    def task_key(self) -> str:
        """Digest of the task's content."""
        return self._problem.key

    def task_kind(self) -> str | None:
        """The difficulty of a generated problem."""
        return None if self._problem.plan is None else self._problem.source

    def solution(self) -> list[str] | None:
        """Actions to success from the current state; None if none is known."""
        if self._best == 1.0:
            return []
        return None if self._problem.solution is None else [self._problem.solution]

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """The task in words, and a program that is right, or a near miss at the rates in `quality`."""
        problem = self._problem
        grounded = rng.random() < quality.grounded
        wrong = rng.random() < (quality.random_plan if grounded else quality.generic_random_plan)
        if problem.plan is None:
            known = None if wrong else problem.solution
            return generic_reasoning(rng, self.wording), [
                known if known and self.read_action(known) else "print(input())"
            ]
        plan = near_miss(problem.plan, rng) if wrong else problem.plan
        plan = near_miss(problem.plan, rng) if rng.random() < quality.wrong_coordinates else problem.plan
        if grounded:
            reasoning = choose(rng, self.wording.said["task"]).format(words=self._words(plan))
        else:
            reasoning = generic_reasoning(rng, self.wording)
        return reasoning, [program(plan, cast(Difficulty, problem.source))]  # as of every generated problem

    def _load(self, seed: int) -> dict[str, Any]:
        data = self.options.data
        if data is None:
            self._problem = generated(seed, self.split, self.options)
        elif data == HUMAN_EVAL:
            known = problems(self.split)
            self._problem = read_human_eval(known[shuffled(seed, len(known))], self._pool, self.options.max_tests)
        else:
            rows = published(data, self.split, self.options.subset)
            index = shuffled(seed, len(rows))
            self._problem = read_problem(rows[index], rows.location(index), self.options.max_tests)
        self._best, self._shown, self._passed = 0.0, "", 0
        return {"source": self._problem.source, "num_tests": len(self._problem.tests)}

    def _move(self, action: str) -> float:
        problem, limits = self._problem, self.options.sandbox.limits
        verdicts = judge(self._pool, action, problem.tests, limits, problem.function, problem.prelude)
        self._passed = sum(verdict.passed for verdict in verdicts)
        self._shown = self._report(verdicts)
        share, before = self._passed / len(verdicts), self._best
        self._best = max(before, share)
        return self._best - before

    def _report(self, verdicts: Sequence[Verdict]) -> str:
        """The number of passed tests, and the reason why a public test failed; no reasons for hidden tests."""
        shown = self.wording.shown
        report = shown["passed"].format(passed=self._passed, total=len(verdicts))
        for verdict in verdicts[: self._problem.num_public]:
            if not verdict.passed:
                return report + shown["failed"].format(reason=verdict.reason, detail=verdict.detail[:MAX_SHOWN])
        return report

    def _details(self) -> dict[str, Any]:
        return {"passed": self._passed}

    def _terminated(self) -> bool:
        return self._best == 1.0

    def _succeeded(self) -> bool:
        return self._best == 1.0


def _is_rim(line: str) -> bool:
    return not line.strip() or line.strip().startswith(FENCE)
