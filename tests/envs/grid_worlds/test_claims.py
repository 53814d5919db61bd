"""Boards are read back from both prompt styles, and claims about them are true or false as they are."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.grid_worlds.board import last_board, shown
from squelch.envs.grid_worlds.claims import Claim, GridJudge, Offset
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.envs.grid_worlds.sokoban import Sokoban
from squelch.envs.wording import Cell, PromptName, offset

LAKE = "Row 0: _ O _ _\nRow 1: G _ O O\nRow 2: O _ _ P\nRow 3: _ _ _ _"
ROOM = "Row 0: _ P _ #\nRow 1: O X _ _\nRow 2: # _ # _\nRow 3: _ _ # _"
JUDGE, PUSHING = FrozenLake.judge(), Sokoban.judge()
STYLES: tuple[PromptName, ...] = ("tiny", "natural")


def verdicts(judge: GridJudge, board: str, text: str) -> list[bool]:
    facts = judge.facts(board)
    assert facts is not None
    return [judge.holds(claim, facts) for claim in judge.claims(text)]


@pytest.mark.parametrize("grid", [FrozenLake, Sokoban])
@pytest.mark.parametrize("prompt", STYLES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_board_is_read_back_from_any_style_out_of_a_whole_prompt(grid: type, prompt: PromptName, data) -> None:
    side = data.draw(st.integers(2, 10))
    row = st.text(alphabet="".join(grid.legend), min_size=side, max_size=side)
    rows = data.draw(st.lists(row, min_size=side, max_size=side))
    env = grid(prompt=prompt)
    text = shown("\n".join(" ".join(row) for row in rows), env.wording)
    judge = grid.judge()
    for around in (text, f"<|user|>{text}\nactions left 3<|end|>", f"{env.rules()}\n{LAKE}\nState:\n{text}\n\nGo on."):
        assert judge.board(around) == rows
    facts = judge.facts(text)
    for fact in grid.nouns:
        there = {(r, c) for r, row in enumerate(rows) for c, g in enumerate(row) if fact in grid.legend[g].split()}
        assert facts[fact] == there


CELLS = st.tuples(st.integers(0, 3), st.integers(0, 3))
FORMS = (
    "row {row}, column {column}",
    "row {row} and column {column}",
    "(row {row}, column {column})",
    "({row}, {column})",
    "({row},{column})",
    "Row {row} Column {column}",
    "column {column}, row {row}",
    "column {column} of row {row}",
)
PHRASES = {
    "player": ("I am at {}.", "I'm now at {}", "The player is at {}!", "My position is {}."),
    "goal": ("The goal is at {}.", "I see the goal at {} and I like it.", "goal: {}"),
    "hole": ("There is a hole at {}.", "The hole is on {}, so I go left.", "a hole in {}"),
}


@pytest.mark.parametrize("fact", PHRASES)
@given(cell=CELLS, form=st.sampled_from(FORMS), data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_claimed_cell_is_true_where_the_fact_is_and_false_elsewhere(fact: str, cell: Cell, form: str, data) -> None:
    text = data.draw(st.sampled_from(PHRASES[fact])).format(form.format(row=cell[0], column=cell[1]))
    assert JUDGE.claims(text) == [Claim(fact, cell)]
    assert verdicts(JUDGE, LAKE, text) == [cell in JUDGE.facts(LAKE)[fact]]


@given(start=CELLS, end=CELLS, said=CELLS)
@settings(max_examples=100, deadline=None)
def test_a_claimed_offset_is_true_of_the_one_board_that_has_it(start: Cell, end: Cell, said: Cell) -> None:
    if start in (end, said):
        return
    cells = [["_"] * 4 for _ in range(4)]
    cells[start[0]][start[1]], cells[end[0]][end[1]] = "P", "G"
    board = "\n".join(" ".join(row) for row in cells)
    assert verdicts(JUDGE, board, f"The goal is {offset(start, said)}.") == [said == end]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("I am at row 2, column 3, so I go up to row 1, column 3.", [True]),
        ("The holes are at (0, 1) and (1, 2) and (3, 3).", [True, True, False]),
        ("There is no hole at row 2, column 2.", [True]),
        ("There is no hole at row 0, column 1.", [False]),
        ("The goal is above me.", [True]),
        ("The goal is below me and to the right.", [False, False]),
        ("The goal is to my left. There is a hole directly above me.", [True, True]),
        ("A hole is directly below me.", [False]),
        ("The goal is one row up and three columns to the left", [True]),
        ("The goal is 1 row up.", [False]),
        ("I am in row 2 now. The goal is at column 1.", [True, False]),
        ("There is no hole in row 3.", [True]),
        ("I am to the right, and I am to the right of the goal.", [True]),
        ("There is no hole at (1, 1), and the goal is at (1, 0).", [True, True]),
        ("There are no holes at (0, 0) or (0, 1), but the goal is at (1, 0)", [True, False, True]),
        ("The goal is not at (1, 1) and the hole is at (0, 1).", [True, True]),
        ("I am at row 2, column 3 and there is ice at row 1, column 1.", [True]),
        ("The goal is above the hole at row 2, column 0.", [True, True]),
        ("The goal is above the hole at row 1, column 0, and to the left of me.", [True, False, True]),
        ("I am on the ice at (2, 3).", [True]),
        ("There are no visible holes at (0, 0).", [True]),
        ("There is no longer a hole at (1, 1). There is no immediate hole below me.", [True, True]),
        ("There are no holes at (0, 0) / (0, 2) & (0, 1).", [True, True, False]),
        ("The goal is not at coordinates (0, 1) and I am not currently standing at (1, 1).", [True, True]),
        ("There is no sign of a hole at (0, 0), and the goal is not anywhere near (1, 0).", []),
        ("I don't see the hole at (0, 0).", []),
        ("I must not fall into the hole at row 2, column 0.", [True]),
        ("I must not fall into the hole at row 0, column 0.", [False]),
        ("Go on without falling into the hole at row 3, column 3.", [False]),
        ("I have not reached the goal at row 1, column 0.", [True]),
        ("The goal is not at (0, 1), it is at (1, 0)", [True, True]),
        ("The goal is at (1, 0), not at (0, 1)", [True, True]),
        ("I don't see a hole at row 0, column 0.", [True]),
        ("There isn't any hole directly above me.", [False]),
        ("There is no hole at (0, 0), (0, 2) or (0, 1).", [True, True, False]),
        ("The hole is no longer at (1, 1).", [True]),
        ("Going left is best, then up.", []),
        ("I want to be at (1, 0) and then rest.", []),
        ("Step 1, 2 and 3: move.", []),
        ("The goal. Row 1, column 0 is nice.", []),
    ],
)
def test_english_is_read_sentence_by_sentence(text: str, held: list[bool]) -> None:
    assert verdicts(JUDGE, LAKE, text) == held


WORKED = "Row 0: _ O _ _\nRow 1: _ _ _ G\nRow 2: _ P O _\nRow 3: _ _ _ _"


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("The goal is 1 row above me and 2 columns to the right.", [True]),
        ("The goal is 2 columns right of me and 1 row above me.", [True]),
        ("The goal is 2 columns to the right and it is 1 row up.", [True]),
        ("I am one row below the goal and two columns left of it.", [True]),
        ("I am one row below the goal and two columns left.", [True]),
        ("I am one row below the goal and one column left of it.", [False]),
        ("I am 2 columns left of the goal and it is 1 row up.", []),
        ("The goal is less than 2 rows up", []),
        ("The goal is at most 1 row above me", []),
        ("The goal is 1 or 2 rows up.", []),
        ("The goal is 2 columns to the right and at least 1 row up.", []),
        ("The goal is to the right of the start.", []),
        ("The hole is at (2,2), and the goal is 1 row above it.", [True]),
        ("The goal is 1 row up, then 2 columns to the right", [True]),
        ("The goal is 1 row above me and to the right.", [True]),
        ("The goal is near (2,2).", []),
        ("The goal is 2 rows up and 1 row down.", []),
    ],
)
def test_an_offset_in_two_parts_is_one_claim_and_a_range_is_none(text: str, held: list[bool]) -> None:
    assert verdicts(JUDGE, WORKED, text) == held


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("(2,2) is a hole and (1,1) is safe.", [True]),
        ("Row 2, column 2 is a hole and row 1, column 1 is ice.", [True]),
        ("There is a hole at (2,2), but row 1 is free.", [True]),
        ("(2,2) is a hole, but (3,1) is not.", [True]),
        ("The cell (1,1) is not a hole, and (0,1) is a hole.", [True, True]),
        ("(1,1) is not a hole, (1,2) is not a hole, and (2,2) is a hole.", [True, True, True]),
        ("(0,1) and (2,2) are holes.", [True, True]),
        ("(0,1) and (3,2) are holes.", [True, False]),
        ("The goal is at (1,3), and (0,1) and (2,2) are holes.", [True, True, True]),
        ("Above me is a hole, and (2,2) isn't the goal.", [True, True]),
        ("The hole at (2,2) is near, and the hole at (0,1) is far.", [True, True]),
        ("The hole to my right is near.", [True]),
        ("If (1,1) is a hole I go left.", []),
        ("Neither (0,1) nor (2,2) is a hole.", []),
        ("(2,2) is either a hole or ice.", []),
        ("Row 2 is the goal row", []),
        ("(1,1) is hole-free.", []),
        ("There is a hole at (2,2) and at (1,3) is the goal.", [True, True]),
        ("There is a hole to my right and below me is ice.", [True]),
        ("Row 3 has no holes.", [True]),
        ("To my right is a hole.", [True]),
    ],
)
def test_a_place_that_begins_a_clause_belongs_to_the_noun_after_its_verb(text: str, held: list[bool]) -> None:
    assert verdicts(JUDGE, WORKED, text) == held


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("None of the holes is at (2,2).", [False]),
        ("Neither hole is at (2,2).", [False]),
        ("The goal is neither at (1,3) nor at (0,0).", [False, True]),
        ("The goal is neither in row 0 nor in row 2.", [True, True]),
        ("None of the holes is in row 3.", [True]),
        ("The hole is nowhere in row 3.", [True]),
        ("Neither the goal nor the hole is at (2,2).", []),
        ("The goal is nowhere near (1,3).", []),
        ("None of the holes is in row 3, but one is in row 2.", [True, True]),
        ("There are holes at (0,1), none at (1,1).", [True, True]),
    ],
)
def test_neither_none_and_nowhere_are_denials(text: str, held: list[bool]) -> None:
    assert verdicts(JUDGE, WORKED, text) == held


def test_an_offset_can_be_seen_from_another_thing_than_the_player() -> None:
    assert verdicts(PUSHING, ROOM, "The box is 1 row down and the target is to the left of the box.") == [True, True]
    assert verdicts(PUSHING, ROOM, "The target is 1 column to the right of the box.") == [False]
    (claim,) = PUSHING.claims("the target is directly below the box")
    assert claim == Claim("target", None, Offset(1, None, True), "box")


def test_a_cell_after_a_reference_is_the_references() -> None:
    assert verdicts(PUSHING, ROOM, "The box at (1,1) is to the right of the target at (1,0).") == [True] * 3
    assert verdicts(PUSHING, ROOM, "The box is to the right of the target at (1,1).") == [True, False]
    assert verdicts(PUSHING, ROOM, "I am at row 0, column 1, above the box at row 1, column 1.") == [True] * 3
    assert verdicts(PUSHING, ROOM, "I am at row 0, column 1 and there is a wall at row 0, column 3.") == [True]


def test_tiny_phrases_are_exact_and_one_inside_a_longer_one_is_no_second_claim() -> None:
    found = JUDGE.claims("i am at 2 3 and goal at 1 0 , hole at 0 1 so left")
    assert [(claim.fact, claim.cell) for claim in found] == [("player", (2, 3)), ("goal", (1, 0)), ("hole", (0, 1))]
    assert JUDGE.claims("at 2 3") == [Claim("player", (2, 3))] and JUDGE.claims("look 2 3 chat 1 2") == []


def test_no_generic_demonstration_claims_anything() -> None:
    for grid, judge in ((FrozenLake, JUDGE), (Sokoban, PUSHING)):
        for wording in grid.wordings.values():
            for part in wording.generic:
                assert not any(judge.claims(text) for text in part)


def test_only_the_last_board_counts() -> None:
    rows = [wording.shown["row"] for wording in FrozenLake.wordings.values()]
    assert last_board(f"{LAKE}\nReward: 0.0\nRow 0: P _\nRow 1: _ G\nActions", "P_OG", rows) == ["P_", "_G"]
    glued = "<|system|>P you _ ice O hole .<|user|>_ P _\n_ _ G\n_ O _\nactions left 10<|assistant|><think>"
    assert JUDGE.facts(glued)["player"] == {(0, 1)}, "a template may put its marker on the board's first line"
    assert JUDGE.without_boards(f"State:\n{LAKE}\nActions left: 3") == "State:\nActions left: 3"


REPEATED = [
    text * 4_000
    for text in (
        "(1,1) and ",
        "(1,1) ",
        "1 row above me and ",
        "goal 1 row up and ",
        "neither of the ",
        "(1,1) is a hole and ",
    )
]


def test_a_long_text_is_read_in_little_time() -> None:
    rng = random.Random(0)
    words = ["goal", "row", "1", "2", ",", "column", "(", ")", "to", "the", "left", "rows", "up", "and", "is", "no"]
    for text in (
        " ".join(rng.choice(words) for _ in range(20_000)),
        "(" * 20_000,
        "row 1 " * 5_000,
        "goal " * 20_000,
        *REPEATED,
    ):
        JUDGE.claims(text)
