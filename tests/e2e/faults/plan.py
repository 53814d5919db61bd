"""The faults of the study, drawn from a seed before the first run. Pure.

kind       what happens                                                    the run must
kill       SIGKILL                                                         go on; resumed if the driver was killed
stop       SIGSTOP for ever                                                go on
slow       stopped for 0.4 s of every 0.5 s, for some seconds              go on
memory     the process may allocate no more memory than it has             go on
disk       the run's disk is full for some seconds                         end and name the path, then be resumed
partition  the other host's cable is pulled, for less or for longer than   go on
           Ray takes to declare the host dead
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ACTORS = ("EnvironmentActor", "RolloutWorker", "EngineCore", "FilterService", "ScorerActor", "LearnerRank")
"""Processes of a run by a part of their title; EngineCore is vLLM's process under a rollout worker."""
DRIVER, DISK, HOST = "driver", "disk", "host"


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `weight`: relative frequency. `lasts_s`: bounds of its duration, 0 if it stays."""

    weight: int
    targets: tuple[str, ...]
    lasts_s: tuple[float, float] = (0.0, 0.0)


KINDS = {
    "kill": Kind(30, (*ACTORS, DRIVER)),
    "stop": Kind(22, ACTORS),
    "slow": Kind(18, (*ACTORS, DRIVER), (4.0, 10.0)),
    "memory": Kind(14, ACTORS),
    "disk": Kind(6, (DISK,), (2.0, 6.0)),
    "partition": Kind(10, (HOST,), (2.0, 20.0)),
}


@dataclass(frozen=True)
class Fault:
    """One fault. `moment`: when, as a share of the step under way. `pick`: which of several such processes."""

    kind: str
    target: str
    moment: float
    lasts_s: float
    pick: int


def draw(seed: int, count: int, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Fault]:
    """`count` random faults of these kinds; the same for the same arguments."""
    chance = random.Random(f"faults/{seed}")
    weights = [KINDS[name].weight for name in kinds]
    return [_one(name, chance) for name in chance.choices(kinds, weights, k=count)]


def _one(name: str, chance: random.Random) -> Fault:
    kind = KINDS[name]
    target, moment = chance.choice(kind.targets), round(chance.random(), 3)
    return Fault(name, target, moment, round(chance.uniform(*kind.lasts_s), 1), chance.randrange(1000))


def of_the_suite() -> list[Fault]:
    """The faults of the run in the test suite, of the kinds after which a run goes on: each kind and each target is
    among them, and the learner dies and hangs. A rollout worker is hit first, so that it is back before the end, and
    the scorer last, so that it scores before."""
    return draw(281529, 7, ("kill", "stop", "slow", "memory"))


def cells(seed: int, boots: int, faults: int) -> list[list[Fault]]:
    """The faults of each boot. A boot has the same faults however many others there are."""
    return [draw(1000 * seed + boot, faults) for boot in range(boots)]
