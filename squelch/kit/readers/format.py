"""What is said of a format: how its files are recognised and read, their origin for the docs, and their traits for the
checks (`squelch.kit.checks`), which know no format by its name. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from squelch.kit.readers.format_rows import LeftOut, Row
from squelch.kit.readers.records import Record
from squelch.kit.readers.weights import WeightsRule


@dataclass(frozen=True)
class Origin:
    """A format's row, in Markdown, in the table of docs/guide/use-with-other-trainers.md, which `docs.writers.formats`
    writes. The sampled step stands there by the format's rule of weights."""

    program: str
    """Who writes such files, with the release, or the commit, whose files are read."""
    setting: str
    """What makes it write them; empty if nothing needs to be set."""
    file: str
    known: str
    """What rows tell, and what they do not."""
    remark: str = ""
    """On the sampled step."""
    by_hand: bool = True
    """Whether the files by which the reader is tested were made after the program's sources, not by its own writer."""


HOLDS: Mapping[str, str] = {
    "rewards": "rewards of rollouts",
    "answers": "what each rollout said, beside its reward",
    "advantages": "advantages of rollouts",
    "prompts": "the prompts of training, as ids, messages or text",
    "tasks": "what tells the tasks of rollouts apart, however these begin",
    "evaluations": "rows of evaluations in the folder of training",
    "tokens": "what was trained on, as ids, or as text that is encoded to these",
    "ids": "the ids that were sampled",
    "prompt ids": "prompts as the ids that were fed, and as nothing else",
    "rendered prompts": "prompts as ids, or as text with its special tokens",
    "ends": "the end tokens of completions, as ids or as text",
    "finish": "why each completion ended",
    "logprobs": "the log-probability of each sampled token",
    "trained logprobs": "the trainer's own log-probabilities of the same tokens",
    "loss mask": "which tokens are under the loss",
    "text of ids": "what the trainer took ids for",
    "messages of ids": "the messages from which prompts were rendered",
    "prompts of turns": "the ids that each turn was fed",
}
"""What a format's files hold, or may hold: what the checks need of them (`checks/catalogue.yaml`)."""


@dataclass(frozen=True)
class Traits:
    """A format's traits. The defaults claim nothing, so that a check which needs more is unknown."""

    holds: frozenset[str] = frozenset()
    """Keys of `HOLDS`."""
    groups: Literal["whole", "streamed", ""] = ""
    """How the rows of a group are written: all of them in one step, failures included; as rollouts end, so that groups
    are in flight at the end of the files, and cancelled rollouts leave no row; or not for sure."""
    names_groups: bool = True
    """Whether groups have ids; else groups of one prompt in a step are told apart by their order alone."""
    groups_are_files: bool = False
    """Whether a file holds one group, whatever weights sampled its rows; its id may stand in other files too."""
    drops_fed_ends: bool = False
    """Whether a rollout of several turns that ends with what was fed leaves no row."""
    one_prompt: bool = False
    """Whether the rollouts of a group begin with one prompt; an agent's may begin differently, and AReaL's prompts hold
    what was sampled in earlier turns."""
    tasks_are_texts: bool = False
    """Whether a task is only the text of the first message, which may be a system prompt that all tasks share."""
    scores_each: bool = False
    """Whether each rollout has a reward, from which its trainer learns; elsewhere only some may have a score."""
    last_rows: bool = False
    """Whether a step keeps the last rows of a batch's number, so that an evaluation pushes out those of training."""
    drops_groups: bool = False
    """Whether the trainer may sample dynamically, and then keeps no group that it dropped."""
    may_leave_unscored: bool = False
    """Whether the trainer learns nothing from a rollout that no reward function scored: it gives it the advantage 0."""
    rules_are_known: bool = False
    """Whether the trainer's rules of advantages are all known: then advantages that none explains are wrong."""
    shows_ends: bool = False
    """Whether texts have the end token, so that an empty one says that nothing was sampled."""
    raw_prompts: bool = False
    """Whether prompts of text are encoded with the special tokens that the tokenizer adds."""
    learns_all: bool = False
    """Whether the loss is meant to see every sampled token; other trainers may leave out off-policy ones."""
    tempered: bool = False
    """Whether log-probabilities are always those of the distribution that was sampled."""
    versions_are_checkpoints: bool = False
    """Whether recorded versions count checkpoints; some count the engine's updates."""
    checkpoints: WeightsRule | None = None
    """Which checkpoint sampled a step, if the format's own rule does not say: that of a run of Squelch, which counts
    versions apart from steps (a step without signal publishes none), or of a table of anybody's."""
    staleness: int = 0
    """Steps by which rows of a healthy run may be late where nothing claims a staleness: its files do not tell which of
    its scripts ran, one of which is asynchronous."""


@dataclass(frozen=True)
class Format:
    """The form in which a trainer writes its samples."""

    name: str
    """As `--format` takes it."""
    needs: tuple[frozenset[str], ...]
    """A file is of this format if it has all columns of one of these sets; none if only `--format` selects it."""
    rows: Callable[[Record, str], Iterator[Row | LeftOut]]
    """The rows of a record; its second argument names the record in errors."""
    weights: WeightsRule | None = None
    """Which checkpoint sampled a step; None if the trainer's files do not say."""
    step_in_path: re.Pattern[str] | None = None
    """Finds the step in a part of the path, where records do not hold it, or to compare."""
    files: str = "**/*.jsonl"
    """The samples in a trainer's folder, as a glob pattern."""
    evaluation: re.Pattern[str] | None = None
    """Names of files whose rows the checkpoint of the same number sampled, after the step's update."""
    columns: frozenset[str] | None = None
    """The columns that are read of a table; None for all."""
    origin: Origin | None = None
    """None for files of any origin."""
    is_general: bool = False
    """Whether a file is of this format only if its columns are of no other."""
    beside: Callable[[Path], Record] | None = None
    """What stands beside a file and belongs to each of its records."""
    layout: tuple[str, ...] = ()
    """Glob patterns of paths that show a folder to be of this format."""
    without: frozenset[str] = frozenset()
    """Names of folders, within a folder of samples, that hold none."""
    traits: Traits = Traits()
    """What the checks ask."""

    def matches(self, columns: tuple[str, ...]) -> bool:
        """Whether a file with these columns is of this format."""
        return any(needed <= set(columns) for needed in self.needs)

    def laid_out_in(self, folder: Path) -> bool:
        """Whether a folder has this format's layout."""
        return any(any(folder.glob(pattern)) for pattern in self.layout)

    def step_of(self, path: Path) -> int | None:
        """The step that the path names, the last of its parts first; None if it names none."""
        if self.step_in_path is not None:
            for part in reversed(path.parts):
                if found := self.step_in_path.search(part):
                    return int(found[1])
        return None

    def evaluates(self, path: Path) -> bool:
        """Whether the rows of this file are an evaluation's."""
        return self.evaluation is not None and self.evaluation.search(path.name) is not None

    @property
    def checkpoints_rule(self) -> WeightsRule | None:
        """By which its rows are compared with checkpoints: the weights' rule, else that of its traits."""
        return self.weights or self.traits.checkpoints

    def rule_for(self, path: Path) -> WeightsRule | None:
        """The weights' rule of this file's rows: evaluations are sampled by the checkpoint of their own step."""
        if self.weights is None or not self.evaluates(path):
            return self.weights
        return WeightsRule(self.weights.folder, 0, self.weights.first)
