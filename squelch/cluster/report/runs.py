"""The runs of a report, and their arms: runs whose configurations differ in the seed only.

Invariants:

- An arm is found from the resolved configurations, never from folders' names. `NOT_OF_THE_ARM` lists what may differ.
- Within an arm each seed counts once: of two runs with one seed, the longer one does, and a note names the other.
- An arm's label names the settings in which arms of its environment differ, and no other arm has it.
- A run needs a configuration and metrics; what its metrics do not have is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.series import series
from squelch.cluster.setting_keys import below, environment_name, labels_of, unplaced
from squelch.cluster.sweep.table import OF_THE_FILTER
from squelch.kit.archive.store import Store
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import one_line
from squelch.kit.untrusted.files import shortened

if TYPE_CHECKING:
    from squelch.kit.findings.finder import Finding

NOT_OF_THE_ARM = (
    *("seed", "name", "runs_dir", "cluster", "recorder", "environment.train_seed", "environment.validation_seed"),
    *("model.cache", "findings"),
)
"""Settings, and blocks of settings, that differ between the runs of one arm."""
MAX_LABEL_SETTINGS = 4
LONGEST_WORD = 40
"""Characters of a name or a setting's value in a label. They come from a run's files, so they are made printable."""
NO_FILTER = "no filter"


@dataclass(frozen=True)
class Run:
    """One run. `settings`: its configuration by dotted key; `lines`: its metrics, one for each step."""

    folder: str
    settings: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    findings: Sequence[tuple[Finding, str]] | None = None
    """Those that hold, with their commands; None in a run of a release without findings."""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.settings["seed"])

    @property
    def environment(self) -> str:
        """Name of the run's environment."""
        return shortened(one_line(environment_name(self.settings) or ""), LONGEST_WORD)

    @property
    def steps(self) -> int:
        """The last recorded step."""
        return max((int(line["step"]) for line in self.lines), default=0)

    def series(self, key: str) -> dict[int, float]:
        """A figure by the step that it describes, as `cluster.runs.series.series`."""
        return series(self.lines, key)


@dataclass(frozen=True)
class Arm:
    """Runs of one configuration but for the seed, in order of the seed. `settings`: without `NOT_OF_THE_ARM`."""

    environment: str
    label: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def filtered(self) -> bool:
        """Whether the filter drops groups."""
        return self.settings.get("filter.rule") != "none"

    def without(self, keys: Iterable[str]) -> str:
        """The settings outside the keys, and the blocks, as one comparable text. A key of `environment` stands for that
        of each of several environments."""
        keys = tuple(keys)
        rest = {key: value for key, value in self.settings.items() if not below(unplaced(key), keys)}
        return json.dumps(rest, sort_keys=True, default=str)


@dataclass(frozen=True)
class Study:
    """All arms, in order of environment and label, and notes for the reader."""

    arms: tuple[Arm, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        """Every run that counts."""
        return [run for arm in self.arms for run in arm.runs]

    @cached_property
    def environments(self) -> dict[str, list[Arm]]:
        """The arms of each environment."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            found.setdefault(arm.environment, []).append(arm)
        return found

    def families(self, keys: Sequence[str]) -> list[list[Arm]]:
        """Sets of two arms or more that differ in nothing but these settings (or blocks of settings). A key of
        `environment` stands for that of each of several environments."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            if any(below(unplaced(key), keys) for key in arm.settings):
                found.setdefault(arm.without(keys), []).append(arm)
        return [arms for arms in found.values() if len(arms) > 1]


def find_runs(places: Sequence[Path | Store]) -> list[Run]:
    """The runs in these folders: each holds a run, or, as a sweep's, the folders of runs. A store holds one run.

    Raises:
        UserError: a folder holds no run, or a file of a run is damaged or of a newer version.
    """
    found: dict[str, Run] = {}
    for folder in places:
        if not isinstance(folder, Path):
            found.setdefault(folder.where(), read_run(folder))
            continue
        inside = [folder] if _holds_run(folder) else sorted(f for f in _folders_in(folder) if _holds_run(f))
        if not inside:
            raise UserError(f"{folder} holds no run: neither it nor a folder in it has config.yaml; give runs/NAME")
        for path in inside:
            found.setdefault(str(path.resolve()), read_run(path))
    return list(found.values())


def _holds_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _folders_in(folder: Path) -> list[Path]:
    RunFolder(folder).require()
    return [path for path in folder.iterdir() if path.is_dir()]


def read_run(place: Path | Store) -> Run:
    """The run in its present state, live or finished.

    Raises:
        UserError: a file is damaged, or of a newer version, or the configuration lacks what every run has.
    """
    reader = RunFolder(place).require()
    folder = reader.store.where()
    settings = reader.settings()
    played = "environments[0].name" if labels_of(settings) else "environment.name"
    for key, kind in (("seed", int), (played, str), ("filter.rule", str)):
        if not isinstance(settings.get(key), kind):
            raise UserError(f"{folder}/config.yaml is not the resolved configuration of a run: `{key}` is missing")
    return Run(folder, settings, reader.metrics(), reader.findings())


def study_of(runs: Sequence[Run]) -> Study:
    """The arms of these runs."""
    notes: list[str] = []
    by_arm: dict[tuple[str, str], dict[int, Run]] = {}
    for run in runs:
        key = json.dumps(arm_settings(run), sort_keys=True, default=str)
        seeds = by_arm.setdefault((run.environment, key), {})
        other = seeds.get(run.seed)
        kept, left = (run, other) if other is None or run.steps > other.steps else (other, run)
        seeds[run.seed] = kept
        if left is not None:
            notes.append(one_line(f"{left.folder} is left out: {kept.folder} has its settings and seed, and its steps"))
    notes += [
        one_line(f"{run.folder} has no figures: no training step of it is recorded, only what was validated before")
        for seeds in by_arm.values()
        for run in seeds.values()
        if not run.steps
    ]
    groups = [(environment, list(seeds.values())) for (environment, _), seeds in by_arm.items()]
    labels = _labels(groups)
    arms = [
        Arm(environment, label, arm_settings(own[0]), tuple(sorted(own, key=lambda run: run.seed)))
        for (environment, own), label in zip(groups, labels, strict=True)
    ]
    return Study(tuple(sorted(arms, key=_order)), tuple(notes))


def arm_settings(run: Run) -> dict[str, Any]:
    """The settings that define a run's arm."""
    return {key: value for key, value in run.settings.items() if not below(unplaced(key), NOT_OF_THE_ARM)}


def differing(arms: Sequence[Arm]) -> dict[str, list[Any]]:
    """Each setting whose value differs between the arms, with its value in each; None where an arm lacks it."""
    keys = list(dict.fromkeys(key for arm in arms for key in arm.settings))
    table = {key: [arm.settings.get(key) for arm in arms] for key in keys}
    return {key: values for key, values in table.items() if len({json.dumps(v, default=str) for v in values}) > 1}


def _order(arm: Arm) -> tuple[Any, ...]:
    """By environment; the arm without a filter first, which the others are compared with."""
    return arm.environment, arm.filtered, arm.label


def _labels(groups: Sequence[tuple[str, Sequence[Run]]]) -> list[str]:
    settings = [arm_settings(runs[0]) for _, runs in groups]
    labels = []
    for (environment, _), own in zip(groups, settings, strict=True):
        peers = [other for (theirs, _), other in zip(groups, settings, strict=True) if theirs == environment]
        labels.append(label_of(own, peers))
    repeated = {(group[0], label) for group, label in zip(groups, labels, strict=True)}
    if len(repeated) < len(groups):  # more settings differ than a label names
        return [f"{label} ({Path(runs[0].folder).name})" for (_, runs), label in zip(groups, labels, strict=True)]
    return labels


def label_of(own: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> str:
    """The differences of these settings from the peers' (which include them), e.g. `top_p 0.9, entropy 0.1`."""
    keys = _varied(own, peers)
    of_filter = [key for key in keys if key.startswith("filter.")]
    words = _filter_words(own, of_filter) if of_filter or not keys else []
    words += [_setting(own, key) for key in keys if key not in of_filter]
    shown = words[:MAX_LABEL_SETTINGS]
    return ", ".join(shown) + (", ..." if len(words) > len(shown) else "")


def _varied(own: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings whose values differ among the peers."""
    return [key for key in own if len({json.dumps(peer.get(key), default=str) for peer in peers}) > 1]


SHORT = {
    "learner.objective.entropy_coefficient": "entropy",
    "learner.objective.kl.coefficient": "KL",
    "environment.options.slip_rate": "slip",
    "learner.optimizer.learning_rate": "learning rate",
    "loop.max_staleness": "staleness",
}


def filter_label(own: Mapping[str, Any], peers: Sequence[Mapping[str, Any]] = ()) -> str:
    """The filter in two words, e.g. `top_p 0.9`, and the settings in which the peers' filters differ, e.g.
    `top_p 0.9, target task`."""
    filtered = [peer for peer in peers if peer.get("filter.rule") != "none"]
    return ", ".join(_filter_words(own, [key for key in _varied(own, filtered) if below(key, OF_THE_FILTER)]))


def _filter_words(own: Mapping[str, Any], varied: Sequence[str]) -> list[str]:
    """The filter's rule and rho, and those settings of it that vary."""
    if own.get("filter.rule") == "none":
        return [NO_FILTER]
    rest = [_setting(own, key) for key in varied if key not in ("filter.rule", "filter.rho")]
    return [f"{_word(own.get('filter.rule'))} {_word(own.get('filter.rho'))}", *rest]


def _setting(own: Mapping[str, Any], key: str) -> str:
    return f"{SHORT.get(unplaced(key)) or _word(key.rsplit('.', 1)[-1])} {_word(own.get(key))}"


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else shortened(one_line(str(value)), LONGEST_WORD)
