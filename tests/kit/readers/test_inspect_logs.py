"""Logs of inspect_ai are read as its epochs, with the tools, scores, limits and failures that they hold."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from squelch.cluster.cli import main
from squelch.kit.base.errors import UserError
from squelch.kit.readers import inspect_log
from squelch.kit.readers.agent_rows import NOTHING
from squelch.kit.readers.format_rows import LeftOut, whole
from squelch.kit.readers.formats import FORMATS, format_of
from squelch.kit.readers.records import records
from squelch.kit.readers.reward_tables import read_rewards
from squelch.kit.readers.score_files import read_samples
from squelch.kit.untrusted.text import MAX_LINE
from tests.kit.untrusted.zips import DEFLATED, ZSTANDARD, archive, member

WRITTEN = Path(__file__).with_name("inspect_logs")
"""By inspect_ai's own writer (`write_inspect_logs.py`)."""
SAMPLE: dict[str, Any] = {
    "id": "one",
    "epoch": 1,
    "input": "Two and two?",
    "target": "4",
    "messages": [
        {"role": "user", "content": "Two and two?", "source": "input"},
        {"role": "assistant", "content": "<think>Count.</think> 4", "source": "generate"},
    ],
    "scores": {"match": {"value": "C"}},
}


def rows(*samples: dict[str, Any]) -> list[Any]:
    record = {"eval": {"task": "sums"}, "samples": list(samples)}
    return [one if isinstance(one, LeftOut) else whole(one) for one in inspect_log.log(record, "it")]


def log(path: Path, *samples: dict[str, Any], method: int = ZSTANDARD, header: str = "header.json") -> Path:
    """An archive in inspect_ai's form."""
    own = [
        member(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one).encode(), method) for one in samples
    ]
    return archive(path, [*own, member(header, json.dumps({"eval": {"task": "sums"}}).encode(), method)])


@pytest.mark.parametrize("name", ["log.eval", "log.json"])
def test_what_its_own_writer_wrote_is_read(name: str) -> None:
    path = WRITTEN / name
    assert format_of(path).name == "inspect_ai"
    found = [row for _, record in records(path, None, []) for row in FORMATS["inspect_ai"].rows(record, "it")]
    failed = [row for row in found if not isinstance(row, LeftOut) and row.get("failed")]
    said = [whole(row) for row in found if not isinstance(row, LeftOut) and not row.get("failed")]
    assert [(row["group"], row["failed"]) for row in failed] == [("sums/three-one", inspect_log.FAILED)]
    groups = [(row["group"], row["turn"], row["rewards"], row["truncated"]) for row in said]
    right, wrong = {"includes": 1.0}, {"includes": 0.0}
    assert sorted(groups, key=repr) == sorted(
        [
            *(("sums/two-two", turn, right, False) for turn in (0, 1)),
            *(("sums/three-one", turn, right, False) for turn in (0, 1)),
            *(("sums/two-two", turn, wrong, False) for turn in (0, 1)),
            *(("sums/three-one", turn, wrong, False) for turn in (0, 1)),
            ("sums/two-two", 0, wrong, True),
        ],
        key=repr,
    )
    assert len({row["rollout"] for row in said}) == 5 and {row["sampler"] for row in said} == {"mockllm/model"}
    first, second = next(pair for pair in pairwise(said) if pair[1]["turn"] == 1)
    assert [one["role"] for one in second["prompt"]] == ["user", "assistant", "tool"]
    assert second["prompt"][2]["content"] == "4" and second["prompt"][2]["tool_call_id"] == "call_0"
    assert first["completion"] == second["prompt"][1:2]
    [call] = first["completion"][0]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": {"a": 2, "b": 2}}
    blocks = second["completion"][0]["content"]
    assert blocks[0]["reasoning"].startswith("The tool says so") and blocks[1]["text"].startswith(("It is 4", "I do"))
    [tool] = first["tools"]
    assert tool["function"]["description"].startswith("Adds two whole numbers of any size, with")
    assert set(tool["function"]["parameters"]["properties"]) == {"a", "b"}


@pytest.mark.parametrize("method", [DEFLATED, ZSTANDARD])
@pytest.mark.parametrize("header", ["header.json", "_journal/start.json"])
def test_epochs_of_a_sample_are_a_group_for_the_filter_and_for_scoring(tmp_path, method, header) -> None:
    epochs = [
        {**SAMPLE, "id": key, "epoch": epoch, "scores": {"match": {"value": "CI"[epoch]}}}
        for key in ("one", "two/2")
        for epoch in (0, 1)
    ]
    path = log(tmp_path / "log.eval", *epochs, method=method, header=header)
    table = read_rewards(path, None, (), None)
    assert (table.groups, table.rewards) == ([0, 0, 1, 1], [1.0, 0.0, 1.0, 0.0])
    found = read_samples(path)
    assert [row["completion"][0]["content"] for _, row in found.rows] == ["<think>Count.</think> 4"] * 4
    assert found.step is None


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        ("C", {"s": 1.0}),
        ("I", {"s": 0.0}),
        ("p", {"s": 0.5}),
        ("N", {"s": 0.0}),
        (True, {"s": 1.0}),
        (2, {"s": 2.0}),
        (" 0.25 ", {"s": 0.25}),
        ("Yes", {"s": 1.0}),
        ("fair", {"s": None}),
        (None, {"s": None}),
        ([1.0], {"s": None}),
        ({"a": "C", "b": 0.5}, {"s.a": 1.0, "s.b": 0.5}),
    ],
)
def test_a_score_counts_as_inspect_ai_counts_it_and_no_number_is_none(value, rewards) -> None:
    [row] = rows({**SAMPLE, "scores": {"s": {"value": value}}})
    assert row["rewards"] == rewards


def test_what_no_reasoning_can_be_taken_from_is_counted_with_its_reason(tmp_path) -> None:
    user, said = SAMPLE["messages"]
    thought = {"type": "reasoning", "reasoning": "…", "redacted": True}
    picture = {
        **user,
        "content": [{"type": "text", "text": "What is it?"}, {"type": "image", "image": "attachment://a"}],
    }
    for messages, reason in (
        ([user, {**said, "content": [thought]}], inspect_log.HIDDEN),
        ([picture, said], inspect_log.NOT_TEXT),
        ([user, {**said, "source": "input"}], NOTHING),
        ([user, {**user, "source": "generate"}], NOTHING),
        ([said], NOTHING),  # without a prompt
    ):
        path = log(tmp_path / "log.eval", {**SAMPLE, "messages": messages}, {**SAMPLE, "id": "two"})
        assert read_samples(path).notes == [f"left out, {reason}: 1"]
        assert read_rewards(path, None, (), None).rewards == [1.0, 1.0], "its reward counts all the same"
    assert rows({**SAMPLE, "invalidation": {"author": "me"}}) == [LeftOut(inspect_log.INVALID)]


def test_where_no_message_says_who_made_it_the_last_of_the_assistant_was_sampled() -> None:
    user, said = SAMPLE["messages"]
    bare = {key: value for key, value in said.items() if key != "source"}
    [row] = rows({**SAMPLE, "messages": [user, bare, user, bare, user]})
    assert len(row["prompt"]) == 3 and row["turn"] == 0 and row["completion"][0]["content"] == said["content"]
    [row] = rows({**SAMPLE, "messages": [user, said, user, bare]})
    assert len(row["prompt"]) == 1, "one that says it shows that the others are no samples"


def test_an_error_fails_a_sample_unless_it_was_scored_all_the_same() -> None:
    error = {"message": "no", "traceback": "", "traceback_ansi": ""}
    [failed] = rows({**SAMPLE, "error": error, "scores": None})
    assert failed["failed"] == inspect_log.FAILED and failed["rewards"] == {}
    [scored] = rows({**SAMPLE, "error": error})
    assert "failed" not in scored and scored["rewards"] == {"match": 1.0}


def test_hidden_reasoning_of_an_earlier_turn_is_left_out_of_a_prompt() -> None:
    user, said = SAMPLE["messages"]
    blocks = [{"type": "reasoning", "reasoning": "…", "redacted": True}, {"type": "text", "text": "4"}]
    found = rows({**SAMPLE, "messages": [user, {**said, "content": blocks}, user, said]})
    assert found[0]["untold"] == inspect_log.HIDDEN
    assert found[1]["prompt"][1]["content"] == blocks[1:] and found[1]["turn"] == 1


def test_samples_that_are_kept_in_pieces_are_said_to_be_left_out(tmp_path) -> None:
    data = json.dumps(SAMPLE).encode()
    names = ["samples/one_epoch_1.json", "samples/two_epoch_1/sample.json", "samples/two_epoch_1/messages/0.json"]
    path = archive(tmp_path / "log.eval", [*(member(name, data) for name in names), member("header.json", b"{}")])
    found = read_samples(path)
    assert len(found.rows) == 1
    assert any("samples that are kept in pieces are left out: 1" in note for note in found.notes)


def test_a_json_log_that_is_larger_than_a_line_may_be_is_read(tmp_path) -> None:
    path = tmp_path / "log.json"
    events = [{"event": "info", "data": "x" * MAX_LINE}]
    path.write_text(json.dumps({"eval": {}, "samples": [{**SAMPLE, "events": events}]}, indent=2))
    assert len(read_samples(path).rows) == 1


def test_an_attachment_stands_for_a_bounded_number_of_characters(monkeypatch) -> None:
    monkeypatch.setattr(inspect_log, "MAX_ATTACHED", 100)
    user, said = SAMPLE["messages"]
    several = [{**user, "content": "attachment://a"}] * 3 + [said]
    [row] = rows({**SAMPLE, "messages": several[1:], "attachments": {"a": "x" * 50}})
    assert [one["content"] for one in row["prompt"]] == ["x" * 50] * 2
    with pytest.raises(UserError, match="its attachments stand for more than 100 characters"):
        rows({**SAMPLE, "messages": several, "attachments": {"a": "x" * 50}})


HOSTILE: dict[str, Any] = {
    "no archive": lambda path: path.write_bytes(b"PK\3\4 and no more"),
    "no log": lambda path: archive(path, [member("a.json", b"{}")]),
    "no samples": lambda path: log(path),
    "no object": lambda path: archive(path, [member("samples/a_epoch_1.json", b"[1]"), member("header.json", b"{}")]),
    "deep": lambda path: archive(path, [member("samples/a_epoch_1.json", b"[" * 9999), member("header.json", b"{}")]),
    "header": lambda path: archive(path, [member("samples/a_epoch_1.json", b"{}"), member("header.json", b"{")]),
    "messages": lambda path: log(path, {**SAMPLE, "messages": [1]}),
    "roles": lambda path: log(path, {**SAMPLE, "messages": [{"role": 3}, *SAMPLE["messages"]]}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_odd_log_is_refused_in_one_paragraph(tmp_path, capsys, name) -> None:
    path = tmp_path / "log.eval"
    HOSTILE[name](path)
    with pytest.raises(UserError) as caught:
        read_samples(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert main(["filter", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
