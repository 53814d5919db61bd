"""What the failure of an agent earns: the reward that the user gave that ending, or nothing if something else than the
policy may have ended it."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.endpoint import server
from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.session import Session
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.first_prompts import difference
from squelch.actors.play.generation import GenerationFailed
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Access, AgentCall, AgentDriven, AgentFailed, AgentResult, Environment
from squelch.kit.archive.rows import from_table, to_table
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, summarise
from tests.actors.endpoint.support import one_is_lost
from tests.actors.play.test_player import LIMIT, Policy
from tests.moved_clock import BOUND_S, PAST_IT_S, MovedClock

pytestmark = pytest.mark.usefixtures("rendered_here")
ROOT = Path(__file__).parents[3]
CONTEXT = 4096
SAID = "the agent's command ended with exit code 1"
Doing = Callable[["Client", int], Awaitable[Any]]


class Stage:
    """What a test sees of the one trajectory that is played. A call whose prompt says `slow` waits for `gate`."""

    def __init__(self, codec: ChatCodec, clock: MovedClock | None) -> None:
        self.clock = clock
        self.codec, self.policy = codec, Policy(codec, versions=lambda number: 0)
        self.gate, self.num_waiting = asyncio.Event(), 0
        self.player: EnvironmentPlayer | None = None
        self.kept: Any = None

    async def generate(self, worker: str, request: GenerationRequest) -> Completion:
        if "slow" in self.codec.text(request.prompt_ids):
            self.num_waiting += 1
            await self.gate.wait()
        found = await self.policy(worker, request)
        if request.max_tokens < LIMIT:
            ids, log_probs = found.token_ids[: request.max_tokens], found.log_probs[: request.max_tokens]
            return replace(found, token_ids=ids, log_probs=log_probs, finish_reason="length")
        return found

    @property
    def session(self) -> Session:
        assert self.player is not None
        (endpoint,) = self.player._agents._endpoints.values()
        (session,) = endpoint._sessions.values()
        return session


async def until(holds: Callable[[], Any]) -> None:
    """Lets the loop run until something holds; `played` bounds it."""
    while not holds():
        await asyncio.sleep(0.001)


class Client(httpx.AsyncClient):
    """A client of one trajectory."""

    def __init__(self, access: Access, stage: Stage) -> None:
        self.access, self.stage = access, stage
        head = {"authorization": f"Bearer {access.token}"}
        super().__init__(base_url=access.base_url, headers=head, timeout=60, trust_env=False)

    async def ask(self, text: str = "hi", path: str = "/v1/chat/completions", **more: Any) -> int:
        """The status of the answer."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        return (await self.post(path, json=body)).status_code

    async def begin(self, data: bytes) -> asyncio.StreamWriter:
        """A connection with a request that is not whole."""
        host, port = self.access.base_url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.access.token}\r\n"
        writer.write(head.encode() + data)
        return writer


class Failing(Environment, AgentDriven):
    """An agent of this process: it does what the test says, and then fails as its policy made it."""

    max_turns, whole_turns, turns, most_at_once = 64, True, "model", None

    def __init__(self, doing: Doing, reward: float | None, stage: Stage) -> None:
        super().__init__()
        self.doing, self.reward, self.stage, self.seed = doing, reward, stage, 0

    def rules(self) -> str:
        return ""

    def read_action(self, text: str) -> str:
        return text

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.seed = options["noise_seed"]
        return "", {"task_key": "key"}

    def step(self, action: str) -> Any:
        raise AssertionError

    def untrained(self, call: AgentCall) -> str:
        return "model title" if call.model == "title" else ""

    async def run(self, access: Access) -> AgentResult:
        async with Client(access, self.stage) as client:
            found = await self.doing(client, self.seed)
        if isinstance(found, AgentResult):
            return found
        raise AgentFailed(SAID, self.reward)


def played(
    codec: ChatCodec,
    doing: Doing,
    reward: float | None = -0.5,
    size: int = 1,
    generate: Any = None,
    bounds: dict[str, Any] | None = None,
    clock: MovedClock | None = None,
    **endpoint: Any,
) -> Group:
    """A group of such agents."""
    config = EnvironmentActorConfig(endpoint=EndpointConfig(**endpoint), **(bounds or {}))
    sampling, stage = SamplingConfig(max_tokens_per_turn=LIMIT), Stage(codec, clock)
    player = EnvironmentPlayer(
        codec,
        EnvironmentConfig(name="Agent"),
        sampling,
        config,
        CONTEXT,
        generate or stage.generate,
        lambda task: Failing(doing, reward, stage),
    )
    stage.player = player
    ticket = Ticket("000001-000", 1, Task("Agent", 5), size, 3, 1.0, "rollout-0")

    async def bounded() -> Group:
        async with asyncio.timeout(120):
            try:
                return await player.play(ticket)
            finally:
                await player.end_agents()

    try:
        return asyncio.run(bounded()) if clock is None else clock.run(bounded())
    finally:
        player.close()


async def two_calls(client: Client, seed: int) -> None:
    assert [await client.ask("a"), await client.ask("b")] == [200, 200]


def test_a_failure_that_the_user_named_is_a_trajectory_with_that_reward(codec: ChatCodec) -> None:
    async def some(client: Client, seed: int) -> Any:
        await two_calls(client, seed)
        return AgentResult(True, 1.0) if seed % 2 else None

    group = played(codec, some, size=6)
    assert {one.failure for one in group.trajectories} == {None}
    rewarded = [one for one in group.trajectories if one.failure_rewarded]
    assert 0 < len(rewarded) < 6
    for one in group.trajectories:
        wrong = one.failure_rewarded is not None
        assert one.failure_rewarded == (SAID if wrong else None)
        assert one.success != wrong and not one.truncated and one.episode_return == (-0.5 if wrong else 1.0)
        assert [turn.reward for turn in one.turns][-1] == one.episode_return and len(one.turns) == 2
    summary = summarise(group)
    assert summary.indices == tuple(range(6)) and summary.failures == ()
    assert dict(summary.endpoint_counts) == {"calls": 12, "failures_rewarded": len(rewarded)}
    assert sorted(set(summary.returns.tolist())) == [-0.5, 1.0]
    table = to_table(group)
    assert table["failure_rewarded"].to_pylist() == [one.failure_rewarded for one in group.trajectories]
    assert table["failure_cause"].null_count == 6


def test_a_failure_without_a_reward_fails_the_trajectory_as_before(codec: ChatCodec) -> None:
    (one,) = played(codec, two_calls, reward=None).trajectories
    assert one.failure is not None and one.failure.cause is FailureCause.AGENT_ERROR and one.failure.detail == SAID
    assert one.failure_rewarded is None and one.episode_return == 0


# --- endings that something else than the policy may have caused ---


async def gone_before_the_answer(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    asked = asyncio.create_task(client.ask("slow"))
    await until(lambda: client.stage.num_waiting)
    asked.cancel()


async def a_call_in_flight(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    client.stage.kept = asyncio.create_task(Client(client.access, client.stage).ask("slow"))
    await until(lambda: client.stage.num_waiting)


async def gone_within_a_request(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    writer, session = await client.begin(b"content-length: 100\r\n\r\n{"), client.stage.session
    await until(lambda: session.in_progress)
    writer.close()
    await until(lambda: not session.in_progress)
    assert await client.ask("c") == 200


async def within_a_request(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    client.stage.kept = await client.begin(b"content-length: 100\r\n\r\n{")
    await until(lambda: client.stage.session.in_progress)


async def a_head_too_long(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    assert (await client.get("/v1/models", headers={"x": "y" * 9000})).status_code == 400


async def at_once(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    asked = [asyncio.create_task(client.ask(f"slow {number}")) for number in range(3)]
    await until(lambda: client.stage.session.counts["refused"])
    client.stage.gate.set()
    assert sorted(await asyncio.gather(*asked)) == [200, 200, 429]


async def many_connections(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    held = [await client.begin(b"") for _ in range(4)]
    await until(lambda: client.stage.session._fault)
    for one in held:
        one.close()


async def too_many(client: Client, seed: int) -> None:
    while await client.ask("c") == 200:
        pass


async def too_many_untrained(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    assert await client.ask("c", model="title") == 429


async def a_long_prompt(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    assert await client.ask("x " * CONTEXT) == 400
    assert await client.ask("c") == 200


async def a_long_request(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    assert await client.ask("x" * 2000) == 413
    await client.ask("c")


async def many_requests(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    found = [(await client.get("/v1/models")).status_code for _ in range(16 * 3)]
    assert found[-1] == 429


async def refused_last(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    assert await client.ask("c", n=2) == 400


async def refused_beside_an_answer(client: Client, seed: int) -> None:
    await two_calls(client, seed)
    asked = asyncio.create_task(client.ask("slow"))
    await until(lambda: client.stage.num_waiting)
    assert await client.ask("c", n=2) == 400
    client.stage.gate.set()
    assert await asked == 200


async def no_trained_call(client: Client, seed: int) -> None:
    assert await client.ask("a", model="title") == 200


FAULTS: dict[str, tuple[Doing, dict[str, Any], str]] = {
    "the client went before its answer": (gone_before_the_answer, {}, "gone before it had the answer"),
    "a call was in flight": (a_call_in_flight, {}, "gone before it had the answer"),
    "the client went within its request": (gone_within_a_request, {}, "incomplete_request"),
    "a request was coming": (within_a_request, {}, "gone before it had the answer"),
    "a request with too long a head": (a_head_too_long, {}, "could not read the head of a request"),
    "too many calls at once": (at_once, {"max_parallel": 2}, "too_many_at_once"),
    "too many connections": (many_connections, {"max_connections": 3}, "too many connections"),
    "the bound on calls": (too_many, {"max_calls": 2}, "too_many_calls"),
    "the bound on calls, of an untrained one": (too_many_untrained, {"max_calls": 2}, "too_many_calls"),
    "the bound on tokens": (too_many, {"max_tokens": 150}, "too_many_tokens"),
    "the bound on bytes": (a_long_request, {"max_bytes": 1024}, "too_many_bytes"),
    "the bound on one request": (a_long_request, {"max_request_bytes": 1024}, "request_too_large"),
    "the bound on requests": (many_requests, {"max_calls": 3}, "too_many_requests"),
    "the context": (a_long_prompt, {}, "context_length_exceeded"),
    "the last request was refused": (refused_last, {}, "the last request was refused (invalid_request)"),
    "the last request was refused while another was answered": (
        refused_beside_an_answer,
        {},
        "the last request was refused (invalid_request)",
    ),
    "nothing is trained on": (no_trained_call, {}, "no call that is trained on was answered"),
}


@pytest.mark.parametrize("ending", FAULTS)
def test_an_ending_that_something_else_may_have_caused_earns_nothing(codec: ChatCodec, ending: str) -> None:
    doing, bounds, said = FAULTS[ending]
    (one,) = played(codec, doing, **bounds).trajectories
    assert one.failure is not None and one.failure.cause is FailureCause.AGENT_ERROR
    assert one.failure.detail.startswith(f"{SAID} (failure_reward does not count: ") and said in one.failure.detail
    assert one.failure_rewarded is None and one.episode_return == 0


def test_a_request_that_came_too_slowly_earns_nothing(codec: ChatCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def doing(client: Client, seed: int) -> None:
        await two_calls(client, seed)
        writer, stage = await client.begin(b"content-length: 100\r\n\r\n{"), client.stage
        await until(lambda: stage.session.in_progress)
        assert stage.clock is not None
        stage.clock.move(PAST_IT_S)
        await until(lambda: not stage.session.in_progress)
        writer.close()

    group = played(codec, doing, clock=MovedClock(monkeypatch), request_timeout_s=BOUND_S)
    (one,) = group.trajectories
    assert one.failure is not None and "(request_timeout)" in one.failure.detail and one.failure_rewarded is None


@pytest.mark.parametrize(
    ("raised", "cause"),
    [
        (GenerationFailed("rollout worker rollout-0: gone"), FailureCause.GENERATION_ERROR),
        (None, FailureCause.GENERATION_TIMEOUT),
    ],
    ids=["the engine", "its time-out"],
)
def test_failed_sampling_is_the_failure_and_earns_nothing(codec: ChatCodec, raised: Any, cause: FailureCause) -> None:
    policy = Policy(codec)

    async def generate(worker: str, request: Any) -> Any:
        if request.request_id.endswith("/1"):
            await asyncio.sleep(0 if raised else 60)
            raise raised
        return await policy(worker, request)

    async def doing(client: Client, seed: int) -> None:
        assert [await client.ask("a"), await client.ask("b")] == [200, 503]

    (one,) = played(codec, doing, generate=generate, bounds={"generation_timeout_s": 0.2}).trajectories
    assert one.failure is not None and one.failure.cause is cause and one.failure_rewarded is None


def test_an_error_of_the_endpoint_itself_is_the_failure_and_earns_nothing(
    codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def doing(client: Client, seed: int) -> None:
        await two_calls(client, seed)
        with monkeypatch.context() as broken:
            broken.setattr(server, "model_at", lambda body: 1 / 0)
            assert await client.ask("c") == 500
        assert await client.ask("d") == 503

    (one,) = played(codec, doing).trajectories
    assert one.failure is not None and one.failure.cause is FailureCause.ENVIRONMENT_ERROR
    assert "ZeroDivisionError" in one.failure.detail and one.failure_rewarded is None


def test_an_agent_that_is_late_earns_nothing_however_it_ends_then(codec: ChatCodec) -> None:
    async def doing(client: Client, seed: int) -> None:
        await two_calls(client, seed)
        await asyncio.sleep(60)

    (one,) = played(codec, doing, bounds={"episode_timeout_s": 0.5}).trajectories
    assert one.failure is not None and "the agent still ran after" in one.failure.detail
    assert one.failure_rewarded is None


# --- what a trajectory survives ---


async def asked_again(client: Client, seed: int) -> None:
    """Its connection breaks, and the same request, sent again, gets the answer."""
    asked = asyncio.create_task(client.ask("slow"))
    await until(lambda: client.stage.num_waiting)
    asked.cancel()
    await until(lambda: one_is_lost(client.stage.session))
    client.stage.gate.set()
    assert [await client.ask("slow"), await client.ask("b")] == [200, 200]
    assert client.stage.num_waiting == 1


async def asked_again_after_a_refusal(client: Client, seed: int) -> None:
    asked = asyncio.create_task(client.ask("slow"))
    await until(lambda: client.stage.num_waiting)
    asked.cancel()
    await until(lambda: one_is_lost(client.stage.session))
    assert await client.ask("a", n=2) == 400
    client.stage.gate.set()
    assert await client.ask("slow") == 200 and client.stage.num_waiting == 1


async def corrected(client: Client, seed: int) -> None:
    assert [await client.ask("a", n=2), await client.ask("a"), await client.ask("b")] == [400, 200, 200]


async def cut_streams(client: Client, seed: int) -> None:
    """A stream that ends at its token limit, which Codex would ask for again."""
    body = {"model": "m", "input": "hi", "max_output_tokens": 2, "stream": True}
    for _ in range(2):
        assert (await client.post("/v1/responses", json=body)).status_code == 200
    assert await client.ask("b") == 200


@pytest.mark.parametrize(
    "doing", [asked_again, asked_again_after_a_refusal, corrected, cut_streams], ids=lambda one: one.__name__
)
def test_what_the_agent_got_over_leaves_the_reward(codec: ChatCodec, doing: Doing) -> None:
    (one,) = played(codec, doing).trajectories
    assert one.failure is None and one.failure_rewarded == SAID and one.episode_return == -0.5


# --- calls that are not trained on ---


def test_a_trajectory_with_untrained_calls_is_trained_on_and_counted_as_the_one_without(codec: ChatCodec) -> None:
    def doing(titled: bool) -> Doing:
        async def play(client: Client, seed: int) -> AgentResult:
            if titled:
                await client.ask("a title", model="title")
            await two_calls(client, seed)
            if titled:
                await client.ask("b", model="title")
            return AgentResult(True, rewards=(0.25, 0.5), penalties=(-0.1, 0.0))

        return play

    bare, titled = (played(codec, doing(one), size=2) for one in (False, True))
    for mine, theirs in zip(bare.trajectories, titled.trajectories, strict=True):
        assert not mine.untrained and [one.rule for one in theirs.untrained] == ["model title"] * 2
        assert [turn.reward for turn in theirs.turns] == [0.25, 0.5]
        for field in fields(Trajectory):
            if field.name != "untrained":
                np.testing.assert_equal(vars(mine)[field.name], vars(theirs)[field.name], field.name)
    times = {"endpoint_counts", "seconds_environment", "seconds_generation"}
    one, other = (vars(summarise(group)) for group in (bare, titled))
    for name in one.keys() - times:
        np.testing.assert_equal(one[name], other[name], name)
    assert dict(other["endpoint_counts"]) == {"calls": 4, "untrained": 4}
    back = from_table(to_table(titled))
    for sent, found in zip(titled.trajectories, back, strict=True):
        for mine, theirs in zip(sent.untrained, found.untrained, strict=True):
            np.testing.assert_equal(vars(mine), vars(theirs))


@pytest.mark.parametrize("differ", [True, False])
def test_a_group_says_what_differs_between_the_first_prompts_of_its_members(codec: ChatCodec, differ: bool) -> None:
    async def doing(client: Client, seed: int) -> AgentResult:
        await client.ask(f"a title of {seed}", model="title")
        await client.ask(f"You are in /work/{seed if differ else 'here'}. Go on.")
        await client.ask(f"and {seed}")
        return AgentResult(True, 1.0)

    group = played(codec, doing, size=3)
    assert summarise(group).prompts_differ == group.prompts_differ
    if not differ:
        assert group.prompts_differ == ""
        return
    first, other = (one.prompt_ids(0) for one in group.trajectories[:2])
    at = int(np.flatnonzero(first[: min(len(first), len(other))] != other[: min(len(first), len(other))])[0])
    assert group.prompts_differ is not None
    assert group.prompts_differ.startswith(f"from token {at} of {len(first)} on: ") and "/work/" in group.prompts_differ


def test_one_prompt_that_goes_on_where_another_ends_differs_there() -> None:
    def text(ids: Any) -> str:
        return " ".join(map(str, ids))

    long = np.arange(40)
    assert difference([long[:30], long[:30], long], text) == (
        f"from token 30 of 30 on: {text(range(22, 30))!r} and {text(range(22, 40))!r}"
    )
    assert difference([long, long.copy()], text) == ""


def test_nothing_that_learns_filters_or_measures_reads_untrained_conversations() -> None:
    """They would have to ask for the field; the archive, the player and the inspector alone do."""
    rooms = ["learner", "trl", *(f"cluster.{one}" for one in ("loop", "report"))]
    rooms += [f"actors.{one}" for one in ("filter", "scorer", "rollout")]
    rooms += [f"kit.{one}" for one in ("filter", "scoring", "diagnosis", "packed", "findings", "api", "readers")]
    files = [file for room in rooms for file in (ROOT / "squelch").joinpath(*room.split(".")).rglob("*.py")]
    assert len(files) > 100
    for file in files:
        names = (one.attr for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.Attribute))
        assert "untrained" not in names, file


def test_an_agent_whose_calls_are_all_untrained_fails_and_keeps_them(codec: ChatCodec) -> None:
    async def doing(client: Client, seed: int) -> AgentResult:
        await client.ask("a", model="title")
        return AgentResult(True, 1.0)

    (one,) = played(codec, doing).trajectories
    assert one.failure is not None and "without a call that was answered and is trained on" in one.failure.detail
    assert len(one.untrained) == 1 and not one.turns and not len(one.token_ids)


def test_rewards_of_calls_are_those_of_the_trained_ones(codec: ChatCodec) -> None:
    async def doing(client: Client, seed: int) -> AgentResult:
        await client.ask("a", model="title")
        await client.ask("b")
        return AgentResult(True, rewards=(1.0, 1.0))

    (one,) = played(codec, doing).trajectories
    assert one.failure is not None
    assert "reported 2 rewards, and 1 of its calls were answered and are trained on" in one.failure.detail
