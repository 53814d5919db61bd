"""Which pairs hard negatives score, and what is left out."""

import math

import numpy as np
import pytest

from squelch.cluster.metrics import REGISTRY
from squelch.kit.records.records import Cluster
from squelch.kit.scoring import hard_scoring
from squelch.kit.scoring.hard_scoring import METRICS
from squelch.kit.scoring.probe_scoring import FixedProbe
from squelch.kit.scoring.settings import ProbeConfig
from tests.actors.scorer.test_scorer import Oracle
from tests.kit.scoring.windows import window
from tests.pictures import placed

CONFIG = ProbeConfig(tasks=8, samples=4)
GROUPS = window()
NAMES = sorted(GROUPS)


def prompt(first: int) -> np.ndarray:
    return np.array([first, 3, 4], dtype=np.int32)


def own(name: str) -> np.ndarray:
    return np.asarray(GROUPS[name][0].prompt_ids(0), dtype=np.int32)


class Counting(Oracle):
    """Counts the pairs that are asked for."""

    def __init__(self, strength: float) -> None:
        super().__init__(strength)
        self.asked: list[int] = []

    def matrix(self, prompts, reasonings, wanted=None, pictures=None):
        self.asked.append(len(prompts) * len(reasonings) if wanted is None else int(wanted.sum()))
        return super().matrix(prompts, reasonings, wanted, pictures)


def clusters(twins: list[np.ndarray], changed: float | None = 0.5) -> dict[str, Cluster]:
    return {name: Cluster(own(name), tuple(twins), changed) for name in NAMES}


def read(engine: Oracle, made: dict[str, Cluster], config: ProbeConfig = CONFIG) -> dict[str, float]:
    return FixedProbe(engine, config, seed=1).read(0, 0, GROUPS, made)


def test_reasoning_that_names_its_task_reaches_the_ceiling_and_a_template_stands_at_zero() -> None:
    twins = [prompt(900 + k) for k in range(7)]
    named, template = read(Oracle(50.0), clusters(twins)), read(Oracle(0.0), clusters(twins))
    assert named["probe/hard/mi"] == pytest.approx(math.log(8)) == pytest.approx(named["probe/hard/ceiling"])
    assert template["probe/hard/mi"] == pytest.approx(0.0, abs=1e-9)
    assert named["probe/hard/tasks"] == 8.0 and named["probe/hard/answers_changed"] == 0.5
    assert named["probe/hard/mi_low"] <= named["probe/hard/mi"] <= named["probe/hard/mi_high"]


def test_every_key_is_there_without_clusters_and_nothing_else_changes_with_them() -> None:
    known = {key for spec in REGISTRY.specs.values() for key in spec.flat_keys()}
    without, found = read(Counting(5.0), {}), read(Counting(5.0), clusters([prompt(900)]))
    assert without.keys() == found.keys() <= known
    hard = {f"probe/hard/{key}" for key in METRICS}
    assert hard <= found.keys() and all(math.isnan(without[key]) for key in hard)
    times = {"seconds/probe_score", "probe/cpu_seconds"}
    same = [key for key in without.keys() - hard - times if not math.isnan(without[key])]
    assert {key: without[key] for key in same} == {key: found[key] for key in same}


def test_a_pair_that_the_probe_has_scored_is_not_scored_again() -> None:
    others = {name: [own(other) for other in NAMES if other != name][:3] for name in NAMES}
    made = {name: Cluster(own(name), (*others[name], prompt(900)), None) for name in NAMES}
    engine = Counting(5.0)
    found = read(engine, made)
    assert found["probe/hard/pairs"] == 32 * 1 == engine.asked[-1]
    assert found["probe/hard/ceiling"] == pytest.approx(math.log(5)) and math.isnan(found["probe/hard/answers_changed"])
    engine = Counting(5.0)
    found = read(engine, {name: Cluster(own(name), tuple(others[name])) for name in NAMES})
    assert found["probe/hard/pairs"] == 0.0 and not math.isnan(found["probe/hard/mi"])
    part = read(Counting(5.0), made, ProbeConfig(tasks=8, samples=4, max_others=2))
    assert 32 < part["probe/hard/pairs"] <= 32 * 4, "what a budget left out is scored for this"


def test_a_cluster_of_another_prompt_and_a_twin_without_room_are_left_out() -> None:
    made = clusters([prompt(900)])
    made[NAMES[0]] = Cluster(prompt(777), (prompt(900),))
    assert read(Oracle(5.0), made)["probe/hard/tasks"] == 7.0
    long = np.arange(200, 200 + Oracle.context_length, dtype=np.int32)
    found = read(Oracle(5.0), clusters([long]))
    assert math.isnan(found["probe/hard/mi"]) and found["probe/hard/tasks"] == found["probe/hard/pairs"] == 0.0
    assert not math.isnan(found["probe/mi"])


def test_a_twins_prompt_gets_the_opening_that_the_policy_gave_its_reasoning() -> None:
    made = {name: Cluster(own(name)[:2], (prompt(900)[:2],)) for name in NAMES}
    seen: list[list[int]] = []

    class Seeing(Oracle):
        def matrix(self, prompts, reasonings, wanted=None, pictures=None):
            seen[:] = [one.tolist() for one in prompts]
            return super().matrix(prompts, reasonings, wanted, pictures)

    assert read(Seeing(5.0), made)["probe/hard/tasks"] == 8.0
    assert seen == [prompt(900).tolist()], "the last id of the own prompt is not in the cluster's"


def test_a_twins_prompt_is_made_once_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    key = hard_scoring.content_key
    monkeypatch.setattr(hard_scoring, "content_key", lambda ids, *shown: made.append(ids.tobytes()) or key(ids, *shown))
    found = read(Oracle(5.0), clusters([prompt(900), prompt(901)]))
    assert found["probe/samples"] == 32.0 and found["probe/hard/tasks"] == 8.0
    assert len(made) == 8 + 8 * 2, "a key for each prompt of the probe, and for each twin of each task"


def test_twins_with_equal_ids_are_told_apart_by_their_pictures() -> None:
    groups, ids = window(), np.array([1, 3, 4], dtype=np.int32)
    shown = {name: placed(1, name.encode()) for name in NAMES}
    for name in NAMES:
        for one in groups[name]:
            one.token_ids[0], one.pictures = 1, (shown[name],)
    seen = {10 + k: shown[name].digest for k, name in enumerate(NAMES)}

    class Seeing(Oracle):
        def matrix(self, prompts, reasonings, wanted=None, pictures=None):
            own = np.array([[seen[int(z[0])] == one.digest for (one,) in pictures] for z in reasonings])
            found = -np.array([[len(z)] for z in reasonings]) - self.strength * ~own
            return found if wanted is None else np.where(wanted, found, np.nan)

    twins = [placed(1, bytes([k])) for k in range(6)]
    made = {
        name: Cluster(ids, (ids,) * 7, pictures=tuple((one,) for one in (shown[name], shown[other], *twins)))
        for name, other in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)
    }
    named, blind = (FixedProbe(Seeing(s), CONFIG, seed=1).read(0, 0, groups, made) for s in (50.0, 0.0))
    assert named["probe/hard/mi"] == pytest.approx(math.log(8)) == pytest.approx(named["probe/hard/ceiling"])
    assert blind["probe/hard/mi"] == pytest.approx(0.0, abs=1e-9)
    assert named["probe/hard/pairs"] == 32 * 6, "one twin of each task is a task of the probe too"
    made[NAMES[0]] = Cluster(ids, (ids,), pictures=((twins[0],), (twins[1],)))
    found = FixedProbe(Seeing(50.0), CONFIG, seed=1).read(0, 0, groups, made)
    assert found["probe/hard/tasks"] == 7.0, "its cluster was made for another picture"


def test_a_task_may_have_fewer_twins_than_others() -> None:
    made = clusters([prompt(900), prompt(901), prompt(902)])
    made[NAMES[0]] = Cluster(own(NAMES[0]), ())
    made[NAMES[1]] = Cluster(own(NAMES[1]), (prompt(900),))
    found = read(Oracle(50.0), made)
    assert found["probe/hard/tasks"] == 7.0
    assert found["probe/hard/ceiling"] == pytest.approx((6 * math.log(4) + math.log(2)) / 7)
