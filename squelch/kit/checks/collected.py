"""One pass over a file's rows: what the checks need of each rollout, of its group and of its tokens. Pure.

Of a rollout its first turn counts, and the last turn's reward. Of its texts digests are kept, and of its tokens counts,
so that memory grows with rollouts and not with tokens. A seeded sample of rollouts is kept whole, for the checks that
read text again (`encoding.py`).
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.base.values import digest, first, known_id, object_of
from squelch.kit.checks.fed_tokens import Fed, numbers_of
from squelch.kit.checks.result import show
from squelch.kit.checks.turn_end import End, end_of
from squelch.kit.checks.turns import Continued
from squelch.kit.checks.weights.rows import WeightRows
from squelch.kit.findings.view import Example
from squelch.kit.readers.format import Format, Traits
from squelch.kit.readers.format_rows import LARGEST_ID, Row, as_float, is_ids, is_number, whole
from squelch.kit.readers.formats import files_of, format_named
from squelch.kit.readers.rows import Read, Rows
from squelch.kit.readers.step_views import StepViews, name_of
from squelch.kit.untrusted.decoder_process import bounded_reading
from squelch.kit.untrusted.files import is_folder

MOST_SHOWN = 2**20
"""Ids of all prompts of a rollout that are read: each turn of a long rollout shows those before it again."""
SAMPLED = 200
"""Rollouts that are kept whole."""
MOST_LOGPROB = 0.02
"""A log-probability is at most 0; numbers of 16 bits may be above it by their rounding."""
SPOKEN = ("reasoning_content", "thinking", "reasoning", "content", "tool_calls", "function_call")
"""Keys of a message under which something was said."""
KEPT_TEXT, KEPT_IDS = 400, 100
"""Characters of a text, or ids, that are kept to look for the text of an error."""
Decode = Callable[[Sequence[int]], str]
"""Gives the text of ids."""
Encode = Callable[[str], Sequence[int]]
"""Gives the ids of a text."""


@dataclass(slots=True)
class Member:
    """One rollout."""

    where: str
    prompt: bytes | None
    """Digest of its first prompt; None if that cannot be read."""
    task: bytes | None
    """Digest of what the format calls its task, else as `prompt`."""
    said: bytes | None
    """Digest of its first completion, ids where they are known."""
    log_p: float | None
    """Log-probability of the first completion, in nats; None where it is not recorded for each token."""
    tokens: int
    """Ids of the first completion; where there are none, characters."""
    text: str | None
    """Beginning of the completion's text; None where only ids are known."""
    is_ids: bool
    failed: str | None
    rewards: dict[str, float | None]
    advantage: Any
    """A number; a list where tokens have different ones; None where it is not known."""
    end: End | None = None
    """Of its last turn."""


@dataclass(slots=True)
class Group:
    """The rollouts of one prompt in one step."""

    step: int | None
    where: str
    members: dict[bytes, Member] = field(default_factory=dict)
    """By rollout."""

    @property
    def played(self) -> list[Member]:
        """Those that did not fail."""
        return [one for one in self.members.values() if one.failed is None]


@dataclass
class Tokens:
    """Counts over rows of token ids."""

    rows: int = 0
    logprobs: int = 0
    """Values of log-probabilities that were looked at."""
    impossible: int = 0
    unlike: int = 0
    """Rows with another number of log-probabilities than of ids."""
    examples: dict[str, list[Example]] = field(default_factory=dict)


@dataclass
class Collected:
    """What the rows of a training show."""

    path: Path
    format: Format | None = None
    groups: dict[bytes, Group] = field(default_factory=dict)
    """In the order in which they begin."""
    tasks: dict[bytes, str] = field(default_factory=dict)
    """Where each task, or prompt, of training begins."""
    evaluated: dict[bytes, str] = field(default_factory=dict)
    """The same of evaluations."""
    named_tasks: bool = False
    """Whether the format tells tasks apart; else prompts are compared."""
    of_groups: bool = False
    """Whether the format tells groups apart; else prompts do."""
    of_turns: bool = False
    """Whether a completion as text has several turns."""
    tokens: Tokens = field(default_factory=Tokens)
    fed: Fed = field(default_factory=Fed)
    continued: Continued = field(default_factory=Continued)
    prompts: dict[bytes, Any] = field(default_factory=dict)
    """The first prompts by digest, where they are wanted."""
    sample: list[tuple[str, Row]] = field(default_factory=list)
    """(where, row) of some rollouts, with what `learned` gives under that key."""
    rows: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The format's name."""
        return "" if self.format is None else self.format.name

    @property
    def traits(self) -> Traits:
        """What is true of the format."""
        return Traits() if self.format is None else self.format.traits

    @property
    def members(self) -> Iterator[Member]:
        """All rollouts."""
        return (one for group in self.groups.values() for one in group.members.values())


def collect(
    path: Path,
    name: str | None = None,
    *,
    seed: int = 0,
    prompts: bool = False,
    views: StepViews | None = None,
    weights: WeightRows | None = None,
    decode: Decode | None = None,
    encode: Encode | None = None,
) -> Collected:
    """Reads a file or folder once. `prompts`: whether prompts are kept; `views` and `weights` take the rows of training
    too; `decode`: for the texts of completions as ids; `encode`: for the ends of those as text.

    Raises:
        UserError: the file is damaged or of no known format.
    """
    found, sampler = Collected(path), _Sampler(seed)
    with bad_files_are_the_users(), bounded_reading(str(path)):
        named = None if name is None else format_named(name)
        for reader in _readers(path, named):
            for read in reader:
                found.format = reader.format
                is_evaluation = read.row.get("evaluation") is not None or (
                    reader.format is not None and reader.format.evaluates(read.file) and path != read.file
                )
                if views is not None and not is_evaluation:
                    views.add(read)
                _take(found, read, is_evaluation, sampler, prompts, weights, decode, encode)
            found.notes += [*reader.notes, *reader.notes_on_left_out()]
    found.sample = sampler.kept
    return found


def _readers(path: Path, named: Format | None) -> Iterator[Rows]:
    """Of the path, and of a folder's files of evaluations that its format keeps apart."""
    reader = Rows(path, named, also=None, evaluations=True)
    yield reader
    if reader.format is not None and reader.format.evaluation is not None and is_folder(path):
        known = set(files_of(path, named))
        beside = (one for one in path.glob("**/*.jsonl") if reader.format.evaluates(one) and one not in known)
        yield from (Rows(one, reader.format, also=None, evaluations=True) for one in sorted(beside))


class _Sampler:
    """Keeps the rows whose numbers have the smallest digests: a sample that does not depend on how many come."""

    def __init__(self, seed: int) -> None:
        self._key, self._heap = str(seed).encode(), list[tuple[int, int, tuple[str, Row]]]()
        self._count = 0

    def offer(self, where: str, row: Row, learned: Row | None) -> None:
        """Takes a row, or not."""
        self._count += 1
        number = blake2b(str(self._count).encode(), digest_size=8, key=self._key).digest()
        rank = -int.from_bytes(number)
        if len(self._heap) < SAMPLED:
            heapq.heappush(self._heap, (rank, self._count, (where, {**row, "learned": learned})))
        elif rank > self._heap[0][0]:
            heapq.heapreplace(self._heap, (rank, self._count, (where, {**row, "learned": learned})))

    @property
    def kept(self) -> list[tuple[str, Row]]:
        """Those that were kept, in their order."""
        return [one for _, _, one in sorted(self._heap, key=lambda item: item[1])]


def _take(
    found: Collected,
    read: Read,
    is_evaluation: bool,
    sampler: _Sampler,
    prompts: bool,
    weights: WeightRows | None = None,
    decode: Decode | None = None,
    encode: Encode | None = None,
) -> None:
    row, where = read.row, name_of(read)
    is_first = not row.get("turn")
    small = row.get("shown", 0) <= MOST_SHOWN
    readable = row.get("failed") is None and row.get("untold") is None and small
    row = whole(row) if readable else row
    learned = row["learned"]() if readable and row.get("learned") is not None else None
    known = (row.get("prompt_ids"), row.get("completion_ids")) if learned is None else (learned["ids"],)
    for ids in known:
        _require_ids(ids, read.where)
    has_group = known_id(row.get("group"))
    prompt = _digest(_prompt(row)) if readable and (is_first or not has_group) else None
    if is_partly_masked := learned is not None and 0 < learned["start"] != len(row.get("prompt_ids") or ()):
        prompt = _digest(list(learned["ids"][: learned["start"]]))
    task = digest(row["task"]) if known_id(row.get("task")) else prompt
    if is_evaluation:
        if is_first and task is not None:
            found.evaluated.setdefault(task, where)
        return
    found.rows += 1
    found.named_tasks |= known_id(row.get("task")) and not found.traits.tasks_are_texts
    found.of_groups |= has_group
    found.of_turns |= bool(row.get("of_turns"))
    if is_first and task is not None:
        found.tasks.setdefault(task, where)
    if prompts and is_first and prompt is not None:
        found.prompts.setdefault(prompt, _prompt(row))
    log_p = _take_tokens(found, row, where)
    found.continued.take(row, str(row.get("rollout") or where), where)
    if learned is not None:
        found.fed.take(learned, where, is_whole=not row.get("truncated"))
    if weights is not None and readable:
        weights.offer(row, where, found.format, learned)
    begin = (prompt, task) if is_first else (None, None)
    member = _member(row, where, *begin, log_p)
    if readable:
        member.end = end_of(row, encode if found.traits.shows_ends else None)
    if is_partly_masked:  # what it says begins within what was sampled
        member.said = member.log_p = None
    if decode is not None and is_first and isinstance(ids := row.get("completion_ids"), list):
        member.text = decode(ids[:KEPT_IDS])  # recorded texts may spell control tokens
    elif learned is not None and not member.text:
        member.text = next((text[:KEPT_TEXT] for start, _, text in learned["said"] if start), member.text)
    if _joins_as_first(found, read, row, member, prompt) and is_first and readable:
        sampler.offer(where, row, learned)


def _joins_as_first(found: Collected, read: Read, row: Row, member: Member, prompt: bytes | None) -> bool:
    """Puts a row into its rollout and its group; returns whether the rollout now begins with it: turns may come in any
    order."""
    own, where = row.get("group") if known_id(row.get("group")) else prompt, member.where
    is_named = known_id(object_of(read.record.get("group")).get("id"))  # its members may begin with different weights
    step = str(read.file) if found.traits.groups_are_files else None if is_named else row.get("step")
    key = digest([step, str(row.get("run")), str(own) if own is not None else where])
    group = found.groups.setdefault(key, Group(row.get("step"), where))
    rollout = digest(str(row["rollout"])) if known_id(row.get("rollout")) else digest([where, len(group.members)])
    before = group.members.setdefault(rollout, member)
    is_begin = before is member or (before.prompt is None and member.prompt is not None)
    if before is not member:
        one, failed = member if is_begin else before, before.failed or member.failed
        end = before.end if member.end is None else member.end.after(before.end)
        group.members[rollout] = replace(one, rewards=member.rewards or before.rewards, failed=failed, end=end)
    return is_begin


def _require_ids(ids: Any, where: str) -> None:
    """UserError unless these are token ids, or none."""
    if isinstance(ids, list) and not is_ids(ids):
        raise UserError(f"{where}: its token ids must be a list of whole numbers from 0 to {LARGEST_ID}")


def _member(row: Row, where: str, prompt: bytes | None, task: bytes | None, log_p: float | None) -> Member:
    ids = first((row.get("completion_ids"), row.get("reasoning_ids")), lambda one: one is not None)
    text = text_of(first((row.get("completion"), row.get("reasoning")), lambda one: one is not None))
    is_ids = isinstance(ids, list)
    return Member(
        where,
        prompt,
        task,
        _digest(ids) if is_ids else _digest(text),
        log_p,
        len(ids) if is_ids else len(text or ""),
        None if text is None else text[:KEPT_TEXT],
        is_ids,
        None if row.get("failed") is None else str(row["failed"]),
        _rewards(row),
        _advantage(row.get("advantage")),
    )


def _rewards(row: Row) -> dict[str, float | None]:
    """The rewards by name; None for one that is no number, as for NaN, by which tables fill a column."""
    found = {name: as_float(one) if is_number(one) else None for name, one in (row.get("rewards") or {}).items()}
    return {name: None if one is not None and math.isnan(one) else one for name, one in found.items()}


def _advantage(value: Any) -> Any:
    """The number that all tokens have; a list if they differ."""
    if not isinstance(value, list):
        return as_float(value) if is_number(value) else None
    numbers = numbers_of(value)
    known = numbers[~np.isnan(numbers)] if numbers is not None else np.empty(0)
    return float(known[0]) if len(known) and known.min() == known.max() else [None]


def _prompt(row: Row) -> Any:
    return first((row.get("prompt_ids"), row.get("prompt")), known_id)


def _digest(value: Any) -> bytes | None:
    """Of ids, a text or messages. Ids are not written as text, which takes three times as long."""
    if isinstance(value, list):
        with suppress(TypeError, OverflowError):  # no ids
            return blake2b(array("i", value).tobytes(), digest_size=16).digest()
    return None if value is None else digest(value)


def text_of(said: Any) -> str | None:
    """The text of a completion, which may be messages; None if it has none."""
    if isinstance(said, str):
        return said
    if isinstance(said, Mapping):
        said = [said]
    if not isinstance(said, Sequence) or isinstance(said, bytes):
        return None
    messages = [one for one in said if isinstance(one, Mapping) and one.get("role", "assistant") == "assistant"]
    parts = [one.get(key) for one in messages for key in SPOKEN]
    return " ".join(str(one) for one in parts if one) if messages else None


def _take_tokens(found: Collected, row: Row, where: str) -> float | None:
    """Counts the row's log-probabilities; returns their sum if each id has one."""
    tokens, ids, drawn = found.tokens, row.get("completion_ids"), numbers_of(row.get("logprobs"))
    tokens.rows += isinstance(ids, list)
    if not isinstance(ids, list) or drawn is None:
        return None
    if len(drawn) != len(ids):
        tokens.unlike += 1
        show(tokens.examples, "unlike", where, f"{len(ids)} ids and {len(drawn)} log-probabilities")
    known = drawn[~np.isnan(drawn)]
    tokens.logprobs += len(known)
    wrong = known[(known > MOST_LOGPROB) | np.isinf(known)]
    if len(wrong):
        tokens.impossible += 1
        show(tokens.examples, "impossible", where, f"{len(wrong)} of {len(known)} tokens, e.g. {wrong[0]:g}")
    return float(known.sum()) if len(known) == len(ids) and not len(wrong) else None
