"""What a run asks of the cluster, and when a cluster is certainly too small for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.config import load
from squelch.cluster.fleet.demand import Need, Node, needed, needs, shortfall


def node(cpus: float, gpus: float = 0, address: str = "10.0.0.1", **labels: str) -> Node:
    return Node(address, {"CPU": cpus, "GPU": gpus}, labels)


def test_every_actor_that_asks_for_a_gpu_is_counted() -> None:
    assert needed(load("frozenlake"), "GPU") == 0
    assert needed(load("paper-frozenlake-3b"), "GPU") == 2 + 1 + 1
    assert needed(load("paper-frozenlake-3b", ["scorer.enabled=false"]), "GPU") == 2 + 1
    shared = ["rollout.count=3", "rollout.num_gpus=0.5", "scorer.num_gpus=0.5", "learner.ranks=1"]
    assert needed(load("paper-frozenlake-3b", shared), "GPU") == 1 + 1.5 + 0.5


def test_an_evaluation_asks_for_what_plays_and_for_no_more() -> None:
    config = load("paper-frozenlake-3b")
    assert shortfall(needs(config, learning=False), [node(4.25, 1)]) is None
    assert shortfall(needs(config, learning=True), [node(4.25, 1)])


@pytest.mark.parametrize(
    ("overrides", "gpus", "says"),
    [
        (["scorer.num_gpus=1"], 0, "the cluster has 0 GPUs and the run needs 1 (1 x 1 for scorer); use a larger"),
        (["scorer.num_gpus=1", "rollout.num_gpus=1"], 1, "the cluster has 1 GPU and the run needs 2 (1 x 1 for roll"),
        (
            ["learner.ranks=1", "learner.num_gpus=0.5", "rollout.num_gpus=0.3", "rollout.count=2"],
            1,
            "the cluster has 1 GPU and the run needs 1.1 (2 x 0.3 for rollout workers + 1 x 0.5 for learner ranks)",
        ),
        (
            ["scorer.num_cpus=90"],
            9,
            "the cluster has 8 CPUs and the run needs 91.75 (1 x 0.5 for rollout workers + 1 x 0.25 for environment "
            "actors + 2 x 0.5 for learner ranks + 1 x 90 for scorer); add nodes",
        ),
    ],
)
def test_a_cluster_too_small_is_refused_with_the_sum_and_what_to_lower(overrides, gpus, says) -> None:
    assert shortfall(needs(load("frozenlake", overrides)), [node(8, gpus)]).startswith(says)


def test_a_run_that_fits_exactly_is_taken() -> None:
    config = load("frozenlake", ["scorer.num_gpus=0.5"])
    assert shortfall(needs(config), [node(needed(config, "CPU"), 0.5)]) is None


def test_a_request_larger_than_every_node_is_refused_however_many_nodes_there_are() -> None:
    wanted = needs(load("frozenlake", ["rollout.num_gpus=4", "rollout.tensor_parallel_size=4"]))
    nodes = [node(8, 2, f"10.0.0.{i}") for i in range(6)]
    text = shortfall(wanted, nodes)
    assert text.startswith("each of the rollout workers needs 0.5 CPU and 4 GPU on one node")
    assert "10.0.0.3 (8 CPU and 2 GPU) and 2 more" in text and "rollout.num_gpus" in text
    assert shortfall(wanted, [*nodes, node(1, 4)]) is None


def test_only_nodes_that_a_label_selector_admits_count() -> None:
    config = load("frozenlake", ["learner.ranks=3", "learner.num_cpus=1", "learner.label_selector={role: learner}"])
    assert shortfall(needs(config), [node(8, role="learner")]) is None
    none = shortfall(needs(config), [node(8, role="other"), node(8)])
    assert none.startswith("no node of the cluster has the labels that learner.label_selector asks for (role=learner)")
    assert "10.0.0.1 (8 CPU, role=other)" in none
    few = shortfall(needs(config), [node(64), node(2, role="learner")])
    assert few.startswith(
        "the nodes with role=learner have 2 CPUs and the run needs 3 of them (3 x 1 for learner ranks)"
    )


REQUESTS = st.lists(
    st.builds(
        lambda count, cpus, gpus, role: Need(
            "actors", "rollout", count, {"CPU": cpus, "GPU": gpus}, {"role": role} if role else {}
        ),
        st.integers(1, 3),
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from(["", "a", "b"]),
    ),
    min_size=1,
    max_size=4,
)


@given(REQUESTS)
def test_what_can_be_placed_is_never_refused(wanted) -> None:
    """Each request gets a node of its own, which the check must accept."""
    nodes = [Node(f"n{i}", need.resources, dict(need.selector)) for need in wanted for i in range(need.count)]
    assert shortfall(wanted, nodes) is None
    for kind in ("CPU", "GPU"):
        if total := sum(need.total(kind) for need in wanted):
            small = [Node("n", {"CPU": 99.0, "GPU": 99.0, kind: total * 0.9}, {"role": "a"})]
            unlabelled = [Need(n.actor, n.key, n.count, n.resources) for n in wanted]
            assert f"{kind}s and the run needs {total:g}" in shortfall(unlabelled, small)
