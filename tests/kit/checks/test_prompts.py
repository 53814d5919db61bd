"""Prompts that were to be played and were not: a run's order or its counts say whether that is a fault."""

import random
from collections import Counter
from pathlib import Path

import pytest

from squelch.kit.checks.prompts import EVEN, FEWEST, evenness, exceeds
from squelch.kit.checks.result import Result
from squelch.kit.checks.run import check
from tests.kit.readers.trainer_files import jsonl

COUNT, A_STEP = 60, 6


def prompts(folder: Path, count: int = COUNT) -> Path:
    return jsonl(
        folder / "prompts.jsonl", [{"prompt": f"Problem {n}: add {n} and 2", "answer": n} for n in range(count)]
    )


def played(folder: Path, order: list[int], form: str = "trl") -> Path:
    """Files of steps of `A_STEP` prompts each with two rollouts, in this order."""
    for step in range(1, 1 + len(order) // A_STEP):
        own = [one for one in order[(step - 1) * A_STEP : step * A_STEP] for _ in range(2)]
        texts = [f"Problem {one}: add {one} and 2" for one in own]
        if form == "trl":
            rows = [
                {"step": step, "prompt": [{"role": "user", "content": text}], "completion": f"{n}",
                 "right": float(n % 2), "advantage": 0.0}
                for n, text in enumerate(texts)
            ]  # fmt: skip
        else:
            rows = [
                {"input": f"system\nBe brief.\nuser\n{text}\nassistant\n", "output": f"{n}", "score": float(n % 2),
                 "step": step, "uid": f"{step}-{n // 2}_{n % 2}_0"}
                for n, text in enumerate(texts)
            ]  # fmt: skip
        jsonl(folder / "rows" / f"{step}.jsonl", rows)
    return folder / "rows"


def found(tmp_path: Path, order: list[int], form: str = "trl", claims: tuple[str, ...] = ()) -> Result:
    result = check(played(tmp_path, order, form), data=prompts(tmp_path), claims=claims)
    return next(one for one in result.results if one.name == "prompts_lost")


@pytest.mark.parametrize("form", ["trl", "verl"])
def test_a_block_that_a_resume_skipped_is_found_in_the_order_of_the_file(tmp_path, form) -> None:
    one = found(tmp_path, [*range(24), *range(42, 60)], form)
    assert (one.verdict, one.count, one.step) == ("fault", 18, 5)
    assert one.examples[0].row == "prompts.jsonl row 25" and "skipped before step 5" in one.says


def test_an_epoch_that_is_not_over_and_a_whole_one_are_sound(tmp_path) -> None:
    assert found(tmp_path / "a", list(range(30))).verdict == "sound"
    assert found(tmp_path / "b", list(range(60))).verdict == "sound"
    assert found(tmp_path / "c", [*range(60), *range(60)]).verdict == "sound"


def test_prompts_that_no_epoch_played_are_found_and_a_draw_with_replacement_is_not(tmp_path) -> None:
    rng = random.Random(0)
    kept = [one for one in range(COUNT) if one not in (7, 33)]
    order = [one for _ in range(3) for one in rng.sample(kept, len(kept))]
    one = found(tmp_path / "a", order)
    assert (one.verdict, one.count) == ("fault", 2) and {"Problem 7: add 7 and 2", "Problem 33: add 33 and 2"} == {
        each.text for each in one.examples
    }
    assert found(tmp_path / "b", [rng.randrange(COUNT) for _ in range(180)]).verdict in ("unknown", "sound")
    assert found(tmp_path / "c", rng.sample(range(COUNT), 42)).verdict == "unknown", "the epoch is not over"


def test_a_prompt_that_the_file_holds_twice_is_not_lost(tmp_path) -> None:
    twice = jsonl(
        tmp_path / "twice.jsonl", [{"prompt": f"Problem {n}: add {n} and 2"} for n in [3, *range(COUNT), *range(5)]]
    )
    order = random.Random(0).sample(range(COUNT), COUNT)
    result = check(played(tmp_path / "a", order), data=twice)
    assert [one.verdict for one in result.results if one.name == "prompts_lost"] == ["sound"]
    kept = [one for one in order if one not in (7, 33)]
    result = check(played(tmp_path / "b", [*kept, *kept, *kept]), data=twice)
    (one,) = result.faults
    assert (one.count, one.of) == (2, COUNT) and {each.row for each in one.examples} == {
        "twice.jsonl row 9", "twice.jsonl row 35"
    }  # fmt: skip


def test_the_rest_that_each_epoch_leaves_out_is_no_fault(tmp_path) -> None:
    """64 prompts in steps of 6: with `drop_last`, an epoch plays 60 of them."""
    rng, data = random.Random(3), prompts(tmp_path, 64)
    epochs = [rng.sample(range(64), 60) for _ in range(2)]
    kept = [index for index in range(64) if index not in epochs[0]]
    epochs[1] = rng.sample([index for index in range(64) if index not in kept[:1]], 60)
    result = check(played(tmp_path / "a", [*epochs[0], *epochs[1]]), data=data)
    one = next(one for one in result.results if one.name == "prompts_lost")
    assert (one.verdict, one.count) == (
        "unknown",
        1 + len({*kept[1:]} - {*epochs[1]}),
    ) and "may leave out 4" in one.needs
    kept = [index for index in range(64) if index not in (7, 9, 21, 33)]
    result = check(played(tmp_path / "b", [one for _ in range(3) for one in rng.sample(kept, 60)]), data=data)
    assert [one.count for one in result.faults] == [4], "always the same ones"


@pytest.mark.parametrize(("of", "size", "epochs"), [(1000, 128, 1), (1000, 128, 2), (1000, 600, 5), (500, 64, 3)])
def test_epochs_without_their_rest_hardly_ever_leave_out_too_many(of, size, epochs) -> None:
    rng, whole, faults = random.Random(4), of - of % size, 0
    for _ in range(500):
        never = set(range(of))
        for _ in range(epochs):
            never -= set(rng.sample(range(of), whole))
        faults += exceeds(len(never), of, size, epochs * whole)
    assert faults <= 2, "1 in 1,000 is meant"
    assert exceeds(of % size, of, size, 12 * whole), "what is left out in each of many epochs is lost"


def test_a_trainer_that_may_drop_groups_is_asked_whether_it_did(tmp_path) -> None:
    rng = random.Random(1)
    kept = [one for one in range(COUNT) if one != 7]
    order = [one for _ in range(2) for one in rng.sample(kept, len(kept))]
    order += rng.sample(kept, A_STEP - len(order) % A_STEP)
    one = found(tmp_path / "a", order, "verl")
    assert one.verdict == "unknown" and "dynamic_sampling=false" in one.needs
    assert found(tmp_path / "b", order, "verl", ("dynamic_sampling=false",)).verdict == "fault"


def test_draws_with_replacement_are_not_as_even_as_epochs() -> None:
    rng = random.Random(2)
    for epochs in (1, 2, 5):
        for _ in range(300):
            counts = Counter(rng.randrange(FEWEST) for _ in range(epochs * FEWEST))
            assert evenness(counts, FEWEST)[1] < EVEN or len(counts) == FEWEST, "none is left out"


def test_a_file_without_prompts_is_refused(tmp_path) -> None:
    rows = played(tmp_path, list(range(6)))
    with pytest.raises(ValueError, match="each row needs a prompt"):
        check(rows, data=jsonl(tmp_path / "none.jsonl", [{"text": "x"}]))
