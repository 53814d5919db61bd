"""What a group in a list is about: the first words of its prompt, the expected answer, and a completion.

Prompt and completion are decoded from the group's own ids; those of a page of groups are read step by step, within
`BUDGET_S`, and kept. The expected answer is not in the archive. Of a run of `Prompts`, or of an agent's, it is read
from the file of prompts, if that is a local file that still has this prompt at the task's place: the key of the prompt
must be the group's, so that a folder from elsewhere shows nothing of a file that its own prompts are not from.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from squelch.actors.formats.fed_messages import fed_messages
from squelch.cluster.inspector.texts import Pieces
from squelch.cluster.runs.folder import RunFolder
from squelch.envs.prompt_file.rows import open_prompts
from squelch.kit.archive.rows import list_column
from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.files import MIB, is_file

BUDGET_S = 0.3
"""Seconds for the previews of a page; the page asks again for those that are left."""
MOST_KEPT = 5_000
MOST_CHARACTERS = 110
MOST_PROMPTS = 64 * MIB
"""Bytes of a file of prompts from which answers are read."""
ANSWERS = ("answer", "solution", "expected", "target", "ground_truth", "final_answer", "label")
"""Columns that hold the expected answer, the first that a row has."""
WITH_FILES = {
    "Prompts": {"prompt_column": "prompt", "tools_column": "tools"},
    "Agent": {"prompt_column": "prompt", "tools_column": ""},
}
"""Environments whose tasks are rows of a file, with the options that name its columns and their defaults."""
COLUMNS = ("group_id", "trajectory", "failure_cause", "token_ids", "loss_mask", "turns")
_MARKUP = re.compile(r"<\|[^|>]{1,40}\|>|</?(?:think|answer)>|\s+")


@dataclass(frozen=True)
class Preview:
    """Each at most `MOST_CHARACTERS` characters, in one line. `expected`: empty if it is not known."""

    prompt: str
    completion: str
    expected: str = ""


Key = tuple[int, str, int, int]


class Previews:
    """The previews of a run's groups. Threads may share it."""

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock, self._lock = folder, clock, threading.Lock()
        self._kept: OrderedDict[Key, Preview] = OrderedDict()
        self._answers = Answers(folder)

    def of(self, rows: Sequence[Mapping[str, Any]], pieces: Pieces) -> dict[str, Preview]:
        """By group id, those of these rows of the index that there was time for."""
        until = self._clock() + BUDGET_S
        with self._lock:
            for step in dict.fromkeys(row["step"] for row in rows if _key(row) not in self._kept):
                if self._clock() > until:
                    break
                wanted = {row["group_id"]: row for row in rows if row["step"] == step}
                found = dict.fromkeys(wanted, Preview("", ""))
                with suppress(UserError):  # a damaged part is named where its groups are opened
                    found |= self._read(step, wanted, pieces)
                self._kept |= {_key(wanted[name]): one for name, one in found.items()}
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return {row["group_id"]: self._kept[key] for row in rows if (key := _key(row)) in self._kept}

    def _read(self, step: int, wanted: Mapping[str, Mapping[str, Any]], pieces: Pieces) -> dict[str, Preview]:
        """The previews of some groups of a step, each by its first trajectory that did not fail."""
        table = self._folder.groups([step], COLUMNS)
        names, failed = table["group_id"].to_pylist(), table["failure_cause"].to_pylist()
        first: dict[str, int] = {}
        for row, name in enumerate(names):
            if name in wanted and (name not in first or (failed[first[name]] and not failed[row])):
                first[name] = row
        few = table.take(list(first.values()))
        ids, masks, turns = list_column(few, "token_ids"), list_column(few, "loss_mask"), few["turns"].to_pylist()
        return {
            name: Preview(
                prompt_words(ids[at][: _opening(masks[at])], pieces),
                _completion(ids[at], turns[at], pieces),
                self._answers.of(wanted[name]),
            )
            for at, name in enumerate(first)
        }


def _key(row: Mapping[str, Any]) -> Key:
    """Another group of the same name, after a step was played again, has other facts."""
    return row["step"], row["group_id"], row["num_tokens"], row["version_min"] or 0


def prompt_words(fed: np.ndarray, pieces: Pieces) -> str:
    """The first words of the last message among fed ids; of the whole text without messages."""
    messages = fed_messages(fed.tolist(), pieces.added, pieces.text)
    return shortened_line(messages[-1].text if messages else pieces.text(fed))


def _opening(mask: np.ndarray) -> int:
    """Ids that were fed before the first sampled one."""
    return int(mask.argmax()) if mask.any() else len(mask)


def _completion(ids: np.ndarray, turns: Sequence[Mapping[str, Any]], pieces: Pieces) -> str:
    """What the last turn says after its reasoning; all of it if that is nothing."""
    if not turns:
        return ""
    start, closed, end = (turns[-1][name] for name in ("sample_start", "reasoning_end", "sample_end"))
    return shortened_line(pieces.text(ids[closed:end])) or shortened_line(pieces.text(ids[start:end]))


def shortened_line(text: str) -> str:
    """The text in one line, without control tokens and markers of reasoning and answer."""
    line = " ".join(_MARKUP.sub(" ", text).split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}\u2026"


class Answers:
    """The expected answers of a run whose tasks are rows of a file."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._settings: Mapping[str, Any] | None = None

    def of(self, row: Mapping[str, Any]) -> str:
        """That of a group's task; empty if it is not known."""
        if row["environment"] not in WITH_FILES or row["split"] not in ("train", "validation"):
            return ""
        try:
            data, column, tools = self._file(row["environment"])
            if not _is_local(data):
                return ""
            prompt = open_prompts(data, column, row["split"], tools).of(row["task_seed"])
        except (UserError, ValueError, OSError):  # the file is gone, or another one by now
            return ""
        known = [prompt.columns[name] for name in ANSWERS if isinstance(prompt.columns.get(name), str | int | float)]
        return shortened_line(str(known[0])) if known and prompt.key == row["task_key"] else ""

    def _file(self, environment: str) -> tuple[Any, str, str]:
        """What `open_prompts` reads."""
        if self._settings is None:
            self._settings = self._folder.settings()
        options = {"data": None, **WITH_FILES[environment]}
        given = {name: self._settings.get(f"environment.options.{name}", plain) for name, plain in options.items()}
        return given["data"], str(given["prompt_column"]), str(given["tools_column"])


def _is_local(data: Any) -> bool:
    """Whether it is one local file that is not too large; nothing is downloaded, and no package is imported."""
    if not isinstance(data, str) or "\0" in data:
        return False
    path = Path(data)
    return is_file(path) and path.stat().st_size <= MOST_PROMPTS
