"""Weights by broadcast, on in-process actors: a weight group is formed anew whenever its members changed, and whatever
fails on the way, every worker gets every version."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squelch.cluster.config import load
from squelch.kit.base.errors import UserError
from tests.fakes.actors import FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive
from tests.fakes.run import settings as configured

WORDS = ("rollout.weight_transfer=gloo", "loop.steps=6", "validation.every=0", "cluster.max_restarts=9")
BREAKABLE = ("worker.join_group", "worker.update", "learner.open_group", "learner.send", "learner.train", "player.play")


def world(folder: Path, *faults: Fault, words: tuple[str, ...] = ()) -> World:
    return World(configured(folder, *WORDS, *words), faults, rewards=lambda ticket, index: float(index % 2))


def made(mixed: World) -> tuple[Outcome, list[dict]]:
    """A whole run, checked; the events about weight groups."""
    archive = FakeArchive()
    outcome = drive(mixed, archive)
    check(outcome, mixed, archive)
    events = zip(archive.events, archive.facts, strict=True)
    return outcome, [facts for (_, name), facts in events if name == "weight_group"]


def test_one_group_serves_every_version_while_nobody_comes_or_goes(tmp_path: Path) -> None:
    mixed = world(tmp_path)
    _, groups = made(mixed)
    assert [(g["number"], g["members"], g["failure"]) for g in groups] == [
        (1, ["learner", "rollout-0", "rollout-1"], None)
    ]
    assert mixed.broadcast == {"rollout-0": 7, "rollout-1": 7}, "versions 0 to 6"


def test_the_object_store_alone_forms_no_group(tmp_path: Path) -> None:
    mixed = world(tmp_path, words=("rollout.weight_transfer=auto",))
    _, groups = made(mixed)
    assert not groups and not mixed.broadcast


def test_a_worker_that_was_replaced_reads_the_object_store_and_joins_the_group_at_the_next_boundary(
    tmp_path: Path,
) -> None:
    mixed = world(tmp_path, Fault("worker.update", 3, "die"))
    _, groups = made(mixed)
    assert len(groups) >= 2 and not any(g["failure"] for g in groups)
    assert groups[-1]["members"] == ["learner", "rollout-0", "rollout-1"]
    assert min(mixed.broadcast.values()) >= 4


@pytest.mark.parametrize(
    "fault",
    [
        Fault("worker.join_group", 1, "die"),
        Fault("worker.join_group", 1, "fail"),
        Fault("worker.update", 2, "fail"),
        Fault("learner.send", 2, "die"),
        Fault("learner.open_group", 1, "die"),
    ],
)
def test_a_group_that_fails_costs_no_version_and_the_next_boundary_forms_another(tmp_path: Path, fault: Fault) -> None:
    mixed = world(tmp_path, fault)
    outcome, groups = made(mixed)
    assert outcome.steps.admission.clock == 6 and outcome.ledger.counts()["trained"] == 18
    assert groups[-1]["failure"] is None and groups[-1]["members"] == ["learner", "rollout-0", "rollout-1"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    staleness=st.integers(0, 2),
    deaths=st.lists(st.tuples(st.sampled_from(BREAKABLE), st.integers(1, 8), st.booleans()), max_size=3),
)
def test_whatever_dies_every_ticket_is_trained_on_once(tmp_path_factory, staleness: int, deaths: list) -> None:
    faults = tuple(Fault(kind, call, "die", after) for kind, call, after in deaths)
    made(world(tmp_path_factory.mktemp("run"), *faults, words=(f"loop.max_staleness={staleness}",)))


@pytest.mark.parametrize(
    ("words", "chosen", "text"),
    [
        (
            (),
            "shared_memory",
            "elsewhere through Ray's object store (learner.num_gpus=0, rollout.num_gpus=0)",
        ),
        (("rollout.weight_transfer=object_store",), "object_store", "store (rollout.weight_transfer says so)"),
        (
            ("learner.num_gpus=1", "rollout.num_gpus=1"),
            "nccl",
            "broadcast by NCCL (learner and rollout workers have GPUs)",
        ),
        (("learner.num_gpus=1", "rollout.num_gpus=0.5"), "shared_memory", "(rollout.num_gpus=0.5)"),
        (
            ("learner.ranks=1", "learner.num_gpus=0.5", "rollout.num_gpus=0.5"),
            "ipc",
            "on their GPU, elsewhere through Ray's object store (learner.num_gpus=0.5, rollout.num_gpus=0.5)",
        ),
        (("rollout.weight_transfer=gloo",), "gloo", "between CPUs (rollout.weight_transfer says so)"),
    ],
)
def test_the_way_is_chosen_by_what_both_ends_have_and_said(words: tuple[str, ...], chosen: str, text: str) -> None:
    config = load("frozenlake", list(words))
    assert config.way.name == chosen and text in config.way_text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("rollout.weight_transfer=nccl", "rollout.num_gpus=1"), "needs a whole GPU .* and learner.num_gpus=0; raise"),
        (
            ("rollout.weight_transfer=ipc", "learner.num_gpus=1", "rollout.num_gpus=0.5"),
            "needs learner and rollout workers on one GPU, .* and learner.num_gpus=1; give shares between 0 and 1",
        ),
        (("rollout.weight_transfer=ipc",), "and learner.num_gpus=0, rollout.num_gpus=0; give shares"),
        (("rollout.weight_transfer=gloo", "rollout.num_gpus=1"), "gloo connects CPUs, and rollout.num_gpus=1"),
    ],
)
def test_a_way_that_the_actors_cannot_go_is_refused(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(UserError, match=text):
        load("frozenlake", list(words))
