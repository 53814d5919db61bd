"""What a record of each trainer holds, as rows (`formats.py` says what a row is, and which keys it has where a trainer
says more). Pure.

Each function is given a record and the record's name for errors. It checks the form that only its trainer has;
`score_files.py` checks what every row must be. What only some readers need is not converted, only passed on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import digest, first, known, known_id, object_of
from squelch.kit.readers.records import Record
from squelch.kit.untrusted.files import brief

Row = dict[str, Any]


@dataclass(frozen=True)
class LeftOut:
    """A record, or a part of one, that is no sample of the policy that is trained."""

    reason: str


LARGEST_ID = 2**31 - 1
"""Tokenizers have ids of 32 bits, and no model has a vocabulary near that."""
UNKNOWN: Row = {
    **dict.fromkeys(("mask", "sampled", "logprobs", "trained", "messages", "tools")),
    **{"ids": (), "said": (), "start": 0},
}
"""What a row's `learned` gives where the format says no more."""
NAMES = {
    "prompt": ("prompt", "input"),
    "completion": ("completion", "output", "response"),
    "reasoning": ("reasoning",),
    "prompt_ids": ("prompt_ids",),
    "reasoning_ids": ("reasoning_ids",),
    "answer_ids": ("answer_ids",),
    "completion_ids": ("completion_ids",),
    "prompt_id": ("prompt_id", "group_id"),
    "step": ("step", "global_step", "gen_step"),
    "tools": ("tools",),
    "completion_mask": ("completion_mask", "tool_mask", "response_mask"),
    "turn": ("turn",),
    "rollout": ("rollout",),
    "finish": ("finish_reason",),
}
"""Accepted names of each column of the format `columns`; the first name that a record has is used."""
IDS = ("prompt_id", "step", "turn", "rollout")
"""Those whose empty values are missing ones."""
NEEDED = "`prompt` with `reasoning` or `completion` (text), or `prompt_ids` with `reasoning_ids` or `completion_ids`"
KNOWN_COLUMNS = frozenset(name for names in NAMES.values() for name in names)
SAID_BY_TRL = ("step", "prompt", "completion", "advantage", "tools")
GROUP_COLUMNS = ("group_id", "prompt_id", "uid", "prompt", "input", "input_prompt", "prompt_ids")
"""Columns of a table that tell groups apart, in this order."""
NO_REWARDS = frozenset(
    {*SAID_BY_TRL, *GROUP_COLUMNS, *NAMES["step"], "advantages", "turn", "rollout"}
    | {"id", "index", "idx", "trajectory"}
)
"""Columns whose numbers are no rewards."""
REASONS = {
    **dict.fromkeys(("stop", "eos", "tool_calls", "function_call", "end_turn", "completed"), True),
    **dict.fromkeys(("length", "max_tokens", "truncated", "incomplete"), False),
}
"""Of each reason for which an engine ends a completion, whether that ended by itself; others say neither."""
TRUE = b"\0" + 255 * b"\1"
"""Of each byte, whether it counts as true."""
PADDING_OF_VERL = re.compile(r"pad[0-9a-f]{32}_\d+_\d+")
"""Keys of the empty rows by which verl fills up a batch."""


def fits_columns(columns: Collection[str]) -> bool:
    """Whether a file with these columns is of the format `columns`."""
    return is_sample({key for key, names in NAMES.items() if set(names) & set(columns)})


def is_sample(has: set[str]) -> bool:
    """Whether a row with these keys holds what NEEDED says."""
    spoken = "prompt" in has and bool(has & {"reasoning", "completion"})
    whole = "completion_ids" in has and bool(has & {"prompt", "prompt_ids"})
    return spoken or whole or {"prompt_ids", "reasoning_ids"} <= has


def columns(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """A row by the names of NAMES; other numbers are its rewards. A number of a rollout counts beside that of a turn
    alone, as elsewhere it may be the same in every group."""
    row = {key: first(map(record.get, names), known_id if key in IDS else known) for key, names in NAMES.items()}
    group, own = row["prompt_id"], row["rollout"]
    rollout = f"{group} {own}" if own is not None and row["turn"] is not None else None
    said = {"ended": ended_by(row["finish"]), "rewards": reward_columns(record)}
    yield {**row, "group": group, "rollout": rollout, **said}


def ended_by(reason: Any) -> bool | None:
    """Whether a completion ended by itself, by the engine's reason; None if that does not say."""
    return REASONS.get(reason) if isinstance(reason, str) else None


def trl(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """TRL 1.16, `GRPOTrainer.log`: a column for each reward function, then those of `log_extra`, then the advantage."""
    rewards = {
        name: value for name, value in record.items() if name not in SAID_BY_TRL and (value is None or is_number(value))
    }
    yield {**{name: record.get(name) for name in SAID_BY_TRL}, "rewards": rewards}


def verl(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """verl 0.9, `_write_generations`. A rollout with several model calls is several records, whose `uid` is
    PROMPT_ROLLOUT_CALL; the prompt's own id may hold `_`."""
    uid = record.get("uid")
    if isinstance(uid, str) and PADDING_OF_VERL.fullmatch(uid):
        yield LeftOut("padding of verl's batch")
        return
    group, rollout, call = split_uid(uid)
    yield {
        "prompt": record.get("input"),
        "completion": record.get("output"),
        "step": record.get("step"),
        "rewards": {"score": record.get("score")},
        "group": group,
        "rollout": rollout,
        "turn": call,
    }


def split_uid(uid: Any) -> tuple[str | None, str | None, int]:
    """(group, rollout, call) of a key of verl's queue, e.g. `7f_3_0`."""
    found = re.fullmatch(r"((.+)_\d+)_(\d{1,9})", uid) if isinstance(uid, str) else None
    if found:
        return found[2], found[1], int(found[3])
    return uid if isinstance(uid, str) and known_id(uid) else None, None, 0


def nemo_rl(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """NeMo-RL, `Logger.log_batched_dict_as_jsonl`: each value is a batch of one. Of training it writes the texts of the
    messages, of validation messages; their texts are rendered. The task is the first one's text."""
    one = {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in record.items()}
    reward, said = one.get("filtered_rewards", one.get("rewards")), one.get("content")
    said = said if isinstance(said, list) else []
    texts = [object_of(each).get("content", each) for each in said]
    shared = {"step": one.get("step"), "rewards": {"reward": reward}, "rollout": one.get("idx")}
    shared["task"] = first(texts[:1], lambda text: isinstance(text, str))
    if "token_ids" not in one:
        are_messages = any(isinstance(each, dict) for each in said)
        if not texts or not all(isinstance(text, str) for text in texts) or not (are_messages or len(texts) == 2):
            raise UserError(
                f"{where}: `content` is {brief(one.get('content'))}; without `token_ids` only messages, or the texts "
                "of one prompt and one answer, can be read"
            )
        spoken = [at for at, each in enumerate(said) if object_of(each).get("role") == "assistant"]
        for turn, at in enumerate(spoken if are_messages else [1]):
            yield {"prompt": "".join(texts[:at]), "completion": texts[at], "turn": turn, **shared}
        if are_messages and not spoken:
            yield LeftOut("nothing was sampled")
        return
    ids, mask = _same_length(one["token_ids"], one.get("token_loss_mask"), where, "token_ids", "token_loss_mask")
    size = one.get("input_lengths", len(ids))
    if not isinstance(size, int) or not 0 < size <= len(ids):
        raise UserError(
            f"{where}: `input_lengths` is {brief(size)}; it must be a number of `token_ids`, without padding"
        )
    of_tokens = {"logprobs": one.get("generation_logprobs"), "advantage": one.get("advantages")}
    said = {"logprobs": one.get("generation_logprobs"), "trained": one.get("prev_logprobs")}
    learned = partial(_learned, ids[:size], mask[:size], said)
    yield from turns_of_ids(ids[:size], mask[:size], shared, where, of_tokens, learned)


def slime(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """slime, `Sample.to_dict` of the samples that `--save-debug-rollout-data` saves, as JSON Lines."""
    reward, status = record.get("reward"), record.get("status")
    shared = {
        "step": record.get("rollout_id") if isinstance(record.get("rollout_id"), int) else record.get("step"),
        "group": record.get("group_index"),
        "rollout": record.get("index"),
        "rewards": dict(reward) if isinstance(reward, dict) else {"reward": reward},
        "versions": span_of(record.get("weight_versions")),
        "truncated": status == "truncated",
        "ended": ended_by(status),
    }
    if status in ("aborted", "failed"):
        yield {**shared, "failed": f"{status} by slime"}
        return
    tokens, size = record.get("tokens"), record.get("response_length")
    if not isinstance(tokens, list) or not isinstance(size, int) or not 0 < size <= len(tokens):
        raise UserError(
            f"{where}: `response_length` is {brief(size)}; it must be the number of `tokens` that were sampled"
        )
    before = len(tokens) - size
    mask = record["loss_mask"] if isinstance(record.get("loss_mask"), list) else [1] * size
    ids, mask = _same_length(tokens, [0] * before + mask, where, "tokens", "loss_mask")
    drawn = record.get("rollout_log_probs")
    of_tokens = {"logprobs": [None] * before + drawn if isinstance(drawn, list) else None}
    texts = ((0, before, record.get("prompt")), (before, len(tokens), record.get("response")))
    said: Row = {"said": [one for one in texts if isinstance(one[2], str)], "start": before}
    if isinstance(record.get("prompt"), list):
        said |= {"messages": record["prompt"], "tools": object_of(record.get("metadata")).get("tools")}
    yield from turns_of_ids(ids, mask, shared, where, of_tokens, partial(_learned, ids, mask, of_tokens, said))


def span_of(versions: Any) -> list[int | None] | None:
    """[first, last] of versions in their order, which some trainers write as text; None if none is known, which some
    write as a negative one."""
    if not isinstance(versions, list) or not versions:
        return None
    found = [_version(versions[0]), _version(versions[-1])]
    return None if found == [None, None] else found


def _version(value: Any) -> int | None:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None


def areal(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """AReaL 1.0, `WorkflowExecutor._dump_trajectory`: texts with special tokens. The step is the version of the weights
    that sampled the last token. The lowest version is -1 where the prompt's tokens count."""
    tail = record.get("tail_version")
    yield {
        "prompt": record.get("prompt"),
        "completion": record.get("completion"),
        "step": tail,
        "group": record.get("task_id"),
        "rewards": {"reward": record.get("reward")},
        "versions": span_of([record.get("head_version"), tail]),
        "sizes": _sizes(record),
        "of_turns": bool(record.get("segments")),
    }


def _sizes(record: Record) -> tuple[int, int] | None:
    """How many ids AReaL's prompt and its completion of one turn are; None if it has several, or does not say."""
    whole, prompt = record.get("seqlen"), record.get("prompt_len")
    if record.get("segments") or not isinstance(whole, int) or not isinstance(prompt, int):
        return None
    return prompt, whole - prompt


def skyrl(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """SkyRL 0.4, `dump_per_dataset_eval_results`: texts with special tokens; the score may be one for each token."""
    score, stop = record.get("score"), record.get("stop_reason")
    if isinstance(score, list) and all(map(is_number, score)):
        score = sum(map(as_float, score))
    yield {
        "prompt": record.get("input_prompt"),
        "completion": record.get("output_response"),
        "rewards": {"score": score},
        "truncated": stop == "length" if isinstance(stop, str) else None,
        "ended": ended_by(stop),
    }


def archive(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """Squelch's own archive, `kit.archive.schema`: a trajectory, whose turns say where their prompts begin."""
    is_training = record.get("split") == "train"
    shared = {
        "step": record.get("step"),
        "group": record.get("group_id"),
        "rollout": f"{record.get('group_id')} {record.get('trajectory')}",
        "rewards": {"episode_return": record.get("episode_return")},
        "truncated": record.get("truncated"),
        "task": record.get("task_key"),
        "evaluation": None if is_training else "of an evaluation",
    }
    if (cause := record.get("failure_cause")) is not None:
        yield {**shared, "failed": str(cause).replace("_", " ")}
        return
    ids, drawn, turns, segments = (
        _listed(record, name, where) for name in ("token_ids", "log_probs", "turns", "segments")
    )
    begins = [0, *(_position(one, "start", ids, where) for one in segments)]
    of_tokens = {"logprobs": drawn} if len(drawn) == len(ids) else {}
    places = [tuple(_position(turn, f"sample_{name}", ids, where) for name in ("start", "end")) for turn in turns]
    for number, (turn, (start, end)) in enumerate(zip(turns, places, strict=True)):
        fed = max(one for one in begins if one <= start)
        learned = {} if number else {"learned": partial(_learned_of_turns, record, ids, places, of_tokens)}
        yield {
            **shared,
            "content": partial(_cut, ids, fed, start, end, of_tokens),
            "shown": start - fed,
            "turn": number,
            "versions": span_of([turn.get("version_min"), turn.get("version_max")]),
            "ended": None if (is_cut := turn.get("hit_token_limit")) is None else not is_cut,
            **learned,
        }
        if not is_training:
            return
    if not turns:
        yield LeftOut("nothing was sampled")


def _learned_of_turns(
    record: Record, ids: Sequence[int], places: Sequence[tuple[int, ...]], of_tokens: Mapping[str, Any]
) -> Row:
    """What an archived trajectory says of its tokens. Where its mask was not read, none is known."""
    mask = record.get("loss_mask")
    sampled = [False] * len(ids)
    for start, end in places:
        sampled[start:end] = [True] * (end - start)
    fits = isinstance(mask, list) and len(mask) == len(ids)
    return _learned(ids, mask if fits else None, of_tokens, {"sampled": sampled})


def _learned(
    ids: Sequence[int], mask: Sequence[Any] | None, of_tokens: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> Row:
    """The value of a row's `learned`; of values for each token only those that fit the ids."""
    fitting = {
        key: values[: len(ids)] if isinstance(values, list) and _fits(values, len(ids)) else None
        for key, values in of_tokens.items()
    }
    return UNKNOWN | {"ids": ids, "mask": mask, **fitting, **(more or {})}


def _listed(record: Record, name: str, where: str) -> list[Any]:
    value = record.get(name) or []
    if not isinstance(value, list):
        raise UserError(f"{where}: `{name}` is {brief(value)}; it must be a list")
    return value


def _position(value: Any, name: str, ids: Sequence[int], where: str) -> int:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, int) or not 0 <= found <= len(ids):
        raise UserError(f"{where}: `{name}` is {brief(found)}; it must be a position in `token_ids`")
    return found


def turns_of_ids(
    ids: Sequence[int],
    mask: Sequence[Any],
    shared: Mapping[str, Any],
    where: str,
    of_tokens: Mapping[str, Any] | None = None,
    learned: Callable[[], Row] | None = None,
) -> Iterator[Row | LeftOut]:
    """A row for each run of sampled tokens: what stands before it is its prompt. Without a group of the trainer's, the
    rows of one first prompt share one; without a rollout of the trainer's, those of the record `where` do.
    `of_tokens`: values of a row's key for each of `ids`, or one for all; `learned`: that key of the first row."""
    turn, group, rollout = 0, first([shared.get("group")]), first([shared.get("rollout"), where])
    of_tokens = {key: values for key, values in (of_tokens or {}).items() if _fits(values, len(ids))}
    marks, start = marks_of(mask) + b"\0", 0
    while (start := marks.find(1, start)) >= 0:
        end = marks.find(0, start)
        group = digest_of(ids[:start]) if group is None else group
        yield {
            **shared,
            "content": partial(_cut, ids, 0, start, end, of_tokens),
            "shown": start,
            "turn": turn,
            "group": group,
            "rollout": rollout,
            **({} if turn or learned is None else {"learned": learned}),
        }
        turn, start = turn + 1, end
    if not turn:
        yield LeftOut("nothing was sampled")


def marks_of(mask: Sequence[Any]) -> bytes:
    """A byte for each value: 1 for what counts as true, else 0."""
    try:
        return bytes(mask).translate(TRUE)
    except (TypeError, ValueError):  # not all are numbers of one byte
        return bytes(map(bool, mask))


def _fits(values: Any, count: int) -> bool:
    return not isinstance(values, list) or len(values) >= count


def _cut(ids: Sequence[int], first_fed: int, start: int, end: int, of_tokens: Mapping[str, Any]) -> Row:
    values = {key: each[start:end] if isinstance(each, list) else each for key, each in of_tokens.items()}
    return {"prompt_ids": list(ids[first_fed:start]), "completion_ids": list(ids[start:end]), **values}


def digest_of(prompt: Any) -> str:
    """A group for the rows of one prompt."""
    return digest(prompt).hex()


def whole(row: Row) -> Row:
    """The row with its prompt and completion."""
    return (
        {key: value for key, value in row.items() if key != "content"} | row["content"]() if "content" in row else row
    )


def column_of(key: str, row: Row, record: Record) -> str:
    """Where the record has the value of a row's key, in words if it was taken from other columns."""
    names = (*NAMES.get(key, ()), *record)
    found = next((name for name in names if record.get(name) is row[key]), None)
    return f"its {key.replace('_', ' ')}" if found is None else f"`{found}`"


def _same_length(ids: Any, mask: Any, where: str, *names: str) -> tuple[list[int], list[Any]]:
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        sizes = " and ".join(f"`{name}`" for name in names)
        raise UserError(f"{where}: {sizes} must be two lists of the same length; the mask marks the sampled tokens")
    return ids, mask


def as_float(value: float) -> float:
    """A number as a float; infinite for an integer that no float holds."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number, and no flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_ids(values: Any) -> TypeGuard[list[int]]:
    """Whether a value is a list of token ids; an empty one is."""
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        return False
    return not values or (min(values) >= 0 and max(values) <= LARGEST_ID)


def reward_columns(record: Record) -> dict[str, Any]:
    """The columns of numbers that are rewards as far as is known."""
    return {key: value for key, value in record.items() if key not in NO_REWARDS and is_number(value)}


def step_of(row: Row, record: Record, where: str) -> int | None:
    """The row's step as a number: tables hold it as a float if it is missing in other rows, and some trainers as
    text."""
    value = row.get("step")
    if not known_id(value):
        return None
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if re.fullmatch(r"-?\d{1,18}(\.0*)?", text) is None:
        raise UserError(f"{where}: {column_of('step', row, record)} is {brief(value)}; it must be a whole number")
    return int(text.partition(".")[0])
