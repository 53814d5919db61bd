"""Blocks of two sides: who begins, and what a ratio says."""

from pathlib import Path

import pytest

from benchmarks.common import REPOSITORY, output_of
from benchmarks.paired import Side, alternating, ratio


def test_the_side_that_begins_alternates_and_pairs_are_of_one_number() -> None:
    here, other, ran = Side(REPOSITORY, ("a=1",)), Side(REPOSITORY), []

    def block(side: Side, number: int) -> str:
        ran.append(side)
        return f"{len(side.overrides)} {number}"

    pairs = alternating(here, other, 2, block)
    assert ran == [other, here, here, other]
    assert pairs == [("1 0", "0 0"), ("1 1", "0 1")]


def test_a_ratio_is_that_of_this_checkout_to_the_other() -> None:
    found = ratio([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
    assert found["ratio"] == found["low"] == found["high"] == pytest.approx(2.0) and found["pairs"] == 3


def test_a_block_that_fails_says_where_and_what_it_printed(tmp_path: Path) -> None:
    assert output_of(["echo", "figures"], {}, 10.0, tmp_path) == "figures\n"
    with pytest.raises(RuntimeError, match=rf"{tmp_path} failed:\nno"):
        output_of(["sh", "-c", "echo no; exit 3"], {}, 10.0, tmp_path)
