"""The comparison of what Squelch and TRL learn: its settings, its verdict, its figure."""

import json
from pathlib import Path

import pytest

from benchmarks.peer import learning
from benchmarks.peer import work as peer_work
from squelch.cluster.config import load
from squelch.envs.prompt_file import rewards
from squelch.envs.prompt_file.rows import Prompt

WORK = learning.work_of(quick=False)


def curves(ends: list[float], seconds: float) -> list[dict[str, list[float]]]:
    """Rewards that rise to each end within 50 steps and stay there."""
    steps = range(1, WORK.num_steps + 1)
    return [
        {"reward": [min(1, step / 50) * end for step in steps], "seconds": [seconds for _ in steps]} for end in ends
    ]


def test_squelch_is_given_what_trl_is_given(tmp_path: Path) -> None:
    learning.write_prompts(tmp_path, WORK, seed=3)
    given = learning.settings(WORK, tmp_path, seed=3)
    run = load("prompts", [f"{key}={json.dumps(value)}" for key, value in given.items()])
    optimizer, objective = run.learner.optimizer, run.learner.objective
    assert (optimizer.betas, optimizer.epsilon) == (peer_work.BETAS, peer_work.EPSILON)
    assert (optimizer.weight_decay, optimizer.max_grad_norm) == (peer_work.WEIGHT_DECAY, peer_work.MAX_GRAD_NORM)
    assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.decay_steps) == (WORK.learning_rate, 0, 0)
    assert (objective.advantage, objective.aggregation, objective.ratio) == ("grpo", "sequence_mean", "token")
    assert (objective.clip_low, objective.clip_high) == (WORK.clip_low, WORK.clip_high)
    assert objective.kl.coefficient == objective.entropy_coefficient == objective.overlong.penalty == 0
    assert (run.filter.rule, run.learner.minibatches, run.loop.max_staleness) == ("none", 1, 0)
    assert (run.loop.prompts * run.sampling.group_size, run.seed) == (WORK.num_sequences, 3)


def test_both_load_the_reward_function_of_one_file() -> None:
    function = rewards.load(f"{learning.REWARD}:share", 1.0)
    chat = [{"role": "user", "content": "abc"}]
    ids = [[4, 6, 7, 2], [5, 5, 5], [2]]
    assert rewards.group_rewards([function], Prompt(chat, chat, {}, "key"), ["", "", ""], ids) == [2 / 3, 0, 0]


@pytest.mark.parametrize(
    ("ours", "reached"),
    [
        ([0.91, 0.90, 0.92, 0.90, 0.91], True),
        ([0.80, 0.79, 0.81, 0.80, 0.80], False),
        ([1.00, 0.75, 1.00, 0.75, 1.00], False),  # no difference that could be told, and no equality either
        ([0.90], None),
    ],
)
def test_the_difference_is_judged_with_its_interval_and_never_on_fewer_seeds(
    ours: list[float], reached: bool | None
) -> None:
    theirs = [0.90, 0.91, 0.90, 0.91, 0.90][: len(ours)]
    found = learning.summary(WORK, {"squelch": curves(ours, 1.0), "trl": curves(theirs, 2.0)})
    assert found["reached"] is reached
    json.dumps(found, allow_nan=False)


def test_seconds_to_a_reward_are_those_of_the_steps_until_a_mean_of_some_reaches_it() -> None:
    found = {"reward": [0.7, 0.7, 0.8, 0.7, 0.8, 0.8, 0.9], "seconds": [2.0] * 7}
    assert learning.seconds_to(found, 0.75) == 12.0
    assert learning.seconds_to(found, 0.95) is None
    both = learning.summary(WORK, {"squelch": curves([0.9] * 5, 1.0), "trl": curves([0.9] * 5, 2.0)})
    assert both["time_ratio"]["ratio"] == pytest.approx(2.0)


def test_the_figure_has_both_curves_and_the_table_all_figures() -> None:
    found = learning.summary(WORK, {"squelch": curves([0.9] * 5, 1.0), "trl": curves([0.9] * 5, 2.0)})
    drawn = learning.figure(found)
    assert drawn.count(">Squelch<") == drawn.count(">TRL<") == 2
    assert [len(row) for row in learning.table(found)] == [len(learning.COLUMNS)] * 3
    assert sum(note.startswith("not the same: ") for note in learning.notes(found)) == len(learning.UNEQUAL)


def test_a_finished_curve_is_kept_and_one_of_other_work_refused(tmp_path: Path) -> None:
    (kept,) = curves([0.9], 1.0)
    (tmp_path / "trl-0.json").write_text(json.dumps(kept))
    assert learning.curve(tmp_path, "trl", 0, WORK) == kept
    with pytest.raises(ValueError, match=r"trl-0.json has 60 steps, not 3; name another --dir"):
        learning.curve(tmp_path, "trl", 0, learning.work_of(quick=True))
