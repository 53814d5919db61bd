"""What the fixed probe scores of its tasks' groups, its keys, its state, and what it leaves out."""

import json
import math

import numpy as np
import pytest

from squelch.cluster.metrics import REGISTRY
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Trajectory
from squelch.kit.scoring.probe_drawing import draw_probe
from squelch.kit.scoring.probe_scoring import METRICS, FixedProbe
from squelch.kit.scoring.settings import ProbeConfig
from tests.actors.scorer.test_scorer import Oracle
from tests.kit.scoring.windows import window

CONFIG = ProbeConfig(tasks=8, samples=4)


def evaluation(strength: float, config: ProbeConfig = CONFIG, step: int = 0) -> dict[str, float]:
    return FixedProbe(Oracle(strength), config, seed=1).read(step, 0, window())


def test_every_key_is_there_and_known_to_the_registry() -> None:
    known = {key for spec in REGISTRY.specs.values() for key in spec.flat_keys()}
    for groups in (window(), {}, {"probe-000": []}):
        found = FixedProbe(Oracle(1.0), CONFIG, seed=1).read(3, 2, groups)
        assert {f"probe/{key}" for key in METRICS} <= found.keys() <= known
        assert (found["probe/step"], found["probe/version"]) == (3.0, 2.0)


def test_reasoning_that_names_its_task_reaches_the_ceiling_and_a_template_is_not_significant() -> None:
    grounded, template = evaluation(50.0), evaluation(0.0)
    assert grounded["probe/mi"] == pytest.approx(grounded["probe/ceiling"]) and grounded["probe/saturated"] == 1.0
    assert grounded["probe/mi_p_value"] <= 0.005
    assert template["probe/mi"] == pytest.approx(0.0, abs=1e-9) and template["probe/mi_p_value"] == 1.0
    assert grounded["probe/mi_upper"] > grounded["probe/mi"]


def test_a_budget_scores_fewer_pairs_and_finds_the_same() -> None:
    part = evaluation(50.0, ProbeConfig(tasks=8, samples=4, max_others=2))
    assert part["probe/pairs_ratio"] < 1.0
    assert part["probe/mi"] == pytest.approx(part["probe/ceiling"], abs=0.05)


def test_the_first_evaluation_is_kept_across_a_restore_and_the_change_is_since_it() -> None:
    probe = FixedProbe(Oracle(50.0), CONFIG, seed=1)
    first = probe.read(0, 0, window())
    assert first["probe/mi_change"] == 0.0
    successor = FixedProbe(Oracle(0.0), CONFIG, seed=1)
    successor.restore(json.loads(json.dumps(probe.state())))
    fallen = successor.read(25, 0, window())
    assert fallen["probe/mi_change"] == pytest.approx(-first["probe/mi"])
    successor.restore(None)
    assert successor.read(25, 0, window())["probe/mi_change"] == 0.0, "without an earlier evaluation this is the first"


def test_a_task_without_a_usable_reasoning_keeps_its_prompt_in_the_mixture() -> None:
    groups = dict(window())
    name = sorted(groups)[0]
    whole = draw_probe(groups, 0, 100)
    stale = {**groups, name: [trajectory_of(t, version=7) for t in groups[name]]}
    found = draw_probe(stale, 7, 100)
    assert found.tasks == whole.tasks and found.weights.sum() == whole.weights.sum()
    assert set(found.task.tolist()) == {0} and found.excluded["stale"] == len(whole.task) - len(groups[name])


def trajectory_of(like: Trajectory, version: int) -> Trajectory:
    turns = [turn.__class__(**{**vars(turn), "version_min": version, "version_max": version}) for turn in like.turns]
    return like.__class__(**{**vars(like), "turns": turns})


def test_a_reasoning_that_does_not_fit_under_the_longest_prompt_is_left_out_and_counted() -> None:
    whole = draw_probe(window(), 0, 100)
    longest = max(len(x) for x in whole.prompts) + max(len(z) for z in whole.reasonings)
    found = draw_probe(window(), 0, longest - 1)
    assert found.excluded["too_long"] > 0 and len(found.prompts) == len(whole.prompts)


def test_failed_trajectories_and_tasks_without_a_turn_are_counted() -> None:
    failed = Trajectory(
        0,
        np.zeros(0, np.int32),
        np.zeros(0, bool),
        np.zeros(0, np.float32),
        [],
        False,
        False,
        Failure(FailureCause.GROUP_TIMEOUT, "late"),
    )
    found = FixedProbe(Oracle(1.0), CONFIG, seed=1).read(0, 0, {"probe-000": [failed, failed]})
    assert found["probe/num_excluded"] == 2.0 and math.isnan(found["probe/mi"]) and found["probe/tasks"] == 0.0


def test_a_trajectory_that_failed_after_its_first_turn_counts() -> None:
    """An agent of the probe is refused its second call, and may fail for it; its first reasoning is a sample as any."""
    groups = window()
    whole = FixedProbe(Oracle(5.0), CONFIG, seed=1).read(0, 0, groups)
    for group in groups.values():
        for one in group:
            one.failure = Failure(FailureCause.ENVIRONMENT_ERROR, "exit code 1")
    found = FixedProbe(Oracle(5.0), CONFIG, seed=1).read(0, 0, groups)
    times = {key for key in found if "seconds" in key}
    assert {k: v for k, v in found.items() if k not in times and v == v} == {
        k: v for k, v in whole.items() if k not in times and v == v
    }


def test_a_reasoning_is_scored_under_its_own_prompt_or_left_out() -> None:
    groups = {name: sorted(group, key=lambda t: t.index) for name, group in window().items()}
    name = sorted(groups)[0]
    whole = draw_probe(groups, 0, 100)
    groups[name][0].token_ids[1] = 99  # the first trajectory was shown another prompt than the three others
    found = draw_probe(groups, 0, 100)
    assert [x.tolist() for x in found.prompts] == [x.tolist() for x in whole.prompts]
    assert found.excluded["other_prompt"] == 1 and len(found.reasonings) == len(whole.reasonings) - 1
    groups[name][1].token_ids[1] = 99
    found = draw_probe(groups, 0, 100)
    assert found.excluded["other_prompt"] == 2 and [x[1] for x in found.prompts if 99 in x] == [99], "the first of two"


def test_a_reasoning_that_the_policy_opened_itself_is_scored_behind_its_opening_for_every_task() -> None:
    groups = {name: sorted(group, key=lambda t: t.index) for name, group in window().items()}
    for group in groups.values():
        for one in group:
            one.turns[0].sample_start = 2  # the id before the reasoning opened it, and was sampled
    first = groups[sorted(groups)[0]]
    for one in first[:2]:
        one.turns[0].reasoning_start = one.turns[0].reasoning_end = 2  # these turns have no reasoning
    for one in groups[sorted(groups)[1]]:
        one.turns[0].reasoning_start = one.turns[0].reasoning_end = 2
    found = draw_probe(groups, 0, 100)
    assert {len(x) for x in found.prompts} == {3} and len(found.prompts) == len(groups)
    assert found.excluded["empty"] == 6 and len(found.reasonings) == 4 * len(groups) - 6


def test_a_reasoning_that_cannot_be_used_changes_no_other_ones_pairs() -> None:
    class Asked(Oracle):
        def matrix(self, prompts, reasonings, wanted=None, pictures=None):
            asked.append(wanted)
            return super().matrix(prompts, reasonings, wanted)

    asked: list[np.ndarray] = []
    groups = {name: [trajectory_of(t, version=7) for t in group] for name, group in window().items()}
    name = sorted(groups)[0]
    first, *others = sorted(groups[name], key=lambda t: t.index)
    probe = FixedProbe(Asked(1.0), ProbeConfig(tasks=8, samples=4, max_others=2), seed=1)
    probe.read(0, 7, groups)
    probe.read(1, 7, {**groups, name: [trajectory_of(first, version=6), *others]})
    whole, rest = asked
    assert len(rest) == len(whole) - 1
    np.testing.assert_array_equal(rest, whole[1:])
