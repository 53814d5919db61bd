"""What an environment actor writes down and what a fault costs: real lakes, a real codec, fakes to inject faults."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play import step_pool
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.generation import GenerationFailed
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.play.seeds import derive_seed, noise_seed, request_seed
from squelch.actors.sampling import SamplingConfig
from squelch.cluster.control.admission import TicketSource
from squelch.envs.config import EnvironmentConfig, EnvironmentEntry, FormatConfig
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.envs.mixture import Mixture
from squelch.envs.registry import make
from squelch.kit.archive.rows import from_table, to_table
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket, VersionSpan, summarise
from tests.moved_clock import BOUND_S, PAST_IT_S, MovedClock

LIMIT = 40
CONTEXT = 4096
TEXTS = [
    " I am at 1 2 so go fast</think> <answer> Up || Left</answer>",
    " the goal is near</think><answer>Down</answer>",
    "</think><answer>Right</answer>",
    " no answer at all",
    " fast</think> </answer>",
]


class Policy:
    """Answers each turn with a text drawn by the request's seed; records what it was fed."""

    def __init__(self, codec: ChatCodec, cut_rate: float = 0.0, versions: Callable[[int], int] = lambda n: n) -> None:
        self.codec, self.cut_rate, self.versions = codec, cut_rate, versions
        self.requests: list[GenerationRequest] = []
        self.answers: dict[str, Completion] = {}

    async def __call__(self, worker: str, request: GenerationRequest) -> Completion:
        self.requests.append(request)
        await asyncio.sleep(0.002)
        rng = np.random.default_rng(request.seed)
        ids = list(self.codec.encode(TEXTS[rng.integers(len(TEXTS))]))[:LIMIT]
        cut = rng.random() < self.cut_rate
        ids = np.array(ids if cut else [*ids, self.codec.stop_ids[0]], dtype=np.int32)
        turn = int(request.request_id.rsplit("/", 1)[1])
        version = self.versions(turn)
        log_probs = -rng.random(len(ids)).astype(np.float32)
        answer = Completion(request.request_id, ids, log_probs, "length" if cut else "stop", version, version + 1)
        self.answers[request.request_id] = answer
        return answer


def player(codec, generate, make_env=None, context=CONTEXT, max_turns=5, **bounds) -> EnvironmentPlayer:
    config = EnvironmentActorConfig(**bounds)
    environment = EnvironmentConfig(format=FormatConfig(max_turns=max_turns))
    sampling = SamplingConfig(max_tokens_per_turn=LIMIT)
    chosen = {} if make_env is None else {"make_env": make_env}
    return EnvironmentPlayer(codec, environment, sampling, config, context, generate, **chosen)


def ticket(name: str = "000001-000", size: int = 4, seed: int = 3, task_seed: int = 5) -> Ticket:
    return Ticket(name, 1, Task("FrozenLake", task_seed), size, seed, 1.0, "rollout-0")


def play(
    one: EnvironmentPlayer, *tickets: Ticket, run: Callable[[Any], Any] = asyncio.run, within_s: float = 180.0
) -> list[Group]:
    async def together() -> list[Group]:
        async with asyncio.timeout(within_s):
            return list(await asyncio.gather(*(one.play(each) for each in tickets)))

    try:
        return run(together())
    finally:
        one.close()


@pytest.mark.parametrize("cut_rate", [0.0, 0.5, 1.0])
def test_a_trajectory_is_exactly_what_was_fed_and_sampled(codec, cut_rate):
    policy = Policy(codec, cut_rate)
    (group,) = play(player(codec, policy), ticket(size=8))
    by_prefix = {request.request_id: request for request in policy.requests}
    assert sum(len(t.turns) for t in group.trajectories) == len(policy.requests)
    for trajectory in group.trajectories:
        assert trajectory.failure is None and trajectory.turns
        mask = np.zeros(len(trajectory.token_ids), dtype=bool)
        for number, turn in enumerate(trajectory.turns):
            name = f"{group.ticket.ticket_id}/{trajectory.index}/{number}"
            answer = policy.answers[name]
            np.testing.assert_array_equal(by_prefix[name].prompt_ids, trajectory.token_ids[: turn.sample_start])
            np.testing.assert_array_equal(trajectory.token_ids[turn.sample_start : turn.sample_end], answer.token_ids)
            np.testing.assert_array_equal(trajectory.log_probs[turn.sample_start : turn.sample_end], answer.log_probs)
            mask[turn.sample_start : turn.sample_end] = True
        np.testing.assert_array_equal(trajectory.loss_mask, mask)
        assert not trajectory.log_probs[~mask].any()
        assert trajectory.turns[-1].sample_end == len(trajectory.token_ids)


@pytest.mark.parametrize("quick", [False, True])
def test_turns_are_rendered_encoded_and_read_off_the_event_loop_unless_that_is_quick(codec, monkeypatch, quick):
    seen = set()
    monkeypatch.setattr(ChatCodec, "quick", lambda *_: quick)

    def note(name):
        call = getattr(ChatCodec, name)

        def noted(*given):
            seen.add((name, threading.current_thread().name))
            return call(*given)

        monkeypatch.setattr(ChatCodec, name, noted)

    for name in ("first_fed", "next_fed", "reasoning_span", "completion_text"):
        note(name)
    play(player(codec, Policy(codec)), ticket())
    assert len({name for name, _ in seen}) == 4
    own = threading.main_thread().name
    assert {thread for _, thread in seen} == {own} if quick else own not in {thread for _, thread in seen}


class SaysWho(Policy):
    """Says which version sampled which token: two versions a turn, or one in turns of a single token."""

    async def __call__(self, worker, request):
        answer = await super().__call__(worker, request)
        middle, end = len(answer.token_ids) // 2, len(answer.token_ids)
        spans = (VersionSpan(0, middle, answer.version_min), VersionSpan(middle, end, answer.version_max))
        return replace(answer, version_spans=spans)


def test_version_spans_cover_the_sampled_tokens_with_the_versions_that_sampled_them(codec):
    (group,) = play(player(codec, SaysWho(codec, 0.5)), ticket(size=4))
    for trajectory in group.trajectories:
        covered = np.zeros(len(trajectory.token_ids), dtype=int)
        for span in trajectory.version_spans:
            covered[span.start : span.end] += 1
        np.testing.assert_array_equal(covered, trajectory.loss_mask)
        for turn in trajectory.turns:
            inside = [s.version for s in trajectory.version_spans if turn.sample_start <= s.start < turn.sample_end]
            assert min(inside) >= turn.version_min and max(inside) == turn.version_max


def test_an_engine_that_does_not_say_who_sampled_leaves_version_spans_open_unless_one_version_did(codec):
    (unknown,) = play(player(codec, Policy(codec)), ticket(size=2))
    assert all(t.version_spans is None for t in unknown.trajectories)
    (known,) = play(player(codec, Answers(codec, one_version=True)), ticket(size=2))
    for trajectory in known.trajectories:
        whole = [VersionSpan(turn.sample_start, turn.sample_end, 0) for turn in trajectory.turns]
        assert list(trajectory.version_spans) == whole


def test_what_is_fed_between_turns_closes_a_cut_turn_with_masked_ids(codec):
    policy = Policy(codec, cut_rate=0.5)
    (group,) = play(player(codec, policy), ticket(size=8))
    end, seen = codec.stop_ids[0], set()
    for trajectory in group.trajectories:
        for turn, following in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            fed = trajectory.token_ids[turn.sample_end : following.sample_start]
            seen.add(turn.hit_token_limit)
            assert (fed[0] == end) == turn.hit_token_limit
            assert (trajectory.token_ids[turn.sample_end - 1] == end) == (not turn.hit_token_limit)
            assert codec.text(fed).rstrip().endswith("<think>")
    assert seen == {True, False}


def test_a_cut_turn_is_badly_formatted_and_the_episode_goes_on(codec):
    (group,) = play(player(codec, Policy(codec, cut_rate=1.0)), ticket(size=8))
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    assert all(turn.hit_token_limit and not turn.format_valid and turn.format_penalty < 0 for turn in turns)
    assert max(len(trajectory.turns) for trajectory in group.trajectories) > 1


def test_reasoning_spans_hold_whole_sampled_tokens_before_the_marker(codec):
    (group,) = play(player(codec, Policy(codec, cut_rate=0.3)), ticket(size=8))
    spans = unclosed = 0
    for trajectory in group.trajectories:
        for turn in trajectory.turns:
            assert turn.sample_start <= turn.reasoning_start <= turn.reasoning_end <= turn.sample_end
            reasoning = codec.text(trajectory.token_ids[turn.reasoning_start : turn.reasoning_end])
            whole = codec.text(trajectory.token_ids[turn.sample_start : turn.sample_end])
            assert "</think>" not in reasoning and whole.startswith(reasoning)
            spans += turn.reasoning_end > turn.reasoning_start
            never_closed = "</think>" not in whole
            assert (turn.reasoning_start == turn.reasoning_end == turn.sample_end) is never_closed
            unclosed += never_closed
    assert spans and unclosed


def test_all_trajectories_of_all_groups_are_in_flight_together(codec):
    class Together(Policy):
        """Answers nobody before all have asked."""

        async def __call__(self, worker, request):
            answer = await super().__call__(worker, request)
            while len({one.request_id for one in self.requests}) < 12:
                await asyncio.sleep(0.001)
            return answer

    groups = play(player(codec, Together(codec)), ticket("a", 6), ticket("b", 6))
    assert [t.failure for group in groups for t in group.trajectories] == [None] * 12


def test_versions_of_a_turn_are_the_completions_and_of_a_group_the_extremes(codec):
    (group,) = play(player(codec, Policy(codec, versions=lambda turn: 10 + turn)), ticket(size=6))
    longest = max(len(trajectory.turns) for trajectory in group.trajectories)
    summary = summarise(group)
    assert longest > 1 and (summary.version_min, summary.version_max) == (10, 10 + longest)
    for trajectory in group.trajectories:
        assert [turn.version_min for turn in trajectory.turns] == [10 + n for n in range(len(trajectory.turns))]


def test_a_ticket_played_again_is_the_same_and_another_seed_is_not(codec):
    first, again, other = (play(player(codec, Policy(codec)), ticket(seed=seed))[0] for seed in (3, 3, 4))
    for one, two in zip(first.trajectories, again.trajectories, strict=True):
        np.testing.assert_array_equal(one.token_ids, two.token_ids)
        assert one.turns == two.turns
    assert any(
        len(a.token_ids) != len(b.token_ids) or (a.token_ids != b.token_ids).any()
        for a, b in zip(first.trajectories, other.trajectories, strict=True)
    )


def test_a_group_survives_the_journey_through_arrow(codec):
    (group,) = play(player(codec, Policy(codec, cut_rate=0.3)), ticket(size=3))
    for sent, back in zip(group.trajectories, from_table(to_table(group)), strict=True):
        np.testing.assert_array_equal(sent.token_ids, back.token_ids)
        np.testing.assert_array_equal(sent.loss_mask, back.loss_mask)
        np.testing.assert_array_equal(sent.log_probs, back.log_probs)
        assert sent.turns == back.turns and (sent.success, sent.failure) == (back.success, back.failure)


def test_a_ticket_of_one_turn_has_the_first_turn_of_the_whole_episode_and_samples_no_other(codec):
    policy = Policy(codec, 0.5)
    (whole,) = play(player(codec, policy), ticket(size=6))
    sampled = len(policy.requests)
    (short,) = play(player(codec, policy), replace(ticket(size=6), most_turns=1))
    assert len(policy.requests) - sampled == 6 < sampled
    for one, other in zip(short.trajectories, whole.trajectories, strict=True):
        assert one.failure is None and one.turns == other.turns[:1]
        assert one.truncated == (len(other.turns) > 1)
        np.testing.assert_array_equal(one.token_ids, other.token_ids[: len(one.token_ids)])


def test_a_context_that_holds_no_further_turn_truncates_the_episode(codec):
    policy = Policy(codec)
    (long,) = play(player(codec, policy), ticket(size=8))
    first = max(trajectory.turns[0].sample_start for trajectory in long.trajectories)
    context = first + LIMIT
    (group,) = play(player(codec, Policy(codec), context=context), ticket(size=8))
    shortened = [t for t in group.trajectories if len(t.turns) < len(long.trajectories[t.index].turns)]
    assert shortened and all(t.truncated and t.failure is None and len(t.turns) == 1 for t in shortened)
    assert all(t.bootstrap_last_state for t in shortened)
    assert not any(t.bootstrap_last_state for t in long.trajectories)
    assert all(len(t.token_ids) <= context for t in group.trajectories)
    assert all(t.turns[-1].sample_end == len(t.token_ids) for t in group.trajectories)


def test_a_first_prompt_that_does_not_fit_is_a_failure_that_says_so(codec):
    (group,) = play(player(codec, Policy(codec), context=50), ticket(size=2))
    assert all(
        t.failure.cause is FailureCause.CONTEXT_EXHAUSTED and "max_model_len=50" in t.failure.detail
        for t in group.trajectories
    )


# --- faults ---


class Raises(FrozenLake):
    """Raises at its second step."""

    def step(self, action):
        raise KeyError("boom")


class Exits(FrozenLake):
    def step(self, action):
        raise SystemExit(3)


class Hangs(FrozenLake):
    """Moves the clock past its bound and hangs until released."""

    release, clock = threading.Event(), None

    def step(self, action):
        Hangs.clock.move(PAST_IT_S)
        Hangs.release.wait(60)
        return super().step(action)


def one_bad(bad: type[FrozenLake]) -> Callable[[Task], FrozenLake]:
    """The second environment made is bad, the others are sound."""
    made = []

    def make_env(task: Task) -> FrozenLake:
        made.append(task)
        return bad() if len(made) == 2 else make("FrozenLake")

    return make_env


def assert_one_failed(group: Group, reason: str) -> None:
    failures = [t.failure for t in group.trajectories if t.failure is not None]
    assert len(failures) == 1 and str(failures[0]).startswith(reason), failures
    summary = summarise(group)
    assert summary.failures == tuple(failures) and len(summary.returns) == len(group.trajectories) - 1
    failed = next(t for t in group.trajectories if t.failure is not None)
    assert len(failed.token_ids) and not failed.success


class Answers(Policy):
    """Always plays an action, so that every environment is stepped."""

    def __init__(self, codec: ChatCodec, one_version: bool = False) -> None:
        super().__init__(codec)
        self.one_version = one_version

    async def __call__(self, worker, request):
        completion = await super().__call__(worker, request)
        ids = np.append(self.codec.encode(TEXTS[1]), self.codec.stop_ids[0]).astype(np.int32)
        newest = 0 if self.one_version else completion.version_min
        return Completion(request.request_id, ids, np.full(len(ids), -0.5, np.float32), "stop", 0, newest)


@pytest.mark.parametrize(("bad", "said"), [(Raises, "KeyError: 'boom'"), (Exits, "SystemExit: 3")])
def test_an_environment_that_raises_costs_one_trajectory(codec, bad, said):
    (group,) = play(player(codec, Answers(codec), make_env=one_bad(bad)), ticket(size=4))
    assert_one_failed(group, f"environment_error: {said}")


def test_a_later_message_that_the_format_cannot_show_costs_one_trajectory(codec, monkeypatch):
    shown, first = codec.next_turn, iter([True])

    def next_turn(*given):
        if next(first, False):
            raise ValueError("it shows no such message")
        return shown(*given)

    monkeypatch.setattr(codec, "next_turn", next_turn)
    (group,) = play(player(codec, Answers(codec)), ticket(size=4))
    assert_one_failed(group, "environment_error: it shows no such message")


def test_an_environment_that_hangs_costs_one_trajectory_and_holds_nobody_up(codec, monkeypatch):
    Hangs.release.clear()
    clock = Hangs.clock = MovedClock(monkeypatch, step_pool)
    one = player(codec, Answers(codec), make_env=one_bad(Hangs), step_timeout_s=BOUND_S)
    try:
        groups = play(one, ticket("a", 4), ticket("b", 4), run=clock.run)
    finally:
        Hangs.release.set()
    failures = [t.failure for group in groups for t in group.trajectories if t.failure is not None]
    assert failures == [Failure(FailureCause.STEP_TIMEOUT)] and one.steps.num_abandoned == 1


@pytest.mark.parametrize("name", ["first_fed", "next_fed"])
def test_a_renderer_that_lets_others_go_first_is_no_late_environment(codec, monkeypatch, name):
    clock, shown, first = MovedClock(monkeypatch, step_pool), getattr(codec, name), iter([True])

    def waits(*given):
        if next(first, False):
            clock.move(PAST_IT_S)
        return shown(*given)

    monkeypatch.setattr(codec, name, waits)
    one = player(codec, Answers(codec), step_timeout_s=BOUND_S)
    (group,) = play(one, ticket(size=1), run=clock.run)
    assert next(first, False) is False and group.trajectories[0].failure is None and one.steps.num_abandoned == 0


def test_a_format_that_breaks_costs_one_trajectory(codec, monkeypatch):
    read, first = codec.completion_text, iter([True])

    def completion_text(ids):
        return read(None if next(first, False) else ids)

    monkeypatch.setattr(codec, "completion_text", completion_text)
    (group,) = play(player(codec, Answers(codec)), ticket(size=4))
    assert_one_failed(group, "environment_error: TypeError: ")


def test_an_environment_that_cannot_be_made_costs_its_trajectories_not_the_actor(codec):
    def make_env(task: Task) -> FrozenLake:
        raise OSError("no such data")

    (group,) = play(player(codec, Policy(codec), make_env=make_env), ticket(size=2))
    failure = Failure(FailureCause.ENVIRONMENT_ERROR, "OSError: no such data")
    assert [t.failure for t in group.trajectories] == [failure] * 2
    assert to_table(group).num_rows == 2 and summarise(group).task_key == ""


class OneLate(Answers):
    """A turn of the second trajectory never comes; once the others have ended, the clock moves past its bound."""

    def __init__(self, codec: ChatCodec, clock: MovedClock, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(codec)
        self.clock, self.ended, play_one = clock, 0, EnvironmentPlayer._play_one

        async def counted(*given):
            found = await play_one(*given)
            self.ended += 1
            return found

        monkeypatch.setattr(EnvironmentPlayer, "_play_one", counted)

    async def __call__(self, worker, request):
        if request.request_id.endswith("/1/0"):
            while self.ended < 2:
                await asyncio.sleep(0.001)
            self.clock.move(PAST_IT_S)
            await asyncio.sleep(600)
        return await super().__call__(worker, request)


def test_a_turn_that_does_not_come_is_a_generation_timeout(codec, monkeypatch):
    clock = MovedClock(monkeypatch)
    one = player(codec, OneLate(codec, clock, monkeypatch), generation_timeout_s=BOUND_S)
    (group,) = play(one, ticket(size=3), run=clock.run)
    assert_one_failed(group, "generation_timeout")


def test_an_episode_that_does_not_end_is_an_episode_timeout(codec, monkeypatch):
    clock = MovedClock(monkeypatch)
    one = player(codec, OneLate(codec, clock, monkeypatch), episode_timeout_s=BOUND_S)
    (group,) = play(one, ticket(size=3), run=clock.run)
    assert_one_failed(group, "episode_timeout")


def test_a_worker_that_died_is_named_in_the_failure(codec):
    class Dead(Answers):
        async def __call__(self, worker, request):
            if request.request_id.endswith("/1/0"):
                raise GenerationFailed(f"rollout worker {worker}: its vLLM engine has died")
            return await super().__call__(worker, request)

    (group,) = play(player(codec, Dead(codec)), ticket(size=3))
    assert_one_failed(group, "generation_error: rollout worker rollout-0: its vLLM engine has died")


# --- seeds ---


@settings(max_examples=50)
@given(st.integers(0, 2**62), st.integers(0, 30), st.integers(0, 5))
def test_request_seeds_are_63_bit_and_differ_in_every_part(seed, trajectory, turn):
    one = ticket(seed=seed)
    base = request_seed(one, trajectory, turn)
    others = [
        request_seed(one, trajectory + 1, turn),
        request_seed(one, trajectory, turn + 1),
        request_seed(ticket("x", seed=seed), trajectory, turn),
        request_seed(ticket(seed=seed + 1), trajectory, turn),
        noise_seed(one, trajectory, shared=False),
    ]
    assert 0 <= base < 2**63 and len({base, *others}) == 6


def test_seed_parts_do_not_run_together():
    assert derive_seed(1, 23) != derive_seed(12, 3)


def test_shared_noise_is_one_for_the_group():
    one = ticket()
    assert noise_seed(one, 0, shared=True) == noise_seed(one, 7, shared=True)
    assert noise_seed(one, 0, shared=False) != noise_seed(one, 7, shared=False)


class Placed(FrozenLake):
    """A lake that tells the place of its task in the run."""

    def task_kind(self) -> str:
        return str(self.task_seed - self.first_seed)


def test_an_environment_knows_the_position_of_its_task_in_a_run_of_any_first_seed(codec):
    name = f"{__name__}:Placed"
    for train_seed in (0, 1_000_003):
        environment = EnvironmentConfig(name=name, train_seed=train_seed, format=FormatConfig(max_turns=1))
        sampling = SamplingConfig(max_tokens_per_turn=LIMIT)
        one = EnvironmentPlayer(codec, environment, sampling, EnvironmentActorConfig(), CONTEXT, Policy(codec))
        source = TicketSource(Mixture.of(environment), 2, 3, 1.0, cursor=6)
        tickets = [replace(taken, worker="rollout-0") for taken in source.take(1, 3)]
        assert [group.task_kind for group in play(one, *tickets)] == ["6", "7", "8"]


def test_a_ticket_is_played_with_the_limits_of_its_environment(codec):
    limits = {"short": FormatConfig(max_turns=1), "long": FormatConfig(max_turns=3)}
    entries = [
        EnvironmentEntry(label=label, format=shape, max_tokens_per_turn=LIMIT) for label, shape in limits.items()
    ]
    mixture, policy = Mixture.several(entries), Policy(codec)
    sampling = SamplingConfig(max_tokens_per_turn=LIMIT + 1)
    one = EnvironmentPlayer(codec, mixture, sampling, EnvironmentActorConfig(), CONTEXT, policy)
    tickets = [replace(taken, worker="rollout-0") for taken in TicketSource(mixture, 2, 3, 1.0).take(1, 2)]
    groups = play(one, *tickets)
    assert [group.ticket.task.label for group in groups] == ["short", "long"]
    assert all(len(trajectory.turns) == 1 for trajectory in groups[0].trajectories)
    assert any(len(trajectory.turns) > 1 for trajectory in groups[1].trajectories)
    assert all(trajectory.failure is None for group in groups for trajectory in group.trajectories)
    assert {request.max_tokens for request in policy.requests} == {LIMIT}, "an environment's limit, not the run's"
