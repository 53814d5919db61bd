"""DeepCoder: generated and published problems, rewards by share of tests, near misses that pay less."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.config import FormatConfig
from squelch.envs.deep_coder.environment import DeepCoder, DeepCoderOptions, generated
from squelch.envs.deep_coder.published import PublishedProblem, read_problem
from squelch.envs.deep_coder.tasks import (
    DIFFICULTIES,
    Difficulty,
    Plan,
    Problem,
    draw_plan,
    key_of,
    near_miss,
    problem,
    words,
)
from squelch.envs.episode import Episode
from squelch.envs.registry import make
from squelch.envs.sandbox import SandboxConfig, judge, shared_pool
from squelch.envs.sandbox.backends import choose
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.records.splits import split_of
from tests.envs.hostile_text import hostile_actions

try:
    choose(allow_unsafe=False)
except ValueError as error:
    pytest.skip(f"no sandbox here: {error}", allow_module_level=True)

LIMITS = SandboxConfig().limits.model_copy(update={"wall_s": 10, "total_s": 60})
OPTIONS = {"sandbox": {"limits": {"wall_s": 10, "total_s": 60}}}
SUM = "def f(a, b): return a + b"
ECHO = "print(sum(map(int, input().split())))"
TACO_CALLS = {"fn_name": "f", "inputs": [[1, 2], [5, 5]], "outputs": [[3], [10]]}
TACO_STREAMS = {"inputs": ["1 2\n", ["3 4"]], "outputs": ["3\n", ["7"]]}
PRIME_CALLS = [{"type": "function_call", "fn_name": "f", "input": [1, 2], "output": [3]}]
PRIME_STREAMS = [{"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"}]
LIVE_CALLS = [{"testtype": "functional", "input": "1\n2", "output": "3", "metadata": {"func_name": "f"}}]
LIVE_STREAMS = [{"testtype": "stdin", "input": "1 2", "output": "3"}]


def generate(seed: str, difficulty: Difficulty) -> Problem:
    return problem(draw_plan(random.Random(seed), difficulty), difficulty)


def judged(program: str, found: Any) -> float:
    verdicts = judge(shared_pool(SandboxConfig()), program, found.tests, LIMITS, found.function, found.prelude)
    return sum(verdict.passed for verdict in verdicts) / len(verdicts)


# --- generated problems ---


@pytest.mark.slow
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_reference_solutions_pass_every_test(difficulty: Difficulty) -> None:
    for seed in range(12):
        found = generate(f"solution {seed}", difficulty)
        assert judged(found.solution or "", found) == 1.0, found


@pytest.mark.slow
def test_every_operation_means_in_code_what_it_means_in_the_tests() -> None:
    from squelch.envs.deep_coder.tasks import CHANGES, GATHERINGS, TESTS_OF_A_NUMBER, Gathering, Step

    plans: list[tuple[Plan, Difficulty]] = [
        ((Step(name, CHANGES[name].numbers[-1]), Step("add", 5)), "easy") for name in CHANGES
    ]
    plans += [((Step("subtract", 5), Step(name, CHANGES[name].numbers[0])), "easy") for name in CHANGES]
    for how in GATHERINGS:
        plans += [((Gathering(Step(name, 3), Step("add", 1), how),), "medium") for name in TESTS_OF_A_NUMBER]
    for plan, difficulty in plans:
        found = problem(plan, difficulty)
        assert judged(found.solution or "", found) == 1.0, found


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(DIFFICULTIES))
def test_near_misses_are_other_plans(seed: int, difficulty: Difficulty) -> None:
    plan = generate(f"miss {seed}", difficulty).plan
    assert plan is not None
    other = near_miss(plan, random.Random(seed))
    assert len(other) == len(plan) and other != plan and words(other) != words(plan)


@pytest.mark.slow
def test_ten_thousand_contents_in_each_split_and_none_in_both() -> None:
    keys: dict[str, set[str]] = {"train": set(), "validation": set()}
    rng = random.Random(0)
    for draw in range(90_000):
        key = key_of(draw_plan(rng, DIFFICULTIES[draw % 3]), DIFFICULTIES[draw % 3])
        keys[split_of(key)].add(key)
    assert all(len(found) >= 10_000 for found in keys.values()), {name: len(found) for name, found in keys.items()}
    options = DeepCoderOptions()
    for split, first in (("train", 0), ("validation", 10**9)):
        assert all(split_of(generated(seed, split, options).key) == split for seed in range(first, first + 300))


def test_the_prompt_is_short_and_shows_public_tests_only() -> None:
    for seed in range(300):
        env = make("DeepCoder", "train", OPTIONS)
        text, info = env.reset(seed=seed)
        assert len(text) <= 300 and info["num_tests"] == 6
        shown = text.splitlines()[1:]
        assert len(shown) == 2


def test_a_run_reports_which_sandbox_it_has() -> None:
    (note,) = make("DeepCoder", "train", OPTIONS).notes()
    assert note.startswith(f"sandbox: {choose(False).name}")


def test_generated_problems_run_at_three_difficulties() -> None:
    env = make("DeepCoder", "train", OPTIONS)
    assert {env.reset(seed=seed)[1]["source"] for seed in range(3)} == set(DIFFICULTIES)
    only = make("DeepCoder", "train", {**OPTIONS, "difficulty": "hard"})
    assert {only.reset(seed=seed)[1]["source"] for seed in range(5)} == {"hard"}


# --- playing ---


def test_the_reward_is_the_share_of_tests_passed() -> None:
    env = make("DeepCoder", "train", {**OPTIONS, "difficulty": "easy"})
    env.reset(seed=4)
    (solution,) = env.solution() or []
    public = env.observation().splitlines()[1:]
    known = dict(line.removeprefix("f(").split(") = ") for line in public)
    cheat = f"def f(x): return {{{', '.join(f'{x}: {y}' for x, y in known.items())}}}.get(x)"
    _, reward, terminated, _, info = env.step(cheat)
    assert 0 < reward < 1 and reward == pytest.approx(info["passed"] / 6) and not terminated
    assert "passed" in env.observation()
    _, more, terminated, _, info = env.step(solution)
    assert reward + more == pytest.approx(1.0) and terminated and info["success"]


def test_a_worse_program_later_costs_nothing() -> None:
    env = make("DeepCoder", "validation", OPTIONS)
    env.reset(seed=3)
    assert env.step("def g(): pass")[1] == 0.0
    (solution,) = env.solution() or []
    assert env.step(f"```python\n{solution}\n```")[1] == 1.0
    assert env.step("1 +")[1] == 0.0


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=200)
    | st.sampled_from(["```python\nx = 1\n```", "``` ```", "\n```\n  x\n```\n", "```\n```a\nb\n```"])
)
def test_reading_a_program_twice_changes_nothing(text: str) -> None:
    env = DeepCoder()
    read = env.read_action(text)
    assert read is None or (env.read_action(read) == read and read in text)


def test_two_thousand_hostile_actions_are_read() -> None:
    env, rng = make("DeepCoder", "train", OPTIONS), random.Random(0)
    env.reset(seed=0)
    for text in hostile_actions(rng, 2_000, env.demonstrate(rng)[1]):
        read = env.read_action(text)
        assert read is None or (env.read_action(read) == read and len(read) <= env.max_action_length)


def test_fences_and_programs_too_long() -> None:
    env = DeepCoder()
    assert env.read_action("```python\nif x:\n    y\n```") == "if x:\n    y"
    assert env.read_action("x" * 20_001) is None and env.read_action(" \n```\n") is None


def test_demonstrations_are_well_formed_and_pay_differently() -> None:
    quality, rewards, outcomes = DemonstrationQuality(), set(), []
    for seed in range(8):
        rng = random.Random(seed)
        env = make("DeepCoder", "train", {**OPTIONS, "difficulty": "easy"})
        episode = Episode(env, 5, 0, FormatConfig())
        episode.start()
        reasoning, (action,) = env.demonstrate(rng, quality)
        outcome = episode.act(f" {reasoning} </think> <answer> {action} </answer>")
        outcomes.append(outcome.format_valid)
        rewards.add(outcome.reward)
        assert outcome.done
    assert all(outcomes) and len(rewards) > 1 and 1.0 in rewards


# --- published problems ---


@pytest.mark.parametrize(
    ("tests", "program"),
    [
        (TACO_CALLS, SUM),
        (TACO_STREAMS, ECHO),
        (PRIME_CALLS, SUM),
        (PRIME_STREAMS, ECHO),
        (LIVE_CALLS, "class Solution:\n    def f(self, a: int, b: int) -> Optional[int]: return a + b"),
        (LIVE_STREAMS, ECHO),
    ],
)
def test_each_published_form_is_read_and_judged(tests: Any, program: str) -> None:
    row = PublishedProblem(problem="Add.", tests=json.dumps(tests))
    found = read_problem(row, "file, row 1", 15)
    assert judged(program, found) == 1.0
    assert judged(program.replace("+", "-").replace("sum", "max"), found) == 0.0


def test_the_functions_name_may_stand_in_the_rows_metadata() -> None:
    tests = [{"testtype": "functional", "input": "[1, 2]", "output": "[2, 1]"}]
    row = PublishedProblem(problem="Turn.", tests=tests, metadata='{"func_name": "turn"}', starter_code="def turn(a):")
    found = read_problem(row, "file, row 1", 15)
    assert found.function == "turn" and found.text == "Turn.\ndef turn(a):"
    assert judged("def turn(a): return a[::-1]", found) == 1.0


def test_the_longest_tests_are_kept() -> None:
    row = PublishedProblem(problem="Add.", tests={"inputs": ["1", "1 2 3", "1 2"], "outputs": ["1", "6", "3"]})
    assert [test.question.stdin for test in read_problem(row, "r", 2).tests] == ["1 2 3", "1 2"]


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ("[", "column tests: not JSON"),
        ([], "column tests: there are no tests"),
        ({"inputs": [], "outputs": []}, "column tests: there are no tests"),
        ({"inputs": ["1"], "outputs": []}, "column tests: inputs and outputs must be lists of one length"),
        ({"in": 1}, "column tests: an object with inputs and outputs or a list is needed"),
        (5, "column tests: an object with inputs"),
        ([{"input": "1"}], "column tests, test 1: an object with input and output is needed"),
        ([{"input": 1, "output": "1"}], "column tests, test 1: input and output must be text"),
        ([{"type": "function_call", "input": [1], "output": 1}], "column tests, test 1: a call, but neither fn_name"),
        (
            [{"type": "functional", "input": "1", "output": "1", "metadata": "{"}],
            "column tests, test 1, metadata: not JSON",
        ),
        ({"fn_name": "f", "inputs": [5], "outputs": [5]}, "column tests, test 1: arguments must be a list"),
        ([*PRIME_CALLS, *PRIME_STREAMS], "column tests: tests of one problem must call one function"),
    ],
)
def test_what_is_wrong_with_a_row_is_named(tests: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^data.json, row 7, {complaint}"):
        read_problem(PublishedProblem(problem="x", tests=tests), "data.json, row 7", 15)


FORMS = (TACO_CALLS, TACO_STREAMS, PRIME_CALLS, PRIME_STREAMS, LIVE_CALLS, LIVE_STREAMS)
SPOILT = (None, True, 0, -1.5, "", "{", "1\n2", [], [[]], [None], {}, {"func_name": []}, {"func_name": 3}, "functional")


def spoiled(value: Any, rng: random.Random) -> Any:
    """`value` with something in it replaced or left out."""
    if rng.random() < 0.25 or not isinstance(value, (list, dict)) or not value:
        return rng.choice(SPOILT)
    if isinstance(value, dict):
        key = rng.choice(sorted(value))
        kept = {name: part for name, part in value.items() if name != key or rng.random() < 0.8}
        return {name: spoiled(part, rng) if name == key else part for name, part in kept.items()}
    at = rng.randrange(len(value))
    return [spoiled(part, rng) if index == at else part for index, part in enumerate(value)]


def test_two_thousand_spoilt_rows_are_read_or_named() -> None:
    rng, read = random.Random(0), 0
    for draw in range(2_000):
        tests = spoiled(FORMS[draw % len(FORMS)], rng)
        row = PublishedProblem(problem="x", tests=tests, metadata=rng.choice(SPOILT), solutions=rng.choice(SPOILT))
        try:
            found = read_problem(row, "here, row 1", 3)
        except ValueError as error:
            assert str(error).startswith("here, row 1, column ")
        else:
            read += 1
            assert 1 <= len(found.tests) <= 3 and (found.function is None or isinstance(found.function, str))
    assert 200 < read < 1_800


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set as published: subset taco with train and test, the latter unreadable."""
    (tmp_path / "taco").mkdir()
    rows = [
        {"problem": f"Add {k}.", "tests": json.dumps(TACO_CALLS), "solutions": [f"```python\n{SUM}\n```"]}
        for k in range(64)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "taco" / "train-00000-of-00001.parquet")
    (tmp_path / "taco" / "test-00000-of-00001.parquet").write_bytes(b"never to be read")
    return tmp_path


def test_published_problems_are_played_and_test_is_never_read(folder: Path) -> None:
    options = {**OPTIONS, "data": str(folder), "subset": "taco"}
    seen: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        env = make("DeepCoder", split, options)
        for seed in range(80):
            env.reset(seed=seed)
            seen.setdefault(split, set()).add(env.task_key())
    assert len(seen["train"] | seen["validation"]) == 64 and not seen["train"] & seen["validation"]
    assert env.demonstrate(random.Random(0), DemonstrationQuality(grounded=1, random_plan=0))[1] == [SUM]
    assert env.step(SUM)[1] == 1.0


def test_unknown_subsets_options_and_files_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="taco"):
        make("DeepCoder", "train", {**OPTIONS, "data": str(folder), "subset": "tacos"})
    with pytest.raises(ValueError, match="no-such-file"):
        make("DeepCoder", "train", {**OPTIONS, "data": str(folder / "no-such-file.parquet")})
    with pytest.raises(ValueError, match=r"environment.options.sandbox.limits.wall_s"):
        make("DeepCoder", "train", {"sandbox": {"limits": {"wall_s": -1}}})
    with pytest.raises(ValueError, match="split is 'test'"):
        make("DeepCoder", "test", OPTIONS)  # type: ignore[arg-type]


def test_a_row_without_tests_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"problem": f"Add {k}.", "tests": "[]"}) + "\n" for k in range(30)))
    env = make("DeepCoder", "train", {**OPTIONS, "data": str(path)})
    with pytest.raises(ValueError, match=r"train.jsonl, line \d+, column tests: there are no tests"):
        env.reset(seed=0)


def test_without_isolation_nothing_is_played_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(image: Any, identity: Any) -> Any:
        raise FileNotFoundError("bwrap is not installed")

    monkeypatch.setattr("squelch.envs.sandbox.backends.STRONGEST_FIRST", (broken,))
    with pytest.raises(ValueError, match=r"nothing here isolates .*apt-get install bubblewrap.*allow_unsafe"):
        make("DeepCoder", "train", {"sandbox": {"warm": 3}})
    env = make(
        "DeepCoder", "train", {**OPTIONS, "sandbox": {"warm": 3, "allow_unsafe": True, "limits": {"wall_s": 10}}}
    )
    assert "NOTHING ISOLATES" in caplog.text and env.notes()[0].startswith("WARNING: NO SANDBOX")
    env.reset(seed=0)
    assert env.step((env.solution() or [""])[0])[1] == 1.0
