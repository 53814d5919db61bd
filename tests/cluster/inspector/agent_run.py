"""A run of an agent in the model's own format: calls of tools with results, parallel segments, a rewritten history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from squelch.actors.formats.conformity import TOOLS
from squelch.actors.formats.portable import small_files
from squelch.actors.messages import Completion
from squelch.actors.play.attempt import Attempt
from squelch.actors.play.codec import ChatCodec
from squelch.kit.archive.writer import Archive
from squelch.kit.records.records import Group, Task, Ticket, Trajectory
from tests.actors.formats.made import tokenizer
from tests.actors.formats.test_own import SHOWS_TOOLS
from tests.cluster.inspector.small_run import HOSTILE, small_run, write_step
from tests.kit.text.made import save_folder

RULES = {"role": "system", "content": "You are brief."}
ASKED = {"role": "user", "content": "How warm is Köln?"}
AGAIN = {"role": "user", "content": "Summary: it was sunny. And Bonn?"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def say(one: ChatCodec, attempt: Attempt, text: str, reward: float = 0.0) -> None:
    """A sampled turn of the attempt's last segment."""
    ids = np.array([*one.encoder.encode([(text, False)]), one.stop_ids[0]], np.int32)
    fed = attempt.segment.token_ids()
    completion = Completion("", ids, np.linspace(-3, 0, len(ids), dtype=np.float32), "stop", 1, 1)
    attempt.segment.add_sampled(completion)
    said = one.parse(ids, fed, TOOLS)
    attempt.segment.add_turn(completion, said.reasoning, True, max(1, len(said.tool_calls)), reward)


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": "call_0", "name": "weather"}


def trajectory(one: ChatCodec, index: int, reward: float, hostile: str = "") -> Trajectory:
    """Four segments: calls with results, two calls beside it on the same opening, and a rewritten history."""
    attempt = Attempt()
    attempt.feed(one.render([RULES, ASKED], TOOLS))
    broken = "<tool_call>\nnonsense <script>window.hacked=1</script>\n</tool_call>"
    say(one, attempt, f"<think>Köln {index} {hostile}</think>I ask.\n{CALL}\n{broken}")
    fed, said = attempt.segment.token_ids(), attempt.segment.last_ids()
    attempt.feed(one.extend(fed, said, [result(f"sunny {hostile}"), result("19 °C")], TOOLS))
    say(one, attempt, "It is 19 °C.")
    for branch in range(2):
        attempt.feed(one.render([RULES, {"role": "user", "content": f"sub-agent {branch}"}], TOOLS), "branch")
        say(one, attempt, f"<think>part {branch}</think>done")
    attempt.feed(one.render([RULES, ASKED, {"role": "assistant", "content": "x"}, AGAIN], TOOLS), "history rewritten")
    say(one, attempt, "<think>Bonn</think>As warm.", reward)
    return attempt.trajectory(index, "rollout-0")


def agent_run(folder: Path, model: Path) -> Path:
    """One step with a kept group of three; `model`: where the model's folder is made."""
    small_run(folder, 0)
    one = ChatCodec(save_folder(model, tokenizer(), SHOWS_TOOLS))
    (folder / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    ticket = Ticket("000001-000", 1, Task("Agent", 0), 3, 0)
    members = [trajectory(one, index, float(index > 0), HOSTILE if index == 2 else "") for index in range(3)]
    archive = Archive(folder)
    archive.keep_format(small_files(model))
    write_step(archive, 1, [Group(ticket, "ab", members)])
    archive.close()
    assert json.loads((folder / "format.json").read_text())["chat_template.jinja"] == SHOWS_TOOLS
    return folder
