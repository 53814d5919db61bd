"""Follows the folders that a trainer writes: which step can be scored, which one waits for what, what is skipped.

    files of a step ──whole──▶ its checkpoint, by the format's rule ──whole──▶ ready
                                      ├─ a later one is there, or `wait_s` is over ──▶ skipped
                                      └─ else ──▶ waiting

Steps come in their order, because averages and alarms follow them: while one waits, later ones do too.

A file is whole once it has the same size and time in two looks, and a checkpoint too. Trainers write checkpoints in
order, so if a later one is there, a missing one was not saved, or was pruned, and its step is skipped at once.

| waits for | unblocked by | bound |
|---|---|---|
| a file that is still being written | its trainer | its end: two looks without a change, or a later step in the file |
| the checkpoint that sampled a step | its trainer; whoever merges shards | `wait_s` from the look that found the step |

One look reads the names in both folders; of a file whose name does not say its step it reads the records, again only
when the file has changed. Nothing here waits, prints or loads a model. No torch, no Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import duration
from squelch.kit.readers.formats import FORMATS, Format, format_named, format_of, steps_in, steps_of_records
from squelch.kit.untrusted.files import Unreadable, is_file, state

MODEL_FOLDERS = (".", "huggingface", "actor/huggingface", "actor", "policy", "weights", "model", "hf")
"""Where a checkpoint holds its model in Hugging Face's form, in the order of looking."""
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
    """The newest step of which there are samples."""


@dataclass
class Follower:
    """The state of following one run. `last`: the step up to which all is decided; `due`: the first step to score;
    `settled`: whether files count as whole at the first look, and nothing is given up for its time (`--once`)."""

    folder: Path
    checkpoints: Path
    initial: Path | None = None
    format_name: str | None = None
    every: int = 1
    wait_s: float = 3600.0
    settled: bool = False
    last: int | None = None
    due: int | None = None
    _format: Format | None = None
    _marks: dict[Path, Mark] = field(default_factory=dict)
    _model_marks: dict[Path, Mark] = field(default_factory=dict)
    _changed: set[Path] = field(default_factory=set)
    _steps: dict[Path, tuple[Mark, list[int]]] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)

    def look(self, now: float) -> Look:
        """Looks at both folders; `now`: seconds of any clock. UserError if the folder's format cannot be followed."""
        found = Look()
        if self._format is None:
            self._format = self._recognised()
        if self._format is None:
            found.waiting = f"the first file of samples in {self.folder}"
            return found
        steps = steps_in(self.folder, self._format, _samples(self.folder, self._format), self._steps_of)
        self._note_marks([path for paths in steps.values() for path in paths])
        found.newest = max(steps, default=None)
        pending = sorted(step for step in steps if self.last is None or step > self.last)
        for step in pending:
            self._since.setdefault(step, now)
        for step in pending:
            if self._look_at(step, steps[step], found, now, is_newest=step == found.newest):
                return found
        found.waiting = "the next step" if found.newest is not None else f"the first step in {self.folder}"
        return found

    def decided(self, step: int, scored: bool) -> None:
        """Notes that a step was scored, or cannot be."""
        self.last = step
        self._since.pop(step, None)
        if scored:
            self.due = step + self.every

    def _look_at(self, step: int, files: list[Path], found: Look, now: float, is_newest: bool) -> bool:
        """Puts a pending step into `found`. Returns whether later steps have to wait for it."""
        if self.due is not None and step < self.due:
            self.decided(step, False)
            return False
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
        refusal: UserError | Unreadable | None = None
        for one in FORMATS.values():
            for path in _samples(self.folder, one):
                try:
                    found = format_of(path)
                except (UserError, Unreadable) as error:  # perhaps its first record is being written
                    refusal = error
                    continue
                if found is one:
                    return _followed(found, self.folder)
                if found.weights is None:
                    _followed(found, self.folder)
        if refusal is not None and self.settled:
            raise refusal
        return None

    def _steps_of(self, path: Path, found: Format) -> list[int]:
        """The steps that a file's records say, which are read again only when the file has changed."""
        mark = _mark(path)
        known = self._steps.get(path)
        if mark is None or (known is not None and known[0] == mark):
            return known[1] if known else []
        try:
            steps = steps_of_records(path, found)
        except (UserError, Unreadable):
            return known[1] if known else []  # it grows, or was damaged; what it held before is decided by its rows
        self._steps[path] = mark, steps
        return steps

    def _holds_later(self, files: list[Path], step: int) -> bool:
        """Whether each of these growing files holds a later step already, so that this step is whole."""
        return all(path in self._steps and max(self._steps[path][1], default=step) > step for path in files)

    def _note_marks(self, paths: list[Path]) -> None:
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
        there = rule.checkpoints(self.checkpoints)
        if number in there:
            model = model_in(there[number])
            if model is None:
                what = f"{there[number]} holds no model in Hugging Face's form (config.json with safetensors)"
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
        raise UserError(
            f"{folder}: the format {found.name} does not say which checkpoint sampled a step; name the trainer's with "
            "--format, or score each file by `squelch score FILE --model CHECKPOINT`"
        )
    return found


def _samples(folder: Path, found: Format) -> Iterator[Path]:
    """The files of training samples in a folder, without those of evaluations."""
    for path in sorted(folder.glob(found.files)):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if is_file(path) and not found.evaluates(path) and not hidden:
            yield path


def model_in(checkpoint: Path) -> Path | None:
    """The folder within a checkpoint that holds a model, or an adapter; None if none does."""
    for name in MODEL_FOLDERS:
        found = checkpoint / name
        configured = any(is_file(found / file) for file in ("config.json", "adapter_config.json"))
        if configured and any(found.glob("*.safetensors")):
            return found
    return None


def _mark(path: Path) -> Mark | None:
    found = state(path)
    return None if found is None else (found.st_size, found.st_mtime_ns)
