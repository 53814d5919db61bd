"""Conversations are read as OpenAI and ShareGPT write them: what is a sample, its prompt, its group and its rewards."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.kit.base.errors import UserError
from squelch.kit.readers.chat_rows import NO_PROMPT
from squelch.kit.readers.format_rows import whole
from squelch.kit.readers.reward_tables import read_rewards
from squelch.kit.readers.rows import Rows
from squelch.kit.readers.score_files import read_samples
from tests.kit.readers.trainer_files import jsonl

FILES = Path(__file__).with_name("agents_files")
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Two and two?"}]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALLED = {"role": "assistant", "content": None, "reasoning_content": "I count.", "tool_calls": [CALL]}
SAID = {"role": "assistant", "content": "4", "reasoning_content": "It says 4."}
RESULT, THANKS = {"role": "tool", "tool_call_id": "c", "content": "4"}, {"role": "user", "content": "Thanks."}
CHAT = [*ASKED, CALLED, RESULT, SAID, THANKS]


def rows(path: Path, record: dict[str, Any], turns: Any = "all") -> list[dict[str, Any]]:
    found = read_samples(jsonl(path / "rows.jsonl", [record]), turns=turns)
    assert found.format.name == "chat"
    return [row for _, row in found.rows]


def refused(path: Path, record: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        rows(path, record)
    return str(caught.value)


def test_each_message_of_the_assistant_is_a_row_and_the_last_one_is_scored_alone(tmp_path) -> None:
    first, last = rows(tmp_path, {"messages": CHAT, "tools": [ADD]})
    assert (first["prompt"], first["turn"], last["turn"]) == (ASKED, 1, 0)
    function = first["completion"][0]["tool_calls"][0]["function"]
    assert function == {"name": "add", "arguments": {"a": 2, "b": 2}}, "as servers give it to the template"
    assert last["prompt"] == [*ASKED, *first["completion"], RESULT] and last["completion"] == [SAID]
    assert first["tools"] == last["tools"] == [ADD]
    alone = rows(tmp_path, {"messages": CHAT}, "first")
    assert [row.get("completion") for row in alone] == [None, [SAID]]


def test_a_table_of_conversations_is_read_as_lines_are(tmp_path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": CHAT, "tools": [ADD]}]), path)
    table = [whole(read.row) for read in Rows(path)]
    assert [(row["prompt"], row["completion"]) for row in table] == [
        (row["prompt"], row["completion"]) for row in rows(tmp_path, {"messages": CHAT})
    ]


def test_the_files_of_harbors_export_are_read_in_both_forms() -> None:
    told, shared = (read_samples(FILES / f"{name}.jsonl") for name in ("conversations", "sharegpt"))
    assert [found.format.name for found in (told, shared)] == ["chat", "chat"]
    assert [row["completion"][0]["content"] for _, row in told.rows][:2] == [
        '<think>Count up.</think>\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>',
        "<think>It says 4.</think>\n4",
    ]
    for (_, one), (_, other) in zip(told.rows, shared.rows, strict=True):
        assert [one[key] == other[key] for key in ("prompt", "completion", "group", "turn")] == [True] * 4
    assert len({row["group"] for _, row in told.rows}) == 2, "two tasks"


def test_sharegpts_calls_and_observations_and_a_column_system_are_messages(tmp_path) -> None:
    talk = [
        {"from": "human", "value": "Two and two?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2, "b": 2}}'},
        {"from": "observation", "value": "4"},
        {"from": "function_call", "value": "no call"},
        {"from": "gpt", "value": "4"},
    ]
    schemas = json.dumps([{"name": "add", "parameters": {"type": "object"}}])
    first, second, last = rows(tmp_path, {"conversations": talk, "system": "Be brief.", "tools": schemas})
    assert first["prompt"] == ASKED and first["tools"] == [ADD]
    assert first["completion"][0]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2, "b": 2}}
    assert last["prompt"][3] == {"role": "tool", "content": "4"}
    assert second["completion"] == [{"role": "assistant", "content": "no call"}]


def test_groups_begin_alike_or_have_an_id_and_columns_of_numbers_are_rewards(tmp_path) -> None:
    other = [*ASKED[:1], {"role": "user", "content": "Three and one?"}]
    records = [
        {"id": 100 + place, "messages": [*asked, SAID], "reward": reward}
        for place, (asked, reward) in enumerate([(ASKED, 1.0), (other, 0.0), (ASKED, 0.0), (other, 1.0)])
    ]
    records[0]["messages"] = CHAT
    table = read_rewards(jsonl(tmp_path / "a.jsonl", records), None, (), None)
    assert (table.groups, table.rewards) == ([0, 1, 0, 1], [1.0, 0.0, 0.0, 1.0]), "one row for each conversation"
    named = [{**record, "prompt_id": "same", "other": 0.5} for record in records]
    table = read_rewards(jsonl(tmp_path / "b.jsonl", named), None, ("reward",), None)
    assert table.groups == [0, 0, 0, 0]
    with pytest.raises(UserError, match="several columns of numbers: `other`, `reward`"):
        read_rewards(tmp_path / "b.jsonl", None, (), None)


def test_a_file_with_the_columns_of_another_format_is_of_that_one(tmp_path) -> None:
    row = {"prompt": "a", "completion": "<think>b</think> c", "messages": CHAT, "score": 1.0}
    assert read_samples(jsonl(tmp_path / "a.jsonl", [row])).format.name == "columns"
    trl = {**row, "step": 1, "advantage": 0.0}
    assert read_samples(jsonl(tmp_path / "b.jsonl", [trl])).format.name == "trl"
    asked = {"prompt": "a", "prompt_id": "p", "messages": CHAT}  # as UltraChat
    assert read_samples(jsonl(tmp_path / "c.jsonl", [asked])).format.name == "chat"
    assert len(read_samples(jsonl(tmp_path / "d.jsonl", [row]), name="chat").rows) == 2


def test_what_is_no_sample_is_counted(tmp_path) -> None:
    records = [{"messages": []}, {"messages": ASKED}, {"messages": [SAID, ASKED[1], SAID]}]
    found = read_samples(jsonl(tmp_path / "a.jsonl", records))
    assert len(found.rows) == 1
    assert found.notes == [
        "left out, a conversation without a message of the assistant: 2",
        f"left out, {NO_PROMPT}: 1",
    ]


def test_all_turns_of_a_long_conversation_cost_no_square_of_them(tmp_path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"messages": [*ASKED, *[THANKS, SAID] * 4000]}])
    found = read_samples(path)
    assert 100 < len(found.rows) < 1000
    assert [note for note in found.notes if "prompts have more than 16,777,216 ids" in note]
    (alone,) = (row for _, row in read_samples(path, turns="first").rows if "prompt" in row)
    assert len(alone["prompt"]) == 8001


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": "hello"}, "row 1: `messages` is 'hello'; it must be a list of messages"),
        ({"messages": None}, "row 1: `messages` is None"),
        ({"messages": [*ASKED, "hello"]}, "row 1: `messages` holds 'hello'; a message has a `role` and `content`, or"),
        ({"conversations": [{"from": "gpt", "value": None}]}, "row 1: `conversations` holds {'from': 'gpt'"),
        ({"messages": CHAT, "tools": "{}"}, "row 1: `tools` is '{}'; it must be a list of JSON schemas"),
        ({"messages": CHAT, "tools": [1]}, "row 1: `tools` must be a list of JSON schemas"),
        ({"messages": [{"role": "user", "content": 1}, SAID]}, "row 1: its prompt must be text or a list of messages"),
        ({"messages": [*ASKED, {**SAID, "content": [1]}]}, "row 1: its completion must be text or a list of messages"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_row(tmp_path, record, said) -> None:
    assert said in refused(tmp_path, record)
