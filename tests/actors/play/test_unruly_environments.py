"""An environment of other people that raises, hangs, prints, ends its process or pays nonsense costs one trajectory."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Group, Task, Ticket
from tests.envs.own_process.unruly import UnrulyInProcess

ENVIRONMENT = f"{UnrulyInProcess.__module__}:UnrulyInProcess"
TIMEOUT_S = 2.0
DEEDS = {
    "raise": (FailureCause.ENVIRONMENT_ERROR, "LookupError: nothing here"),
    "nan": (FailureCause.ENVIRONMENT_ERROR, "returned the reward nan; a finite number is needed"),
    "-inf": (FailureCause.ENVIRONMENT_ERROR, "returned the reward -inf; a finite number is needed"),
    "end": (FailureCause.ENVIRONMENT_ERROR, "ended in step() with status 7; it last wrote: about to end"),
    "spin": (FailureCause.ENVIRONMENT_ERROR, "step() did not return within 2 s (it was in unruly.py"),
    "hold": (FailureCause.ENVIRONMENT_ERROR, "step() did not return within 2 s (it was in unruly.py"),
}
"""What one trajectory's environment does in its second turn, and the failure that is recorded."""


def played(codec: ChatCodec, deed: str) -> Group:
    """A group of four; trajectory 1 does the deed in its second turn, all others play on to their end."""

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        index, turn = map(int, request.request_id.split("/")[1:])
        said = deed if (index, turn) == (1, 1) else "done" if turn == 3 else "go"
        ids = np.append(codec.encode(f" so </think> <answer> {said} </answer>"), codec.stop_ids[0]).astype(np.int32)
        return Completion(request.request_id, ids, np.zeros(len(ids), np.float32), "stop", 0, 0)

    options = {"timeout_s": TIMEOUT_S}
    config = EnvironmentConfig(name=ENVIRONMENT, options=options)
    ticket = Ticket("000001-000", 1, Task(ENVIRONMENT, 7, "train", tuple(options.items())), 4, 3, 1.0, "rollout-0")
    player = EnvironmentPlayer(
        codec, config, SamplingConfig(), EnvironmentActorConfig(step_timeout_s=60), 100_000, generate
    )
    try:
        return asyncio.run(player.play(ticket))
    finally:
        player.close()


@pytest.mark.slow
@pytest.mark.parametrize("deed", DEEDS)
def test_one_trajectory_is_lost_with_its_reason_and_the_others_end_as_if_nothing_had_happened(
    codec: ChatCodec, deed: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squelch.envs.own_process.process.WATCHDOG_S", 60.0)  # the child's says where the call was
    group = played(codec, deed)
    lost, *others = [group.trajectories[1], *group.trajectories[:1], *group.trajectories[2:]]
    cause, says = DEEDS[deed]
    assert lost.failure is not None and lost.failure.cause == cause and says in lost.failure.detail
    assert [one.failure for one in others] == [None] * 3 and all(one.success for one in others)
    assert len({one.token_ids.tobytes() for one in others}) == 1, "the environments do not affect each other"
    assert capfd.readouterr().out == ""


def test_an_environment_that_prints_loses_nothing_and_nothing_reaches_the_terminal(
    codec: ChatCodec, capfd: pytest.CaptureFixture[str]
) -> None:
    group = played(codec, "print")
    assert [one.failure for one in group.trajectories] == [None] * 4
    assert capfd.readouterr() == ("", "")
