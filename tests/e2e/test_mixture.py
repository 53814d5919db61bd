"""A real run of several environments, which trains an adapter. What each part does is shown in its own tests."""

import json
from collections import Counter
from pathlib import Path

import pytest

from squelch.kit.archive.reader import read_groups
from tests.e2e.support import Run, assert_sound, small_run, summary

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
STEPS = 4
ENVIRONMENTS = [
    {"name": "FrozenLake", "weight": 3},
    {"name": "FrozenLake", "label": "small", "options": {"size": 3}, "format": {"max_turns": 2}},
]


def test_the_files_of_a_run_of_two_environments_that_trains_an_adapter_show_no_fault(
    tiny_policy: Path, tmp_path: Path
) -> None:
    run = Run(
        *small_run(tmp_path, tiny_policy, "mixed", f"loop.steps={STEPS}", "loop.checkpoint_every=1"),
        *("environment=null", f"environments={json.dumps(ENVIRONMENTS)}", "filter.scope=environment"),
        *("learner.lora.rank=4", "loop.keep_checkpoints=8", "validation.every=0", "scorer.enabled=false"),
    )
    assert run.finish() == 0, run.text
    folder = tmp_path / "mixed"
    labels = read_groups(folder, columns=["label"]).column("label").to_pylist()
    assert summary(folder)["steps"] == STEPS
    assert Counter(labels) == {"FrozenLake": 3 * STEPS * 8, "small": STEPS * 8}
    verdicts = assert_sound(folder, tiny_policy)
    assert verdicts["stale_weights"] == "sound", "each step fits its own checkpoint and no other"
