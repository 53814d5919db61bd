"""What a run asks of the cluster, counted before any actor is created, and where it looks for one."""

import socket
from types import SimpleNamespace

import pytest

from cluster.config import load
from cluster.errors import UserError
from cluster.fleet.bootstrap import _check_size, check_address, needed_cpus, needed_gpus


def test_every_room_that_asks_for_a_gpu_is_counted() -> None:
    assert needed_gpus(load("frozenlake")) == 0
    assert needed_gpus(load("paper-frozenlake-3b")) == 2 + 1 + 1
    assert needed_gpus(load("paper-frozenlake-3b", ["scorer.enabled=false"])) == 2 + 1
    shared = ["rollout.count=3", "rollout.num_gpus=0.5", "scorer.num_gpus=0.5", "learner.ranks=1"]
    assert needed_gpus(load("paper-frozenlake-3b", shared)) == 1 + 1.5 + 0.5


@pytest.mark.parametrize(
    ("overrides", "gpus", "says"),
    [
        (["scorer.num_gpus=1"], 0, "the cluster has 0 GPUs and the run needs 1"),
        (["scorer.num_gpus=1", "rollout.num_gpus=1"], 1, "the cluster has 1 GPUs and the run needs 2"),
        (["scorer.num_cpus=90"], 9, "the cluster has 8 CPUs and the run needs 9"),
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


@pytest.mark.parametrize(
    ("address", "probed"),
    [
        ("head.example:6379", [("head.example", 6379)]),
        ("[::1]:6379", [("::1", 6379)]),
        ("ray://127.0.0.1:10001", []),
        ("auto", []),
        ("", []),
    ],
)
def test_what_is_probed_is_a_host_and_a_port(monkeypatch, address, probed) -> None:
    asked: list[tuple[str, int]] = []

    def listening(place: tuple[str, int], timeout: float) -> SimpleNamespace:
        asked.append(place)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("socket.create_connection", listening)
    check_address(load("frozenlake"))
    assert asked == probed


def test_an_address_where_nothing_listens_is_said_with_where_it_came_from(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"^RAY_ADDRESS='{address}': .* unset the variable to start one"):
        check_address(load("frozenlake"))
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    with pytest.raises(UserError, match=f"^cluster.address='{address}': .* leave the key empty to start one"):
        check_address(load("frozenlake", [f"cluster.address={address}"]))
