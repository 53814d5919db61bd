"""What the files of programs that run agents hold, as rows: ART, NeMo Gym, SWE-agent, Langfuse. Pure, as
`format_rows.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import first, known_id, object_of
from squelch.kit.readers.format_rows import LeftOut, Row, as_float, digest_of, ended_by, is_number
from squelch.kit.readers.message_graph import nested_tool
from squelch.kit.readers.records import Record
from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.text import parse_json

NOTHING = "nothing was sampled"
OTHER_API = "said through another API than chat completions"
RAISED = "raised an exception"
NO_CALL = "no call of a model"
CALL_FAILED = "the call of the model failed"
OTHER_FORM = "neither text nor messages"
NOT_SAID = "written by SWE-agent in place of the model"
SWE_FAILURES = ("exit_api", "exit_environment_error", "exit_error")
SWE_LIMITS = ("exit_context", "exit_cost", "exit_total_execution_time", "exit_command_timeout")
CHARACTERS = 4
"""Of a token, about."""
LANGFUSE_LISTS = ("tags", "comments")
"""Columns of Langfuse's table that are lists, as each score's is."""


def art(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """ART 0.5: a line holds a group, a row of Parquet a trajectory as JSON (in older releases: its messages)."""
    if "trajectories" in record:
        yield from _raised(record, where)
        for number, one in enumerate(_objects(record["trajectories"], where, "trajectories"), 1):
            yield from _trajectory(one, {"group": where, "rollout": f"{where}, trajectory {number}"}, where)
        return
    shared = {"group": record.get("group_index"), "rollout": where}
    if "trajectory_json" not in record:
        yield from _trajectory({"messages_and_choices": record.get("messages"), **record}, shared, where)
        return
    if not record.get("trajectory_index"):
        yield from _raised(object_of(_parsed(record.get("group_json"), where)), shared["group"])
    if record["trajectory_json"] is not None:
        yield from _trajectory(object_of(_parsed(record["trajectory_json"], where)), shared, where)


def _raised(group: Mapping[str, Any], key: Any) -> Iterator[Row]:
    """A row for each rollout of a group that raised an exception."""
    exceptions = group.get("exceptions")
    for _ in exceptions if isinstance(exceptions, list) else ():
        yield {"group": key, "rewards": {}, "failed": RAISED}


def _trajectory(one: Mapping[str, Any], shared: Row, where: str) -> Iterator[Row | LeftOut]:
    """The rows of a trajectory, which lacks what has its default, such as a reward of 0."""
    versions = [one.get("initial_policy_version"), one.get("final_policy_version")]
    shared = {**shared, "rewards": {"reward": one.get("reward", 0.0)}, "versions": versions}
    captured = object_of(one.get("exchanges"))
    exchanges = _objects(captured.get("chat_completions"), where, "chat_completions")
    calls: list[tuple[int, partial[Row]]] = [(0, partial(_exchange, exchange)) for exchange in exchanges]
    for history in [one, *_objects(one.get("additional_histories"), where, "additional_histories")]:
        items = _objects(history.get("messages_and_choices"), where, "messages_and_choices")
        tools, messages = _parsed(history.get("tools"), where), [_art_message(item, where) for item in items]
        said = [at for at, one in enumerate(items) if at and ("finish_reason" in one or one.get("trainable") is True)]
        calls += [(shown, partial(_turn, messages, at, tools, items[at])) for at, shown in _with_sizes(messages, said)]
    yield from _turns(calls, shared)
    if any(captured.get(other) for other in ("completions", "responses", "messages")):
        yield LeftOut(OTHER_API)
    elif not calls:
        yield LeftOut(NOTHING)


def _turns(calls: Sequence[tuple[int, partial[Row]]], shared: Row) -> Iterator[Row]:
    """A row for each call of a rollout, given with about the number of ids that its prompt shows. Without a group of
    the program's, those that begin with the same prompt share one."""
    begun = {} if known_id(shared["group"]) or not calls else calls[0][1]()
    group = digest_of(begun.get("prompt_ids", begun.get("prompt"))) if begun else shared["group"]
    for turn, (shown, call) in enumerate(calls):
        yield {**shared, "group": group, "content": call, "shown": shown, "turn": turn}


def _with_sizes(messages: Sequence[Row], said: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(index, about the number of ids before it) of the messages that were said."""
    sizes = sizes_before(messages)
    return ((at, sizes[at]) for at in said)


def sizes_before(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Of each message, about how many ids the ones before it are."""
    return [0, *accumulate(len(str(one)) // CHARACTERS for one in messages)]


def _art_message(item: Mapping[str, Any], where: str) -> Row:
    """The message of a choice or a message, its calls of tools as a list."""
    message = object_of(item.get("message")) if "finish_reason" in item else item
    found = {key: value for key, value in message.items() if key != "trainable"}
    return {**found, "tool_calls": _parsed(found.get("tool_calls"), where)}


def _turn(messages: Sequence[Row], index: int, tools: Any, choice: Mapping[str, Any]) -> Row:
    """What was said at an index of a conversation."""
    return _of_choice(list(messages[:index]), choice, messages[index], tools)


def _exchange(exchange: Mapping[str, Any]) -> Row:
    """The prompt and the completion of a call of chat completions."""
    request, response = object_of(exchange.get("request")), object_of(exchange.get("response"))
    choices = response.get("choices")
    choice = object_of(choices[0]) if isinstance(choices, list) and choices else {}
    given = {"prompt_token_ids": response.get("prompt_token_ids")}
    return _of_choice(request.get("messages"), {**given, **choice}, choice.get("message"), request.get("tools"))


def _of_choice(prompt: Any, choice: Mapping[str, Any], message: Any, tools: Any) -> Row:
    """Prompt and completion, as ids where the server returned them."""
    before, ids = choice.get("prompt_token_ids"), choice.get("token_ids")
    if not before or not ids:
        return {"prompt": prompt, "completion": [message], "tools": tools}
    drawn = object_of(choice.get("logprobs")).get("content")
    logprobs = [object_of(one).get("logprob") for one in drawn] if isinstance(drawn, list) else None
    more = {"messages": prompt, "tools": tools, "ended": ended_by(choice.get("finish_reason"))}
    return {"prompt_ids": before, "completion_ids": ids, "logprobs": _for_each(ids, logprobs), **more}


def _for_each(ids: Any, values: Any) -> Any:
    """The values, if there is one for each of the ids."""
    return values if isinstance(ids, list) and isinstance(values, list) and len(values) == len(ids) else None


def nemo_gym(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """NeMo Gym 0.7, `rollout_collection.py`: what was asked and answered in the form of OpenAI's Responses API; the
    items of a policy that is trained have ids."""
    task, number = record.get("_ng_task_index"), record.get("_ng_rollout_index")
    named = f"{task}-{number}" if known_id(task) and known_id(number) else where
    asked, answer = object_of(record.get("responses_create_params")), object_of(record.get("response"))
    shared: Row = {
        "group": task,
        "rollout": first((record.get("_ng_rollout_id"), named)),
        "rewards": {"reward": record.get("reward")},
        "truncated": answer.get("status") == "incomplete",
        "ended": ended_by(answer.get("status")),
        "sampler": answer.get("model"),
    }
    kind = first((record.get("_ng_failure_class"), record.get("failure_kind"), "masked"))
    if record.get("_ng_failure_class") is not None or record.get("mask_sample") is True:
        yield {**shared, "rewards": {}, "failed": f"NeMo Gym: {kind}"}
        return
    items = _objects(answer.get("output"), where, "output")
    calls = [(0, partial(_exact, item)) for item in items if item.get("generation_token_ids")]
    calls = calls or _spoken_turns(asked, items, where)
    yield from _turns(calls, shared)
    if not calls:
        yield LeftOut(NOTHING)


def _exact(item: Mapping[str, Any]) -> Row:
    """The call of the model that ended with an item."""
    ids, logprobs = item.get("generation_token_ids"), item.get("generation_log_probs")
    return {"prompt_ids": item.get("prompt_token_ids"), "completion_ids": ids, "logprobs": _for_each(ids, logprobs)}


def _spoken_turns(
    asked: Mapping[str, Any], items: Sequence[Mapping[str, Any]], where: str
) -> list[tuple[int, partial[Row]]]:
    """The turns of an answer without ids."""
    given = asked.get("input")
    given = [{"role": "user", "content": given}] if isinstance(given, str) else _objects(given, where, "input")
    before = [{"role": "system", "content": asked["instructions"]}] if asked.get("instructions") else []
    before += _conversation(given)
    messages = before + _conversation(items)
    tools = [nested_tool(tool) for tool in _objects(asked.get("tools"), where, "tools")] or None
    said = [at for at, one in enumerate(messages) if at >= max(1, len(before)) and one["role"] == "assistant"]
    return [(shown, partial(_turn, messages, at, tools, {})) for at, shown in _with_sizes(messages, said)]


def _conversation(items: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Items of the Responses API as messages; reasoning, text and calls one after another are one message."""
    found, said = list[Row](), list[Mapping[str, Any]]()
    for item in items:
        is_output, role = _is(item, "function_call_output"), item.get("role")
        is_given = is_output or (_is(item, "message") and role != "assistant")
        if is_given and said:
            found.append(_joined(said))
            said = []
        if is_output:
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif is_given:
            found.append({"role": "system" if role == "developer" else role, "content": item.get("content")})
        else:
            said.append(item)
    return [*found, _joined(said)] if said else found


def _joined(items: Sequence[Mapping[str, Any]]) -> Row:
    """What a model said in several items, as one message."""
    thoughts = [_text(item.get("content")) or _text(item.get("summary")) for item in items if _is(item, "reasoning")]
    calls = [
        {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        for item in items
        if _is(item, "function_call")
    ]
    text = "".join(_text(item.get("content")) for item in items if _is(item, "message"))
    found = {"role": "assistant", "content": text, "reasoning_content": "".join(thoughts), "tool_calls": calls}
    return {key: value for key, value in found.items() if value or key == "content"}


def _is(item: Mapping[str, Any], kind: str) -> bool:
    return (item.get("type") or "message") == kind


def _text(content: Any) -> str:
    """A content's text, which may be in parts."""
    if isinstance(content, str):
        return content
    parts = [object_of(part).get("text") for part in content] if isinstance(content, list) else []
    return "".join(part for part in parts if isinstance(part, str))


def swe_agent(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """SWE-agent 1.1, `get_trajectory_data` (`sweagent/agent/agents.py`): each step has the messages that the model was
    asked with; calls of tools stand in the history alone."""
    attempts = _objects(record.get("attempts"), where, "attempts") or [record]
    for number, attempt in enumerate(attempts, 1):
        steps = _objects(attempt.get("trajectory"), where, "trajectory")
        history = _objects(attempt.get("history"), where, "history")
        problem = object_of(object_of(_parsed(attempt.get("replay_config"), where)).get("problem_statement"))
        status = str(object_of(attempt.get("info")).get("exit_status"))
        asked = [step for step in steps if any(_objects(step.get("query"), where, "query"))]
        shared = {
            "group": first((problem.get("id"), digest_of(asked[0]["query"]) if asked else None)),
            "rollout": f"{where}, attempt {number}",
            "rewards": {},
            "truncated": any(limit in status for limit in SWE_LIMITS),
        }
        if status.startswith(SWE_FAILURES):
            yield {**shared, "failed": f"SWE-agent: {status}"}
            continue
        said = [item for item in history if item.get("role") == "assistant" and not item.get("is_demo")]
        seen = 0
        for turn, step in enumerate(asked):  # a step that was asked again is not in the history
            is_next = seen < len(said) and said[seen].get("content") == step.get("response")
            yield {**shared, "content": partial(_step, step, said[seen] if is_next else {}), "turn": turn}
            seen += is_next
        if len(asked) < len(steps):
            yield LeftOut(NOT_SAID)


def _step(step: Mapping[str, Any], kept: Mapping[str, Any]) -> Row:
    """The prompt and the completion of a step. `kept`: its message in the history."""
    blocks = kept.get("thinking_blocks")
    thoughts = [object_of(block).get("thinking") for block in blocks] if isinstance(blocks, list) else []
    thought = first((step.get("reasoning_content"), "".join(one for one in thoughts if isinstance(one, str))))
    said = {"role": "assistant", "content": step.get("response"), "reasoning_content": thought}
    return {
        "prompt": [_swe_message(object_of(item)) for item in step["query"]],
        "completion": [{**said, "tool_calls": kept.get("tool_calls") or None}],
    }


def _swe_message(item: Mapping[str, Any]) -> Row:
    ids = item.get("tool_call_ids")
    found = {key: item[key] for key in ("role", "content", "tool_calls") if item.get(key)}
    return found | {"tool_call_id": ids[0]} if isinstance(ids, list) and ids else found


def langfuse(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """Langfuse, the table of observations: as its page exports it, with a column for each score, or as its export to a
    store does, with inputs and outputs as JSON in text. Each call of a model is a row."""
    if record.get("type") != "GENERATION":
        yield LeftOut(NO_CALL)
        return
    scores = {key: value for key, value in record.items() if isinstance(value, list) and key not in LANGFUSE_LISTS}
    rewards = {name: sum(map(as_float, one)) / len(one) for name, one in scores.items() if _are_numbers(one)}
    if record.get("level") == "ERROR":
        yield {"rewards": {}, "failed": CALL_FAILED}
        return
    asked, said = (_spoken(record.get(key), where) for key in ("input", "output"))
    request, choices = object_of(asked), object_of(said).get("choices")
    prompt = [asked] if "role" in request else first((request.get("messages"), request.get("prompt"), asked))
    said = object_of(choices[0]).get("message") if isinstance(choices, list) and choices else said
    if all(map(_is_spoken, (prompt, said))):
        sampler = first(map(record.get, ("providedModelName", "provided_model_name", "model")))
        yield {
            "prompt": prompt,
            "completion": said,
            "tools": request.get("tools"),
            "rewards": rewards,
            "sampler": sampler,
        }
    else:
        yield LeftOut(OTHER_FORM)


def _is_spoken(value: Any) -> bool:
    """Whether a value is a text, a message or messages, as far as their roles show."""
    if isinstance(value, str):
        return bool(value)
    messages = value if isinstance(value, list) else [value]
    return bool(messages) and all(isinstance(object_of(one).get("role"), str) for one in messages)


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(map(is_number, values))


def _spoken(value: Any, where: str) -> Any:
    """A text that is JSON of messages, or of a request, as that; any other value as it is."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        found = parse_json(value.encode(), where)
    except Unreadable:
        return value
    spoken = isinstance(found, dict) and ({"role", "messages", "prompt", "choices"} & found.keys())
    return found if spoken or (isinstance(found, list) and "role" in object_of(first(found))) else value


def _parsed(value: Any, where: str) -> Any:
    """JSON that a record holds as text."""
    return parse_json(value.encode(), where) if isinstance(value, str) else value


def _objects(value: Any, where: str, name: str) -> list[dict[str, Any]]:
    """A list of objects; an empty one where there is none. UserError for any other value."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise UserError(f"{where}: `{name}` must be a list of objects")
    return value
