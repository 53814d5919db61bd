"""The diffs of CONTRIBUTING apply to this code, pass its lint, and what they add works."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.tracked import copied

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
DIFFS = re.findall(r"^## (.+?)$.*?^```diff\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
MOST_ADDED = {"An environment": 35}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files with every diff applied."""
    copy = tmp_path_factory.mktemp("changed")
    copied(copy)
    for title, diff in DIFFS:
        words = ["git", "apply", "-"]
        done = subprocess.run(words, cwd=copy, input=diff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{title}: {done.stderr}"
    return copy


@pytest.mark.parametrize(("title", "diff"), DIFFS, ids=[title for title, _ in DIFFS])
def test_an_addition_is_small(title: str, diff: str) -> None:
    added = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert len(added) <= MOST_ADDED.get(title, 20)


def test_what_is_added_passes_the_lint(changed: Path) -> None:
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    for words in (["check", "--no-cache", "."], ["format", "--no-cache", "--check", "."]):
        done = subprocess.run([ruff, *words], cwd=changed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


USES = """
import asyncio
from types import SimpleNamespace

import numpy as np
from squelch.kit.filter.statistics import STATISTICS
from squelch.cluster.config import load
from squelch.cluster.metrics import REGISTRY
from squelch.envs.registry import make

assert list(STATISTICS["reward_range"].reduce(np.array([[0.0, 1.0, 3.0]]))) == [3.0]
load("frozenlake", ["filter.statistic=reward_range"])
assert load("frozenlake", ["learner.algorithm=grpo_tokens"]).learner.objective.aggregation == "token_mean"
assert any(spec.name == "squelch_reward_variance_max" for spec in REGISTRY.specs.values())
game = make("squelch.envs.guess:Guess", "validation", {})
game.reset(seed=7, options={"noise_seed": 0})
low, high = 1, 999
for _ in range(10):
    middle = (low + high) // 2
    said, reward, solved, _, info = game.step(game.read_action(str(middle)))
    low, high = (middle + 1, high) if said == "higher" else (low, middle - 1)
    if solved:
        break
assert solved and reward == 1 and info["success"]

import squelch.cluster.loop.wiring
from squelch.cluster.loop.watchers.solving import Solving

seen = [asyncio.run(Solving().after_train(SimpleNamespace(metrics={"success": share}))) for share in (0.5, 1.0)]
assert seen[0] is None and seen[1].complete

from squelch.cluster.control.calls import OPTIMIZER_STEPS
from squelch.learner.rank import LearnerRank
from tests.fakes.transport import learner_client

rank = object.__new__(LearnerRank)
rank.trainer = SimpleNamespace(optimizer_steps=7)


class Learner:
    async def optimizer_steps(self):
        return rank.optimizer_steps()

    async def progress(self):
        return SimpleNamespace(marks=0, busy=False, waited_s=0.0, median_s=0.0)


async def ask():
    return await learner_client(Learner(), 2, load("frozenlake")).call(OPTIMIZER_STEPS)


assert asyncio.run(ask()) == 7
"""


def test_what_is_added_works(changed: Path) -> None:
    alone = {**os.environ, "PYTHONPATH": str(changed), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", USES], cwd=changed, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    boards = [sys.executable, "-m", "squelch.deploy.dashboards"]
    done = subprocess.run(boards, cwd=changed, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
