"""The control endpoint without Ray: requests wait for the run, callers for its answer; which endpoint is a run's. A
real one: tests/e2e/test_cluster.py."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from squelch.cluster.cli import main
from squelch.cluster.control.scaling import Answer, By, Kind, Request, packed, unpacked_request
from squelch.cluster.fleet import control_endpoint
from squelch.cluster.fleet.control_endpoint import (
    ANSWER_S,
    NAME,
    ControlEndpoint,
    namespace_of,
)
from squelch.kit.base.errors import UserError
from tests.fakes import clock


def test_a_request_waits_for_the_run_and_its_caller_for_the_answer() -> None:
    async def steps() -> None:
        front = ControlEndpoint()
        assert await front.take(5.0) == []
        first = asyncio.create_task(front.ask({"count": 1}))
        second = asyncio.create_task(front.ask({"count": 2}))
        await asyncio.sleep(0)
        taken = await front.take(5.0)
        assert [request for _, request in taken] == [{"count": 1}, {"count": 2}]
        for number, request in reversed(taken):
            await front.answer(number, {"text": request["count"]})
        assert await first == {"text": 1} and await second == {"text": 2}
        waiting = asyncio.create_task(front.take(50.0))
        await asyncio.sleep(1)
        late = asyncio.create_task(front.ask({"count": 3}))
        ((number, _),) = await waiting
        with pytest.raises(TimeoutError):
            await late
        assert asyncio.get_running_loop().time() == pytest.approx(6.0 + ANSWER_S)
        await front.answer(number, {"text": "too late"})
        assert await front.take(1.0) == []

    clock.run(steps())


def test_requests_travel_as_plain_data_and_others_are_refused() -> None:
    request = Request(Kind.ENVIRONMENT, 3, True, By.COMMAND, "why")
    assert unpacked_request(packed(request)) == request
    for wrong in ({}, {"kind": "learner", "count": 2}, {"kind": "rollout", "count": "many"}):
        with pytest.raises(ValueError, match="not one of this version of Squelch"):
            unpacked_request(wrong)


class _Handle:
    """A control endpoint whose run grants everything up to three."""

    def __init__(self) -> None:
        self.ask = self

    def remote(self, request: dict[str, Any]) -> dict[str, Any]:
        return asdict(Answer(request["count"] <= 3, f"{request['kind']}: {request['count']}"))


def up(monkeypatch: pytest.MonkeyPatch, *namespaces: str) -> list[str]:
    """A cluster on which these endpoints are up; the namespaces that are asked for an endpoint."""
    asked: list[str] = []
    endpoints = [{"name": NAME, "namespace": name} for name in namespaces]
    monkeypatch.setattr(
        control_endpoint, "list_named_actors", lambda all_namespaces: [*endpoints, {"name": "x", "namespace": "y"}]
    )
    monkeypatch.setattr(control_endpoint.ray, "get_actor", lambda name, namespace: asked.append(namespace) or _Handle())
    monkeypatch.setattr(control_endpoint.ray, "get", lambda answer, timeout: answer)
    monkeypatch.setattr(control_endpoint, "reached", lambda address, loopback: nullcontext())
    return asked


def ask(run: str, *counts: int, address: str = "10.0.0.1:6379") -> list[str]:
    said: list[str] = []
    control_endpoint.ask(run, [Request(Kind.ROLLOUT, count) for count in counts], address, said.append)
    return said


def test_a_run_is_found_by_its_name_and_if_several_have_it_by_its_folder(monkeypatch, tmp_path: Path) -> None:
    mine, other = namespace_of(tmp_path / "demo"), "squelch/demo/00000000"
    asked = up(monkeypatch, f"{mine}/01000000", f"{mine}/02000000", f"{other}/03000000", "squelch/b/11111111/04000000")
    assert ask(str(tmp_path / "demo"), 2) == ["rollout: 2"] and ask("b", 3) == ["rollout: 3"]
    assert asked == [f"{mine}/02000000", "squelch/b/11111111/04000000"], "of a run's endpoints the newest job's"
    with pytest.raises(UserError, match=r"several runs named demo are up on the cluster at 10\.0\.0\.1:6379"):
        ask("demo", 2)
    with pytest.raises(UserError, match=r"no run c is up on the cluster at 10\.0\.0\.1:6379; up there: b, demo\."):
        ask("c", 2)


def test_a_refused_request_is_an_error_and_ends_the_command(monkeypatch, tmp_path: Path) -> None:
    up(monkeypatch, "squelch/b/11111111/04000000")
    with pytest.raises(UserError, match=r"^b: rollout: 4$"):
        ask("b", 4, 2)


@pytest.mark.parametrize(
    ("driven", "words"), [(True, "The run goes on and replaces"), (None, "If the run goes on, it")]
)
def test_a_run_that_only_does_not_answer_is_not_said_to_have_ended(monkeypatch, driven, words) -> None:
    up(monkeypatch, "squelch/b/11111111/04000000.0000")
    monkeypatch.setattr(control_endpoint, "is_driven", lambda _: driven)

    def unavailable(answer: object, timeout: float) -> None:
        raise ActorUnavailableError("The actor is temporarily unavailable", bytes(16))

    monkeypatch.setattr(control_endpoint.ray, "get", unavailable)
    with pytest.raises(UserError, match=words) as said:
        ask("b", 2)
    assert "ended" not in str(said.value)


def test_bad_input_is_said_in_one_paragraph(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    wrong = {
        (): "nothing to scale: give --rollout-workers N, --environment-actors N, or both",
        ("--rollout-workers", "2"): "no run",
        ("--rollout-workers", "2", "--address", "127.0.0.1:1"): "no Ray cluster answers at 127.0.0.1:1",
    }
    for flags, text in wrong.items():
        assert main(["scale", str(tmp_path / "nothing"), *flags]) == 2
        said = capsys.readouterr().err
        assert text in said and said.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["scale", "demo", "--rollout-workers", "-1"])
    assert "'-1' is not a whole number" in capsys.readouterr().err
