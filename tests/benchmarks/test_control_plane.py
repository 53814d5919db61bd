"""The real loop on processes that stand in for its actors."""

import asyncio
from pathlib import Path

from benchmarks.control_plane import measure, settings, transport


def test_a_few_groups_reach_the_end(tmp_path: Path) -> None:
    config = settings(workers=1, groups=8, prompts=4, folder=tmp_path)
    with transport(over_ray=False):
        found = asyncio.run(measure(config, over_ray=False))
    assert found["groups_per_second"] > 0 and found["groups"] == 8
