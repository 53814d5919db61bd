"""Environments of whole turns in the model's own format: one segment while reasoning is kept, and a new one where the
model's template removes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Environment
from squelch.kit.archive.rows import from_table, to_table
from squelch.kit.records.records import Group, Task, Ticket, Trajectory
from squelch.kit.text.answer_start import AnswerStart
from tests.actors.formats.made import folder_of, needs_templates
from tests.kit.text.made import CHATML, rendering_here

pytestmark = needs_templates
QUESTIONS = ["What is 2 + 3?", "And 3 + 4?", "And 4 + 5?", "And 5 + 6?"]
SAID = ["<think>2 and 3</think>It is 5.", "It is 7.", "<think>4 and", "<think>5 and 6</think>11"]
"""Turns: with reasoning, without, cut within it, with it."""


class Asks(Environment):
    """Asks one question after another."""

    max_turns = len(QUESTIONS)
    whole_turns = True

    def rules(self) -> str:
        return ""

    def read_action(self, text: str) -> str:
        return text

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.asked = 1
        return "", {"task_key": "ab", "messages": [{"role": "user", "content": QUESTIONS[0]}]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.asked += 1
        over = self.asked > len(QUESTIONS)
        return "" if over else QUESTIONS[self.asked - 1], 0.0, over, False, {"success": over}


def played(one: ChatCodec, context: int = 4096) -> tuple[Trajectory, list[GenerationRequest]]:
    """A trajectory of `Asks` whose turns are `SAID`, and what was asked of the worker."""
    requests: list[GenerationRequest] = []

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        said = SAID[len(requests)]
        requests.append(request)
        closed = not said.endswith("and")
        ids = np.array([*one.encoder.encode([(said, False)]), *(one.stop_ids[:1] if closed else ())], np.int32)
        return Completion("", ids, np.full(len(ids), -0.5, np.float32), "stop" if closed else "length", 3, 3)

    sampling, bounds = SamplingConfig(max_tokens_per_turn=60), EnvironmentActorConfig()
    player = EnvironmentPlayer(one, EnvironmentConfig(), sampling, bounds, context, generate, lambda task: Asks())
    try:
        group = asyncio.run(player.play(Ticket("t", 1, Task("Asks", 0), 1, 0)))
    finally:
        player.close()
    return group.trajectories[0], requests


@pytest.fixture(scope="module")
def follows(tmp_path_factory: pytest.TempPathFactory) -> ChatCodec:
    """Our own format with Qwen3's template, which removes reasoning where the template does."""
    with rendering_here():
        yield ChatCodec(folder_of("qwen3", tmp_path_factory.mktemp("qwen3")), keeps_reasoning=False)


def test_a_segment_begins_where_the_template_removes_reasoning_with_the_templates_ids(follows: ChatCodec) -> None:
    found, requests = played(follows)
    assert found.failure is None and found.success and len(found.turns) == len(SAID)
    assert [one.cause for one in found.segments] == ["template", "template"]
    assert [found.segment_of(turn) for turn in range(4)] == [0, 1, 1, 2], "a turn without reasoning begins none"
    history = [{"role": "user", "content": QUESTIONS[0]}]
    for turn, content in enumerate(["It is 5.", "It is 7.", "", "11"]):
        if turn in (0, 1, 3):
            (text,) = follows.template.render([history])
            assert requests[turn].prompt_ids.tolist() == follows.backend.encode(text, add_special_tokens=False).ids
        assert found.token_ids[slice(*found.prompt_span(turn))].tolist()[: len(requests[turn].prompt_ids)] == (
            requests[turn].prompt_ids.tolist()
        )
        history += [{"role": "assistant", "content": content}]
        history += [{"role": "user", "content": QUESTIONS[turn + 1]}] if turn < 3 else []


def test_each_sampled_id_is_in_one_segments_mask_once(follows: ChatCodec) -> None:
    found, _ = played(follows)
    sampled = [found.token_ids[turn.sample_start : turn.sample_end] for turn in found.turns]
    assert [follows.written(ids) for ids in sampled] == SAID
    assert found.token_ids[found.loss_mask].tolist() == np.concatenate(sampled).tolist()
    assert not found.log_probs[~found.loss_mask].any() and (found.log_probs[found.loss_mask] == -0.5).all()
    assert [follows.text(found.reasoning_ids(turn)) for turn in range(4)] == ["2 and 3", "", "", "5 and 6"]
    assert from_table(to_table_of(found))[0].segments == found.segments


def test_a_run_records_what_stands_before_the_answer_and_segments_stay_where_they_were(follows: ChatCodec) -> None:
    before, _ = played(follows)
    follows.reasoning, follows.answer_start = "before_answer", AnswerStart("It is")
    try:
        found, _ = played(follows)
    finally:
        follows.reasoning, follows.answer_start = "marked", None
    assert found.token_ids.tolist() == before.token_ids.tolist() and found.segments == before.segments
    cut = [said.partition("It is")[0] if "It is" in said else "" for said in SAID]
    texts = [follows.written(found.reasoning_ids(turn)) for turn in range(4)]
    assert [text.strip() for text in texts] == [text.strip() for text in cut] and any(cut)


def to_table_of(one: Trajectory) -> Any:
    return to_table(Group(Ticket("t", 1, Task("Asks", 0), 1, 0), "ab", [one]))


def test_the_context_holds_a_segment_and_not_the_trajectory(follows: ChatCodec) -> None:
    found, requests = played(follows)
    longest = max(len(request.prompt_ids) for request in requests) + 60
    assert longest < len(found.token_ids)
    again, _ = played(follows, longest)
    assert again.token_ids.tolist() == found.token_ids.tolist() and not again.truncated
    cut, _ = played(follows, longest - 1)
    assert cut.truncated and cut.failure is None


def test_a_template_that_keeps_reasoning_and_a_format_that_does_make_one_segment(tmp_path: Path) -> None:
    with rendering_here():
        keeps = ChatCodec(folder_of("qwen3", tmp_path, template=CHATML))
        found, requests = played(keeps)
    assert found.segments == () and found.token_ids.tolist()[: len(requests[3].prompt_ids)] == (
        requests[3].prompt_ids.tolist()
    )
