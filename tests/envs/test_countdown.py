"""Countdown: its grammar, its arithmetic, its rewards, and that every puzzle can be solved."""

import ast
import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.countdown.environment import (
    MAX_LENGTH,
    MAX_VALUE,
    Countdown,
    CountdownOptions,
    Puzzle,
    expression,
    generate,
    parse_expression,
    solve,
    uses_numbers,
    value_of,
)
from squelch.envs.countdown.expressions import numbers_in
from squelch.envs.registry import make

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def playing(numbers: tuple[int, ...], target: int, rule: str = "at_most_once") -> Countdown:
    env = Countdown(rule=rule)
    env.reset(seed=0)
    env._puzzle = Puzzle(numbers, target, "key")
    return env


def value(text: str) -> Fraction | int | None:
    postfix = parse_expression(text)
    assert postfix is not None, text
    return value_of(postfix)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("1 + 2 * 3", 7),
        ("( 1 + 2 ) * 3", 9),
        ("8 - 3 - 2", 3),
        ("8-(3-2)", 7),
        ("8 / 4 / 2", 1),
        ("1 / 3 + 1 / 6", Fraction(1, 2)),
        ("6 / ( 5 - 3 )", 3),
        ("((7))", 7),
        ("007", 7),
        ("3 - 5", -2),
        ("1 / ( 2 - 2 )", None),
    ],
)
def test_expressions_have_their_exact_value(text, result):
    assert value(text) == result


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "+", "1 +", "+ 1", "- 1", "1 2", "( 1", "1 )", "()", "( ) 1", "1 ( 2 )", "( 1 ) 2", "( 1 ) ( 2 )"),
        *("1 ** 2", "1 // 2", "1 = 1", "1.5", "1e3", "x", "__import__('os')", "1,2", "٣", "1\n+\n2 ;", ")("),
        *("1 + ( * 2 )", "²", "1 + 2" + " " * 200 + "+ 1", "1+" * 60 + "1"),
    ],
)
def test_what_the_grammar_does_not_hold_is_no_expression(text):
    assert parse_expression(text) is None
    assert Countdown().read_action(text) is None


def test_other_signs_for_the_operators_are_read():
    assert Countdown().read_action(" 6×(7−5)÷3 ") == "6 * ( 7 - 5 ) / 3"


_expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"( {t[0]} {t[1]} {t[2]} )"),
    max_leaves=6,
)


def by_python(text: str) -> Fraction | None:
    """The same text read by Python's own parser, its leaves made exact."""

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        left, right = walk(node.left), walk(node.right)
        made = {ast.Add: lambda: left + right, ast.Sub: lambda: left - right, ast.Mult: lambda: left * right}
        return made.get(type(node.op), lambda: left / right)()

    try:
        return walk(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        return None


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(_expressions, min_size=1, max_size=4), signs=st.lists(st.sampled_from("+-*/"), min_size=3))
def test_values_agree_with_pythons_grammar_and_exact_fractions(pieces, signs):
    text = " ".join(part for pair in zip(pieces, ["", *signs], strict=False) for part in reversed(pair)).strip()
    if len(text) <= MAX_LENGTH:
        assert value(text) == by_python(text)


SAME = [
    *(("2 + 3", "3 + 2"), ("2 + 3", "( 2 + 3 )"), ("( 2 + 3 ) + 4", "2 + ( 4 + 3 )"), ("9 - ( 4 - 1 )", "1 + 9 - 4")),
    *(("2 * ( 3 + 4 )", "( 4 + 3 ) * 2"), ("8 / ( 4 / 2 )", "2 * 8 / 4"), ("8 / 4 / 2", "8 / ( 2 * 4 )"), ("07", "7")),
]
OTHER = [
    *(("4 * 3", "6 + 6"), ("2 - 3", "3 - 2"), ("8 / 4", "4 / 8"), ("2 * ( 3 + 4 )", "2 * 3 + 2 * 4"), ("5 * 1", "5")),
    *(("( 2 + 3 ) * 4", "2 + 3 * 4"), ("12 + 3", "1 + 23"), ("1 + 1", "1 + 1 + 1"), ("2 * 2", "2 + 2")),
]


@pytest.mark.parametrize(("one", "other", "same"), [*((*p, True) for p in SAME), *((*p, False) for p in OTHER)])
def test_the_same_calculation_is_the_same_action_however_it_is_written(one: str, other: str, same: bool) -> None:
    env = playing((2, 3, 4), 24)
    assert env.same_action(one, other) is env.same_action(other, one) is same
    assert env.same_action(one, one) and env.same_action(other, other)


def swapped(text: str, rng: random.Random) -> str:
    """The same expression with sides of sums and products swapped at random, and written with all brackets."""

    def walk(node: ast.expr) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        sides, sign = [walk(node.left), walk(node.right)], SIGNS[type(node.op)]
        if sign in "+*" and rng.random() < 0.5:
            sides.reverse()
        return f"( {sides[0]} {sign} {sides[1]} )"

    return walk(ast.parse(text, mode="eval").body)


@settings(max_examples=200, deadline=None)
@given(text=_expressions, other=_expressions, seed=st.integers(0, 99))
def test_what_is_the_same_has_the_same_numbers_and_value(text: str, other: str, seed: int) -> None:
    env, mirrored = playing((2, 3, 4), 24), swapped(text, random.Random(seed))
    if len(text) <= MAX_LENGTH:
        assert env.same_action(text, mirrored)
        if env.same_action(text, other):
            assert value(text) == value(other)
            assert sorted(numbers_in(parse_expression(text))) == sorted(numbers_in(parse_expression(other)))


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("8 * 3", 1.0),  # one number left out
        ("5 * 5 - 1", 0.0),  # 5 twice
        ("( 8 - 5 ) * 8", 0.0),  # right, but 8 twice
        ("8 + 5 + 3", 0.1),
        ("8 / ( 3 - 3 )", 0.0),
        ("24", 0.0),
        ("3", 0.1),
        ("9 * 3", 0.0),
    ],
)
def test_rewards_are_those_of_the_paper(action, reward):
    env = playing((3, 5, 8), 24)
    _, paid, terminated, truncated, info = env.step(action)
    assert (paid, terminated, truncated, info["success"]) == (reward, True, False, reward == 1)


def test_a_division_by_zero_is_well_formed_and_wrong():
    assert playing((3, 3, 8), 24).step("8 / ( 3 - 3 )")[1] == 0.1


def test_exactly_once_refuses_to_leave_a_number_out():
    assert playing((3, 5, 8), 24, "exactly_once").step("8 * 3")[1] == 0.0
    assert playing((3, 5, 8), 24, "exactly_once").step("8 * 3 + 5")[1] == 0.1
    assert playing((3, 5, 8), 29, "exactly_once").step("8 * 3 + 5")[1] == 1.0
    assert "exactly once" in Countdown(rule="exactly_once").rules()


def test_the_papers_own_example_breaks_its_rule():
    assert value("6 * (7 - 5 + 1) + 6") == 24
    assert playing((1, 5, 6, 7), 24).step("6 * (7 - 5 + 1) + 6")[1] == 0.0


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    split=st.sampled_from(["train", "validation"]),
    rule=st.sampled_from(["at_most_once", "exactly_once"]),
    count=st.integers(3, 5),
)
def test_every_puzzle_is_solved_by_the_solver_under_its_rule(seed, split, rule, count):
    env = Countdown(split=split, rule=rule, min_numbers=3, max_numbers=count, max_number=25, max_target=200)
    env.reset(seed=seed)
    puzzle = env._puzzle
    assert 3 <= len(puzzle.numbers) <= count and 1 <= puzzle.target <= 200 and puzzle.target not in puzzle.numbers
    (answer,) = env.solution()
    postfix = parse_expression(answer)
    assert uses_numbers(postfix, puzzle.numbers, rule) and value_of(postfix) == puzzle.target
    assert env.step(answer)[1] == 1.0
    assert env.solution() is None, "the episode is over"


def test_six_numbers_are_solved_too():
    options = CountdownOptions(min_numbers=6, max_numbers=6, max_number=100, max_target=MAX_VALUE)
    for seed in range(10):
        puzzle = generate(seed, "train", options)
        for rule in ("at_most_once", "exactly_once"):
            answer = expression(solve(puzzle.numbers, puzzle.target, rule))
            assert len(answer) <= MAX_LENGTH
            assert value(answer) == puzzle.target


def test_the_solver_finds_nothing_where_nothing_is():
    assert solve((1, 1, 1), 50, "at_most_once") is None
    assert solve((2, 3, 90), 6, "exactly_once") is None
    assert expression(solve((2, 3, 90), 6, "at_most_once")) == "3 * 2"


def test_demonstrations_are_well_formed_and_not_all_right():
    env, rng, rewards = Countdown(), random.Random(0), []
    for seed in range(600):
        env.reset(seed=seed)
        reasoning, (action,) = env.demonstrate(rng)
        assert env.read_action(action) == action
        assert len(reasoning.split()) <= 30
        rewards.append(env.step(action)[1])
    assert set(rewards) == {0.1, 1.0}
    assert 0.3 < rewards.count(1.0) / len(rewards) < 0.8


# --- published puzzles ---


def write_puzzles(path: Path, rows: list[Any]) -> Path:
    """In the form of Jiayi-Pan/Countdown-Tasks-3to4: `target` comes first, and numbers in any order."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows))
    return path


def puzzle_rows(count: int) -> list[dict[str, Any]]:
    return [{"target": 10 + i, "nums": [40 + i, 1 + i % 9, 30, *([7] if i % 2 else [])]} for i in range(count)]


@pytest.mark.parametrize("form", ["parquet", "jsonl", "json"])
def test_published_puzzles_are_read_in_each_form_and_played_in_both_styles(tmp_path: Path, form: str) -> None:
    rows = puzzle_rows(60)
    path = write_puzzles(tmp_path / f"train.{form}", rows)
    written = {(tuple(sorted(row["nums"])), row["target"]) for row in rows}
    played = set()
    for seed in range(80):
        env = make("Countdown", options={"data": str(path)}, prompt="natural")
        observation, info = env.reset(seed=seed)
        puzzle = env._puzzle
        assert observation == f"Numbers: {', '.join(map(str, puzzle.numbers))}\nTarget: {puzzle.target}"
        assert info["count"] == len(puzzle.numbers) in (3, 4) and env.observation_space.contains(observation)
        assert make("Countdown", options={"data": str(path)}).reset(seed=seed)[1]["task_key"] == info["task_key"]
        played.add((puzzle.numbers, puzzle.target))
    assert played <= written and len(played) > 45, "each of the training part"


def test_a_published_puzzle_is_answered_demonstrated_and_judged_like_any_other(tmp_path: Path) -> None:
    path = write_puzzles(
        tmp_path / "train.jsonl", [{"nums": [44, 19, 35], "target": 98}, {"nums": [1, 1], "target": 9}]
    )
    found: dict[int, Countdown] = {}
    for split in ("train", "validation"):
        env = Countdown(split, data=str(path))
        env.reset(seed=0)
        found[env._puzzle.target] = env
        assert env.read_action(env.demonstrate(random.Random(0))[1][0])
    assert found[9].solution() is None, "a published puzzle may have no solution"
    assert found[98].step(*found[98].solution())[1] == 1.0


def test_the_same_numbers_in_another_order_are_in_one_split(tmp_path: Path) -> None:
    rows = [
        {"nums": nums, "target": t} for i in range(40) for t in (20, 30) for nums in ([i + 1, 5, 60], [60, i + 1, 5])
    ]
    path = write_puzzles(tmp_path / "train.jsonl", rows)
    numbers: dict[str, set[tuple[int, ...]]] = {}
    for split in ("train", "validation"):
        env = Countdown(split, data=str(path))
        numbers[split] = {env.reset(seed=seed) and env._puzzle.numbers for seed in range(200)}
    assert numbers["train"] and numbers["validation"] and not numbers["train"] & numbers["validation"]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"nums": [3, 5]}, "column target: missing"),
        ({"nums": [3, 5], "target": 0}, "column target: Input should be greater than or equal to 1"),
        ({"nums": [3, 5], "target": "8"}, "column target: Input should be a valid integer"),
        (
            {"nums": [3, 5.5], "target": 8},
            r"column nums: 2 to 6 whole numbers from 1 to 999 are needed \(got \[3, 5.5\]",
        ),
        ({"nums": [3], "target": 8}, "column nums: 2 to 6 whole numbers"),
        ({"nums": "3 5", "target": 8}, "column nums: 2 to 6 whole numbers"),
        ({"nums": [3, True], "target": 8}, "column nums: 2 to 6 whole numbers"),
        ({"nums": [3, 1000], "target": 8}, "column nums: 2 to 6 whole numbers"),
    ],
)
def test_a_row_that_is_no_puzzle_is_named_with_file_line_and_column(
    tmp_path: Path, row: dict[str, Any], complaint: str
) -> None:
    path = write_puzzles(tmp_path / "train.jsonl", [*puzzle_rows(1), row])
    with pytest.raises(ValueError, match=rf"train\.jsonl, line 2, {complaint}"):
        for split in ("train", "validation"):
            make("Countdown", split, {"data": str(path)}).reset(seed=0)


def test_missing_puzzles_are_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        make("Countdown", options={"data": str(tmp_path / "none.parquet")})
    path = write_puzzles(tmp_path / "train.parquet", [{"numbers": [1, 2], "target": 3}])
    with pytest.raises(ValueError, match=r"train\.parquet: no column 'nums'; it has numbers, target"):
        make("Countdown", options={"data": str(path)})
