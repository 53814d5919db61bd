"""The regimes of the committed runs are those that the page states, and each means of collapse has its own."""

from collections import Counter

import pytest

from research.judging import PAGES
from research.kept import Kept
from research.regimes import Course, called_untrue, committed, in_words
from squelch.kit.diagnosis.metrics import REGIMES

PAGE = PAGES / "alarms.md"
ROWS = {
    "every `Left` pays, two runs": ("collapse", ("blind",)),
    "entropy bonus 0.4 and 1.0": ("collapse", ("entropy0.4", "entropy1")),
    "every well-formed action pays, two runs": ("collapse", ("format",)),
    "a length penalty of 3": ("collapse", ("length",)),
    "six healthy runs": ("healthy", ("none", "top_p")),
    "Sokoban without the filter, five runs": ("lead", ("none",)),
    "Sokoban with top-p, five runs": ("lead", ("top_p",)),
}


@pytest.fixture(scope="module")
def courses() -> list[Course]:
    return committed()


@pytest.mark.parametrize("row", ROWS)
def test_the_page_has_the_scorings_by_regime(courses: list[Course], row: str) -> None:
    part, arms = ROWS[row]
    found = Counter(
        regime for one in courses if one.run.part == part and one.run.arm in arms for _, regime in one.regimes
    )
    said = in_words({name: found[name] for name in REGIMES if found[name]})
    stated = [line.split("|")[2] for line in PAGE.read_text().splitlines() if line.strip().startswith(f"| {row} |")]
    assert sorted(said.split(", ")) in [sorted(cell.strip().split(", ")) for cell in stated]


def test_each_means_of_collapse_ends_in_the_regime_that_names_it(courses: list[Course]) -> None:
    last = {one.run.name: one.regimes[-1][1] for one in courses if one.run.part == "collapse"}
    assert {regime for name, regime in last.items() if "blind" in name} == {"unused"}
    assert {regime for name, regime in last.items() if "entropy" in name} == {"template"}
    healthy = [one for one in courses if one.run.part == "healthy"]
    assert len(healthy) == 6 and all(one.words == "used" and one.untrue is None for one in healthy)


def test_stretches_are_told_by_their_first_steps() -> None:
    run = Kept("one", "lead", "sokoban", "none", 0, 30, {}, {})
    course = Course(run, ((1, "used"), (10, "used"), (20, "unused"), (30, "used")), None)
    assert course.words == "used, unused from 20, used from 30"


def test_the_pages_say_how_often_reasoning_was_called_untrue(courses: list[Course]) -> None:
    found = called_untrue(courses)
    wanted = []
    for parts in (("long", "rules"), ("noise",)):
        count = sum((Counter(found[part]) for part in parts), Counter())
        wanted.append(f"in {count['runs_untrue']} of {count['runs']} ")
        wanted.append(f"({count['scorings_untrue']} of {count['scorings']}")
    for page in ("research/alarms.md", "guide/reasoning.md"):
        words = " ".join((PAGE.parents[1] / page).read_text().split())
        assert not [part for part in wanted if part not in words], page
