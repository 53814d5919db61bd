"""Completions that ended by themselves have an end token: where it is lost, or a limit cut them in silence, that is
found; cut answers, stop strings, stripped ids and several end tokens are no fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.writers.checks import formats_of
from squelch.kit.checks.catalogue import checks
from squelch.kit.checks.result import Result
from squelch.kit.checks.run import check
from squelch.kit.readers.format_rows import REASONS
from tests.kit.checks.bank import END, WRITERS, Rollout, columns, nemo_rl, run, slime
from tests.kit.readers.trainer_files import jsonl

LIVE = Path(__file__).with_name("live")
NEW = 40
FORMS = [name for name in WRITERS if name in formats_of(checks()["ends_missing"])]


def result(name: str, folder: Path, rollouts: list[Rollout], *claims: str) -> Result:
    """By the options that the table names for the form."""
    needed = formats_of(checks()["ends_missing"])[name]
    claims = (*claims, f"max_tokens={NEW}") if "--claim" in needed else claims
    found = check(
        WRITERS[name](folder, rollouts),
        base=LIVE / "tokenizer" if "--base" in needed else None,
        format="areal" if name == "areal" else None,
        claims=claims,
    )
    return {one.name: one for one in found.results}["ends_missing"]


def say(one: Rollout, ids: list[int], end: str = "<|end|>") -> None:
    """Makes each turn of it these ids, and the end of its text."""
    one.parts = [(ids if own else fed, own) for fed, own in one.parts]
    one.drawn, one.end = [-1.0 * own for own in one.sampled], end


def without_ends(rollouts: list[Rollout]) -> None:
    for number, one in enumerate(rollouts[::3]):
        one.parts = [(ids[:-1] if own else ids, own) for ids, own in one.parts]
        one.drawn, one.end, one.text = [-1.0 * own for own in one.sampled], "", f"{one.text} is {number}"


def said_to_have_ended(rollouts: list[Rollout]) -> None:
    """A limit of three tokens cuts what a turn says, and nothing tells."""
    for number, one in enumerate(rollouts[::2]):
        one.parts = [(ids[:3] if own else ids, own) for ids, own in one.parts]
        one.drawn, one.end, one.text = [-1.0 * own for own in one.sampled], "", f"{one.text[:9]} {number}"


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("plant", [without_ends, said_to_have_ended])
def test_an_end_that_is_lost_is_found_in_every_form_whose_table_says_so(name, plant, tmp_path) -> None:
    rollouts = run(steps=6)
    assert result(name, tmp_path / "clean", rollouts).verdict == "sound"
    plant(rollouts)
    found = result(name, tmp_path / "planted", rollouts)
    assert (found.verdict, found.of) == ("fault", 144) and found.size is not None, found
    assert found.count in (48, 72) and found.examples and "ends with" in found.examples[0].text


def test_every_form_with_ids_or_end_tokens_is_planted() -> None:
    assert {*FORMS} == {"nemo_rl", "areal", "slime", "skyrl", "verifiers", "squelch", "art", "columns"}


def test_answers_that_a_hidden_limit_cut_are_said_to_be_of_one_length(tmp_path) -> None:
    rollouts = run(steps=6)
    for one in rollouts[::2]:
        say(one, np.random.default_rng(one.member + 10 * one.task + 100 * one.step).integers(100, 6000, 16).tolist())
    found = result("columns", tmp_path, rollouts)
    assert found.verdict == "fault" and "72 of them have 16 tokens, and none has more" in found.says


def cut(rollouts: list[Rollout]) -> None:
    """Answers at the limit that are said to be cut, or have as many tokens."""
    for one in rollouts[::3]:
        size = NEW - len(one.after) + len(one.parts[-1][0])
        one.parts = [*one.parts[:-1], ([500 + one.task + n for n in range(size)], True)]
        one.parts[0] = ([800 + one.task + n for n in range(NEW)], True) if one.member == 9 else one.parts[0]
        one.drawn, one.is_cut, one.end = [-1.0 * own for own in one.sampled], True, ""


def stripped(rollouts: list[Rollout]) -> None:
    for one in rollouts:
        one.parts = [(ids[:-1] if own else ids, own) for ids, own in one.parts]
        one.drawn, one.end = [-1.0 * own for own in one.sampled], ""


def stop_string(rollouts: list[Rollout]) -> None:
    """A third of the answers end with a stop string, whose last token stands within answers too, or is merged with the
    next one now and then."""
    for number, one in enumerate(rollouts[::3]):
        last = 64 if number % 9 == 0 else 63
        say(one, [100 + number, 63, 64, 9, 61, 62, last], f" abcd</answer{'>' if last == 63 else ''}")


def other_ends(rollouts: list[Rollout]) -> None:
    for one in rollouts[::4]:
        one.parts = [([*ids[:-1], 8] if own else ids, own) for ids, own in one.parts]


def padded(rollouts: list[Rollout]) -> None:
    for one in rollouts[::2]:
        one.parts = [([*ids, END, END, END] if own else ids, own) for ids, own in one.parts]
        one.drawn = [-1.0 * own for own in one.sampled]


@pytest.mark.parametrize(
    ("habit", "verdict", "names"),
    [
        (cut, "sound", [one for one in FORMS if one not in ("art", "columns")]),
        (stripped, "unknown", FORMS),
        (stop_string, "unknown", FORMS),
        (other_ends, "sound", ["nemo_rl", "slime", "verifiers", "squelch", "art", "columns"]),
        (padded, "sound", ["slime", "squelch", "columns"]),
    ],
)
def test_habits_of_trainers_are_no_fault(habit, verdict, names, tmp_path) -> None:
    for name in names:
        rollouts = run(steps=6)
        habit(rollouts)
        found = result(name, tmp_path / name, rollouts)
        assert found.verdict == verdict and (verdict == "sound" or found.needs), (name, found)


def test_what_is_claimed_of_stop_strings_decides(tmp_path) -> None:
    rollouts = run(steps=6)
    stop_string(rollouts)
    found = [result("slime", tmp_path / claim, rollouts, f"stop_strings={claim}") for claim in ("false", "true")]
    assert [one.verdict for one in found] == ["fault", "unknown"] and found[0].count == 48
    rollouts = run(steps=6)
    without_ends(rollouts)
    assert result("slime", tmp_path / "x", rollouts, "stop_strings=</answer>").verdict == "unknown"
    rollouts = run(steps=6)
    without_ends(lost := rollouts[:3])
    assert lost and result("slime", tmp_path / "y", rollouts).verdict == "unknown", "one is too few"
    assert result("slime", tmp_path / "z", rollouts, "stop_strings=false").count == 1


def test_a_turn_before_the_last_may_lack_its_end(tmp_path) -> None:
    """A template writes it, or the engine stops at a call of a tool."""
    rollouts = run(steps=6)
    for one in rollouts[::2]:
        one.parts[0] = (one.parts[0][0][:-1], True)
        one.drawn = [-1.0 * own for own in one.sampled]
    for name in ("nemo_rl", "slime", "verifiers", "squelch"):
        assert result(name, tmp_path / name, rollouts).verdict == "sound"


def test_rows_that_fill_the_context_with_prompts_of_many_lengths_are_no_fault(tmp_path) -> None:
    rollouts = run(steps=6)
    for number, one in enumerate(rollouts[::4]):
        one.prompt_ids = [*one.prompt_ids, *range(50, 50 + number % 5)]
        one.parts = [([200 + number + n for n in range(34 - len(one.prompt_ids))], True)]
        one.drawn = [-1.0] * len(one.after)
    assert result("nemo_rl", tmp_path, rollouts).verdict == "sound"


def test_a_claimed_limit_that_is_exceeded_says_nothing_of_single_turns(tmp_path) -> None:
    path = columns(tmp_path, run(steps=6))
    found = {one.name: one for one in check(path, claims=["max_tokens=5"]).results}["ends_missing"]
    assert found.verdict == "unknown" and "--claim max_tokens=N" in found.needs


def test_a_table_of_anybody_may_say_why_each_completion_ended(tmp_path) -> None:
    def rows(lost: Callable[[int], bool]) -> list[dict[str, Any]]:
        rng = np.random.default_rng(3)
        return [
            {
                "prompt_ids": [1, 2, n // 4],
                "completion_ids": [*rng.integers(10, 999, 6).tolist(), *([] if lost(n) else [END])],
                "finish_reason": "length" if n % 4 == 1 else "stop",
                "reward": 1.0,
            }
            for n in range(80)
        ]

    for lost, verdict in ((lambda n: n % 4 == 1, "sound"), (lambda n: n % 4 < 2, "fault")):
        path = jsonl(tmp_path / verdict / "rows.jsonl", rows(lost))
        found = {one.name: one for one in check(path).results}["ends_missing"]
        assert found.verdict == verdict, found
    assert (found.count, found.of) == (20, 60) and REASONS["stop"] and not REASONS["length"]


@pytest.mark.parametrize("write", [slime, nemo_rl])
def test_a_tokenizer_that_names_the_end_decides_where_most_answers_lost_it(write, tmp_path) -> None:
    rollouts, rng = run(steps=6), np.random.default_rng(5)
    for number, one in enumerate(rollouts):
        say(one, [*rng.integers(20, 90, 9).tolist(), *([] if number % 4 else [377])])
    path = write(tmp_path, rollouts)
    found = [check(path, base=base, claims=["max_tokens=60"]) for base in (None, LIVE / "tokenizer")]
    results = [{one.name: one for one in each.results}["ends_missing"] for each in found]
    assert [one.verdict for one in results] == ["unknown", "fault"], results
    assert "<|end|>" in results[1].says
