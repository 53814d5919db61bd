"""The pages on environments say what is true of every registered environment."""

from pathlib import Path

import pytest

from benchmarks.environments.episodes import BEGIN, END, NATURAL, episode_text, write_episodes
from squelch.envs.registry import environment_names

DOCS = Path(__file__).parents[2] / "docs"
TABLES = DOCS / "guide/environments.md", DOCS / "research/implementations.md"
EPISODES = DOCS / "reference/episodes.md"


@pytest.mark.parametrize("name", environment_names())
def test_every_environment_has_its_rows_without_gaps_and_an_episode(name):
    lines = [line for page in TABLES for line in page.read_text().splitlines()]
    rows = [line for line in lines if line.startswith(f"| **{name}** |")]
    cells = [[cell.strip() for cell in row.replace("\\|", "").strip("|").split("|")] for row in rows]
    assert [len(row) for row in cells] == [6, 3] and all(map(all, cells))
    assert f"## {name}\n" in EPISODES.read_text()


SHOWN = [("Countdown", "tiny"), ("FrozenLake", "tiny"), ("Sokoban", "tiny"), *((name, "natural") for name in NATURAL)]


@pytest.mark.parametrize(("name", "prompt"), SHOWN)
def test_the_documented_episode_is_what_the_environment_plays(name, prompt):
    """Rewrite them with `python -m benchmarks.environments --write`."""
    text = episode_text(name, prompt)
    assert text in EPISODES.read_text() and text.endswith("success") and "no success" not in text


def test_a_document_without_its_markers_is_left_alone(tmp_path):
    (tmp_path / "a.md").write_text("nothing here")
    with pytest.raises(ValueError, match=r"a\.md holds no .*begin"):
        write_episodes(tmp_path / "a.md")
    assert (tmp_path / "a.md").read_text() == "nothing here" and BEGIN != END
