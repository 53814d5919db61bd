"""The rows of a file of prompts: a conversation each, with all other columns, split by the prompt's content.

Rows with the same prompt are in the same split (`envs.data.rows.both_splits`). Files are read lazily and within bounds,
and every error names file, row and column.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from squelch.envs.contract import Opening
from squelch.envs.data.rows import Beside, Part, any_rows, both_splits, shuffled
from squelch.kit.records.splits import Split, task_key_of
from squelch.kit.untrusted.files import brief
from squelch.kit.untrusted.parquet import without_nulls

Message = dict[str, str]
Data = str | tuple[str, ...]
"""As `environment.options.data`."""

ROLES = ("system", "user", "assistant")
TOOLS = "tools"
"""The column of tools, which a file may lack; one that is named by a setting must be there."""
_NO_COLUMN = "\0"


class PromptRow(BaseModel):
    """A row; its other columns are kept as they are."""

    model_config = ConfigDict(extra="allow")

    prompt: Any
    tools: Any = None


def messages_of(value: Any) -> list[Message]:
    """The conversation that a prompt begins, a text being a user's message. Raises ValueError for what is none, and for
    what a rendered conversation would leave out; Arrow's nulls are none of it."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"text, or a list of messages, is needed (got {brief(value)})")
    found = []
    for message in value:
        role, content = message.get("role"), message.get("content")
        if role not in ROLES or not isinstance(content, str):
            raise ValueError(
                f"a message needs a role of {', '.join(ROLES)}, and text as its content (got {brief(message)})"
            )
        if others := sorted(name for name in message.keys() - {"role", "content"} if message[name] is not None):
            raise ValueError(f"a message has {', '.join(others)} beside role and content, which is not supported")
        found.append({"role": role, "content": content})
    if found[-1]["role"] != "user":
        raise ValueError(f"the last message must be the user's (its role is {found[-1]['role']})")
    return found


def tools_of(value: Any) -> list[dict[str, Any]] | None:
    """The JSON schemas of a row's tools, a list or its JSON as text; None for none. Raises ValueError for what is no
    list of schemas. Arrow gives every schema the fields of all others: those that are null are none of it."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a list of JSON schemas is needed, or its JSON as text (got {brief(value)})") from error
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(_function(one).get("name"), str) for one in value):
        raise ValueError(
            'a list of JSON schemas is needed, each {"type": "function", "function": {"name": ..., "parameters": ...}} '
            f"(got {brief(value)})"
        )
    return [without_nulls(one) for one in value]


def _checked_tools(value: Any) -> list[dict[str, Any]] | None:
    """As `tools_of`; the ValueError says what to set."""
    try:
        return tools_of(value)
    except ValueError as error:
        raise ValueError(f"name another environment.options.tools_column, or give schemas: {error}") from error


def _function(schema: Any) -> dict[str, Any]:
    function = schema.get("function") if isinstance(schema, dict) else None
    return function if isinstance(function, dict) else {}


def _located(data: Data) -> Data:
    """The data, `package:file` replaced by the path of that file."""
    package, colon, file = data.partition(":") if isinstance(data, str) else ("", "", "")
    if not colon or not all(part.isidentifier() for part in package.split(".")):
        return data
    try:
        return str(files(package) / file)
    except ModuleNotFoundError as error:
        raise ValueError(f"{data}: there is no package {package!r}") from error


def _text_of(value: Any) -> str:
    return "\n".join(f"{one['role']}: {one['content']}" for one in messages_of(value))


@dataclass(frozen=True)
class Prompt:
    """One task. `given`: the prompt as the file has it, text or messages; `messages`: the conversation that it begins,
    a text being a user's message; `columns`: the row's other columns; `key`: digest of the prompt; `tools`: JSON
    schemas."""

    given: str | list[Message]
    messages: list[Message]
    columns: dict[str, Any]
    key: str
    tools: list[dict[str, Any]] | None = None


class Prompts:
    """The prompts of one split. Consecutive seeds go through all rows in a fixed shuffled order."""

    def __init__(self, rows: Part[PromptRow], longest: list[Opening], tools_column: str) -> None:
        self._rows, self._tools_column = rows, tools_column
        self.longest = longest
        """The prompts with most characters, tools included, of both splits: with and without tools."""

    def of(self, seed: int) -> Prompt:
        """The prompt of a task. Raises Unreadable with file and row."""
        row = self._rows[shuffled(seed, len(self._rows))]
        messages, columns, text = messages_of(row.prompt), dict(row.model_extra or {}), _text_of(row.prompt)
        if row.tools is not None or "tools" in row.model_fields_set - columns.keys():
            columns[self._tools_column] = row.tools
        tools = tools_of(row.tools)
        key = task_key_of("Prompts", text + (json.dumps(tools) if tools else ""))
        return Prompt(row.prompt if isinstance(row.prompt, str) else messages, messages, columns, key, tools)


def open_prompts(
    data: Data, column: str, split: Split, tools_column: str = TOOLS, validation: Data | None = None
) -> Prompts:
    """The prompts of a split; the prompt and the tools of every row of both are checked, once per process. With an
    empty `tools_column` no prompt has tools. `validation`: the data of validation, if not `data` has them. Raises
    ValueError naming file, row and column."""
    return _both(data, column, tools_column, validation)[split]


@lru_cache(maxsize=8)
def _both(data: Data, column: str, tools_column: str, validation: Data | None) -> dict[Split, Prompts]:
    column_of_tools = tools_column or _NO_COLUMN
    tools = Field(None, alias=column_of_tools) if tools_column in ("", TOOLS) else Field(alias=tools_column)
    row_type = create_model("PromptRow", __base__=PromptRow, prompt=(Any, Field(alias=column)), tools=(Any, tools))
    longest: dict[bool, tuple[int, Any, Any]] = {}

    def seen(text: str, prompt: Any, tools: Any) -> None:
        shown = _checked_tools(tools)
        length = len(text) + (len(json.dumps(shown)) if shown else 0)
        if length > longest.get(shown is not None, (-1,))[0]:
            longest[shown is not None] = (length, prompt, shown)

    beside, option = Beside(column_of_tools, seen), "validation_data"
    try:
        theirs = None if validation is None else any_rows(_located(validation), row_type)
        option = "data"
        parts = both_splits(_located(data), row_type, column, _text_of, beside, theirs)
    except ValueError as error:
        raise ValueError(f"environment.options.{option}: {error}") from error
    openings = [Opening(messages_of(prompt), tools) for _, prompt, tools in longest.values()]
    return {split: Prompts(rows, openings, tools_column) for split, rows in parts.items()}
