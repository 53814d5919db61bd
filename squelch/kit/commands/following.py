"""Follows the folders that a trainer writes: which step can be scored, which one waits for what, what is skipped.

    files of a step ──whole──▶ its checkpoint, by the format's rule ──whole──▶ ready
                                      ├─ a later one is there, or `wait_s` is over ──▶ skipped
                                      └─ else ──▶ waiting

Steps come in their order, because averages and alarms follow them: while one waits, later ones do too. A step that is
skipped ends nothing before it or after it: only a scored one moves `last`.

A file is whole once it has the same size and time in two looks, and a checkpoint too, with all of its shards. Trainers
write checkpoints in order, so if a later one is there, a missing one was not saved, or was pruned, and its step is
skipped at once. If a file of decided steps is written later than all of them were, training has started again there; of
a file that many steps share, its records tell whether they are late rows or another training's.

| waits for | unblocked by | bound |
|---|---|---|
| a file that is still being written | its trainer | its end: two looks without a change, or a later step in the file |
| the checkpoint that sampled a step | its trainer; whoever merges shards | `wait_s` from the look that found the step |

One look reads the names in both folders, once. It reads the columns of files until it knows the format, and the
records of a file whose name does not say its step; both again only when the file has changed. Nothing here waits,
prints or loads a model. No torch, no Ray.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import duration
from squelch.kit.readers.format import Format
from squelch.kit.readers.formats import FORMATS, format_named, format_of
from squelch.kit.readers.rows import MOST_STEPS, FileSteps, steps_and_starts, steps_in
from squelch.kit.untrusted.files import Unreadable, is_file, state

MODEL_FOLDERS = (".", "huggingface", "actor/huggingface", "actor", "policy", "weights", "model", "hf")
"""Where a checkpoint holds its model in Hugging Face's form, in the order of looking."""
_NAMES = frozenset(one.files for one in FORMATS.values())
_SHARD = re.compile(r"-of-(\d{5})\.safetensors$")
Mark = tuple[int, int]
"""Size and time of a file."""


@dataclass(frozen=True)
class Ready:
    """A step that can be scored. `checkpoint`: its name, in words; `model`: the folder that holds it."""

    step: int
    files: tuple[Path, ...]
    checkpoint: str
    model: Path


@dataclass(frozen=True)
class Skipped:
    """A step that is never scored, and why."""

    step: int
    reason: str


@dataclass
class Look:
    """What one look found. `waiting`: what the next step waits for, in words; None if a step is ready."""

    ready: Ready | None = None
    skipped: list[Skipped] = field(default_factory=list)
    waiting: str | None = None
    left_s: float | None = None
    """Seconds after which the waiting step is skipped; None if no step waits for a checkpoint."""
    newest: int | None = None
    """The newest step of which there are samples, without those that are skipped."""
    again: Path | None = None
    """A file of decided steps that was written after they were decided."""


@dataclass
class Follower:
    """The state of following one run. `last`: the last scored step, up to which all is decided; `skipped`: steps above
    it that are decided; `written`: the latest time of a file of decided steps, in ns; `held`: the steps that the
    records of such a file said then; `starts`: how often they showed a new start of training as its first step was
    decided; `due`: the first step to score; `settled`: whether files count as whole at the first look, and nothing is
    given up for its time (`--once`)."""

    folder: Path
    checkpoints: Path
    initial: Path | None = None
    format_name: str | None = None
    every: int = 1
    wait_s: float = 3600.0
    settled: bool = False
    last: int | None = None
    skipped: set[int] = field(default_factory=set)
    written: int | None = None
    held: dict[str, list[int]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    due: int | None = None
    _format: Format | None = None
    _marks: dict[Path, Mark] = field(default_factory=dict)
    _model_marks: dict[Path, Mark] = field(default_factory=dict)
    _changed: set[Path] = field(default_factory=set)
    _file_steps: dict[Path, tuple[Mark, FileSteps]] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)
    _formats: dict[Path, tuple[Mark | None, Format | UserError | Unreadable]] = field(default_factory=dict)
    _files: dict[int, list[Path]] = field(default_factory=dict)
    _checkpoints: dict[int, Path] | None = None

    def look(self, now: float) -> Look:
        """Looks at both folders; `now`: seconds of any clock. UserError if the folder's format cannot be followed."""
        found = Look()
        if self._format is None:
            self._format = self._recognised()
        if self._format is None:
            found.waiting = f"the first file of samples in {self.folder}"
            return found
        self._checkpoints = None
        self._files = steps_in(self.folder, self._format, _samples(self.folder, self._format), self._steps_of)
        self._note_marks({path for paths in self._files.values() for path in paths})
        found.again = self._written_again()
        for step in sorted(step for step in self._files if step >= MOST_STEPS and not self._is_decided(step)):
            found.skipped.append(Skipped(step, "no training has so many steps; these rows are left out"))
            self.decided(step, False)
        due = self._files if self.due is None else [step for step in self._files if step >= self.due]
        pending = sorted(step for step in due if not self._is_decided(step))
        found.newest = max((step for step in self._files if step not in self.skipped), default=None)
        for step in pending:
            self._since.setdefault(step, now)
        for step in pending:
            if self._look_at(step, found, now, is_newest=step == found.newest):
                return found
        found.waiting = "the next step" if self._files else f"the first step in {self.folder}"
        return found

    def decided(self, step: int, scored: bool) -> None:
        """Notes that a step was scored, or cannot be."""
        self._since.pop(step, None)
        decided = [step]
        if scored:
            self.last, self.due = step, step + self.every
            self.skipped = {other for other in self.skipped if other > step}
            decided = [other for other in self._files if self._is_decided(other)]
        else:
            self.skipped.add(step)
        paths = {path for other in decided for path in self._files.get(other, ())}
        self.written = max([self.written or 0, *(self._marks[path][1] for path in paths if path in self._marks)])
        found = {str(path): self._file_steps[path][1] for path in paths if path in self._file_steps}
        self.held |= {path: one.steps for path, one in found.items()}
        self.starts = {path: one.starts for path, one in found.items()} | self.starts

    def _is_decided(self, step: int) -> bool:
        return step in self.skipped or (self.last is not None and step <= self.last)

    def _written_again(self) -> Path | None:
        """A file that is later than its decided steps and of another training. One that says its steps in its records
        must hold no other steps and have an earlier one than before, or show a new start: evaluations and late rows are
        written there too."""
        if self.written is None:
            return None
        going_on = {path for step, paths in self._files.items() if not self._is_decided(step) for path in paths}
        for path, mark in self._marks.items():
            found = self._file_steps[path][1] if path in self._file_steps else None
            starts = found is not None and found.starts > self.starts.get(str(path), found.starts)
            is_new = found is None or bool(set(found.steps) - set(self.held.get(str(path), ())))
            if mark[1] > self.written and (starts or (is_new and path not in going_on)):
                return path
        return None

    def _look_at(self, step: int, found: Look, now: float, is_newest: bool) -> bool:
        """Puts a pending step into `found`. Returns whether later steps have to wait for it."""
        files = self._files[step]
        changing = [path for path in files if path in self._changed]
        if changing and (is_newest or not self._holds_later(changing, step)):
            found.waiting = f"step {step}: {changing[0].name} is still being written"
            return True
        left = None if self.settled else self.wait_s - (now - self._since[step])
        ready = self._model_of(step, files)
        if isinstance(ready, Ready):
            found.ready = ready
            return True
        if isinstance(ready, _Wait) and (left is None or left > 0):
            found.waiting, found.left_s = ready.what, left
            return True
        found.skipped.append(Skipped(step, ready.over if isinstance(ready, _Wait) else ready))
        self.decided(step, False)
        return False

    # -- files -------------------------------------------------------------------------------------------------------

    def _recognised(self) -> Format | None:
        """The format of the folder; None as long as no file is there whose format is known."""
        if self.format_name is not None:
            return _followed(format_named(self.format_name), self.folder)
        named = (path for path in sorted(self.folder.glob("**/*")) if any(path.match(name) for name in _NAMES))
        there = [path for path in named if not self._is_unknown(path)]
        refusal: UserError | Unreadable | None = None
        for one in FORMATS.values():
            for path in there:
                if not _is_sample(path, self.folder, one):
                    continue
                found = self._format_at(path)
                if not isinstance(found, Format):
                    refusal = found
                elif found.is_general:  # perhaps the training data
                    refusal = _cannot_follow(found, self.folder)
                elif found is one or found.weights is None:
                    return _followed(found, self.folder)
        if refusal is not None and self.settled:
            raise refusal
        return None

    def _is_unknown(self, path: Path) -> bool:
        """Whether the file has not changed since its format was not known."""
        mark, found = self._formats.get(path, (None, None))
        return isinstance(found, UserError | Unreadable) and mark == _mark(path)

    def _format_at(self, path: Path) -> Format | UserError | Unreadable:
        """The format of a file, or why it is not known: perhaps its first record is being written."""
        mark = _mark(path)
        if path not in self._formats or self._formats[path][0] != mark:
            try:
                self._formats[path] = mark, format_of(path)
            except (UserError, Unreadable) as error:
                self._formats[path] = mark, error
        return self._formats[path][1]

    def _steps_of(self, path: Path, found: Format) -> list[int]:
        """The steps that a file's records say, which are read again only when the file has changed."""
        mark = _mark(path)
        known = self._file_steps.get(path)
        if mark is None or (known is not None and known[0] == mark):
            return known[1].steps if known else []
        try:
            read = steps_and_starts(path, found)
        except (UserError, Unreadable):
            return known[1].steps if known else []  # it grows, or was damaged; what it held is decided by its rows
        self._file_steps[path] = mark, read
        return read.steps

    def _holds_later(self, files: list[Path], step: int) -> bool:
        """Whether each of these growing files holds a later step already, so that this step is whole."""
        return all(
            path in self._file_steps and any(step < later < MOST_STEPS for later in self._file_steps[path][1].steps)
            for path in files
        )

    def _note_marks(self, paths: Iterable[Path]) -> None:
        """Notes which files have changed since the last look."""
        marks = {path: mark for path in paths if (mark := _mark(path)) is not None}
        self._changed = set() if self.settled else {path for path in marks if self._marks.get(path) != marks[path]}
        self._marks = marks

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _model_of(self, step: int, files: list[Path]) -> Ready | _Wait | str:
        """The step with its model; what it waits for; or why it can never be scored."""
        assert self._format is not None
        rule = self._format.rule_for(files[0])
        assert rule is not None, "only such formats are followed"
        number = rule.sampled_by(step)
        name = rule.name(number)
        if number < rule.first:
            if self.initial is None:
                return "the initial model sampled it; give that with --initial"
            return Ready(step, tuple(files), name, self.initial)
        if self._checkpoints is None:
            self._checkpoints = rule.checkpoints(self.checkpoints)
        there = self._checkpoints
        if number in there:
            model = model_in(there[number])
            if model is None:
                what = f"{there[number]} holds no whole model in Hugging Face's form (config.json with safetensors)"
                return _Wait(f"a model for step {step}: {what} yet; merge its shards", what)
            if self._is_changing(model):
                return _Wait(f"{name}, which is still being written", f"{name} kept changing")
            return Ready(step, tuple(files), name, model)
        later = [other for other in there if other > number]
        if later:
            found = rule.name(min(later))
            return f"{name} sampled it and is not there, but {found} is: it was not saved, or was removed"
        over = f"{name} sampled it and is not there after {duration(self.wait_s)} (--wait)"
        return _Wait(f"{name}, whose weights sampled step {step}", over)

    def _is_changing(self, model: Path) -> bool:
        """Whether a file of the model has changed since the last look."""
        marks = {path: mark for path in sorted(model.iterdir()) if is_file(path) and (mark := _mark(path)) is not None}
        changing = not self.settled and any(self._model_marks.get(path) != mark for path, mark in marks.items())
        self._model_marks = marks
        return changing


@dataclass(frozen=True)
class _Wait:
    """What a step waits for, in words, and the reason of its skipping once the bound is over."""

    what: str
    over: str


def _followed(found: Format, folder: Path) -> Format:
    """The format, if its files say which weights sampled them."""
    if found.weights is None:
        raise _cannot_follow(found, folder)
    return found


def _cannot_follow(found: Format, folder: Path) -> UserError:
    return UserError(
        f"{folder}: the format {found.name} does not say which checkpoint sampled a step; name the trainer's with "
        "--format, or score each file by `squelch score FILE --model CHECKPOINT`"
    )


def _samples(folder: Path, found: Format) -> Iterator[Path]:
    """The files of training samples in a folder, without those of evaluations."""
    return (path for path in sorted(folder.glob(found.files)) if _is_sample(path, folder, found))


def _is_sample(path: Path, folder: Path, found: Format) -> bool:
    named = path.match(found.files) and (found.files.startswith("**/") or path.parent == folder)
    hidden = "/." in path.as_posix().removeprefix(folder.as_posix())
    return named and not hidden and not found.evaluates(path) and is_file(path)


def model_in(checkpoint: Path) -> Path | None:
    """The folder within a checkpoint that holds a model, or an adapter; None if none does."""
    for name in MODEL_FOLDERS:
        found = checkpoint / name
        configured = any(is_file(found / file) for file in ("config.json", "adapter_config.json"))
        if configured and _holds_weights(found):
            return found
    return None


def _holds_weights(folder: Path) -> bool:
    """Whether safetensors are there, with all shards that their names count."""
    names = [path.name for path in folder.glob("*.safetensors")]
    shards = Counter(int(match[1]) for name in names if (match := _SHARD.search(name)))
    return bool(names) and all(number >= count for count, number in shards.items())


def _mark(path: Path) -> Mark | None:
    found = state(path)
    return None if found is None else (found.st_size, found.st_mtime_ns)
