"""The meaning of the grid worlds' symbols, and how English names the facts. The words are in `prompts.yaml`."""

from __future__ import annotations

from collections.abc import Mapping

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
