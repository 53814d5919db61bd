"""Label selectors in Ray's notation."""

import pytest

from squelch.actors.node_labels import admits
from squelch.cluster.config import load
from squelch.kit.base.errors import UserError

LABELS = {"role": "learner", "ray.io/node-id": "f00"}


@pytest.mark.parametrize(
    ("selector", "admitted"),
    [
        ({}, True),
        ({"role": "learner"}, True),
        ({"role": "rollout"}, False),
        ({"role": "!rollout"}, True),
        ({"role": "!learner"}, False),
        ({"zone": "a"}, False),
        ({"zone": "!a"}, True),
        ({"role": "in(rollout, learner)"}, True),
        ({"role": "in(rollout,scorer)"}, False),
        ({"role": "!in(rollout,scorer)"}, True),
        ({"role": "!in(rollout,learner)"}, False),
        ({"role": "learner", "ray.io/node-id": "f01"}, False),
    ],
)
def test_a_node_is_admitted_if_it_meets_all_conditions(selector, admitted):
    assert admits(selector, LABELS) is admitted


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rollout.label_selector={role: 'not(a)'}", r"rollout\.label_selector: role: 'not\(a\)' is no condition"),
        ("learner.label_selector={'a b': x}", r"learner\.label_selector: 'a b' is no key of a label"),
        ("learner.placement=together", r"learner\.placement: .*'pack' or 'spread'"),
        ("rollout.num_gpus=1.5", r"rollout\.num_gpus=1\.5: Ray shares one GPU in fractions"),
        ("rollout.tensor_parallel_size=2", ""),
    ],
)
def test_a_label_selector_that_ray_cannot_meet_is_refused_by_key(override, says):
    if not says:  # two processes of vLLM's CPU build need no GPU
        assert load("frozenlake", [override]).rollout.tensor_parallel_size == 2
        return
    with pytest.raises(UserError, match=says):
        load("frozenlake", [override])


def test_a_gpu_for_each_rank_and_for_each_part_of_a_split_model_is_asked_for():
    with pytest.raises(UserError, match=r"reserves fewer; set rollout\.num_gpus=4"):
        load("frozenlake", ["rollout.num_gpus=1", "rollout.tensor_parallel_size=4"])
    with pytest.raises(UserError, match=r"several of learner\.ranks=2 on one GPU, which NCCL refuses"):
        load("frozenlake", ["learner.num_gpus=0.5", "learner.ranks=2"])
    shares = ["learner.ranks=1", "learner.num_gpus=0.5", "rollout.num_gpus=0.4"]
    assert load("frozenlake", shares).rollout.memory_share == 0.4
    assert load("frozenlake", [*shares, "rollout.gpu_memory_utilization=0.2"]).rollout.memory_share == 0.2
    assert [load("frozenlake", [f"rollout.num_gpus={n}"]).rollout.memory_share for n in (0, 1, 0.9)] == [0.85] * 3
    with pytest.raises(UserError, match=r"rollout\.gpu_memory_utilization=0\.4 or lower"):
        load("frozenlake", [*shares, "rollout.gpu_memory_utilization=0.5"])
