"""FrozenLake played by an agent over OpenAI's client, in the real loop: to the bit what the built-in game trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.support import Finished, Run, compared_run
from tests.e2e.test_stop_and_resume import checksums, groups

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
AGENT = Path(__file__).parents[2] / "docs" / "examples" / "frozen_lake_agent.py"
TRAINED = 3
BESIDE = ("validation.", "gradients.", "filter.replays", "recorder.loggers", "scorer.", "loop.steps")
"""Settings of the built-in game's run that change nothing of its training."""


def test_frozen_lake_played_by_an_agent_trains_to_the_weights_of_the_built_in_game_to_the_bit(
    whole: Finished, tiny_policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "agent"
    options = json.dumps({"call": f"{AGENT}:play", "turns": "squelch"})
    words = [word for word in compared_run(folder, tiny_policy) if not word.startswith(BESIDE)]
    words += ["environment.name=Agent", f"environment.options={options}", f"loop.steps={TRAINED}"]
    run = Run(*words, "validation.every=0", "scorer.enabled=false")
    assert run.finish() == 0, run.text
    theirs = groups(folder)
    ours = groups(whole.folder).slice(0, theirs.num_rows)
    assert theirs["step"].to_pylist() == ours["step"].to_pylist() and set(theirs["step"].to_pylist()) == {1, 2, 3}
    for column in ("token_ids", "loss_mask", "log_probs", "episode_return", "format_penalty", "success", "decision"):
        assert ours[column].equals(theirs[column]), column
    assert any(turn["hit_token_limit"] for turns in theirs["turns"].to_pylist() for turn in turns)
    found, expected = checksums(folder), checksums(whole.folder)
    published = [version for version in expected if version <= max(found)]  # a step may have no signal, and no version
    assert len(found) >= TRAINED and found == {version: expected[version] for version in published}
