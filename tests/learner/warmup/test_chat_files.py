"""A file of chat messages becomes transcripts, or is refused with its row."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.kit.untrusted.files import Unreadable
from squelch.learner.warmup.chat_files import read_transcripts

SYSTEM = {"role": "system", "content": "the rules"}
USER = {"role": "user", "content": "the state"}
SAID = {"role": "assistant", "content": "<think>a plan</think><answer>up</answer>"}
LATER = {"role": "user", "content": "what came of it"}


def written(path: Path, *conversations: Any) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"messages": list(conversations), "other": [1] * len(conversations)}), path)
    else:
        path.write_text("\n".join(json.dumps({"messages": one}) for one in conversations) + "\n\n")
    return path


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.parquet"])
def test_a_conversation_is_its_opening_and_its_turns(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, [SYSTEM, USER, SAID, LATER, SAID], [USER, SAID])
    long, short = read_transcripts(path)
    said = "a plan</think><answer>up</answer>"
    assert long.opening == [SYSTEM, USER] and long.turns == [(said, LATER), (said, None)]
    assert short.opening == [USER] and short.turns == [(said, None)]


@pytest.mark.parametrize(
    ("conversation", "says"),
    [
        (None, "row 2: None is no conversation"),
        ("hello", "row 2: 'hello' is no conversation"),
        ([USER], r"row 2: \[.*\] is no conversation"),
        ([USER, {"content": "no role"}], "row 2: message 2 is .*`role`"),
        ([USER, {"role": "tool", "content": "x"}], "row 2: message 2 is .*system, user, assistant"),
        ([USER, {"role": "assistant", "content": None}], "row 2: message 2 is .*`content`"),
        ([SAID, USER], "row 2: message 1 has the role 'assistant', where 'user' is needed"),
        ([SYSTEM, USER, USER], "row 2: message 3 has the role 'user', where 'assistant' is needed"),
        ([USER, SAID, SYSTEM], "row 2: message 3 has the role 'system', where 'user' is needed"),
        ([USER, SAID, LATER], "row 2: the last message is the user's"),
        ([USER, {"role": "assistant", "content": "up"}], "row 2: the assistant's message 'up' does not begin with <th"),
    ],
)
def test_a_malformed_conversation_is_refused_with_its_row(tmp_path: Path, conversation: Any, says: str) -> None:
    path = written(tmp_path / "chat.jsonl", [USER, SAID], conversation)
    with pytest.raises(Unreadable, match=f"chat.jsonl, {says}"):
        read_transcripts(path)


def test_a_file_without_conversations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(Unreadable, match=r"empty\.jsonl holds no conversations; each row needs `messages`"):
        read_transcripts(tmp_path / "empty.jsonl")


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "text.parquet")
    with pytest.raises(Unreadable, match=r"text\.parquet has no column `messages`"):
        read_transcripts(tmp_path / "text.parquet")


def test_a_line_that_is_no_json_is_refused_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": [USER, SAID]}) + "\n{oh\n")
    with pytest.raises(Unreadable, match=r"chat\.jsonl, row 2"):
        read_transcripts(tmp_path / "chat.jsonl")
