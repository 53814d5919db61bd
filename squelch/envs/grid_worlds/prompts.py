"""The words of the grid worlds in each prompt style, and the meaning of their symbols."""

from __future__ import annotations

from collections.abc import Mapping

from squelch.envs.wording import Example, PromptName, Wording

_PLAYER = ("i am at {row} {column}", "at {row} {column}", "player {row} {column}", "standing on {row} {column}")
_SAID = {
    "player": (*_PLAYER, "now on {row} {column}"),
    "plan": ("so {plan}", "so go {plan}", "i move {plan}", "best is {plan}", "plan {plan}"),
    "join": ("", "and", ","),
    "plan_join": (" ", " then "),
}
_NATURAL_SAID = {
    "player": (
        "I am at row {row}, column {column}.",
        "I stand at row {row}, column {column}.",
        "The player is at row {row}, column {column}.",
        "My position is row {row}, column {column}.",
    ),
    "plan": ("So I go {plan}.", "I will move {plan}.", "The best move is {plan}.", "My plan is to go {plan}."),
    "join": ("",),
    "plan_join": (", then ", " and then "),
}
_ORIENTATION = "Rows are numbered from 0 at the top, columns from 0 on the left."
_MOVES = "Your available actions are:\nLeft, Down, Right, Up"
_LAKE_SYMBOLS = "The meaning of each symbol in the state is:\nP: player, _: ice, O: hole, G: goal"
_LAKE_DRAWN = (
    "The picture shows the lake from above, one square for each cell: a green disc is the player, a dark blue disc a "
    "hole, a yellow square the goal, and light blue is ice."
)
_ROOM_SYMBOLS = (
    "The meaning of each symbol in the state is:\n"
    "P: player, X: box, O: target, #: wall, _: floor, *: box on target, S: player on target"
)
_ROOM_DRAWN = (
    "The picture shows the board from above, one square for each cell: a green disc is the player, a small brown "
    "square a box, a red square a target, a dark brown cell a wall, and light brown is floor."
)
_ROW = {"tiny": "{cells}", "natural": "Row {row}: {cells}"}
_PLACE = "{name}: row {row}, column {column}"

FROZEN_LAKE: Mapping[str, str] = {
    **{"P": "player", "_": "ice", "O": "hole", "G": "goal"},
    **{"X": "player hole", "*": "player goal"},  # after the end only
}
"""What a symbol of FrozenLake shows, as names of facts with one space between them."""
SOKOBAN: Mapping[str, str] = {
    **{"P": "player", "X": "box", "O": "target", "#": "wall", "_": "floor"},
    **{"*": "box target", "S": "player target"},
}
"""What a symbol of Sokoban shows."""

_PLAYER_NOUNS = ("i am", "i'm", "i stand", "i start", "player", "my position", "my location")
FROZEN_LAKE_NOUNS = {"player": _PLAYER_NOUNS, "goal": ("goal",), "hole": ("hole", "holes")}
"""How English names the facts that the judge reads."""
SOKOBAN_NOUNS = {"player": _PLAYER_NOUNS, "box": ("box", "boxes"), "target": ("target", "targets")}

FROZEN_LAKE_WORDS: Mapping[PromptName, Wording] = {
    "tiny": Wording(
        rules="Walk to G . P you _ ice O hole G goal .{slip} Actions Left Down Right Up .",
        shown={"row": _ROW["tiny"], "slip": " You may slip ."},
        said={
            **_SAID,
            "goal": (
                *("goal at {row} {column}", "goal {row} {column}", "need to reach {row} {column}"),
                *("must get to {row} {column}", "want {row} {column}"),
            ),
            "hole": ("avoid {row} {column}", "hole at {row} {column}", "danger {row} {column}"),
        },
        generic=(
            ("let me think", "okay", "i look around", "i must be careful", "first of all"),
            ("the ice is slippery", "holes are dangerous", "every move counts", "the goal is near", "stay safe"),
            ("so i move on", "and i try this way", "and keep going", "so take the best move", "step by step"),
        ),
    ),
    "natural": Wording(
        rules=(
            "You are solving the FrozenLake puzzle. You are the player on a frozen lake and must walk to the goal "
            f"without falling into a hole.{{slip}} {_ORIENTATION}\n"
            f"{{legend}}\n{_MOVES}"
        ),
        shown={
            "row": _ROW["natural"],
            "place": _PLACE,
            "symbols": _LAKE_SYMBOLS,
            "drawn": _LAKE_DRAWN,
            "slip": " The ice is slippery, so a move sometimes goes in another direction.",
        },
        said={
            **_NATURAL_SAID,
            "goal": (
                "The goal is at row {row}, column {column}.",
                "I see the goal at row {row}, column {column}.",
                "The goal is {offset}.",
                "The goal at row {row}, column {column} is {offset}.",
            ),
            "hole": (
                "There is a hole at row {row}, column {column}.",
                "There is a hole {offset}.",
                "I must avoid the hole at row {row}, column {column}.",
            ),
        },
        generic=(
            ("Let me think.", "Okay.", "I look around.", "I must be careful.", "First of all, I stay calm."),
            ("The ice is slippery.", "Holes are dangerous.", "Every move counts.", "I want to stay safe."),
            ("So I move on.", "I try this way.", "I keep going.", "I take the best move.", "I go step by step."),
        ),
        example=Example(
            observation="Row 0: _ O _ _\nRow 1: _ _ _ G\nRow 2: _ P O _\nRow 3: _ _ _ _",
            reasoning=(
                "I am at row 2, column 1. The goal is at row 1, column 3. There is a hole at row 2, column 2. "
                "So I go {plan}."
            ),
            actions=("Up", "Right"),
        ),
    ),
}

SOKOBAN_WORDS: Mapping[PromptName, Wording] = {
    "tiny": Wording(
        rules=("Push box X onto target O . P you # wall _ floor * X on O S P on O . Actions Left Down Right Up ."),
        shown={"row": _ROW["tiny"]},
        said={
            **_SAID,
            "box": (
                *("box at {row} {column}", "box {row} {column}", "the box is on {row} {column}"),
                "must push {row} {column}",
            ),
            "target": (
                *("target {row} {column}", "target at {row} {column}", "goes to {row} {column}"),
                *("must get to {row} {column}", "want {row} {column}"),
            ),
        },
        generic=(
            ("let me think", "okay", "i look around", "i must be careful", "first of all"),
            ("walls are hard", "boxes can get stuck", "every push counts", "the target is near", "mind the corners"),
            ("so i move on", "and i try this way", "and keep pushing", "so take the best move", "step by step"),
        ),
    ),
    "natural": Wording(
        rules=(
            "You are solving the Sokoban puzzle. You are the player and you need to push every box onto a target. "
            "When you are right next to a box, you push it by moving in its direction. You cannot push a box into a "
            f"wall or into another box, and you cannot pull a box. A wall surrounds the board. {_ORIENTATION}\n"
            f"{{legend}}\n{_MOVES}"
        ),
        shown={"row": _ROW["natural"], "place": _PLACE, "symbols": _ROOM_SYMBOLS, "drawn": _ROOM_DRAWN},
        said={
            **_NATURAL_SAID,
            "box": (
                "The box is at row {row}, column {column}.",
                "I see a box at row {row}, column {column}.",
                "The box is {offset}.",
                "I have to push the box at row {row}, column {column}.",
            ),
            "target": (
                "The target is at row {row}, column {column}.",
                "The target is {offset}.",
                "Its target is at row {row}, column {column}.",
            ),
        },
        generic=(
            ("Let me think.", "Okay.", "I look around.", "I must be careful.", "First of all, I stay calm."),
            ("Walls are hard.", "Boxes can get stuck.", "Every push counts.", "I mind the corners."),
            ("So I move on.", "I try this way.", "I keep pushing.", "I take the best move.", "I go step by step."),
        ),
        example=Example(
            observation="Row 0: _ P _ _\nRow 1: _ X _ #\nRow 2: _ _ _ _\nRow 3: _ O _ _",
            reasoning=(
                "I am at row 0, column 1. The box is at row 1, column 1. The target is at row 3, column 1. "
                "So I go {plan}."
            ),
            actions=("Down", "Down"),
        ),
    ),
}
