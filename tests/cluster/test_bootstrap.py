"""What a run asks of the cluster, counted before any actor is created."""

import pytest

from cluster.bootstrap import _check_size, needed_cpus, needed_gpus
from cluster.config import load
from cluster.errors import UserError


def test_every_room_that_asks_for_a_gpu_is_counted() -> None:
    assert needed_gpus(load("frozenlake")) == 0
    assert needed_gpus(load("paper-frozenlake-3b")) == 2 + 1 + 1
    assert needed_gpus(load("paper-frozenlake-3b", ["scorer.enabled=false"])) == 2 + 1
    shared = ["rollout.count=3", "rollout.num_gpus=0.5", "scorer.num_gpus=0.5", "learner.ranks=1"]
    assert needed_gpus(load("paper-frozenlake-3b", shared)) == 1 + 1.5 + 0.5


@pytest.mark.parametrize(
    ("overrides", "gpus", "says"),
    [
        (["scorer.num_gpus=1"], 0, "the cluster has 0 GPUs and the run asks for 1"),
        (["scorer.num_gpus=1", "rollout.num_gpus=1"], 1, "the cluster has 1 GPUs and the run asks for 2"),
        (["scorer.num_cpus=90"], 9, "the cluster has 8 CPUs and the run asks for 9"),
    ],
)
def test_a_cluster_too_small_is_refused_with_what_to_lower(monkeypatch, overrides, gpus, says) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": float(gpus)})
    with pytest.raises(UserError, match=says):
        _check_size(load("frozenlake", overrides), learning=True)


def test_a_run_that_fits_exactly_is_taken(monkeypatch) -> None:
    config = load("frozenlake", ["scorer.num_gpus=0.5"])
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": needed_cpus(config), "GPU": 0.5})
    _check_size(config, learning=True)


def test_an_evaluation_asks_for_what_plays_and_for_no_more(monkeypatch) -> None:
    config = load("paper-frozenlake-3b")
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.25, "GPU": 1.0})
    _check_size(config, learning=False)
    with pytest.raises(UserError):
        _check_size(config, learning=True)
