"""What the decomposition within a run takes and writes; players and learner are stand-ins."""

import asyncio
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squelch.cluster.config import RunConfig, load
from squelch.cluster.control.calls import DECOMPOSE, Call
from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.cluster.loop.watchers.decomposing import Decomposing
from squelch.cluster.loop.watchers.watcher import Step
from squelch.kit.records.records import Group, GroupSummary, Task, Ticket, summarise
from squelch.learner.decomposition.statistics import Decomposition
from tests.cluster.commands.existing_runs.test_gradients import trajectory

NOTHING = Decomposition((), ())


@dataclass
class Learner:
    asked: list[list[str]] = field(default_factory=list)

    async def call(self, row: Call[..., Any], tables: list[Any], ids: list[str]) -> Decomposition:
        assert row is DECOMPOSE and len(tables) == len(ids)
        self.asked.append(ids)
        return NOTHING


@dataclass
class Players:
    version: int = 3
    change: Any = None
    tickets: list[Ticket] = field(default_factory=list)

    async def group(self, ticket: Ticket) -> PlayedGroup:
        self.tickets.append(ticket)
        return PlayedGroup(ticket, self.summary(ticket), "table")

    def summary(self, ticket: Ticket) -> GroupSummary:
        members = [trajectory(k, self.version, self.version) for k in range(4)]
        found = summarise(Group(ticket, "key", members))
        return replace(found, **self.change) if self.change else found


def config_of(tmp_path: Path) -> RunConfig:
    words = ["gradients.every=2", "gradients.groups=5", f"runs_dir={tmp_path}", "sampling.group_size=4"]
    return load("frozenlake", words)


def measure(tmp_path: Path, step: int, players: Players, window: list[PlayedGroup]) -> tuple[dict, list[list[str]]]:
    learner = Learner()
    part = Decomposing(config_of(tmp_path), learner, players)
    seen = Step(step, SimpleNamespace(played=lambda: window), SimpleNamespace(), version=3, is_last=False)
    asyncio.run(part.before_train(seen))
    return part.metrics(seen), learner.asked


def window(version: int, count: int) -> list[PlayedGroup]:
    players, ticket = Players(version), Ticket("", 2, Task("FrozenLake", 0), 4, 0)
    tickets = [replace(ticket, ticket_id=f"000002-{i:03d}") for i in range(count)]
    return [PlayedGroup(t, players.summary(t), "table") for t in tickets]


def test_the_steps_own_groups_are_filled_up_on_validation_tasks(tmp_path: Path) -> None:
    players = Players()
    flat, asked = measure(tmp_path, 2, players, window(3, 3))
    assert asked == [["000002-000", "000002-001", "000002-002", "g000002-000", "g000002-001"]]
    assert all(t.task.split == "validation" and t.group_size == 4 and t.temperature == 1.0 for t in players.tickets)
    assert flat["gradients/groups"] == 0 and flat["seconds/gradients"] >= 0
    written = json.loads((tmp_path / "frozenlake" / "gradients" / "step-000002.json").read_text())
    assert written["step"] == 2 and written["version"] == 3


def test_groups_of_other_versions_are_replaced_by_fresh_ones(tmp_path: Path) -> None:
    _, asked = measure(tmp_path, 2, Players(), [*window(2, 2), *window(3, 1)])
    assert asked[0][0] == "000002-000" and len(asked[0]) == 5 and asked[0][1].startswith("g000002")


def test_nothing_is_played_when_nothing_is_due(tmp_path: Path) -> None:
    players = Players()
    assert measure(tmp_path, 3, players, window(3, 3)) == ({}, []) and not players.tickets


@pytest.mark.parametrize("change", [{"indices": (0,)}, {"surprisals": [math.nan] * 4}, {"returns": [math.inf] * 4}])
def test_what_the_learner_would_refuse_is_left_out_and_never_ends_the_run(tmp_path: Path, change: dict) -> None:
    _, asked = measure(tmp_path, 2, Players(change=change), window(3, 3))
    assert asked == [["000002-000", "000002-001", "000002-002"]]
    flat, asked = measure(tmp_path, 2, Players(change=change), window(3, 1))
    assert asked == [] and set(flat) == {"seconds/gradients"}
