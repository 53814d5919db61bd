"""Interventions played by scripted policies on real lakes with a real codec: agents that follow their reasoning, that
ignore it, and that do one or the other; and that only ids are spliced."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.generation import GenerationFailed
from squelch.actors.play.intervening import Intervening, best_answer
from squelch.actors.play.seeds import request_seed
from squelch.actors.play.step_pool import StepPool
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig, FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.envs.registry import make
from squelch.envs.wording import Rng
from squelch.kit.diagnosis.interventions import Effect, Intervention, LeftOut, Swap, read_interventions
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Task, Ticket
from tests.moved_clock import BOUND_S, PAST_IT_S, MovedClock

CLOSE, LIMIT = "</think>", 60
ROW = re.compile("(?:[PGO_] ){3}[PGO_]")


class Lone(FrozenLake):
    """A lake without twins."""

    def twins(self, rng: Rng, most: int) -> list[str]:
        return []


class Mirrored(FrozenLake):
    """A lake where Left and Right are the same."""

    def same_action(self, one: str, other: str) -> bool:
        return {one, other} <= {"Left", "Right"}


class Agent:
    """Reasons the best answer of its prompt. `obeys(request)`: whether it answers what its reasoning says, or the best
    answer of its prompt. Without reasoning it says no answer."""

    def __init__(self, codec: ChatCodec, obeys: Callable[[GenerationRequest], bool], most: int = 2) -> None:
        self.codec, self.obeys, self.most = codec, obeys, most
        self.best: dict[bytes, str] = {}
        self.requests: dict[str, GenerationRequest] = {}
        self.sampled: dict[str, np.ndarray] = {}

    def prompt(self, task: Task) -> np.ndarray:
        """The first prompt of a task, whose best answer the agent knows from here on."""
        env = make(task.environment, task.split, dict(task.options))
        ids = self.codec.first_turn(Episode(env, task.seed, 0, FormatConfig(max_actions_per_turn=self.most)).start())
        answer = best_answer(env, self.most)
        assert answer is not None
        self.best[ids.tobytes()] = answer
        return ids

    async def __call__(self, worker: str, request: GenerationRequest) -> Completion:
        assert worker == "rollout-0"
        ids = request.prompt_ids
        self.requests[request.request_id] = request
        own = max((key for key in self.best if ids.tobytes().startswith(key)), key=len, default=b"")
        if not own:  # the first prompt of a twin
            env = make("FrozenLake")
            env.reset(seed=0, options={"noise_seed": 0})
            env.start("\n".join(ROW.findall(self.codec.text(ids))[-4:]))
            own, self.best[ids.tobytes()] = ids.tobytes(), env.best_answer(self.most)
        begun = self.codec.text(ids[len(own) // ids.itemsize :])
        if begun:
            said = begun.partition(CLOSE)[0].removeprefix(" so ").removesuffix(" ")
            action = said if self.obeys(request) else self.best[own]
            text = f" <answer> {action} </answer>" if said else " what now"
        else:
            text = f" so {self.best[own]} {CLOSE} <answer> {self.best[own]} </answer>"
        sampled = np.array([*self.codec.encode(text), self.codec.stop_ids[0]], dtype=np.int32)
        assert len(sampled) <= request.max_tokens
        self.sampled[request.request_id] = sampled
        return Completion(request.request_id, sampled, np.zeros(len(sampled), np.float32), "stop", 0, 0)


def swaps(agent: Agent, count: int) -> list[Swap]:
    """Lakes with four candidates each, all known to the agent."""
    found = []
    for i in range(count):
        tasks = [Task("FrozenLake", 1000 + 5 * i + j, "validation") for j in range(5)]
        for task in tasks:
            agent.prompt(task)
        found.append(Swap(Ticket(f"v-{i:05d}", 0, tasks[0], 1, 3, 0.5, "rollout-0"), tuple(tasks[1:])))
    return found


def play(
    codec: ChatCodec, generate, asked: list[Swap], limit: int = LIMIT, make_env=None, run=asyncio.run, most=2, **bounds
):
    async def together() -> list[Intervention | LeftOut]:
        config = EnvironmentActorConfig(**bounds)
        steps = StepPool(config.step_timeout_s, config.step_threads)
        sampling = SamplingConfig(max_tokens_per_turn=limit)
        environment = EnvironmentConfig(format=FormatConfig(max_actions_per_turn=most))
        one = Intervening(codec, environment, sampling, config, 4096, generate, steps, make_env)
        try:
            async with asyncio.timeout(180):
                return list(await asyncio.gather(*map(one.play, asked)))
        finally:
            steps.close()

    return run(together())


def effect(codec: ChatCodec, obeys: Callable[[GenerationRequest], bool], count: int) -> Effect:
    agent = Agent(codec, obeys)
    return read_interventions(play(codec, agent, swaps(agent, count)))


def test_an_agent_that_follows_its_reasoning_does_what_the_donor_reasoned(codec) -> None:
    found = effect(codec, lambda request: True, 24)
    assert found.change.value == 1.0 and found.left_out == {} and found.tasks == 24
    assert found.answers["donor"]["donors"].value == 1.0, "the donor's best answer is another one"
    assert found.answers["second"]["own"].value == 1.0 and found.answers["donor"]["valid"].value == 1.0
    assert found.answers["blank"]["none"].value == 1.0 and found.answers["blank"]["valid"].value == 0.0


def test_prompts_are_rendered_off_the_event_loop(codec, monkeypatch) -> None:
    agent, shown, threads = Agent(codec, lambda request: True), codec.first_fed, []
    asked = swaps(agent, 2)
    monkeypatch.setattr(codec, "first_fed", lambda given: threads.append(threading.current_thread()) or shown(given))
    assert all(isinstance(one, Intervention) for one in play(codec, agent, asked))
    assert threads and threading.main_thread() not in threads


def test_an_agent_that_ignores_its_reasoning_does_the_same_under_the_donors(codec) -> None:
    found = effect(codec, lambda request: False, 24)
    assert found.change.value == 0.0 and found.change.low < 0 < found.change.high
    assert found.answers["donor"]["own"].value == found.answers["second"]["own"].value == 1.0


def test_an_agent_that_follows_half_of_its_reasonings_changes_half_of_its_actions(codec) -> None:
    found = effect(codec, lambda request: bool(np.random.default_rng(request.seed).random() < 0.5), 60)
    assert found.change.low <= 0.5 <= found.change.high and found.change.high - found.change.low < 0.35
    assert found.answers["donor"]["own"].value == pytest.approx(1 - found.answers["donor"]["donors"].value)


def test_exactly_the_sampled_ids_are_spliced_and_a_turn_keeps_its_token_limit(codec) -> None:
    agent = Agent(codec, lambda request: True)
    asked = swaps(agent, 1)
    (found,) = play(codec, agent, asked)
    assert isinstance(found, Intervention)
    ticket, own = asked[0].ticket, agent.prompt(asked[0].ticket.task)
    requests = {name.removeprefix("v-00000/"): one for name, one in agent.requests.items()}
    assert set(requests) == {"first", "second", "donor", "again/second", "again/donor", "again/blank"}
    assert requests["first"].seed == request_seed(ticket, 0, 0), "as validation samples it"
    assert len({one.seed for one in requests.values()}) == 6 and {one.temperature for one in requests.values()} == {0.5}
    for arm, name in (("second", "second"), ("donor", "donor")):
        sampled = agent.sampled[f"v-00000/{name}"]
        end = next(n for n in range(len(sampled)) if CLOSE in codec.text(sampled[:n]))
        np.testing.assert_array_equal(requests[f"again/{arm}"].prompt_ids, [*own, *sampled[:end]])
        assert requests[f"again/{arm}"].max_tokens == LIMIT - end
    blank = codec.text(requests["again/blank"].prompt_ids[len(own) :])
    assert blank.strip() == CLOSE
    first = agent.sampled["v-00000/first"]
    np.testing.assert_array_equal(
        requests["again/blank"].prompt_ids[len(own) :],
        first[codec.reasoning_span(first)[1] : codec.closing_end(first)],
    )


def test_most_donors_are_twins_that_differ_in_one_part_and_have_another_best_answer(codec) -> None:
    agent = Agent(codec, lambda request: True)
    asked = swaps(agent, 12)
    found = read_interventions(play(codec, agent, asked))
    assert found.twins >= 10 and found.answers["donor"]["donors"].value == 1.0
    changed = []
    for name in (f"v-{i:05d}" for i in range(12)):
        own, donor = (
            "".join(ROW.findall(codec.text(agent.requests[f"{name}/{turn}"].prompt_ids))[-4:])
            for turn in ("first", "donor")
        )
        changed.append(sum(a != b for a, b in zip(own, donor, strict=True)))
    assert changed.count(2) == found.twins, "one thing is at another cell"


def test_a_donors_best_answer_is_another_one_also_where_a_turn_has_fewer_actions(codec) -> None:
    agent = Agent(codec, lambda request: True, most=1)
    found = read_interventions(play(codec, agent, swaps(agent, 12), most=1))
    assert found.tasks == 12 and found.twins > 0
    assert found.answers["donor"]["donors"].value == found.change.value == 1.0, (
        "answers that differ in the first action"
    )


def test_a_drawn_donor_has_other_content_and_another_best_answer(codec) -> None:
    agent = Agent(codec, lambda request: True)
    (swap,) = swaps(agent, 1)
    mine = agent.best[agent.prompt(swap.ticket.task).tobytes()]
    alike = next(
        task
        for task in (Task("FrozenLake", seed, "validation") for seed in range(2000, 2200))
        if agent.best[(ids := agent.prompt(task)).tobytes()] == mine and len(ids)
    )
    own = swap.ticket.task
    lone = {"make_env": lambda task: Lone(task.split)}
    (none,) = play(codec, agent, [Swap(swap.ticket, (own, alike))], **lone)
    assert none == LeftOut("", "no_donor")
    (found,) = play(codec, agent, [Swap(swap.ticket, (own, alike, *swap.candidates))], **lone)
    assert isinstance(found, Intervention) and not found.twin and " || ".join(found.donor.actions) != mine


@pytest.mark.parametrize("known", ["own", "candidates"])
def test_a_donors_best_answer_is_known_where_the_tasks_own_is(codec, known: str) -> None:
    agent = Agent(codec, lambda request: True)
    (swap,) = swaps(agent, 1)
    own = make("FrozenLake", "validation")
    own.reset(seed=swap.ticket.task.seed, options={"noise_seed": 0})

    class Unsolved(Lone):
        def best_answer(self, most_actions: int) -> str | None:
            solved = (self.content() == own.content()) == (known == "own")
            return super().best_answer(most_actions) if solved else None

    (found,) = play(codec, agent, [swap], make_env=lambda task: Unsolved(task.split))
    assert (found == LeftOut("", "no_donor")) is (known == "own")


def test_the_environment_judges_which_actions_and_best_answers_are_the_same(codec) -> None:
    other = {"Left": "Right", "Right": "Left", "Up": "Up", "Down": "Down"}

    class Mirroring(Agent):
        async def __call__(self, worker: str, request: GenerationRequest) -> Completion:
            done = await super().__call__(worker, request)
            if "again" not in request.request_id:
                return done
            words = self.codec.text(done.token_ids[:-1]).split(" ")
            ids = [*self.codec.encode(" ".join(other.get(word, word) for word in words)), self.codec.stop_ids[0]]
            return replace(done, token_ids=np.array(ids, np.int32), log_probs=np.zeros(len(ids), np.float32))

    agent = Mirroring(codec, lambda request: True, most=1)
    asked = swaps(agent, 24)
    spelt = read_interventions(play(codec, agent, asked, most=1))
    assert spelt.answers["second"]["another"].value > 0.2
    judged = read_interventions(play(codec, agent, asked, most=1, make_env=lambda task: Mirrored(task.split)))
    assert judged.answers["second"]["own"].value == judged.answers["donor"]["donors"].value == 1.0
    assert judged.change.value == 1.0, "no donor's best answer is the mirrored one"


def test_a_reasoning_that_is_never_closed_and_a_turn_without_room_leave_the_task_out(codec) -> None:
    agent = Agent(codec, lambda request: True)
    asked = swaps(agent, 2)

    async def rambles(worker: str, request: GenerationRequest) -> Completion:
        ids = codec.encode(" so on and so on")
        return Completion(request.request_id, ids, np.zeros(len(ids), np.float32), "length", 0, 0)

    assert play(codec, rambles, asked) == [LeftOut("", "unclosed")] * 2
    assert play(codec, agent, asked, limit=4096) == [LeftOut("", "no_room")] * 2


def test_an_error_leaves_its_task_out_with_its_cause(codec, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, ended = Agent(codec, lambda request: True), MovedClock(monkeypatch), list[object]()
    asked, play_one = swaps(agent, 3), Intervening.play

    async def counted(self: Intervening, swap: Swap) -> Intervention | LeftOut:
        ended.append(found := await play_one(self, swap))
        return found

    monkeypatch.setattr(Intervening, "play", counted)

    async def breaks(worker: str, request: GenerationRequest) -> Completion:
        if request.request_id == "v-00001/again/donor":
            raise GenerationFailed("rollout worker rollout-0: gone")
        if request.request_id == "v-00002/second":
            while len(ended) < 2:
                await asyncio.sleep(0.001)
            clock.move(PAST_IT_S)
            await asyncio.sleep(600)
        return await agent(worker, request)

    whole, failed, late = play(codec, breaks, asked, run=clock.run, generation_timeout_s=BOUND_S)
    assert isinstance(whole, Intervention)
    assert isinstance(failed, LeftOut) and failed.failure.cause is FailureCause.GENERATION_ERROR
    assert "gone" in failed.failure.detail and late.failure.cause is FailureCause.GENERATION_TIMEOUT
